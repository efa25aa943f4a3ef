"""Exact single-edge effects: M(all edges) − M(all but one), for every edge.

What attribution patching approximates (Syed, Rager & Conmy 2023, section 2, call it activation patching of edges). One run for
each edge, so the slowest method, and the yardstick of the others: but only for one edge at a time. Where two edges
stand in for each other, neither shows (an OR gate).
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from ..engine import Engine, Metric, check_engine
from ..graph import Circuit, Graph
from .longwork import Checkpoint, bar, identity
from .scores import Cost, EdgeScores, NodeScores, metric_name

ROUNDING = 1e-6  # of the metric, or of 1 where the metric is small


def exact(
    engine: Engine,
    *,
    metric: str | Metric | None = None,
    per_position: bool = False,
    level: str = "edge",
    checkpoint: str | Path | None = None,
    progress: bool = False,
) -> EdgeScores | NodeScores:
    """The effect of cutting each edge alone, in units of the metric; positive where cutting lowers the metric.

    Under denoising, an edge is set to its clean value in the corrupted run; positive where that raises the metric.

    Args:
        metric: None for the task's, "kl", or a callable from logits ``[n, k, d_vocab]`` to ``[n]``.
        per_position: one score for each edge and position. Not for nodes.
        level: "edge", or "node" for the effect of cutting all edges out of a node at once.
        checkpoint: a file that keeps the effects found so far. If it exists the work goes on from there. Not for nodes.
        progress: show a bar on stderr; for edges, since nodes take only a moment.

    Raises:
        ValueError: a bad argument, or a checkpoint of another run; one line.
    """
    if level not in ("edge", "node"):
        raise ValueError(f"level: expected 'edge' or 'node', got {level!r}")
    began = time.perf_counter()
    check_engine(engine)
    if level == "node":
        for name, given in (("per_position", per_position), ("checkpoint", checkpoint is not None)):
            if given:
                raise ValueError(f"{name}: works for edges only; expected level 'edge', got 'node'")
        return _nodes(engine, metric, began)
    everything = engine.all
    if per_position:
        everything = Circuit.from_mask(engine.graph_with_positions, engine.graph_with_positions.edge_mask)
    graph, claim = everything.graph, (engine.task.name, engine.ablation, engine.direction)
    effects, seconds = {}, 0.0
    file = None
    if checkpoint is not None:
        file = Checkpoint(checkpoint, {"method": "exact", **identity(engine, everything, metric)})
        effects, seconds = _resume(file, graph)
    began -= seconds
    whole = float(engine.values(everything, metric).cpu().double().mean())  # double: not on every device
    with bar(progress, graph.n_edges, "exact", "edges") as shown:
        shown.update(sum(map(len, effects.values())))
        try:
            for receiver, found in _by_receiver(engine, everything, metric, whole, skip=set(effects)):
                effects[receiver] = found
                shown.update(len(found))
                if file is not None:
                    file.save({"effects": effects, "seconds": time.perf_counter() - began}, now=False)
        finally:
            if file is not None:
                file.save({"effects": effects, "seconds": time.perf_counter() - began})
    values = torch.zeros(graph.edge_mask.shape, dtype=engine.start.dtype)
    found = torch.tensor([x for receiver in graph.receivers for x in effects[receiver]], dtype=torch.double)
    values[graph.edge_mask] = _without_rounding(found, whole).to(values)
    cost = Cost(graph.n_edges + 3, 0, time.perf_counter() - began)  # the reference, and twice the run of all edges
    return EdgeScores(graph, values, "exact", metric_name(metric), *claim, cost)


def _without_rounding(effects: Float[Tensor, "effect"], whole: float) -> Float[Tensor, "effect"]:
    """Effects below what rounding makes of the metric are 0: else dust would rank edges that do nothing."""
    return effects.where(effects.abs() > ROUNDING * max(1.0, abs(whole)), 0.0)


def _by_receiver(
    engine: Engine, everything: Circuit, metric, whole: float, skip: set[str]
) -> Iterator[tuple[str, list[float]]]:
    """For each receiver, the effects of the edges into it, in canonical order."""
    graph = everything.graph
    run = engine.cache(everything)
    for receiver, edges in groupby(graph.edges, key=lambda edge: edge.receiver):
        if receiver not in skip:
            less = engine.values_without(everything, list(edges), metric, run=run).cpu().double().mean(-1)
            yield receiver, (engine.sign * (whole - less)).tolist()


def _resume(file: Checkpoint, graph: Graph) -> tuple[dict[str, list[float]], float]:
    """The effects that ``file`` holds, and the seconds they took."""
    state = file.load()
    if state is None:
        return {}, 0.0
    try:
        effects, seconds = dict(state["effects"]), float(state["seconds"])
        expected = Counter(edge.receiver for edge in graph.edges)
        numbers = [x for found in effects.values() for x in (seconds, *found)]
        if any(len(found) != expected.get(receiver) for receiver, found in effects.items()):
            raise ValueError
        if not all(isinstance(x, float) and math.isfinite(x) for x in numbers):
            raise ValueError
    except (KeyError, TypeError, ValueError, OverflowError):
        raise ValueError(f"checkpoint: {file.path} is damaged: its effects can't be read") from None
    return effects, seconds


def _nodes(engine: Engine, metric, began: float) -> NodeScores:
    senders = engine.graph.senders
    runs = [engine.all]
    for sender in senders:
        mask = engine.graph.edge_mask.clone()
        mask[:, engine.graph.sender_index[sender]] = False
        runs.append(Circuit.from_mask(engine.graph, mask))
    values = engine.metric(runs, metric).cpu().double()
    effects = _without_rounding(engine.sign * (values[0] - values[1:]), float(values[0])).tolist()
    cost = Cost(len(runs) + 1, 0, time.perf_counter() - began)
    return NodeScores(dict(zip(senders, effects, strict=True)), "exact", metric_name(metric), cost)
