"""Methods side by side: one table of circuits, and one of tasks × methods × metrics × seeds."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import torch

from ..discovery.longwork import bar
from ..discovery.scores import EdgeScores, metric_name
from ..engine import Engine, Metric, check_engine
from ..graph import Circuit
from .faithfulness import Curve, cmd, cpr, denominator, faithfulness_curve
from .roc import CONVENTIONS, LEVELS, roc, without_rounding

SHARES = (0.01, 0.02, 0.05, 0.1, 0.2)

# What the columns of ``compare`` mean.
COLUMNS = {
    "task, method, metric, seed": "the run: names of the task, the method and the metric that it was given ('task' for the task's own), and the seed",
    "auc_pessimistic_edge, auc_trapezoid_edge": "area under the ROC curve of edges, in each convention",
    "auc_pessimistic_node, auc_trapezoid_node": "the same of nodes; NaN where the truth touches every node",
    "cpr, cmd": "areas of the faithfulness curve",
    "faithfulness@5%": "faithfulness at this share of all edges, on a straight line between the sizes that were measured",
    "edges": "size of the circuit that the next columns are about: that of the truth, or for circuits the nearest to it",
    "edges_pruned": "how many of its edges lie on a path from the embedding to the logits",
    "precision": "the share of its edges that is true",
    "faithfulness, task_metric, kl": "its faithfulness, its mean of the task's metric, and KL(all edges ‖ circuit) in nats",
    "forwards, backwards": "passes that the method took, without the judging",
    "refused": "why the method would not run, else empty",
    "roc, roc_node, curve": "the curves themselves, for plot_roc and plot_faithfulness",
    "seconds": "time that the method took, on the clock",
}
NOTHING = float("nan")
AREAS = tuple(f"auc_{convention}_{level}" for level in LEVELS for convention in CONVENTIONS)
AT_SIZE = ("edges", "edges_pruned", "precision", "faithfulness", "task_metric", "kl")
PASSES = ("forwards", "backwards")
OBJECTS = ["roc", "roc_node", "curve"]  # what a file of numbers can't hold
CLOCK = ["seconds"]  # what is never the same twice


def evaluate(
    engine: Engine, circuits: Circuit | Mapping[str, Circuit] | Sequence[Circuit], truth: Circuit | None = None
):
    """What circuits hold and what they do.

    Args:
        circuits: one, a list, or name → circuit.
        truth: a known circuit, for ``precision`` (the share of a circuit's edges that is true) and ``recall`` (the share
            of the true edges that is in it).

    Returns:
        A table with a row for each circuit: ``edges``; ``edges_pruned``, those on a path from the embedding to the logits;
        ``heads``; ``faithfulness``; the task's metric, by its name; ``kl``, KL(all edges ‖ circuit) in nats.
    """
    import pandas as pd

    if isinstance(circuits, Circuit) or hasattr(circuits, "top"):
        circuits = [circuits]
    names = list(circuits) if isinstance(circuits, Mapping) else list(range(len(circuits)))
    circuits = list(circuits.values()) if isinstance(circuits, Mapping) else list(circuits)
    check_engine(engine).masks(circuits)
    if truth is not None and not truth.edges:
        raise ValueError("truth: the circuit is empty, so there is nothing to find; expected at least one edge")
    if truth is not None and truth.graph != circuits[0].graph:
        raise ValueError(f"truth: expected a circuit of {circuits[0].graph!r}, got one of {truth.graph!r}")
    ends = [engine.like(circuits[0], engine.all), engine.like(circuits[0], engine.none)]
    values = engine.values([*circuits, *ends])
    gap, empty = denominator(values[-2], values[-1]), values[-1].mean()
    table = {
        "edges": [len(circuit) for circuit in circuits],
        "edges_pruned": [len(circuit.prune()) for circuit in circuits],
        "heads": [len(circuit.heads()) for circuit in circuits],
        "faithfulness": ((values[:-2].mean(-1) - empty) / gap).tolist(),
        engine.task.metric_name: values[:-2].mean(-1).tolist(),
        "kl": [max(0.0, -value) for value in engine.metric(circuits, _from_whole(engine)).tolist()],
    }
    if truth is not None:
        hits = [len(circuit & truth) for circuit in circuits]
        table["precision"] = [
            hit / len(circuit) if circuit else float("nan") for hit, circuit in zip(hits, circuits, strict=True)
        ]
        table["recall"] = [hit / len(truth) for hit in hits]
    return pd.DataFrame(table, index=pd.Index(names, name="circuit"))


def _from_whole(engine: Engine) -> str | Metric:
    """−KL(all edges ‖ circuit). Under noising all edges give the clean run, as "kl" has it; under denoising another one."""
    if engine.direction == "noising":
        return "kl"
    log_p = engine.all_logits.log_softmax(-1)
    return lambda logits: -(log_p.exp() * (log_p - logits.log_softmax(-1))).sum(-1).mean(-1)


def random_scores(engine: Engine, *, metric: str | Metric | None = None, seed: int = 0) -> EdgeScores:
    """A score for each edge drawn from [0, 1): a method that knows nothing, as a control in ``compare``.

    Another draw for another ``seed``, and for other prompts: so that seeds of a task make it vary, as they do methods.
    """
    prompts = zlib.crc32(engine.task.clean.cpu().numpy().tobytes())
    graph, generator = engine.graph, torch.Generator().manual_seed(prompts + seed)
    scores = torch.rand(graph.edge_mask.shape, generator=generator) * graph.edge_mask
    claim = (metric_name(metric), engine.task.name, engine.ablation, engine.direction)
    return EdgeScores(graph, scores, "random", *claim)


def compare(
    tasks: Mapping[str, Callable[[int], tuple[Engine, Circuit | None]] | tuple[Engine, Circuit | None]],
    methods: Mapping[str, Callable],
    seeds: Sequence[int] = (0,),
    *,
    metrics: Sequence[str | Metric | None] = (None,),
    shares: Sequence[float] = SHARES,
    progress: bool = False,
):
    """Run every method on every task, with every metric and seed, and judge what it finds.

    Args:
        tasks: name → a function from a seed to ``(engine, truth)``; or such a pair, which is the same for every seed. The
            truth is a known circuit of the engine's graph, or None where none is known: then what needs it is NaN.
        methods: name → method. It is called as ``method(engine, metric=metric)`` and returns scores, circuits (such as
            ``cl.acdc_sweep`` returns) or one circuit.
        seeds: what makes the runs differ, as the prompts that a task draws.
        metrics: what the methods go by: None for the task's, "kl", or a callable. Circuits are always judged by the task's
            own metric, and by KL where a column says so.
        shares: of all edges, from 0 to 1, for the columns ``faithfulness@…``.
        progress: show a bar on stderr.

    Returns:
        A table with a row for each run; ``COLUMNS`` says what its columns mean. A method that refuses a metric or a task
        (EAP refuses KL, whose gradient vanishes) has a row of NaN that says why. For a file, drop the columns ``OBJECTS``;
        to compare two tables, ``CLOCK`` as well.

    Raises:
        ValueError: no task or method; one pair for several seeds; a truth that ``cl.roc`` refuses; every run is refused.
    """
    import pandas as pd

    _check(tasks, methods, seeds, metrics, shares)
    runs, rows = list(product(tasks, methods, metrics, seeds)), {}
    with bar(progress, len(runs), "compare", "runs") as shown:
        for task, seed in product(tasks, seeds):
            engine, truth = tasks[task](seed) if callable(tasks[task]) else tasks[task]
            for method, metric in product(methods, metrics):
                shown.set_postfix_str(f"{task}, {method}, {metric_name(metric)}, seed {seed}")
                run = {"task": task, "method": method, "metric": metric_name(metric), "seed": seed}
                rows[task, method, metric, seed] = {**run, **_judged(engine, truth, methods[method], metric, shares)}
                shown.update()
    refused = [row["refused"] for row in rows.values()]
    if all(refused):
        raise ValueError(f"methods: none would run; the first said: {refused[0]}")
    return pd.DataFrame([rows[run] for run in runs])


def _check(tasks, methods, seeds, metrics, shares) -> None:
    for name, given in (("tasks", tasks), ("methods", methods)):
        if not isinstance(given, Mapping) or not given:
            raise ValueError(f"{name}: expected a dict with at least one entry, got {type(given).__name__}")
    if isinstance(seeds, int):
        raise ValueError(f"seeds: expected a list such as range({seeds}), got {seeds!r}")
    for name, given in (("seeds", seeds), ("metrics", metrics)):
        if isinstance(given, str) or not list(given) or len({*given}) != len(given):
            raise ValueError(f"{name}: expected at least one, each once, got {given!r}")
    if not all(0 <= share <= 1 for share in shares):
        raise ValueError(f"shares: expected numbers from 0 to 1, got {shares!r}")
    for name, method in methods.items():
        if not callable(method):
            raise ValueError(f"methods: {name!r} is no function such as cl.eap, got {method!r}")
    for name, task in tasks.items():
        if not callable(task) and len(seeds) > 1:
            raise ValueError(
                f"tasks: {name!r} is the same for each of {len(seeds)} seeds; expected a function of the seed"
            )


def _judged(engine: Engine, truth: Circuit | None, method: Callable, metric, shares: Sequence[float]) -> dict[str, Any]:
    """What a method finds, in numbers."""
    row: dict[str, Any] = dict.fromkeys((*AREAS, "cpr", "cmd", *map(_column, shares), *AT_SIZE, *PASSES), NOTHING)
    row |= {"refused": "", "roc": None, "roc_node": None, "curve": None, "seconds": NOTHING}
    began = time.perf_counter()
    try:
        found = method(engine, metric=metric)
    except ValueError as error:
        return {**row, "refused": str(error)}
    row["seconds"] = time.perf_counter() - began
    circuits = found
    if isinstance(found, EdgeScores):
        circuits = replace(found, values=without_rounding(found.values))
    elif isinstance(found, Circuit):
        circuits = [found]
    elif not (isinstance(found, Sequence) and found and all(isinstance(one, Circuit) for one in found)):
        raise ValueError(f"methods: expected ones that return scores or circuits, got {type(found).__name__}")
    curve = faithfulness_curve(engine, circuits)
    row |= {"cpr": cpr(curve), "cmd": cmd(curve), "curve": curve, **_passes(circuits)}
    row |= {_column(share): _on_the_line(curve, share) for share in shares}
    return row if truth is None else {**row, **_areas(found, truth), **_at_the_size_of(truth, engine, circuits)}


def _column(share: float) -> str:
    return f"faithfulness@{100 * share:g}%"


def _on_the_line(curve: Curve, share: float) -> float:
    import numpy as np

    x, y = (0, *curve.sizes, curve.n_edges), (0.0, *curve.values, 1.0)
    return float(np.interp(share * curve.n_edges, x, y))


def _areas(found, truth: Circuit) -> dict[str, Any]:
    """The four areas and the two curves; of nodes only where some are not true."""
    row: dict[str, Any] = {}
    for level, name in zip(LEVELS, ("roc", "roc_node"), strict=True):
        if level == "edge" or not _touches_everything(truth):
            row[name] = roc(found, truth, level)
            row |= {f"auc_{convention}_{level}": row[name].auc(convention) for convention in CONVENTIONS}
    return row


def _touches_everything(truth: Circuit) -> bool:
    senders, receivers = ({getattr(edge, end) for edge in truth} for end in ("sender", "receiver"))
    return {*truth.graph.senders, *truth.graph.receivers} <= senders | receivers


def _at_the_size_of(truth: Circuit, engine: Engine, found) -> dict[str, float]:
    size = len(truth)
    if isinstance(found, EdgeScores):
        circuit = found.top(size)
    else:
        circuit = min(found, key=lambda one: (abs(len(one) - size), len(one)))
    row = evaluate(engine, circuit, truth).rename(columns={engine.task.metric_name: "task_metric"}).iloc[0]
    return {name: float(row[name]) for name in AT_SIZE}


def _passes(found) -> dict[str, float]:
    """What a method took in all; NaN where it did not count."""
    costs = [getattr(one, "cost", None) for one in (found if isinstance(found, Sequence) else [found])]
    if None in costs:
        return {}
    return {name: sum(getattr(cost, name) for cost in costs) for name in PASSES}
