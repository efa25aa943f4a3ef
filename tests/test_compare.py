"""Tables of circuits and of methods: each number against the function that it comes from, called by hand."""

from __future__ import annotations

import functools
import io

import numpy as np
import pandas as pd
import pytest
import shells
import torch

import circuitlib as cl
from circuitlib.discovery import Cost, EdgeScores, eap, exact
from circuitlib.engine import Engine
from circuitlib.evaluation import auc, cmd, compare, cpr, evaluate, faithfulness, faithfulness_curve, random_scores, roc
from circuitlib.evaluation.compare import CLOCK, COLUMNS, OBJECTS
from circuitlib.graph import Circuit, Graph, random_circuit


@functools.cache
def engine(seed=0) -> Engine:
    model = shells.gpt2(seed=7)
    return Engine(model, shells.random_task(model, n=9, solved=True, seed=seed))


def truth() -> Circuit:
    return random_circuit(engine().graph, 12, 5)


def sweep(engine, *, metric=None) -> list[Circuit]:
    """Circuits of several sizes that count what they cost."""
    circuits = [random_circuit(engine.graph, k, k) for k in (30, 4, 14, 10)]
    for circuit in circuits:
        circuit.cost = Cost(7, 1, 0.5)
    return circuits


# --- circuits


def test_a_row_for_each_circuit():
    it, known = engine(), truth()
    circuits = {"small": random_circuit(it.graph, 8, 1), "large": random_circuit(it.graph, 40, 2), "none": it.none}
    table = evaluate(it, circuits, known)
    assert table.index.tolist() == list(circuits)
    for name, circuit in circuits.items():
        row = table.loc[name]
        assert (row["edges"], row["edges_pruned"]) == (len(circuit), len(circuit.prune()))
        assert row["heads"] == len(circuit.heads())
        assert row["faithfulness"] == pytest.approx(faithfulness(it, circuit), abs=1e-6)
        logits = it.run(circuit)
        assert row["logit_diff"] == pytest.approx(float(it.task.metric(logits).mean()), abs=1e-5)
        p, q = it.clean_logits.log_softmax(-1), logits.log_softmax(-1)
        assert row["kl"] == pytest.approx(float((p.exp() * (p - q)).sum(-1).mean()), abs=1e-5)
        hits = sum(edge in known for edge in circuit)
        assert row["recall"] == hits / 12
        assert row["precision"] == hits / len(circuit) if circuit else np.isnan(row["precision"])
    assert table["edges_pruned"]["large"] > 0


def test_circuits_as_a_list_one_and_with_positions():
    it = engine()
    circuits = [random_circuit(it.graph_with_positions, 300, seed) for seed in (1, 2)]
    table = evaluate(it, circuits)
    assert table.index.tolist() == [0, 1] and "precision" not in table
    assert table["faithfulness"].tolist() == pytest.approx(faithfulness(it, circuits).tolist(), abs=1e-6)
    assert evaluate(it, circuits[1]).iloc[0].tolist() == pytest.approx(table.iloc[1].tolist())
    assert 0 <= evaluate(it, it.all)["kl"][0] < 1e-6  # rounding alone would also give less than 0


# --- methods


def test_every_number_is_that_of_the_function_behind_it():
    it, known = engine(), truth()
    table = compare({"random": (it, known)}, {"exact": exact, "sweep": sweep}, shares=(0.05, 0.3))
    assert table["method"].tolist() == ["exact", "sweep"] and set(table["refused"]) == {""}
    for (_, row), found in zip(table.iterrows(), (exact(it), sweep(it)), strict=True):
        for level in ("edge", "node"):
            for convention in ("pessimistic", "trapezoid"):
                assert row[f"auc_{convention}_{level}"] == auc(roc(found, known, level), convention)
        curve = faithfulness_curve(it, found)
        assert row["curve"].sizes == curve.sizes and row["curve"].values == pytest.approx(curve.values, abs=1e-6)
        assert [row["cpr"], row["cmd"]] == pytest.approx([cpr(curve), cmd(curve)], abs=1e-5)
        assert row["roc"] == roc(found, known) and row["roc_node"] == roc(found, known, "node")
        circuit = found.top(12) if row["method"] == "exact" else found[3]  # of 10 and 14 edges, the smaller
        at_size = evaluate(it, circuit, known).iloc[0]
        for name in ("edges", "edges_pruned", "precision", "faithfulness", "kl"):
            assert row[name] == pytest.approx(at_size[name], abs=1e-6)
        assert row["task_metric"] == pytest.approx(at_size["logit_diff"], abs=1e-6)
    assert table["edges"].tolist() == [12, 10]
    assert table["forwards"].tolist() == [exact(it).cost.forwards, 28] and table["backwards"].tolist() == [0, 4]
    assert (table["seconds"] > 0).all()


def test_faithfulness_at_a_share_is_on_the_line_between_what_was_measured():
    it = engine()
    n = it.graph.n_edges
    table = compare({"t": (it, None)}, {"exact": exact, "sweep": sweep}, shares=(0, 0.05, 2 / n, 22 / n, 1))
    by_scores, by_sweep = (row for _, row in table.iterrows())
    assert by_scores["faithfulness@5%"] == pytest.approx(faithfulness(it, exact(it).top(round(n * 0.05))), abs=1e-2)
    measured = {len(circuit): faithfulness(it, circuit) for circuit in sweep(it)}
    assert by_sweep[f"faithfulness@{200 / n:g}%"] == pytest.approx(measured[4] / 2, abs=1e-5)
    assert by_sweep[f"faithfulness@{2200 / n:g}%"] == pytest.approx((measured[14] + measured[30]) / 2, abs=1e-5)
    assert [by_sweep["faithfulness@0%"], by_sweep["faithfulness@100%"]] == [0, 1]


def test_a_row_for_each_task_method_metric_and_seed_in_that_order():
    calls = []

    def task(seed):
        calls.append(seed)
        return engine(seed), truth()

    def nll(logits):
        return logits[:, 0, 0]

    given = []

    def method(it, *, metric=None):
        given.append(metric)
        return random_scores(it, metric=metric)

    table = compare({"a": task, "b": task}, {"m": method, "n": method}, (1, 0), metrics=(None, "kl", nll))
    assert calls == [1, 0, 1, 0]  # an engine for each task and seed, shared by methods and metrics
    expected = [(t, m, k, s) for t in "ab" for m in "mn" for k in ("task", "kl", "nll") for s in (1, 0)]
    assert list(table[["task", "method", "metric", "seed"]].itertuples(index=False, name=None)) == expected
    assert set(given) == {None, "kl", nll}
    one = table[(table["task"] == "a") & (table["seed"] == 1)].iloc[0]
    assert one["roc"] == roc(random_scores(engine(1)), truth())


def test_a_method_that_refuses_has_a_row_that_says_why():
    table = compare({"t": (engine(), truth())}, {"EAP": eap, "exact": exact}, metrics=(None, "kl"))
    row = table[(table["method"] == "EAP") & (table["metric"] == "kl")].iloc[0]
    assert "gradient" in row["refused"] and row["roc"] is None and row["curve"] is None
    numbers = table.columns.drop(["task", "method", "metric", "seed", "refused", *OBJECTS])
    assert row[numbers].isna().all()
    assert (table["refused"] == "").sum() == 3 and table[table["refused"] == ""][numbers].notna().all(axis=None)
    with pytest.raises(ValueError, match="methods: none would run; the first said: metric: the gradient"):
        compare({"t": (engine(), truth())}, {"EAP": eap}, metrics=("kl",))


def test_without_a_truth_there_is_no_area_and_no_size():
    row = compare({"t": (engine(), None)}, {"exact": exact}).iloc[0]
    assert np.isnan(row["auc_pessimistic_edge"]) and np.isnan(row["edges"]) and row["roc"] is None
    assert row["cpr"] == pytest.approx(cpr(faithfulness_curve(engine(), exact(engine()))), abs=1e-5)


def test_nodes_cannot_be_judged_where_the_truth_touches_all():
    graph = engine().graph
    row = compare({"t": (engine(), Circuit(graph, graph.edges[:-1]))}, {"exact": exact}).iloc[0]
    assert row["auc_pessimistic_edge"] >= 0 and row["roc"] is not None
    assert np.isnan(row["auc_trapezoid_node"]) and row["roc_node"] is None


@pytest.mark.parametrize("name", ["handmade-induction", "handmade-docstring"])
def test_where_every_link_is_needed_exact_effects_and_acdc_find_all_and_only_the_true_edges(name):
    model = cl.load_model(name)
    it, known = Engine(model, cl.default_task(model, n=8)), cl.known_circuit(name)
    methods = {"exact": exact, "ACDC": lambda e, metric=None: cl.acdc(e, threshold=0.5, metric=metric)}
    table = compare({name: (it, known)}, methods)
    for column in ("auc_pessimistic_edge", "auc_trapezoid_edge", "auc_pessimistic_node", "precision", "faithfulness"):
        assert table[column].tolist() == pytest.approx([1, 1], abs=1e-4), column
    assert table["edges"].tolist() == table["edges_pruned"].tolist() == [len(known)] * 2


def test_rounding_finds_no_edge():
    """In an OR gate no single cut does anything. Exact effects are 0 or 1e-7 there, and 0 to the last bit on dead edges."""
    model = cl.load_model("handmade-or")
    it = Engine(model, cl.default_task(model, n=8))
    known = cl.known_circuit("handmade-or")
    dust = it.graph.edge_mask * 0.0
    dust[it.graph.index(next(iter(known)))] = 3e-8
    dust[it.graph.receiver_index["logits"], it.graph.sender_index["m0"]] = 1.0

    def method(engine, metric=None):
        return EdgeScores(engine.graph, dust)

    row = compare({"or": (it, known)}, {"exact": exact, "dust": method})
    # One edge of five stands out, the other 25 are alike: a step of 1/5, and a straight line from there.
    assert row["auc_pessimistic_edge"].tolist() == pytest.approx([0.2, 0.2])
    assert row["auc_trapezoid_edge"].tolist() == pytest.approx([0.6, 0.6])
    assert roc(method(it), known).sizes == (1, it.graph.n_edges) == roc(exact(it), known).sizes
    assert row["edges_pruned"][0] == row["edges_pruned"][1]


def test_the_columns_are_the_documented_ones_and_a_file_holds_the_numbers():
    table = compare({"t": (engine(), truth())}, {"exact": exact}, shares=(0.05,))
    documented = [name for names in COLUMNS for name in names.split(", ")]
    assert table.columns.tolist() == documented
    numbers = table.drop(columns=[*OBJECTS, *CLOCK])
    again = pd.read_csv(io.StringIO(numbers.to_csv(index=False)), keep_default_na=False)
    pd.testing.assert_frame_equal(again, numbers, check_dtype=False)
    twice = compare({"t": (engine(), truth())}, {"exact": exact}, shares=(0.05,))
    pd.testing.assert_frame_equal(twice.drop(columns=[*OBJECTS, *CLOCK]), numbers)


def test_random_scores_know_nothing_but_differ():
    it = engine()
    first, again = random_scores(it), random_scores(it, metric="kl")
    assert torch.equal(first.values, again.values) and (first.metric, again.metric) == ("task", "kl")
    assert not torch.equal(first.values, random_scores(it, seed=1).values)
    assert not torch.equal(first.values, random_scores(engine(1)).values)
    areas = [roc(random_scores(it, seed=seed), truth()).auc("trapezoid") for seed in range(60)]
    assert np.mean(areas) == pytest.approx(0.5, abs=4 * np.std(areas) / 60**0.5)


def test_bad_input_is_one_line():
    it, known = engine(), truth()
    task, other = {"t": (it, known)}, random_circuit(Graph.from_shape(1, 2, mlps=False), 3)
    for call, said in [
        (lambda: compare({}, {"exact": exact}), "tasks: expected a dict with at least one entry"),
        (lambda: compare(task, [exact]), "methods: expected a dict with at least one entry, got list"),
        (lambda: compare(task, {"exact": exact}, ()), "seeds: expected at least one, each once"),
        (lambda: compare(task, {"exact": exact}, metrics="kl"), "metrics: expected at least one, each once, got 'kl'"),
        (lambda: compare(task, {"exact": exact}, metrics=(None, None)), "metrics: expected at least one, each once"),
        (lambda: compare(task, {"exact": exact}, (0, 1)), "tasks: 't' is the same for each of 2 seeds"),
        (lambda: compare(task, {"exact": exact}, shares=(5,)), "shares: expected numbers from 0 to 1"),
        (lambda: compare({"t": (it, other)}, {"exact": exact}), "truth: expected a circuit of Graph"),
        (lambda: compare({"t": (it, Circuit(it.graph, []))}, {"exact": exact}), "truth: the circuit is empty"),
        (lambda: compare(task, {"m": lambda e, metric: 3}), "methods: expected ones that return scores or circuits, got int"),
        (lambda: compare(task, {"m": lambda e, metric: []}), "methods: expected ones that return scores or circuits, got list"),
        (lambda: evaluate(it, []), "circuits: expected at least one"),
        (lambda: evaluate(it, it.all, Circuit(it.graph, [])), "truth: the circuit is empty"),
        (lambda: evaluate(it, other), "circuit: expected one of Graph"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=said) as error:
            call()
        assert "\n" not in str(error.value)


def test_circuits_in_a_tuple_count_their_passes_and_one_circuit_makes_a_curve():
    it, known = engine(), truth()
    table = compare({"t": (it, known)}, {"list": sweep, "tuple": lambda *a, **k: tuple(sweep(*a, **k))})
    assert table["forwards"].tolist() == [28, 28] and table["backwards"].tolist() == [4, 4]
    curve = faithfulness_curve(it, known)
    assert curve.sizes == (len(known),) and curve.values == faithfulness_curve(it, [known]).values
