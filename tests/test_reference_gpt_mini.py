"""The circuits of gpt-mini found by hand: that they stay as they were frozen, and that their evidence is what the model still gives."""

from __future__ import annotations

import functools
import hashlib

import pytest

import circuitlib as cl

DIGESTS = {
    "ioi": (51, "ac1b7f86cc30c740e2772fe49cb282a11e694910b83a3f447413c72cbae7cc8e"),
    "greater_than": (25, "965249b0f5ee24c691ac133de93b49d44f00859ab17350fb1e01c58fa6b7abdd"),
}
CORRUPTIONS = {"ioi": ("abc", "name_swap"), "greater_than": ("01",)}


@functools.cache
def model():
    return cl.load_model("gpt-mini")


@functools.cache
def engine(task: str, corruption: str, n: int, seed: int) -> cl.Engine:
    make = {"ioi": cl.ioi, "greater_than": cl.greater_than}[task]
    return cl.Engine(model(), make(model(), n=n, corruption=corruption, seed=seed))


@pytest.fixture(params=DIGESTS)
def task(request) -> str:
    return request.param


def test_the_edges_are_those_that_were_frozen(task):
    circuit = cl.reference_circuit("gpt-mini", task)
    digest = hashlib.sha256("\n".join(str(edge) for edge in circuit.edges).encode()).hexdigest()
    assert (len(circuit), digest) == DIGESTS[task]


def test_it_is_a_circuit_of_the_model(task):
    circuit = cl.reference_circuit("gpt-mini", task)
    assert (circuit.task, circuit.ablation, circuit.model) == (task, "corrupted", "gpt-mini")
    assert circuit.graph == cl.Graph(model()) and circuit.prune() == circuit
    assert sorted(head for heads in circuit.roles.values() for head in heads) == circuit.heads()
    assert set(circuit.attention) == set(circuit.heads())
    assert circuit.prompts["seed"] >= 100 and len(circuit) <= 0.1 * circuit.graph.n_edges


def test_every_edge_has_evidence_that_meets_the_rule(task):
    circuit = cl.reference_circuit("gpt-mini", task)
    assert tuple(circuit.evidence) == circuit.edges
    for evidence in circuit.evidence.values():
        assert set(evidence.worth) == set(evidence.alone) == set(evidence.spared) == set(CORRUPTIONS[task])
        assert evidence.worth[circuit.prompts["corruption"]] >= circuit.rule["worth"]
        assert evidence.share() == evidence.share(circuit.prompts["corruption"]) >= circuit.rule["share"]


@pytest.mark.parametrize(
    ("name", "receiver"), [("ioi", "a1.2.k"), ("ioi", "m1"), ("greater_than", "m2"), ("greater_than", "a1.3.v")]
)
def test_the_evidence_measured_anew(name, receiver):
    """By cutting edges through ``Engine.metric``, not by what wrote the file; what was left out falls short of the rule."""
    circuit = cl.reference_circuit("gpt-mini", name)
    corruption = circuit.prompts["corruption"]
    of = engine(name, corruption, circuit.prompts["n"], circuit.prompts["seed"])
    into = [edge for edge in of.graph.edges if edge.receiver == receiver]
    runs = [of.all, of.none, of.all - into, *(of.all - [edge] for edge in into)]
    runs += [of.all - [other for other in into if other != edge] for edge in into]
    full, none, cut, *rest = of.metric(runs).tolist()
    worth = (full - cut) / (full - none)
    for i, edge in enumerate(into):
        alone, spared = (full - rest[i]) / (full - none), (rest[len(into) + i] - cut) / (full - none)
        if edge in circuit:
            evidence = circuit.evidence[edge]
            measured = (evidence.worth[corruption], evidence.alone[corruption], evidence.spared[corruption])
            assert measured == pytest.approx((worth, alone, spared), abs=2e-3)
        else:
            assert (alone + spared) / 2 / worth < circuit.rule["share"]


def test_heads_look_where_their_roles_say(task):
    circuit = cl.reference_circuit("gpt-mini", task)
    corruption = circuit.prompts["corruption"]
    between = cl.attention_between(
        model(), engine(task, corruption, circuit.prompts["n"], circuit.prompts["seed"]).task
    )
    for name, rows in circuit.attention.items():
        layer, head = map(int, name[1:].split("."))
        for query, key, attention in rows:
            assert float(between(query, key)[layer, head]) == pytest.approx(attention, abs=2e-3)
    # Name movers share their attention between the two names, and there the one that is not the giver wins.
    named = {"ioi": ("name_mover", 0.9), "greater_than": ("year_mover", 0.9)}[task]
    for head in circuit.roles[named[0]]:
        assert sum(attention for _, _, attention in circuit.attention[head]) > named[1]


def test_it_carries_the_behaviour_on_other_prompts(task):
    for corruption in CORRUPTIONS[task]:
        held_out = engine(task, corruption, 40, 7)
        circuit = cl.reference_circuit("gpt-mini", task)
        assert 0.85 < cl.faithfulness(held_out, circuit) < 1.05
        assert cl.random_baseline(held_out, len(circuit), n=5).abs().max() < 0.05


def test_a_dash_will_do():
    assert cl.reference_circuit("gpt-mini", "greater-than") == cl.reference_circuit("gpt-mini", "greater_than")
