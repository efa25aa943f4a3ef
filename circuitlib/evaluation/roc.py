"""ROC: how well scores, or a row of circuits, tell the edges of a known circuit from all others (Conmy et al. 2023, section 4)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..discovery.scores import NodeScores
from ..graph import Circuit, Edge, Graph

CONVENTIONS = ("pessimistic", "trapezoid")
LEVELS = ("edge", "node")
ROUNDING = 1e-6  # of the largest score: that much may be left when float32 subtracts two equal runs


@dataclass(frozen=True)
class Roc:
    """Points of a ROC curve: of a ranking from few edges to many, of circuits in the order in which they were given.

    The ends (0, 0) and (1, 1) are not among them; ``auc`` adds them.

    Args:
        fpr: false positive rate, false ones kept over all false ones.
        tpr: true positive rate, true ones kept over all true ones.
        sizes: how many edges (or nodes) are kept.
        thresholds: the score down to which edges are kept, or the circuit's own threshold; None where there is none.
        level: "edge" or "node", what is counted.
        n_true, n_false: how many there are of each.
    """

    fpr: tuple[float, ...] = field(repr=False)
    tpr: tuple[float, ...] = field(repr=False)
    sizes: tuple[int, ...] = field(repr=False)
    thresholds: tuple[float | None, ...] = field(repr=False)
    level: str
    n_true: int
    n_false: int

    def __len__(self) -> int:
        return len(self.fpr)

    def __iter__(self) -> Iterator[tuple[float, float]]:
        """The points, as (fpr, tpr)."""
        return iter(zip(self.fpr, self.tpr, strict=True))

    def auc(self, convention: str = "pessimistic") -> float:
        """The area under the curve: ``cl.auc(self, convention)``."""
        return auc(self, convention)

    def to_pandas(self):
        """A table: threshold, how many edges (or nodes) are kept, tpr, fpr, and which share of what is kept is true."""
        import pandas as pd

        hits = [round(rate * self.n_true) for rate in self.tpr]
        precision = [hit / size if size else float("nan") for hit, size in zip(hits, self.sizes, strict=True)]
        columns = {"threshold": self.thresholds, f"{self.level}s": self.sizes, "tpr": self.tpr, "fpr": self.fpr}
        return pd.DataFrame({**columns, "precision": precision})


def roc(source, truth: Circuit, level: str = "edge", *, signed: bool = False) -> Roc:
    """Compare what a method found with a circuit that is known.

    Args:
        source: scores, for which every score is tried as a threshold: edges with the same score come in together, so that
            the order in which ties are listed can't matter. Scores are rounded to millionths of the largest first, so that the
            last digits of a computation do not rank edges. Or edges in order, the best first: a point for each number of
            them. Or circuits, such as ``cl.acdc_sweep`` returns: a point for each.
        truth: the known circuit, on the same graph.
        level: "edge"; or "node", where a node counts as found if an edge that is kept touches it. As in the code of
            Conmy et al. (2023), the q, k and v input of a head and its output are a node each; so are each MLP,
            ``embed`` and ``logits``: 130 nodes in an attention-only model of 4 layers of 8 heads. Positions don't count.
        signed: rank scores by their value instead of their size. Edges whose cutting raises the metric then come last.

    Raises:
        ValueError: ``truth`` is of another graph, is empty, or holds everything that there is; a score is NaN; no circuit.
    """
    if level not in LEVELS:
        raise ValueError(f"level: expected 'edge' or 'node', got {level!r}")
    if not isinstance(truth, Circuit):
        raise ValueError(f"truth: expected a Circuit, got {type(truth).__name__}")
    if isinstance(source, NodeScores):
        raise ValueError(
            "source: expected scores of edges, of which level='node' makes those of nodes; got scores of nodes"
        )
    if hasattr(source, "ranked"):
        _check_graph(source.graph, truth)
        return _swept(_score_keys(source, signed), truth, level, scored=True)
    source = [source] if isinstance(source, Circuit) else list(source)
    if not source:
        raise ValueError("source: expected scores, or at least one circuit or edge, got none")
    if isinstance(source[0], Circuit):
        return _of_circuits(source, truth, level)
    return _swept(_order_keys(truth.graph, source), truth, level, scored=False)


def auc(points: Roc | Iterable[tuple[float, float]], convention: str = "pessimistic") -> float:
    """The area under a ROC curve, from 0 to 1; ½ is chance for "trapezoid", less than ½ for "pessimistic".

    Of the points and the ends (0, 0) and (1, 1), those stay that no other beats in both rates (the Pareto envelope).

    Args:
        points: of ``cl.roc``, or pairs (fpr, tpr) in any order.
        convention: how to get from one point to the next. "pessimistic", of the ACDC paper: the true positive rate stays
            where it is until the next point. "trapezoid": along a straight line. For the same points the second is never
            less: .982 and .985 for ACDC on docstring, .869 and .886 on IOI (Conmy et al. 2023, Table 2 has the first).

    Raises:
        ValueError: another convention, or a rate that is not between 0 and 1.
    """
    if convention not in CONVENTIONS:
        raise ValueError(f"convention: expected 'pessimistic' or 'trapezoid', got {convention!r}")
    curve = envelope(points)
    steps = list(zip(curve, curve[1:], strict=False))
    if convention == "pessimistic":
        return math.fsum((1 - right) * (high - low) for (_, low), (right, high) in steps)
    return math.fsum((right - left) * (low + high) / 2 for (left, low), (right, high) in steps)


def envelope(points: Roc | Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points and the ends (0, 0) and (1, 1), from left to right, without those that another one beats in both rates."""
    points = [(float(x), float(y)) for x, y in points]
    for point in points:
        if not all(0 <= rate <= 1 for rate in point):
            raise ValueError(f"points: expected rates from 0 to 1, got {point}")
    kept, highest_left, highest, last = [], 0.0, 0.0, 0.0
    for x, y in sorted({*points, (0.0, 0.0), (1.0, 1.0)}):
        if x > last:
            highest_left, last = highest, x
        if y >= highest_left:
            kept.append((x, y))
        highest = max(highest, y)
    return kept


def without_rounding(values: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """``values`` rounded to millionths of the largest.

    In an OR gate, cutting one input changes nothing, so its exact effect is 0; computed, it is 0 or 1e-7. An edge that
    carries nothing has 0 to the last bit. Ranked as they are, the first would beat the second, by rounding alone. So would
    one of two edges whose effects are both 1, and on another machine the other one.
    """
    grid = ROUNDING * float(values.abs().max())
    return (values / grid).round() * grid if grid else values


# Edges and nodes ---------------------------------------------------------------------------------

NEVER = float("-inf")  # the key of an edge that is not there, or that is never kept


def _check_graph(graph: Graph, truth: Circuit) -> None:
    if graph != truth.graph:
        raise ValueError(f"truth: expected a circuit of {graph!r}, got one of {truth.graph!r}")


def _score_keys(scores, signed: bool) -> Float[Tensor, "receiver sender"]:
    graph, values = scores.graph, scores.values.detach().to("cpu", torch.float64)
    bad = (~values.isfinite() & graph.edge_mask).nonzero()
    if len(bad):
        edge = Edge(graph.senders[bad[0, 1]], graph.receivers[bad[0, 0]], *bad[0, 2:].tolist())
        raise ValueError(f"source: expected finite scores, got {float(values[tuple(bad[0])])} for {edge}")
    return (values if signed else values.abs()).masked_fill(~graph.edge_mask, NEVER)


def _order_keys(graph: Graph, edges: Iterable[Edge | str]) -> Float[Tensor, "receiver sender"]:
    keys = torch.full(graph.edge_mask.shape, NEVER, dtype=torch.float64)
    for place, edge in enumerate(dict.fromkeys(map(graph.edge, edges))):
        keys[graph.index(edge)] = -place
    return keys


def _swept(keys: Float[Tensor, "receiver sender"], truth: Circuit, level: str, scored: bool) -> Roc:
    """A point for each key that differs: what has this key or a higher one is kept."""
    is_true = _true_ones(truth, level)
    keys, order = _counted(keys, truth.graph, level).sort(descending=True, stable=True)
    size = int((keys != NEVER).sum())
    keys, found = keys[:size], is_true[order][:size].cumsum(0)
    ties = without_rounding(keys) if scored else keys
    last = torch.cat([ties[1:] != ties[:-1], torch.ones(1, dtype=torch.bool)]).nonzero()[:, 0]  # of those that tie
    thresholds = keys[last].tolist() if scored else [None] * len(last)
    return _roc(found[last].tolist(), (last + 1).tolist(), thresholds, is_true, level)


def _of_circuits(circuits: Sequence[Circuit], truth: Circuit, level: str) -> Roc:
    is_true, hits, kept = _true_ones(truth, level), [], []
    for circuit in circuits:
        if not isinstance(circuit, Circuit):
            raise ValueError(f"source: expected circuits only, got {type(circuit).__name__} among them")
        _check_graph(circuit.graph, truth)
        found = _counted(circuit.mask.double(), circuit.graph, level) > 0
        hits.append(int((found & is_true).sum()))
        kept.append(int(found.sum()))
    thresholds = [getattr(circuit, "threshold", None) for circuit in circuits]
    return _roc(hits, kept, thresholds, is_true, level)


def _roc(hits: list[int], kept: list[int], thresholds: list, is_true: Bool[Tensor, "item"], level: str) -> Roc:
    n_true = int(is_true.sum())
    n_false = len(is_true) - n_true
    tpr = tuple(hit / n_true for hit in hits)
    fpr = tuple((size - hit) / n_false for hit, size in zip(hits, kept, strict=True))
    return Roc(fpr, tpr, tuple(kept), tuple(thresholds), level, n_true, n_false)


def _true_ones(truth: Circuit, level: str) -> Bool[Tensor, "item"]:
    is_true = _counted(truth.mask.double(), truth.graph, level) > 0
    if not bool(is_true.any()):
        raise ValueError("truth: the circuit is empty, so there is nothing to find; expected at least one edge")
    if bool(is_true.all()):
        raise ValueError(f"truth: all {len(is_true):,} {level}s are in it, so nothing found could be wrong")
    return is_true


def _counted(values: Float[Tensor, "receiver sender"], graph: Graph, level: str) -> Float[Tensor, "item"]:
    """The value of every edge; or of every node, the largest of the edges that touch it."""
    if level == "edge":
        return values[graph.edge_mask]
    values = values.flatten(2).amax(-1) if graph.per_position else values
    nodes = dict(zip(graph.senders, values.amax(0), strict=True))
    for receiver, value in zip(graph.receivers, values.amax(1), strict=True):
        nodes[receiver] = max(nodes.get(receiver, value), value)  # an MLP has one name for what it reads and writes
    return torch.stack(list(nodes.values()))
