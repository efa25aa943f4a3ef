"""``circuitlib discover``: from a model and a method to a circuit file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .common import (
    CHECK_FAILED,
    Ablated,
    Ablation,
    Directed,
    Direction,
    Method,
    Metric,
    Prompts,
    Quiet,
    Steps,
    Task,
    answers,
    check_place,
    emit,
    engine_of,
    method_of,
    report,
    results_apart,
    say,
    stop,
)


@answers
def discover(
    model: Annotated[str, typer.Option(help="A name that `circuitlib models` lists.")],
    method: Annotated[Method, typer.Option(help="How to look for the circuit.")],
    task: Task = None,
    top: Annotated[int | None, typer.Option(min=0, help="Keep this many edges (not for acdc).")] = None,
    threshold: Annotated[
        float | None, typer.Option(min=0, help="For acdc its threshold; else keep edges with |score| of at least this.")
    ] = None,  # fmt: skip
    metric: Annotated[
        Metric, typer.Option(help="What counts as an effect: on the task's metric, or on the whole output.")
    ] = Metric.task,  # fmt: skip
    n: Prompts = 50,
    seed: Annotated[int, typer.Option(help="Which prompts.")] = 0,
    ablation: Ablated = Ablation.corrupted,
    direction: Directed = Direction.noising,
    steps: Steps = 5,
    min_faithfulness: Annotated[
        float | None, typer.Option(help="End with exit code 1 if the circuit is less faithful.")
    ] = None,  # fmt: skip
    scores: Annotated[
        Path | None, typer.Option(help="Write the score of every edge to this CSV file (not for acdc).")
    ] = None,  # fmt: skip
    out: Annotated[Path | None, typer.Option(help="Write the circuit to this JSON file instead of to stdout.")] = None,
    quiet: Quiet = False,
) -> None:
    """Find a circuit, and write it as JSON.

    Example: circuitlib discover --model handmade-docstring --method eap-ig --top 6 --out c.json
    """
    check_choice(method, top, threshold, scores)
    for path in (scores, out):
        check_place(path)
    with results_apart():
        engine = engine_of(model, task, n, seed, ablation, direction, quiet)
        say(f"{method} on {engine.task.name}, {n} prompts, {engine.graph.n_edges:,} edges", quiet)
        found = method_of(method, steps, threshold, not quiet)(engine, metric=None if metric is Metric.task else "kl")
        if method is not Method.acdc:
            scored, found = found, found.top(top) if top is not None else found.above(threshold)
            if scores is not None:
                emit(scored.to_pandas().to_csv(), scores)
        faithful = report(engine, found, quiet)
    emit(found.to_json(), out)
    if min_faithfulness is not None and not faithful >= min_faithfulness:
        stop(f"the circuit's faithfulness is {faithful:.3f}, less than {min_faithfulness:g}", CHECK_FAILED)


def check_choice(method: Method, top: int | None, threshold: float | None, scores: Path | None) -> None:
    if method is Method.acdc and (top is not None or threshold is None):
        raise ValueError("--threshold: acdc needs one, and no --top: it finds the size by itself")
    if method is Method.acdc and scores is not None:
        raise ValueError("--scores: acdc gives no scores; expected exact, eap or eap-ig")
    if method is not Method.acdc and (top is None) == (threshold is None):
        raise ValueError(f"--top: {method} needs either --top or --threshold, to know which edges to keep")
