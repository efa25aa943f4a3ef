"""ROC curves and their areas: against the published ones, scikit-learn, counts done by hand, and orders that are known."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from sklearn.metrics import roc_auc_score, roc_curve

from circuitlib.evaluation.roc import Roc, auc, envelope, roc
from circuitlib.graph import Circuit, Edge, Graph, random_circuit

GRAPH = Graph.from_shape(2, 3, mlps=True)
PAPER = json.loads((Path(__file__).parent / "data" / "acdc_paper_roc.json").read_text("utf8"))["runs"]


@dataclass
class Scores:
    """What ``roc`` takes from scores."""

    graph: Graph
    values: torch.Tensor

    def ranked(self):
        raise AssertionError("ties must not be broken")


def scores(graph=GRAPH, seed=0, levels=None) -> Scores:
    """Random scores of both signs; with ``levels``, of that many different sizes only."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(graph.edge_mask.shape, generator=generator)
    values = values if levels is None else (values * levels / 4).round()
    return Scores(graph, values * graph.edge_mask)


def labels(graph: Graph, truth: Circuit) -> torch.Tensor:
    return truth.mask[graph.edge_mask].int()


# --- areas


@pytest.mark.parametrize("name", PAPER)
def test_published_acdc_runs_have_the_published_area(name):
    points = [(fpr, tpr) for _, fpr, tpr in PAPER[name]["points"]]
    assert auc(points, "pessimistic") == pytest.approx(PAPER[name]["auc"], abs=1e-3)
    assert auc(points[::-1]) == auc(points)  # pessimistic is the default, and the order is no matter
    assert auc(points, "trapezoid") > auc(points) + 0.002


def test_the_published_areas_need_the_envelope():
    """Greater-Than has points that others beat: steps over all points would be .812."""
    points = sorted((fpr, tpr) for _, fpr, tpr in PAPER["greaterthan"]["points"])
    everything = [(0.0, 0.0), *points, (1.0, 1.0)]
    steps = sum((1 - x) * (y - below) for (_, below), (x, y) in zip(everything, everything[1:], strict=False))
    assert steps == pytest.approx(0.812, abs=1e-3)
    assert len(envelope(points)) < len(set(everything))


def test_areas_that_can_be_counted_by_hand():
    for points, pessimistic, trapezoid in [
        ([], 0, 0.5),
        ([(0.5, 0.5)], 0.25, 0.5),
        ([(0, 1)], 1, 1),
        ([(1, 0)], 0, 0),
        ([(0.25, 0.25), (0.75, 0.5)], 0.25, 0.40625),
        ([(0.2, 0.6), (0.5, 0.3)], 0.48, 0.7),  # the second is beaten by the first
        ([(0.2, 0.6), (0.5, 0.6)], 0.48, 0.06 + 0.18 + 0.4),  # this one is not: as many true ones, no more
        ([(0.2, 0.2), (0.2, 0.6)], 0.48, 0.02 + 0.64),
    ]:
        assert auc(points) == pytest.approx(pessimistic), points
        assert auc(points, convention="trapezoid") == pytest.approx(trapezoid), points


def test_the_envelope_is_what_its_definition_says():
    draw = random.Random(3)
    for _ in range(50):
        points = [(draw.randrange(6) / 5, draw.randrange(6) / 5) for _ in range(draw.randrange(9))]
        both = {*points, (0.0, 0.0), (1.0, 1.0)}
        assert envelope(points) == sorted(p for p in both if not any(q[0] < p[0] and q[1] > p[1] for q in both))


# --- scores


@pytest.mark.parametrize("levels", [None, 3])
@pytest.mark.parametrize("seed", range(3))
def test_trapezoid_over_scores_is_scikit_learns_area(seed, levels):
    """Without ties and with: edges of one score come in together, as in scikit-learn."""
    found, truth = scores(seed=seed, levels=levels), random_circuit(GRAPH, 12, seed)
    flat = found.values.abs()[GRAPH.edge_mask]
    curve = roc(found, truth)
    assert curve.auc("trapezoid") == pytest.approx(roc_auc_score(labels(GRAPH, truth), flat))
    fpr, tpr, thresholds = roc_curve(labels(GRAPH, truth), flat, drop_intermediate=False)
    assert curve.fpr == pytest.approx(fpr[1:]) and curve.tpr == pytest.approx(tpr[1:])
    assert curve.thresholds == pytest.approx(thresholds[1:])
    assert len(curve) == len(set(flat.tolist())) and curve.sizes[-1] == GRAPH.n_edges


def test_pessimistic_over_scores_without_ties_counts_pairs():
    """The area is the share of (true, false) pairs in the right order; ties, and nothing else, count against it."""
    for levels in (None, 3):
        found, truth = scores(seed=5, levels=levels), random_circuit(GRAPH, 12, 5)
        flat, is_true = found.values.abs()[GRAPH.edge_mask], labels(GRAPH, truth).bool()
        right = (flat[is_true][:, None] > flat[~is_true]).double().mean()
        assert roc(found, truth).auc("pessimistic") == pytest.approx(float(right))


def test_signed_scores_rank_harmful_edges_last():
    found, truth = scores(seed=2), random_circuit(GRAPH, 12, 2)
    flat = found.values[GRAPH.edge_mask]
    assert roc(found, truth, signed=True).auc("trapezoid") == pytest.approx(roc_auc_score(labels(GRAPH, truth), flat))
    assert roc(found, truth, signed=True) != roc(found, truth)


def test_perfect_worst_and_constant_scores():
    truth = random_circuit(GRAPH, 12, 1)
    for values, pessimistic, trapezoid in [(truth.mask, 1, 1), (~truth.mask, 0, 0), (torch.ones(()), 0, 0.5)]:
        curve = roc(Scores(GRAPH, values.double() * GRAPH.edge_mask), truth)
        assert curve.auc("trapezoid") == pytest.approx(trapezoid)
        assert curve.auc() == pytest.approx(pessimistic)


def test_scores_with_positions():
    graph = Graph.from_shape(2, 2, mlps=False, n_pos=5)
    found, truth = scores(graph), random_circuit(graph, 40)
    flat = found.values.abs()[graph.edge_mask]
    assert roc(found, truth).auc("trapezoid") == pytest.approx(roc_auc_score(labels(graph, truth), flat))
    assert roc(found, truth, level="node").n_true == len(nodes_of(truth))


def test_the_last_digits_of_a_score_rank_nothing():
    truth, found = random_circuit(GRAPH, 12, 1), scores(seed=1, levels=3)
    jitter = torch.rand(GRAPH.edge_mask.shape, generator=torch.Generator().manual_seed(0)) * GRAPH.edge_mask
    shaken = Scores(GRAPH, found.values.double() + 4e-7 * float(found.values.abs().max()) * jitter)
    assert list(roc(shaken, truth)) == list(roc(found, truth))
    more = Scores(GRAPH, found.values.double() + 1e-3 * float(found.values.abs().max()) * jitter)
    assert len(roc(more, truth)) > len(roc(found, truth))
    huge = Scores(GRAPH, found.values.double() * 1e30)
    assert list(roc(huge, truth)) == list(roc(found, truth))


# --- circuits, and edges in order


def test_a_point_for_each_circuit():
    truth = random_circuit(GRAPH, 12, 4)
    circuits = [random_circuit(GRAPH, k, k) for k in (0, 5, 30, GRAPH.n_edges)]
    circuits[1].threshold = 0.25
    curve = roc(circuits, truth)
    for circuit, fpr, tpr, size in zip(circuits, curve.fpr, curve.tpr, curve.sizes, strict=True):
        hits = sum(edge in truth for edge in circuit)
        assert tpr == hits / 12 and fpr == (len(circuit) - hits) / (GRAPH.n_edges - 12) and size == len(circuit)
    assert (curve.n_true, curve.n_false) == (12, GRAPH.n_edges - 12)
    assert curve.thresholds == (None, 0.25, None, None)
    assert list(curve)[0] == (0, 0) and list(curve)[-1] == (1, 1)
    assert roc(truth, truth).auc() == pytest.approx(1) and len(roc(truth, truth)) == 1


def test_edges_in_order_give_the_circuits_of_their_first_ones():
    truth, draw = random_circuit(GRAPH, 12, 4), random.Random(0)
    order = draw.sample(GRAPH.edges, 40)
    for level in ("edge", "node"):
        by_circuits = roc([Circuit(GRAPH, order[:k]) for k in range(1, 41)], truth, level)
        by_order = roc([str(edge) for edge in order], truth, level)
        assert set(by_order) == set(by_circuits)
        assert by_order.auc() == by_circuits.auc() and set(by_order.thresholds) == {None}
    assert roc([*order, *order], truth) == roc(order, truth)  # a repeat counts where it first stands


# --- nodes


def nodes_of(edges) -> set[str]:
    """q, k, v and the output of a head are nodes of their own; an MLP reads and writes under one name."""
    return {edge.sender for edge in edges} | {edge.receiver for edge in edges}


@pytest.mark.parametrize("seed", range(3))
def test_a_node_counts_if_an_edge_touches_it(seed):
    truth = random_circuit(GRAPH, 5, seed)
    everything, true = nodes_of(GRAPH.edges), nodes_of(truth)
    assert len(everything) == 1 + 2 * (3 * 4 + 1) + 1
    circuits = [random_circuit(GRAPH, k, seed + k) for k in (1, 4, 15)]
    curve = roc(circuits, truth, level="node")
    assert (curve.n_true, curve.n_false) == (len(true), len(everything - true))
    for circuit, fpr, tpr, size in zip(circuits, curve.fpr, curve.tpr, curve.sizes, strict=True):
        found = nodes_of(circuit)
        assert tpr == len(found & true) / len(true) and size == len(found)
        assert fpr == len(found - true) / len(everything - true)


def test_nodes_by_score_are_the_nodes_of_the_edges_above_each_threshold():
    truth, found = random_circuit(GRAPH, 5, 7), scores(seed=7, levels=6)
    curve = roc(found, truth, level="node")
    sizes = found.values.abs()
    for threshold, point in zip(curve.thresholds, curve, strict=True):
        circuit = Circuit.from_mask(GRAPH, (sizes >= threshold) & GRAPH.edge_mask)
        assert point == next(iter(roc(circuit, truth, level="node")))
    best = dict.fromkeys(nodes_of(GRAPH.edges), 0.0)
    for edge in GRAPH.edges:
        for node in (edge.sender, edge.receiver):
            best[node] = max(best[node], float(sizes[GRAPH.index(edge)]))
    expected = roc_auc_score([node in nodes_of(truth) for node in best], list(best.values()))
    assert curve.auc("trapezoid") == pytest.approx(expected)


def test_the_graph_of_the_docstring_models_has_130_nodes():
    graph = Graph.from_shape(4, 8, mlps=False)
    curve = roc(Circuit(graph, graph.edges[:3]), Circuit(graph, ["embed→a0.0.q"]), level="node")
    assert curve.n_true + curve.n_false == 130 and curve.n_true == 2
    assert len(Circuit(graph, graph.edges).nodes()) == 34  # there a head counts once


# --- tables and errors


def test_the_table_names_what_it_counts():
    truth = random_circuit(GRAPH, 12, 4)
    curve = roc([random_circuit(GRAPH, k, k) for k in (0, 30)], truth)
    table = curve.to_pandas()
    assert table.columns.tolist() == ["threshold", "edges", "tpr", "fpr", "precision"]
    assert table["precision"].isna().tolist() == [True, False]
    assert table["precision"][1] == sum(edge in truth for edge in random_circuit(GRAPH, 30, 30)) / 30
    assert "nodes" in roc(truth, truth, level="node").to_pandas()
    assert repr(curve) == f"Roc(level='edge', n_true=12, n_false={GRAPH.n_edges - 12})" and isinstance(curve, Roc)


def test_bad_input_is_one_line():
    truth, other = random_circuit(GRAPH, 12, 4), random_circuit(Graph.from_shape(2, 2, mlps=True), 5)
    nan, positions = scores(), Graph.from_shape(2, 3, mlps=True, n_pos=4)
    nan.values[GRAPH.index(Edge.parse("a0.1→m1"))] = float("nan")
    infinite = scores(positions)
    infinite.values[positions.index(Edge.parse("a0.1→m1@2"))] = float("inf")
    for call, said in [
        (lambda: roc(scores(), other), "truth: expected a circuit of Graph"),
        (lambda: roc([truth, other], truth), "truth: expected a circuit of Graph"),
        (lambda: roc([truth, "embed→m0"], truth), "source: expected circuits only, got str"),
        (lambda: roc(["embed→m0", truth], truth), "edge: expected an Edge or text"),
        (lambda: roc(["embed→m7"], truth), "'m7' does not exist"),
        (lambda: roc([], truth), "source: expected scores, or at least one"),
        (lambda: roc(scores(), Circuit(GRAPH, [])), "truth: the circuit is empty"),
        (lambda: roc(scores(), Circuit(GRAPH, GRAPH.edges)), f"truth: all {GRAPH.n_edges} edges are in it"),
        (lambda: roc(scores(), Circuit(GRAPH, GRAPH.edges[:-1]), level="node"), "truth: all 28 nodes are in it"),
        (lambda: roc(scores(), GRAPH.edges), "truth: expected a Circuit, got tuple"),
        (lambda: roc(scores(), truth, level="head"), "level: expected 'edge' or 'node'"),
        (lambda: roc(nan, truth), "source: expected finite scores, got nan for a0.1→m1"),
        (lambda: roc(infinite, random_circuit(positions, 9)), "source: expected finite scores, got inf for a0.1→m1@2"),
        (lambda: auc([(0.2, 0.3)], "optimistic"), "convention: expected 'pessimistic' or 'trapezoid'"),
        (lambda: auc([(0.2, 1.3)]), "points: expected rates from 0 to 1"),
        (lambda: auc([(float("nan"), 0.3)]), "points: expected rates from 0 to 1"),
    ]:
        with pytest.raises(ValueError, match=said) as error:
            call()
        assert "\n" not in str(error.value)
