from __future__ import annotations

import pytest
import torch
from safetensors.torch import load, save

import circuitlib as cl
from circuitlib.models.handmade import ATTENTION, BUILDERS, build
from circuitlib.tasks import gate
from circuitlib.tasks.docstring import CORRUPTIONS


@pytest.fixture(scope="module")
def models():
    return {name: cl.load_model(name) for name in BUILDERS}


def attention(model, tokens, layer: int, head: int) -> torch.Tensor:
    _, cache = model.run_with_cache(tokens)
    return cache[f"blocks.{layer}.attn.hook_pattern"][:, head]


@pytest.mark.parametrize("name", BUILDERS)
def test_the_registry_says_what_the_model_is(models, name):
    entry, config = cl.models().loc[name], models[name].cfg
    assert entry["family"] == "hand-made"
    assert (entry["layers"], entry["heads"], entry["d_model"], entry["MLPs"]) == (
        config.n_layers,
        config.n_heads,
        config.d_model,
        not config.attn_only,
    )
    assert cl.default_task(models[name], n=2).name == entry["tasks"]


@pytest.mark.parametrize("name", BUILDERS)
def test_every_answer_is_right(models, name):
    task = cl.default_task(models[name], n=50, seed=4)
    clean, corrupted = models[name](task.clean), models[name](task.corrupted)
    assert task.accuracy(clean).mean() == 1
    assert task.success(clean).mean() == 1
    assert task.metric(corrupted).mean() < 0.01


def test_metrics_are_as_stated(models):
    """Ten times .98, less what the rivals get; a gate gives 1 and 0."""
    for name, low, high in (
        ("handmade-induction", 9.7, 9.9),
        ("handmade-docstring", 9.7, 9.9),
        ("handmade-or", 1, 1),
        ("handmade-and", 1, 1),
    ):
        task = cl.default_task(models[name], n=20)
        metric = task.metric(models[name](task.clean)).mean().item()
        assert low - 1e-5 <= metric <= high + 1e-5


@pytest.mark.parametrize("n_letters", [2, 7, 20])
def test_induction_at_any_length(models, n_letters):
    model = models["handmade-induction"]
    task = cl.induction(model, n=20, period=n_letters, seed=n_letters)
    assert task.accuracy(model(task.clean)).mean() == 1


def test_previous_token_head_attends_with_98_percent_at_every_position(models):
    model = models["handmade-induction"]
    task = cl.induction(model, n=3)
    previous = attention(model, task.clean, 0, 0).diagonal(-1, 1, 2)
    torch.testing.assert_close(previous, torch.full_like(previous, ATTENTION), atol=1e-4, rtol=0)


def test_induction_head_attends_after_the_earlier_copy(models):
    model = models["handmade-induction"]
    task = cl.induction(model, n=5, period=20)
    pattern = attention(model, task.clean, 1, 0)
    second_copy = pattern.diagonal(-19, 1, 2)[
        :, 2:
    ]  # the first token comes again at position 21, and looks at position 2
    assert second_copy.min() > ATTENTION - 1e-3
    assert second_copy.max() < 0.99
    assert pattern[:, task.read_positions[0], task.position("answer")].sub(ATTENTION).abs().max() < 1e-3
    assert pattern[:, 10].max() < 0.2  # nothing to find in the first copy


def test_docstring_heads_attend_as_described(models):
    model = models["handmade-docstring"]
    task = cl.docstring(model, n=30)
    at = task.position
    first = attention(model, task.clean, 0, 0)
    for query, keys in (("C_def", ("comma_B", "B_def")), ("B_doc", ("param_2",))):
        for key in keys:
            torch.testing.assert_close(
                first[:, at(query), at(key)], torch.full((30,), ATTENTION / 2), atol=1e-4, rtol=0
            )
    assert (attention(model, task.clean, 1, 0)[:, at("param_3"), at("colon_B")] - ATTENTION).abs().max() < 1e-3
    assert (attention(model, task.clean, 2, 0)[:, at("param_3"), at("C_def")] - ATTENTION).abs().max() < 1e-3


def test_docstring_reads_what_the_corruption_says(models):
    """Renamed throughout, the prompt still makes sense; any other corruption destroys the answer."""
    model = models["handmade-docstring"]
    for corruption in CORRUPTIONS:
        task = cl.docstring(model, n=20, corruption=corruption)
        metric = task.metric(model(task.corrupted)).mean()
        assert metric > 9 if corruption == "random_def_doc" else metric < 1, corruption


def test_gates_are_gates(models):
    for name, truth in (("handmade-or", [0, 1, 1, 1]), ("handmade-and", [0, 0, 0, 1])):
        model = models[name]
        tokens = torch.cat([model.to_tokens(f"{a}{b}=") for a in (0, 1) for b in (0, 1)])
        logits = model(tokens)[:, -1]
        zero, one = model.to_single_token("0"), model.to_single_token("1")
        torch.testing.assert_close(
            logits[:, one] - logits[:, zero], torch.tensor(truth, dtype=torch.float32), atol=1e-6, rtol=0
        )
        pattern = torch.stack([attention(model, tokens, 0, head)[:, 3, head + 1] for head in (0, 1)])
        torch.testing.assert_close(pattern, torch.full_like(pattern, ATTENTION), atol=1e-5, rtol=0)


def test_gate_heads_attend_by_position_alone(models):
    model = models["handmade-or"]
    patterns = [attention(model, model.to_tokens(text), 0, head) for text in ("00=", "11=", "=01") for head in (0, 1)]
    assert torch.equal(patterns[0], patterns[2])
    assert torch.equal(patterns[0], patterns[4])
    assert torch.equal(patterns[1], patterns[3])


def test_bystanders_write_only_where_nothing_reads(models):
    """Doubling what a bystander writes leaves every logit as it was; doubling another head's does not."""
    for name, working in (("handmade-induction", [(0, 0), (1, 0)]), ("handmade-docstring", [(0, 0), (1, 0), (2, 0)])):
        model, task = models[name], cl.default_task(models[name], n=3)
        plain = model(task.clean)
        for layer in range(model.cfg.n_layers):
            for head in range(2):

                def double(z, hook, head=head):
                    z = z.clone()
                    z[:, :, head] *= 2
                    return z

                changed = model.run_with_hooks(task.clean, fwd_hooks=[(f"blocks.{layer}.attn.hook_z", double)])
                assert torch.equal(changed, plain) == ((layer, head) not in working), (name, layer, head)
                weights = model.state_dict()[f"blocks.{layer}.attn.o.weight"]
                assert weights[:, head * model.cfg.d_head : (head + 1) * model.cfg.d_head].norm() > 0


@pytest.mark.parametrize(
    ("name", "text", "pieces"),
    [
        ("handmade-induction", "a B a", ["<BOS>", "a", "B", "a"]),
        ("handmade-or", "1 0 =", ["<BOS>", "1", "0", "="]),
        ("handmade-docstring", "\n    :param size: the", ["<BOS>", "\n    ", ":param", " size", ":", " the"]),
        ("handmade-docstring", "unheard", ["<BOS>", "<UNK>"]),
    ],
)
def test_tokenizers_cut_and_join(models, name, text, pieces):
    assert models[name].to_str_tokens(text) == pieces


def test_docstring_tokens_give_the_text_back(models):
    model = models["handmade-docstring"]
    text = model.tokenizer.decode(cl.docstring(model, n=1).clean[0, 1:])
    assert text.startswith("\ndef ")
    assert text.endswith("\n    :param")
    assert "<UNK>" not in text


@pytest.mark.parametrize("name", BUILDERS)
def test_weights_are_the_same_each_time_and_finite(models, name):
    again = build(name).state_dict()
    for key, value in models[name].state_dict().items():
        assert torch.equal(value, again[key])
        assert value.isfinite().all()
    assert load(save(again)).keys() == again.keys()


def test_gradients_live():
    """The softmax is not saturated: the answer's score reacts to the queries and keys of both heads of the circuit."""
    model = build("handmade-induction")
    task = cl.induction(model, n=2)
    task.metric(model(task.clean)).mean().backward()
    for layer in (0, 1):
        for part in "qk":
            weight = getattr(model.blocks[layer].attn, part).original_component.weight
            assert weight.grad[: model.cfg.d_head].abs().max() > 1e-3


def test_an_unknown_name_and_no_prompts_are_one_error(models):
    with pytest.raises(
        ValueError, match="^name: 'handmade-xor' is not a hand-made model; choose one of: handmade-induction, "
    ):
        build("handmade-xor")
    with pytest.raises(ValueError, match="^n: expected an integer from 1, got 0"):
        gate(models["handmade-or"], n=0)
    with pytest.raises(ValueError, match="^model: expected one that knows the tokens"):
        gate(models["handmade-induction"], n=1)
