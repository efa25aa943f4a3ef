"""``circuitlib discover``: from a model and a method to a circuit file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import common
from .common import Ablation, Direction, Method, Metric


@common.answers
def discover(
    model: common.Name,
    method: Annotated[Method, typer.Option(help="How to look for the circuit.")],
    task: common.Task = None,
    top: Annotated[int | None, typer.Option(min=0, help="Keep this many edges (not for acdc).")] = None,
    threshold: Annotated[
        float | None, typer.Option(min=0, help="For acdc its threshold; else keep edges with |score| of at least this.")
    ] = None,  # fmt: skip
    metric: Annotated[
        Metric, typer.Option(help="What counts as an effect: on the task's metric, or on the whole output.")
    ] = Metric.task,  # fmt: skip
    corruption: common.Corruption = None,
    n: common.Prompts = None,
    seed: common.Seed = None,
    ablation: common.Ablated = Ablation.corrupted,
    direction: common.Directed = Direction.noising,
    steps: common.Steps = None,
    device: common.Device = "cpu",
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="For exact and acdc: a file that keeps what is done, from which the same command goes on."),
    ] = None,  # fmt: skip
    min_faithfulness: common.MinFaithfulness = None,
    scores: Annotated[
        Path | None, typer.Option(help="Write the score of every edge to this CSV file (not for acdc).")
    ] = None,  # fmt: skip
    out: Annotated[Path | None, typer.Option(help="Write the circuit to this JSON file instead of to stdout.")] = None,
    quiet: common.Quiet = False,
) -> None:
    """Find a circuit, and write it as JSON. What it is worth is said on stderr.

    Examples:

    circuitlib discover --model docstring-4l --method eap-ig --top 60 --out c.json

    circuitlib discover --model gpt2 --task my.jsonl --method acdc --threshold 0.1
    """
    _check_choice(method, top, threshold, steps, scores, checkpoint)
    common.check_finite(threshold=threshold, min_faithfulness=min_faithfulness)
    common.check_apart(out=out, scores=scores, checkpoint=checkpoint)
    for path in (scores, out, checkpoint):
        common.check_place(path)
    setting = common.Setting(model, task, corruption, n, seed, ablation, direction, device, quiet)
    with common.results_apart():
        engine = setting.engine()
        if top is not None and top > engine.graph.n_edges:
            raise ValueError(
                f"--top: {top:,} edges asked for, expected at most the {engine.graph.n_edges:,} of {model}"
            )
        common.say(f"{method} on {engine.task.name}, {len(engine.task)} prompts, {engine.graph.n_edges:,} edges", quiet)
        run = common.method_of(method, steps, threshold, not quiet)
        kept = {} if checkpoint is None else {"checkpoint": checkpoint}
        found = run(engine, metric=None if metric is Metric.task else "kl", **kept)
        if method is not Method.acdc:
            scored, found = found, found.top(top) if top is not None else found.above(threshold)
            if scores is not None:
                common.emit(scored.to_pandas().to_csv(lineterminator="\n"), scores)
        found.conditions = setting.conditions(engine) | {"method": str(method), "metric": str(metric)}
        faithful = common.report(engine, found, quiet)
    common.emit(found.to_json(), out)
    common.check_faithful(faithful, min_faithfulness)


def _check_choice(method: Method, top, threshold, steps, scores, checkpoint) -> None:
    if method is Method.acdc and (top is not None or threshold is None):
        raise ValueError("--threshold: acdc needs one, and no --top: it finds the size by itself")
    if method is Method.acdc and scores is not None:
        raise ValueError("--scores: acdc gives no scores; expected exact, eap or eap-ig")
    if method is not Method.acdc and (top is None) == (threshold is None):
        raise ValueError(f"--top: {method} needs either --top or --threshold, to know which edges to keep")
    if method is not Method.eap_ig and steps is not None:
        raise ValueError(f"--steps: {method} has none; expected eap-ig")
    if method not in (Method.exact, Method.acdc) and checkpoint is not None:
        raise ValueError(f"--checkpoint: {method} is done before it could be written; expected exact or acdc")
