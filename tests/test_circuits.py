"""Known circuits against an independent edge-cutting run: loops over heads and edges, weights read from the state dict."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch

import circuitlib as cl
from circuitlib.circuits import DIRECTIONS, known_circuit, known_effects
from circuitlib.graph import ABLATIONS, Edge

NAMES = ("handmade-induction", "handmade-docstring", "handmade-or", "handmade-and")
CASES = list(itertools.product(ABLATIONS, DIRECTIONS))


class Naive:
    """A model without LayerNorm on its default task, under one ablation and direction."""

    def __init__(self, name: str, n: int):
        model = cl.load_model(name)
        self.task, self.config = cl.default_task(model, n=n), model.cfg
        self.weights = {key: value.detach() for key, value in model.state_dict().items()}
        clean, corrupted = (
            self.weights["embed.weight"][t] + self.weights["pos_embed.weight"][: t.shape[1]]
            for t in (self.task.clean, self.task.corrupted)
        )
        logits, self.clean = self.run(clean)
        torch.testing.assert_close(logits, model(self.task.clean), atol=1e-4, rtol=1e-4)
        corrupted_logits, self.corrupted = self.run(corrupted)
        self.span = self.metric(logits) - self.metric(corrupted_logits)

    def metric(self, logits) -> float:
        return self.task.metric(logits).mean().item()

    def ablated(self, ablation: str) -> dict[str, torch.Tensor]:
        change = {
            "corrupted": lambda x: x,
            "zero": torch.zeros_like,
            "mean": lambda x: x.mean(0, keepdim=True).expand_as(x),
        }[ablation]
        return {sender: change(value) for sender, value in self.corrupted.items()}

    def measure(self, ablation: str, direction: str, cut=()) -> float:
        """The metric with these edges cut, as a fraction of clean minus corrupted."""
        ablated = self.ablated(ablation)
        start, reference = (self.clean, ablated) if direction == "noising" else (ablated, self.clean)
        return self.metric(self.run(start["embed"], {str(edge) for edge in cut}, reference)[0]) / self.span

    def run(self, embedding, cut=frozenset(), reference=None):
        w, c = self.weights, self.config
        out, bias = {"embed": embedding}, torch.zeros(c.d_model)

        def read(receiver):
            return bias + sum((reference if f"{sender}→{receiver}" in cut else out)[sender] for sender in out)

        for layer in range(c.n_layers):
            new = {}
            for head in range(c.n_heads):
                at = slice(head * c.d_head, (head + 1) * c.d_head)
                key = f"blocks.{layer}.attn."
                q, k, v = (
                    read(f"a{layer}.{head}.{part}") @ w[f"{key}{part}.weight"][at].T + w[f"{key}{part}.bias"][at]
                    for part in "qkv"
                )
                scores = q @ k.transpose(1, 2) / math.sqrt(c.d_head)
                scores = scores.masked_fill(torch.ones(scores.shape[1:], dtype=torch.bool).triu(1), -math.inf)
                new[f"a{layer}.{head}"] = scores.softmax(-1) @ v @ w[f"{key}o.weight"][:, at].T
            out |= new
            bias = bias + w[f"blocks.{layer}.attn.o.bias"]
            if not c.attn_only:
                hidden = (
                    read(f"m{layer}") @ w[f"blocks.{layer}.mlp.in.weight"].T + w[f"blocks.{layer}.mlp.in.bias"]
                ).relu()
                out[f"m{layer}"] = hidden @ w[f"blocks.{layer}.mlp.out.weight"].T + w[f"blocks.{layer}.mlp.out.bias"]
        return read("logits") @ w["unembed.weight"].T + w["unembed.bias"], out


@pytest.fixture(scope="module")
def full() -> dict[str, Naive]:
    return {name: Naive(name, n=20 if name in NAMES[:2] else 1) for name in NAMES}


@pytest.fixture(scope="module")
def small() -> dict[str, Naive]:
    return {name: Naive(name, n=2) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("ablation", "direction"), CASES)
def test_cutting_one_edge_does_what_is_stated(full, name, ablation, direction):
    model, sign = full[name], 1 if direction == "noising" else -1
    base = model.measure(ablation, direction)
    for edge, effect in known_effects(name, ablation, direction).items():
        assert sign * (base - model.measure(ablation, direction, [edge])) == pytest.approx(effect, abs=0.006), str(edge)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("ablation", "direction"), CASES)
def test_nothing_outside_matters_in_any_context(small, name, ablation, direction):
    """Cut everything outside: no change. Cut anything inside, and then more outside: no further change."""
    model, circuit, rng = small[name], known_circuit(name, ablation, direction), random.Random(7)
    outside = [edge for edge in circuit.graph.edges if edge not in circuit]
    assert len(outside) + len(circuit) == circuit.graph.n_edges
    for share in (0, 0.3, 0.6, 1):
        cut = [edge for edge in circuit if rng.random() < share]
        expected = model.measure(ablation, direction, cut)
        for more in (outside, [edge for edge in outside if rng.random() < 0.5]):
            assert model.measure(ablation, direction, cut + more) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("ablation", "direction"), CASES)
def test_every_edge_matters_in_some_context(small, name, ablation, direction):
    model, circuit, rng = small[name], known_circuit(name, ablation, direction), random.Random(3)
    waiting = set(circuit)
    for _ in range(400):
        others = [edge for edge in circuit if rng.random() < rng.choice((0, 0.3, 0.5, 0.7))]
        base = model.measure(ablation, direction, others)
        for edge in list(waiting):
            with_it = set(others) ^ {edge}
            if abs(model.measure(ablation, direction, with_it) - base) > 1e-3:
                waiting.discard(edge)
        if not waiting:
            return
    pytest.fail(f"never mattered: {', '.join(map(str, sorted(waiting)))}")


@pytest.mark.parametrize(("ablation", "direction"), CASES)
def test_cutting_the_whole_circuit_leaves_the_other_run(small, ablation, direction):
    for name in NAMES:
        circuit = known_circuit(name, ablation, direction)
        other = "denoising" if direction == "noising" else "noising"
        if ablation == "corrupted":
            assert small[name].measure(ablation, direction, circuit) == pytest.approx(
                small[name].measure(ablation, other), abs=1e-5
            )
        assert abs(small[name].measure(ablation, direction, circuit) - small[name].measure(ablation, direction)) > 0.5


def test_the_gate_table(small):
    """Exact effects of the two inputs; both cut at once destroy an OR gate. To the last digit but one."""
    inputs = [Edge.parse("a0.0→m0"), Edge.parse("a0.1→m0")]
    table = {
        ("handmade-or", "noising"): 0,
        ("handmade-and", "noising"): 1,
        ("handmade-or", "denoising"): 1,
        ("handmade-and", "denoising"): 0,
    }
    for (name, direction), effect in table.items():
        model, sign = small[name], 1 if direction == "noising" else -1
        base = model.measure("corrupted", direction)
        for edge in inputs:
            assert sign * (base - model.measure("corrupted", direction, [edge])) == pytest.approx(effect, abs=1e-6)
            assert known_effects(name, "corrupted", direction)[edge] == effect
        assert sign * (base - model.measure("corrupted", direction, inputs)) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(("name", "slope"), [("handmade-or", 0.0), ("handmade-and", 1.0)])
def test_the_gate_table_of_gradients(small, name, slope):
    """EAP and EAP-IG by autograd on the naive run: gradient at the MLP's input times the change, at clean and along the path."""
    model = small[name]
    change = {sender: (model.clean[sender] - model.corrupted[sender])[:, -1] for sender in ("a0.0", "a0.1")}
    metric_of = {}

    def gradient(share: float):
        heads = sum(
            model.corrupted[s] + share * (model.clean[s] - model.corrupted[s]) for s in ("embed", "a0.0", "a0.1")
        )
        x = heads.clone().requires_grad_()
        w = model.weights
        hidden = (x @ w["blocks.0.mlp.in.weight"].T + w["blocks.0.mlp.in.bias"]).relu()
        logits = (x + hidden @ w["blocks.0.mlp.out.weight"].T) @ w["unembed.weight"].T + w["unembed.bias"]
        metric_of[share] = model.metric(logits)
        return torch.autograd.grad(model.task.metric(logits).mean(), x)[0].sum(0)[-1]

    eap = {sender: (gradient(1.0) * value[0]).sum().item() for sender, value in change.items()}
    steps = 501  # odd: no step falls on the kink
    mean_gradient = sum(gradient((k + 0.5) / steps) for k in range(steps)) / steps
    eap_ig = {sender: (mean_gradient * value[0]).sum().item() for sender, value in change.items()}
    assert metric_of[1.0] == pytest.approx(1, abs=1e-6)
    assert list(eap.values()) == pytest.approx([slope, slope], abs=1e-6)
    assert list(eap_ig.values()) == pytest.approx([0.5, 0.5], abs=2e-3)


def test_an_edge_that_carries_positions_only_depends_on_the_ablation():
    for name in NAMES:
        assert "embed→a0.0.q" not in known_circuit(name)
        assert "embed→a0.0.q" not in known_circuit(name, "mean")
        assert "embed→a0.0.q" in known_circuit(name, "zero")
    assert [len(known_circuit(name)) for name in NAMES] == [4, 6, 5, 5]


def test_the_circuit_says_what_it_is_a_claim_about():
    circuit = known_circuit("handmade-docstring", ablation="zero")
    assert (circuit.task, circuit.ablation, len(circuit)) == ("docstring", "zero", 12)
    assert circuit.graph == cl.Graph(cl.load_model("handmade-docstring"))
    assert {str(head) for head in circuit.heads()} == {"a0.0", "a1.0", "a2.0"}
    assert circuit.prune() == circuit


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gpt2",), "name: no circuit is known for 'gpt2'; choose one of: handmade-induction, "),
        (("handmade-or", "resample"), "ablation: expected one of corrupted, zero, mean, got 'resample'"),
        (("handmade-or", "zero", "up"), "direction: expected one of noising, denoising, got 'up'"),
    ],
)
def test_bad_input_is_one_line(arguments, message):
    for function in (known_circuit, known_effects):
        with pytest.raises(ValueError, match="^" + message):
            function(*arguments)
