"""Models that have learnt nothing: the graph of the real ones, random weights, the same each time."""

from __future__ import annotations

import pytest
import torch

import circuitlib as cl


@pytest.fixture(scope="module")
def models():
    return {name: cl.untrained_model(name) for name in ("attn-only-4l", "gpt2")}


@pytest.mark.parametrize(
    ("name", "circuit"), [("attn-only-4l", "docstring"), ("gpt2", "ioi"), ("gpt2", "greater-than")]
)
def test_it_has_the_graph_of_the_real_model(models, name, circuit):
    assert cl.Graph(models[name]) == cl.published_circuit(circuit).graph


@pytest.mark.parametrize(("name", "d_model"), [("attn-only-4l", 16), ("gpt2", 24)])
def test_it_is_random_ready_and_the_same_each_time(name, d_model):
    first, again, other = (cl.untrained_model(name, d_model, seed=seed) for seed in (0, 0, 1))
    assert not first.training and not any(parameter.requires_grad for parameter in first.parameters())
    assert (first.cfg.d_model, first.cfg.d_head) == (d_model, d_model // first.cfg.n_heads)
    assert all(torch.equal(a, b) for a, b in zip(first.state_dict().values(), again.state_dict().values(), strict=True))
    assert not torch.equal(first.W_E, other.W_E)
    before = torch.random.get_rng_state()
    cl.untrained_model(name, d_model)
    assert torch.equal(before, torch.random.get_rng_state())


def test_it_knows_no_task(models):
    """The answer is one of the 10 other tokens of the sequence as often as chance has it."""
    for model in models.values():
        task = cl.induction(model, n=100, period=10)
        with torch.no_grad():
            assert task.success(model(task.clean)).mean() < 0.3


def test_the_engine_agrees_with_it(models):
    for model in models.values():
        task = cl.induction(model, n=2, period=5)
        engine = cl.Engine(model, task)
        assert (engine.run(engine.all) - model(task.clean)[:, -1:]).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("docstring-4l",),
            "^name: expected a model of the Hub, which has no weights here; 'docstring-4l' is shipped$",
        ),
        (("gpt3",), "^unknown model 'gpt3'"),
        (("gpt2", 50), "^d_model: expected a multiple of 12, the number of heads, got 50$"),
        (("gpt2", 0), "^d_model: expected a multiple of 12, the number of heads, got 0$"),
    ],
)
def test_bad_input_is_one_line(arguments, message):
    with pytest.raises(ValueError, match=message):
        cl.untrained_model(*arguments)
