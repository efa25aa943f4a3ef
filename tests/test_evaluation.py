"""Faithfulness, minimality and completeness: against sums done by hand, and on gates whose truth is known."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
import shells
import torch

import circuitlib as cl
from circuitlib.engine import DIRECTIONS, Engine
from circuitlib.evaluation import (
    Curve,
    cmd,
    completeness,
    cpr,
    faithfulness,
    faithfulness_curve,
    minimality,
    random_baseline,
)
from circuitlib.evaluation.faithfulness import denominator
from circuitlib.graph import ABLATIONS, Circuit, random_circuit

GATE = ["embed→a0.0.v", "embed→a0.1.v", "a0.0→m0", "a0.1→m0", "m0→logits"]


@functools.cache
def model():
    return shells.gpt2(seed=7)


@functools.cache
def engine(ablation="corrupted", direction="noising") -> Engine:
    return Engine(model(), shells.random_task(model(), n=40, solved=True), ablation=ablation, direction=direction)


@functools.cache
def gate(name: str, direction: str) -> Engine:
    bridge = cl.load_model(name)
    return Engine(bridge, cl.default_task(bridge, n=8), direction=direction)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("ablation", ABLATIONS)
def test_faithfulness_is_a_ratio_of_means(ablation, direction):
    it = engine(ablation, direction)
    circuits = [random_circuit(it.graph, k, k) for k in (20, 40, 70)]
    whole, none = (float(it.task.metric(it.run(circuit)).mean()) for circuit in (it.all, it.none))
    expected = [(float(it.task.metric(it.run(circuit)).mean()) - none) / (whole - none) for circuit in circuits]
    assert faithfulness(it, circuits).tolist() == pytest.approx(expected, abs=1e-5)
    assert faithfulness(it, circuits[1]) == pytest.approx(expected[1], abs=1e-5)
    assert faithfulness(it, it.all) == pytest.approx(1) and faithfulness(it, it.none) == pytest.approx(0)
    assert type(faithfulness(it, it.all)) is float


def test_faithfulness_takes_any_metric_and_circuits_with_positions():
    it = engine()
    circuit = random_circuit(it.graph_with_positions, 300)

    def metric(logits):
        return logits[:, 0].softmax(-1).gather(-1, it.task.answers[:, None])[:, 0]

    for chosen in ("kl", metric):
        with_all, with_none, it_has = (float(it.metric(of, chosen)) for of in (it.all, it.none, circuit))
        assert faithfulness(it, circuit, metric=chosen) == pytest.approx(
            (it_has - with_none) / (with_all - with_none), abs=1e-5
        )


def test_nothing_to_divide_by_is_an_error():
    it = engine()
    same = Engine(model(), dataclasses.replace(it.task, corrupted=it.task.clean))
    with pytest.raises(ValueError, match="task: the metric is .* expected one that can be told from zero") as error:
        faithfulness(same, same.all)
    assert "\n" not in str(error.value)

    # Or one that chance explains: the difference changes sign from prompt to prompt.
    up_and_down = torch.tensor([1.0, -1.0] * 4)
    with pytest.raises(ValueError, match="±"):
        denominator(up_and_down + 0.1, torch.zeros(8))
    assert denominator(up_and_down + 0.9, torch.zeros(8)) == pytest.approx(0.9)
    assert denominator(up_and_down[:6] + 0.1, torch.zeros(6)) == pytest.approx(0.1)  # too few prompts to say


def test_a_curve_from_an_order_a_function_and_scores():
    it = engine()
    order = random_circuit(it.graph, 50, 1).edges
    curve = faithfulness_curve(it, order, sizes=[40, 0, 10])
    assert curve.sizes == (0, 10, 40) and curve.n_edges == it.graph.n_edges
    expected = [faithfulness(it, Circuit(it.graph, order[:k])) for k in (0, 10, 40)]
    assert list(curve.values) == pytest.approx(expected, abs=1e-5) and curve.values[0] == pytest.approx(0, abs=1e-6)
    assert curve.to_pandas().columns.tolist() == ["edges", "share", "faithfulness"]

    class Scores:
        graph = it.graph

        def top(self, k):
            return random_circuit(it.graph, k, 2)

    by_scores = faithfulness_curve(it, Scores())
    by_function = faithfulness_curve(it, Scores().top)
    assert by_scores == by_function and by_scores.values[-1] == pytest.approx(1)
    assert by_scores.sizes == tuple(
        sorted({max(1, round(it.graph.n_edges * p)) for p in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)})
    )


def test_a_curve_from_circuits_has_their_sizes():
    it = engine()
    circuits = [random_circuit(it.graph, k, k) for k in (60, 5, 30)]
    curve = faithfulness_curve(it, [*circuits, circuits[0]])
    assert curve.sizes == (5, 30, 60)
    expected = [faithfulness(it, circuits[i]) for i in (1, 2, 0)]
    assert list(curve.values) == pytest.approx(expected, abs=1e-5)
    with pytest.raises(ValueError, match="sizes: expected None, for circuits have their own"):
        faithfulness_curve(it, circuits, sizes=[5])


def mib_areas(percentages, faithfulnesses):
    """CPR and CMD as in MIB's evaluation code: trapezoids over the shares, from the first to the last."""
    under = from_1 = 0.0
    for i in range(len(percentages) - 1):
        width = percentages[i + 1] - percentages[i]
        under += width * (faithfulnesses[i] + faithfulnesses[i + 1]) / 2
        from_1 += width * (abs(1 - faithfulnesses[i]) + abs(1 - faithfulnesses[i + 1])) / 2
    return under, from_1


def test_cpr_and_cmd_are_mibs_areas_and_the_piece_below_its_first_size():
    percentages = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)
    values = (0.02, -0.1, 0.3, 0.6, 0.8, 1.3, 1.25, 0.9, 1.1, 1.0)
    curve = Curve(tuple(int(share * 1000) for share in percentages), values, 1000)
    under, from_1 = mib_areas(percentages, values)
    assert cpr(curve) == pytest.approx(under + 0.001 * 0.02 / 2)
    assert cmd(curve) == pytest.approx(from_1 + 0.001 * (1 + 0.98) / 2)
    assert cpr(curve) == pytest.approx(under, abs=1e-4)


def test_cpr_and_cmd_of_curves_that_are_known():
    straight = Curve((10, 40, 100), (0.1, 0.4, 1.0), 100)
    assert cpr(straight) == pytest.approx(0.5) and cmd(straight) == pytest.approx(0.5)
    at_once = Curve((0, 1, 100), (0.0, 1.0, 1.0), 100)
    assert cpr(at_once) == pytest.approx(0.995) and cmd(at_once) == pytest.approx(0.005)
    too_much = Curve((0, 1, 99, 100), (0.0, 2.0, 2.0, 1.0), 100)
    assert cpr(too_much) == pytest.approx(0.01 + 1.96 + 0.015)
    assert cmd(too_much) == pytest.approx(0.01 + 0.98 + 0.005)  # more than the model counts as badly as nothing
    part = Curve((20,), (0.5,), 100)  # the ends hold by definition
    assert cpr(part) == pytest.approx(0.05 + 0.6) and cmd(part) == pytest.approx(0.15 + 0.2)
    with pytest.raises(ValueError, match="curve: expected at least one point"):
        cpr(Curve((), (), 100))


def test_the_ends_that_are_added_are_what_the_engine_measures():
    it = engine("zero", "denoising")
    order = random_circuit(it.graph, it.graph.n_edges, 1).edges
    middle = faithfulness_curve(it, order, sizes=[20, 50])
    whole = faithfulness_curve(it, order, sizes=[0, 20, 50, it.graph.n_edges])
    for area in (cpr, cmd):
        assert area(middle) == pytest.approx(area(whole), abs=1e-5)


def test_random_circuits_of_the_same_size():
    it = engine()
    values = random_baseline(it, 50, n=4, seed=3)
    assert values.shape == (4,) and torch.equal(values, random_baseline(it, 50, n=4, seed=3))
    assert len(set(values.tolist())) == 4 and not torch.equal(values, random_baseline(it, 50, n=4, seed=4))
    assert random_baseline(it, it.graph.n_edges, n=2).tolist() == pytest.approx([1, 1], abs=1e-5)


@pytest.mark.parametrize(("name", "direction"), [("handmade-or", "noising"), ("handmade-and", "denoising")])
def test_where_one_input_is_enough_each_backs_the_other_up(name, direction):
    """The OR gate under noising: no single edge is needed, both together are; half of it is faithful and not complete."""
    it = gate(name, direction)
    circuit = Circuit(it.graph, GATE)
    assert faithfulness(it, circuit) == pytest.approx(1)
    alone = minimality(it, circuit)["change"]
    assert alone[GATE[:4]].tolist() == pytest.approx([0, 0, 0, 0], abs=1e-6) and alone[GATE[4]] == pytest.approx(1)
    backed_up = minimality(it, circuit, n_sets=12)
    assert backed_up["change"][GATE].tolist() == pytest.approx([1] * 5, abs=1e-6)
    half = circuit - ["a0.1→m0", "embed→a0.1.v"]
    assert faithfulness(it, half) == pytest.approx(1)
    worst = completeness(it, half).iloc[0]
    assert worst["gap"] == pytest.approx(1) and worst["removed"] == "a0.0"
    complete = completeness(it, circuit)
    assert complete["gap"].tolist() == pytest.approx([0] * len(complete), abs=1e-6)


@pytest.mark.parametrize(("name", "direction"), [("handmade-or", "denoising"), ("handmade-and", "noising")])
def test_where_both_inputs_are_needed_every_edge_is(name, direction):
    it = gate(name, direction)
    circuit = Circuit(it.graph, GATE)
    assert faithfulness(it, circuit) == pytest.approx(1)
    assert minimality(it, circuit)["change"].tolist() == pytest.approx([1] * 5, abs=1e-6)
    assert minimality(it, circuit, by="node")["change"].to_dict() == pytest.approx(
        {"a0.0": 1, "a0.1": 1, "m0": 1}, abs=1e-6
    )
    assert faithfulness(it, circuit - ["a0.1→m0"]) == pytest.approx(0, abs=1e-6)


def test_minimality_and_completeness_are_what_their_formulas_say():
    it = engine()
    circuit = random_circuit(it.graph, 40, 8)
    whole, none, here = (float(it.metric(of)) for of in (it.all, it.none, circuit))
    table = minimality(it, circuit)
    assert table["change"].abs().is_monotonic_increasing and set(table.index) == set(map(str, circuit))
    edge = circuit.edges[5]
    assert table["change"][str(edge)] == pytest.approx(
        (here - float(it.metric(circuit - [edge]))) / abs(whole - none), abs=1e-5
    )
    rows = completeness(it, circuit, n_sets=3, greedy_steps=2, seed=1)
    assert rows["gap"].is_monotonic_decreasing and rows["how"].value_counts().to_dict() == {
        "none": 1,
        "random": 3,
        "greedy": 2,
    }
    for _, row in rows.iterrows():
        gone = set(row["removed"].split(", "))
        of_circuit = [e for e in circuit if gone & {e.sender, e.receiver, e.receiver.rpartition(".")[0]}]
        of_model = [e for e in it.all if e.sender in gone]
        assert row["circuit"] == pytest.approx(float(it.metric(circuit - of_circuit)), abs=1e-5)
        assert row["model"] == pytest.approx(float(it.metric(it.all - of_model)), abs=1e-5)
        assert row["gap"] == pytest.approx(abs(row["circuit"] - row["model"]) / abs(whole - none), abs=1e-5)
    first, second = (
        set(row.split(", ")) for row in rows[rows["how"] == "greedy"]["removed"].sort_values(key=lambda c: c.str.len())
    )
    assert len(first) == 1 and first < second


def test_bad_arguments():
    it = engine()
    for call, said in [
        (lambda: minimality(it, it.none, by="head"), "by: expected 'edge' or 'node'"),
        (lambda: completeness(it, it.none, by="head"), "by: expected 'edge' or 'node'"),
        (
            lambda: faithfulness_curve(it, it.graph.edges[:5], sizes=[6]),
            "sizes: 6 edges asked for, expected at most the 5",
        ),
        (lambda: faithfulness_curve(it, it.graph.edges, sizes=[]), "sizes: expected integers"),
        (lambda: faithfulness_curve(it, it.graph.edges, sizes=[-1]), "sizes: expected integers"),
        (lambda: faithfulness(it, []), "circuits: expected at least one"),
        (lambda: faithfulness(it, it.all, metric="acc"), "metric: expected"),
    ]:
        with pytest.raises(ValueError, match=said) as error:
            call()
        assert "\n" not in str(error.value)
    assert minimality(it, it.none).empty and len(completeness(it, it.none)) == 1


def test_the_divergence_is_from_the_run_of_all_edges_in_both_directions():
    model = cl.load_model("handmade-docstring")
    task = cl.default_task(model, n=5)
    for direction in ("noising", "denoising"):
        it = cl.Engine(model, task, direction=direction)
        table = cl.evaluate(it, {"all": it.all, "none": it.none})
        log_p, log_q = (it.run(circuit).log_softmax(-1) for circuit in (it.all, it.none))
        assert table["kl"]["all"] < 1e-6
        assert table["kl"]["none"] == pytest.approx(float((log_p.exp() * (log_p - log_q)).sum(-1).mean()), rel=1e-4)


def test_scores_of_nodes_are_refused_where_edges_are_meant():
    model = cl.load_model("handmade-or")
    it = cl.Engine(model, cl.default_task(model))
    nodes, known = cl.exact(it, level="node"), cl.known_circuit("handmade-or")
    for call in (lambda: cl.roc(nodes, known), lambda: cl.faithfulness_curve(it, nodes), lambda: cl.stability(it, lambda e, metric=None: nodes, n=2, k=3)):  # fmt: skip
        with pytest.raises(ValueError, match="scores of edges"):
            call()


def test_scores_and_models_in_the_place_of_others_are_named():
    model = cl.load_model("handmade-or")
    it = cl.Engine(model, cl.default_task(model))
    scores = cl.eap(it)
    assert list(scores) == list(it.graph.edges) and cl.evaluate(it, scores.top(np.int64(3)))["edges"][0] == 3
    assert len(cl.random_circuit(it.graph, np.int64(4))) == 4
    assert cl.faithfulness_curve(it, scores, np.array([1, 3])).sizes == (1, 3)
    for call in (lambda: cl.evaluate(it, scores), lambda: cl.faithfulness(it, scores)):
        with pytest.raises(ValueError, match="^circuit: expected a Circuit, got EdgeScores; take its top"):
            call()
    for call in (cl.eap, cl.eap_ig, cl.exact, cl.head_effects, lambda m: cl.acdc(m, threshold=1), lambda m: cl.faithfulness(m, it.all), lambda m: cl.evaluate(m, it.all), lambda m: cl.self_repair(m, ["a0.0"])):  # fmt: skip
        with pytest.raises(ValueError, match="^engine: expected an Engine, such as .*, got TransformerBridge"):
            call(model)
    with pytest.raises(ValueError, match="^truth: expected a circuit of"):
        cl.evaluate(it, cl.Circuit(it.graph_with_positions, []), cl.known_circuit("handmade-or"))
