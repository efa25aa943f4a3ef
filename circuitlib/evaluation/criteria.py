"""Minimality and completeness: what in a circuit is not needed, and what it misses (Wang et al. 2023, section 4).

Both take things out of a circuit C and out of the model M. A *unit* is an edge, or a node with all its edges; K is a
set of units. C∖K is the circuit without K; M∖K is the model with K ablated (an edge cut; of a node, every edge out of it).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from ..engine import Engine, Metric
from ..graph import Circuit, Edge, node_of
from .faithfulness import denominator


def minimality(
    engine: Engine,
    circuit: Circuit,
    *,
    metric: str | Metric | None = None,
    by: str = "edge",
    n_sets: int = 0,
    seed: int = 0,
):
    """How much each unit of the circuit is needed: the largest |M(C∖K) − M(C∖(K ∪ {unit}))| over the sets K that are tried.

    A circuit is minimal if no unit has a small one. K = ∅ asks whether the unit is needed as things are; a unit that
    another one backs up shows only once that one is in K (Wang et al. 2023, section 4.2).

    Args:
        by: "edge" or "node" (heads and MLPs).
        n_sets: how many random K are tried besides ∅; each holds every other unit with probability ½.

    Returns:
        A table with a row for each unit, the least needed first: ``change``, in units of M(all) − M(∅), positive where the
        unit raises the metric; and ``removed``, the K for which it was found.
    """
    units = _units(circuit, by)
    draw = random.Random(seed)
    drawn = [tuple(unit for unit in units if draw.random() < 0.5) for _ in range(n_sets)]
    gap = _gap(engine, circuit, metric)
    changes = {unit: [] for unit in units}
    for removed in [(), *drawn]:
        rest = _without(circuit, removed)
        others = [unit for unit in units if unit not in removed]
        for unit, change in zip(others, _changes(engine, rest, others, metric, by), strict=True):
            changes[unit].append((engine.sign * change / abs(gap) + 0.0, removed))  # 0.0 and not -0.0
    best = [(str(unit), *max(found, key=lambda pair: abs(pair[0]))) for unit, found in changes.items() if found]
    return _table(sorted(best, key=lambda row: abs(row[1])), by, ["change", "removed"])


def completeness(
    engine: Engine,
    circuit: Circuit,
    *,
    metric: str | Metric | None = None,
    by: str = "node",
    n_sets: int = 10,
    greedy_steps: int = 3,
    seed: int = 0,
):
    """Whether the circuit breaks as the model does: |M(C∖K) − M(M∖K)| for sets K of its units.

    A circuit is complete if all of them are small; a large one means that the model does the task another way when K is
    gone, a way that the circuit misses (Wang et al. 2023, section 4.1).

    Args:
        by: "node" (heads and MLPs) or "edge".
        n_sets: how many random K; each holds every unit with probability ½.
        greedy_steps: K is also grown by this many units, each the one that makes the gap largest.

    Returns:
        A table with a row for each K, the largest gap first: ``how`` it was chosen (none, random, greedy), ``circuit`` M(C∖K),
        ``model`` M(M∖K), ``gap`` in units of |M(all) − M(∅)|, and ``removed``, the units of K.
    """
    units = _units(circuit, by)
    draw = random.Random(seed)
    gap = _gap(engine, circuit, metric)
    everything = engine.like(circuit, engine.all)

    def measured(how: str, sets: Sequence[tuple]) -> list[tuple]:
        if not sets:
            return []
        runs = [_without(circuit, removed) for removed in sets] + [
            _knocked_out(everything, removed) for removed in sets
        ]
        values = engine.metric(runs, metric).view(2, -1).T.tolist()
        return [(how, a, b, abs(a - b) / abs(gap), removed) for (a, b), removed in zip(values, sets, strict=True)]

    rows = measured("none", [()])
    drawn = dict.fromkeys(tuple(unit for unit in units if draw.random() < 0.5) for _ in range(n_sets))
    rows += measured("random", [removed for removed in drawn if removed])
    grown: tuple = ()
    for _ in range(min(greedy_steps, len(units))):
        step = measured("greedy", [(*grown, unit) for unit in units if unit not in grown])
        rows.append(max(step, key=_gap_of))
        grown = rows[-1][4]
    rows.sort(key=_gap_of, reverse=True)
    return _table(rows, "K", ["how", "circuit", "model", "gap", "removed"], numbered=True)


def _gap_of(row: tuple) -> float:
    """Rounded, so that of sets that are equally bad the first comes first, and not the one that rounding favours."""
    return round(row[3], 4)


def _units(circuit: Circuit, by: str) -> list[Edge] | list[str]:
    if by == "edge":
        return list(circuit.edges)
    if by == "node":
        return [node for node in circuit.nodes() if node not in ("embed", "logits")]
    raise ValueError(f"by: expected 'edge' or 'node', got {by!r}")


def _without(circuit: Circuit, removed: Sequence[Edge | str]) -> Circuit:
    """C∖K: without these edges, and without any edge that touches these nodes."""
    gone = set(removed)
    return circuit - [edge for edge in circuit if gone & {edge, edge.sender, node_of(edge.receiver)}]


def _knocked_out(everything: Circuit, removed: Sequence[Edge | str]) -> Circuit:
    """M∖K: these edges cut, and every edge out of these nodes."""
    gone = set(removed)
    return everything - [edge for edge in everything if gone & {edge, edge.sender}]


def _gap(engine: Engine, circuit: Circuit, metric) -> float:
    return denominator(*engine.values([engine.like(circuit, engine.all), engine.like(circuit, engine.none)], metric))


def _changes(engine: Engine, circuit: Circuit, units: list, metric, by: str) -> list[float]:
    """M(circuit) − M(circuit without the unit), for each unit."""
    if not units:
        return []
    whole = engine.metric(circuit, metric)
    if by == "edge":
        less = engine.values_without(circuit, units, metric).mean(-1)
    else:
        less = engine.metric([_without(circuit, [unit]) for unit in units], metric)
    return torch.sub(whole, less).tolist()


def _table(rows: list[tuple], index: str, columns: list[str], numbered: bool = False):
    import pandas as pd

    rows = [(*row[:-1], ", ".join(map(str, row[-1])) or "∅") for row in rows]
    if numbered:
        return pd.DataFrame(rows, columns=columns).rename_axis(index)
    return pd.DataFrame(rows, columns=[index, *columns]).set_index(index)
