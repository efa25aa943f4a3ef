"""Exact single-edge effects: M(all edges) − M(all but one), for every edge.

What attribution patching approximates (Syed, Rager & Conmy 2023, section 2, call it activation patching of edges). One run for
each edge, so the slowest method, and the yardstick of the others: but only for one edge at a time. Where two edges
stand in for each other, neither shows (an OR gate).
"""

from __future__ import annotations

import time

import torch
from tqdm.auto import tqdm

from ..engine import Engine, Metric
from ..graph import Circuit
from .scores import Cost, EdgeScores, NodeScores, metric_name


def exact(
    engine: Engine,
    *,
    metric: str | Metric | None = None,
    per_position: bool = False,
    level: str = "edge",
    progress: bool = False,
) -> EdgeScores | NodeScores:
    """The effect of cutting each edge alone, in units of the metric; positive where cutting lowers the metric.

    Under denoising, an edge is set to its clean value in the corrupted run; positive where that raises the metric.

    Args:
        metric: None for the task's, "kl", or a callable from logits ``[n, k, d_vocab]`` to ``[n]``.
        per_position: one score for each edge and position.
        level: "edge", or "node" for the effect of cutting all edges out of a node at once.
        progress: show a bar on stderr.
    """
    if level not in ("edge", "node"):
        raise ValueError(f"level: expected 'edge' or 'node', got {level!r}")
    began = time.perf_counter()
    if level == "node":
        return _nodes(engine, metric, began)
    everything = engine.all
    if per_position:
        everything = Circuit.from_mask(engine.graph_with_positions, engine.graph_with_positions.edge_mask)
    graph, run = everything.graph, engine.cache(everything)
    scores = torch.zeros(graph.edge_mask.shape, dtype=engine.start.dtype)
    whole = float(engine.values(everything, metric).double().mean())
    for receiver in tqdm(graph.receivers, desc="exact", unit=" receivers", disable=not progress):
        row = graph.receiver_index[receiver]
        edges = graph.edges_of(_only(graph.edge_mask, row))
        less = engine.values_without(everything, edges, metric, run=run).double().mean(-1)
        scores[row, graph.edge_mask[row]] = (engine.sign * (whole - less)).cpu().to(scores.dtype)
    cost = Cost(len(graph.edges) + 2, 0, time.perf_counter() - began)
    claim = (engine.task.name, engine.ablation, engine.direction)
    return EdgeScores(graph, scores, "exact", metric_name(metric), *claim, cost)


def _nodes(engine: Engine, metric, began: float) -> NodeScores:
    senders = engine.graph.senders
    runs = [engine.all]
    for sender in senders:
        mask = engine.graph.edge_mask.clone()
        mask[:, engine.graph.sender_index[sender]] = False
        runs.append(Circuit.from_mask(engine.graph, mask))
    values = engine.metric(runs, metric)
    effects = (engine.sign * (values[0] - values[1:])).tolist()
    cost = Cost(len(runs) + 1, 0, time.perf_counter() - began)
    return NodeScores(dict(zip(senders, effects, strict=True)), "exact", metric_name(metric), cost)


def _only(mask, row: int):
    only = torch.zeros_like(mask)
    only[row] = mask[row]
    return only
