"""The circuit found by hand: that it stays as it was frozen, and that its evidence is what the model still gives."""

from __future__ import annotations

import functools
import hashlib
import json

import pytest
import torch

import circuitlib as cl
from circuitlib.circuits import Evidence, ReferenceCircuit
from circuitlib.models.registry import SHIPPED

FILE = SHIPPED / "docstring-4l" / "reference_circuit_docstring.json"
CORRUPTIONS = ("random_random", "random_answer", "random_def", "random_doc")


@functools.cache
def circuit() -> ReferenceCircuit:
    return cl.reference_circuit("docstring-4l", "docstring")


@functools.cache
def engine(corruption: str) -> cl.Engine:
    model = cl.load_model("docstring-4l")
    prompts = circuit().prompts
    return cl.Engine(model, cl.docstring(model, n=prompts["n"], corruption=corruption, seed=prompts["seed"]))


def test_the_edges_are_those_that_were_frozen():
    """Whoever changes the circuit changes the yardstick of later chapters: this digest says so."""
    text = "\n".join(str(edge) for edge in circuit().edges)
    assert len(circuit()) == 28
    assert (
        hashlib.sha256(text.encode()).hexdigest() == "fa15c81d443814c52e002eb031508db16b26cef3906974d221a05434d8c2bec2"
    )


def test_it_is_a_circuit_of_the_model():
    assert isinstance(circuit(), cl.Circuit)
    assert (circuit().task, circuit().ablation, circuit().model) == ("docstring", "corrupted", "docstring-4l")
    assert circuit().graph == cl.Graph(cl.load_model("docstring-4l"))
    assert circuit().prune() == circuit()  # every edge lies on a path from embed to logits
    assert sorted(head for heads in circuit().roles.values() for head in heads) == circuit().heads()
    assert set(circuit().attention) == set(circuit().heads())


def test_every_edge_has_evidence_that_meets_the_rule():
    rule = circuit().rule
    assert tuple(circuit().evidence) == circuit().edges
    for evidence in circuit().evidence.values():
        assert isinstance(evidence, Evidence)
        assert set(evidence.worth) == set(evidence.alone) == set(evidence.spared) == set(CORRUPTIONS)
        assert evidence.worth["random_random"] >= rule["worth"]
        assert evidence.share() >= rule["share"]


def test_prompts_of_the_evidence_are_not_those_of_later_comparisons():
    assert circuit().prompts["seed"] >= 100


@pytest.mark.parametrize("corruption", ["random_random", "random_def"])
@pytest.mark.parametrize("receiver", ["logits", "a3.6.v", "a1.4.k"])
def test_the_evidence_measured_anew(receiver, corruption):
    """By cutting edges through ``Engine.values``, not by what wrote the file."""
    of = engine(corruption)
    into = [edge for edge in of.graph.edges if edge.receiver == receiver]
    kept = [edge for edge in circuit().edges if edge.receiver == receiver]
    runs = [of.all, of.none, of.all - into, *(of.all - [edge] for edge in kept)]
    runs += [of.all - [other for other in into if other != edge] for edge in kept]
    full, none, cut, *rest = of.metric(runs).tolist()
    for i, edge in enumerate(kept):
        evidence = circuit().evidence[edge]
        assert evidence.worth[corruption] == pytest.approx((full - cut) / (full - none), abs=2e-3)
        assert evidence.alone[corruption] == pytest.approx((full - rest[i]) / (full - none), abs=2e-3)
        assert evidence.spared[corruption] == pytest.approx((rest[len(kept) + i] - cut) / (full - none), abs=2e-3)


@pytest.mark.parametrize("receiver", ["logits", "a3.4.q"])
def test_the_senders_left_out_fall_short_of_the_rule(receiver):
    effects = cl.input_effects(engine("random_random"), receiver)
    kept = {edge.sender for edge in circuit().edges if edge.receiver == receiver}
    assert set(effects.writers(circuit().rule["share"])) == kept


def test_its_heads_look_where_their_roles_say():
    task, model = engine("random_random").task, cl.load_model("docstring-4l")
    between = cl.attention_between(model, task)
    for name, rows in circuit().attention.items():
        layer, head = map(int, name[1:].split("."))
        for query, key, attention in rows:
            assert attention > 0.4
            assert float(between(query, key)[layer, head]) == pytest.approx(attention, abs=2e-3)


def test_it_carries_the_behaviour_on_other_prompts():
    model = cl.load_model("docstring-4l")
    held_out = cl.Engine(model, cl.docstring(model, n=30, seed=7))
    assert 0.8 < cl.faithfulness(held_out, circuit()) < 1
    assert cl.random_baseline(held_out, len(circuit()), n=5).abs().max() < 0.05


@pytest.mark.parametrize(
    "pair", [("docstring-4l", "ioi"), ("gpt2", "docstring"), ("", ""), (None, None), ("../x", "docstring")]
)
def test_an_unknown_pair_is_one_clear_error(pair):
    with pytest.raises(ValueError, match="docstring-4l, docstring") as error:
        cl.reference_circuit(*pair)
    assert "\n" not in str(error.value)


def test_the_file_holds_nothing_that_is_not_read():
    content = json.loads(FILE.read_text("utf8"))
    assert set(content) == {
        *("format", "version", "model", "task", "ablation", "found", "prompts", "rule", "roles", "attention", "edges")
    }
    assert content["format"] == "circuitlib reference circuit" and content["version"] == 1


# input_effects, which measured it --------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["noising", "denoising"])
def test_input_effects_against_cutting_edge_by_edge(direction):
    model = cl.load_model("handmade-docstring")
    of = cl.Engine(model, cl.docstring(model, n=6), direction=direction)
    for receiver in ("logits", "a2.0.k", "a0.1.v"):
        found = cl.input_effects(of, receiver)
        into = [edge for edge in of.graph.edges if edge.receiver == receiver]
        worth = cl.path_patching(of, [edge.sender for edge in into], [receiver])
        assert found.worth == pytest.approx(float(worth), abs=1e-5)
        for edge in into:
            others = [other.sender for other in into if other != edge]
            alone = float(cl.path_patching(of, [edge.sender], [receiver]))
            without = float(cl.path_patching(of, others, [receiver])) if others else 0.0
            assert found.alone[edge.sender] == pytest.approx(alone, abs=1e-5)
            assert found.spared[edge.sender] == pytest.approx(float(worth) - without, abs=1e-5)


@pytest.mark.parametrize(("model", "alone", "spared"), [("handmade-or", 0, 1), ("handmade-and", 1, 0)])
def test_gates_show_in_one_of_the_two_effects(model, alone, spared):
    model = cl.load_model(model)
    effects = cl.input_effects(cl.Engine(model, cl.default_task(model)), "m0")
    assert effects.worth == pytest.approx(1, abs=1e-4)
    for head in ("a0.0", "a0.1"):
        assert effects.alone[head] == pytest.approx(alone, abs=1e-4)
        assert effects.spared[head] == pytest.approx(spared, abs=1e-4)
        assert effects.shares[head] == pytest.approx(0.5, abs=1e-4)
    assert set(effects.writers()) == {"a0.0", "a0.1"}
    assert abs(effects.shares["embed"]) < 1e-4


@pytest.mark.parametrize("bad", ["a9.0.q", "a0.0", "", None, ["logits"]])
def test_input_effects_refuses_what_is_no_receiver(bad):
    model = cl.load_model("handmade-or")
    with pytest.raises(ValueError, match="receiver: .* does not exist") as error:
        cl.input_effects(cl.Engine(model, cl.default_task(model)), bad)
    assert "\n" not in str(error.value)


def test_nothing_tracks_gradients():
    model = cl.load_model("handmade-or")
    with torch.enable_grad():
        effects = cl.input_effects(cl.Engine(model, cl.default_task(model)), "m0")
    assert isinstance(effects.worth, float)
