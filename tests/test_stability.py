"""Stability over prompts: the resamples, the index, and the tables, each against a loop of its own."""

from __future__ import annotations

import functools
import random
from itertools import combinations

import pytest
import shells
import torch

import circuitlib as cl
from circuitlib.discovery import EdgeScores
from circuitlib.engine import Engine
from circuitlib.evaluation.stability import Stability, of_prompts, stability
from circuitlib.graph import Circuit, Graph, random_circuit

GRAPH = Graph.from_shape(2, 3, mlps=True)


@functools.cache
def engine(ablation="corrupted", direction="noising") -> Engine:
    model = shells.gpt2(seed=7)
    return Engine(model, shells.random_task(model, n=9, solved=True), ablation, direction)


def test_a_task_on_some_of_its_prompts():
    model = shells.gpt2(seed=7)
    for task in (shells.random_task(model, n=6), shells.random_task(model, n=6, read=(3, 5))):
        some = of_prompts(task, [4, 0, 4])
        for name in ("clean", "corrupted", "answers", "distractors"):
            assert torch.equal(getattr(some, name), getattr(task, name)[[4, 0, 4]])
        assert len(some) == 3 and (some.name, some.read_positions) == (task.name, task.read_positions)
        logits = torch.randn(6, 6, model.cfg.d_vocab)
        assert torch.equal(some.metric(logits[[4, 0, 4]]), task.metric(logits)[[4, 0, 4]])


@pytest.mark.parametrize(("ablation", "direction"), [("corrupted", "denoising"), ("mean", "noising")])
def test_each_resample_is_an_engine_of_its_own_on_drawn_pairs(ablation, direction):
    it, seen = engine(ablation, direction), []

    def method(again, *, metric=None):
        assert metric == "kl"
        seen.append(again)
        return random_circuit(again.graph, 5)

    stability(it, method, n=4, metric="kl", seed=3)
    assert seen[0] is it and len(seen) == 5
    pairs = [(c.tolist(), r.tolist(), int(a)) for c, r, a in zip(it.task.clean, it.task.corrupted, it.task.answers, strict=True)]  # fmt: skip
    draws = []
    for again in seen[1:]:
        drawn = list(zip(again.task.clean.tolist(), again.task.corrupted.tolist(), again.task.answers.tolist(), strict=True))  # fmt: skip
        draws.append([pairs.index(pair) for pair in drawn])
        assert len(drawn) == 9 and (again.ablation, again.direction) == (ablation, direction)
        fresh = Engine(it.model, of_prompts(it.task, draws[-1]), ablation, direction)
        assert torch.equal(
            again.values(again.none), fresh.values(fresh.none)
        )  # the reference is made of what was drawn
    assert len({tuple(sorted(draw)) for draw in draws}) > 1 and any(len(set(draw)) < 9 for draw in draws)


def test_a_method_that_looks_at_prompts_varies_and_one_that_does_not_stays():
    it = engine()
    same = stability(it, lambda e, metric=None: random_circuit(e.graph, 9), n=5)
    assert (same.mean, same.spread) == (1.0, 0.0)
    assert same.to_pandas()["min"].tolist() == [1.0] * 4 and set(same.frequency()["share"]) == {1.0}

    found = stability(it, cl.exact, n=5, k=12, seed=1)
    assert 0 < found.mean < 1 and found.spread > 0
    assert found.whole == cl.exact(it).top(12)
    assert stability(it, cl.exact, n=5, k=12, seed=1) == found != stability(it, cl.exact, n=5, k=12, seed=2)


def test_the_tables_are_what_loops_give():
    circuits = tuple(random_circuit(GRAPH, 20, seed) for seed in range(4))
    found = Stability(circuits, random_circuit(GRAPH, 30, 9))

    def index(a, b):
        return len(set(a) & set(b)) / len(set(a) | set(b))

    rows = iter(found.to_pandas().itertuples())
    for kind, sets in (("edges", [set(c) for c in circuits]), ("heads", [set(c.heads()) for c in circuits])):
        whole = set(found.whole) if kind == "edges" else set(found.whole.heads())
        for between, values in (
            ("two resamples", [index(a, b) for a, b in combinations(sets, 2)]),
            ("a resample and all prompts", [index(a, whole) for a in sets]),
        ):
            row = next(rows)
            assert (row.of, row.between, row.n) == (kind, between, len(values))
            mean = sum(values) / len(values)
            spread = (sum((v - mean) ** 2 for v in values) / (len(values) - 1)) ** 0.5
            assert [row.mean, row.spread, row.min, row.max] == pytest.approx([mean, spread, min(values), max(values)])
    assert found.mean == found.to_pandas()["mean"][0] and found.spread == found.to_pandas()["spread"][0]

    frequency = found.frequency()
    assert set(frequency.index) == {str(edge) for circuit in (*circuits, found.whole) for edge in circuit}
    assert frequency["share"].is_monotonic_decreasing
    for edge, row in frequency.iterrows():
        assert row["share"] == sum(edge in circuit for circuit in circuits) / 4
        assert row["on all prompts"] == (edge in found.whole)


def test_two_resamples_have_one_pair_and_no_spread():
    found = Stability((random_circuit(GRAPH, 9, 1), random_circuit(GRAPH, 9, 2)), random_circuit(GRAPH, 9, 3))
    assert found.mean == cl.jaccard(*found.circuits) and found.spread == 0.0
    nothing = Stability((Circuit(GRAPH, []),) * 2, Circuit(GRAPH, []))
    assert nothing.to_pandas()["mean"].tolist() == [1.0] * 4 and nothing.frequency().empty


def test_bad_input_is_one_line():
    it = engine()
    generator = random.Random(0)

    def scores(e, metric=None):
        return EdgeScores(e.graph, torch.full(e.graph.edge_mask.shape, generator.random()) * e.graph.edge_mask)

    for call, said in [
        (lambda: stability(it, scores, n=1, k=3), "n: expected an integer from 2, got 1"),
        (lambda: stability(it, scores), "k: expected how many edges"),
        (lambda: stability(it, scores, k=10_000), "k: expected an integer from 0 to"),
        (lambda: stability(it, lambda e, metric=None: e.all, k=3), "k: expected None for a method that returns a circuit"),
        (lambda: stability(it, lambda e, metric=None: [e.all], k=3), "method: expected one that returns scores of edges or a circuit"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=said) as error:
            call()
        assert "\n" not in str(error.value)
