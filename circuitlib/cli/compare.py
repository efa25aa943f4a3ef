"""``circuitlib compare``: methods beside each other, as a table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from .common import (
    Ablated,
    Ablation,
    Compared,
    Directed,
    Direction,
    Json,
    Metric,
    Prompts,
    Quiet,
    Steps,
    answers,
    check_place,
    emit,
    engine_of,
    known_of,
    method_of,
    results_apart,
    say,
)

THRESHOLDS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
SHOWN = ["auc_pessimistic_edge", "auc_pessimistic_node", "cpr", "cmd", "edges", "faithfulness", "kl", "forwards", "backwards", "seconds"]  # fmt: skip


@answers
def compare(
    model: Annotated[
        list[str], typer.Option(help="A name that `circuitlib models` lists; may be given several times.")
    ],
    method: Annotated[list[Compared] | None, typer.Option(help="May be given several times; by default all.")] = None,
    metric: Annotated[
        list[Metric] | None, typer.Option(help="May be given several times; by default the task's.")
    ] = None,  # fmt: skip
    threshold: Annotated[list[float] | None, typer.Option(min=0, help="Of acdc; may be given several times.")] = None,
    truth: Annotated[
        Path | None, typer.Option(help="A circuit file to compare with; by default what is known of the model.")
    ] = None,  # fmt: skip
    seeds: Annotated[int, typer.Option(min=1, help="How many draws of prompts: seeds 0, 1, …")] = 1,
    n: Prompts = 50,
    ablation: Ablated = Ablation.corrupted,
    direction: Directed = Direction.noising,
    steps: Steps = 5,
    as_json: Json = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Write all columns to this .csv or .json file instead of printing the main ones."),
    ] = None,  # fmt: skip
    quiet: Quiet = False,
) -> None:
    """Compare methods on the tasks of some models: ROC against the known circuit, faithfulness, cost.

    Example: circuitlib compare --model handmade-docstring --model handmade-or --seeds 3 --out table.csv
    """
    if out is not None and out.suffix not in (".csv", ".json"):
        raise ValueError(f"--out: expected a name that ends in .csv or .json, got {out.name!r}")
    check_place(out)
    methods = dict.fromkeys(method or list(Compared))
    with results_apart():
        tasks = {name: draws(name, truth, n, ablation, direction, quiet) for name in dict.fromkeys(model)}
        from ..evaluation import compare as run
        from ..evaluation.compare import OBJECTS

        thresholds = tuple(threshold or THRESHOLDS)
        named = {str(one): method_of(one, steps, thresholds, False) for one in methods}
        metrics = [None if one is Metric.task else "kl" for one in dict.fromkeys(metric or [Metric.task])]
        table = run(tasks, named, range(seeds), metrics=metrics, progress=not quiet).drop(columns=OBJECTS)
    for row in table[table["refused"] != ""].itertuples():
        say(f"{row.method} refused {row.metric} on {row.task}: {row.refused}", quiet)
    if as_json or (out is not None and out.suffix == ".json"):
        emit(table.to_json(orient="records", indent=1), out)
    elif out is not None:
        emit(table.to_csv(index=False), out)
    else:
        shown = table[["task", "method", "metric", "seed", *SHOWN]]
        emit(shown.to_string(index=False, float_format="{:.3g}".format, na_rep=""), None)


def draws(name: str, truth: Path | None, n: int, ablation: str, direction: str, quiet: bool) -> Callable:
    """A task of ``cl.compare``: from a seed to an engine and the circuit that is known."""
    from ..models import info

    info(name)

    def draw(seed: int):
        from ..graph import Circuit

        known = known_of(name, str(ablation), str(direction)) if truth is None else Circuit.load(truth)
        if known is None:
            say(f"{name}: no circuit is known under {ablation} ablation, so its ROC is left out", quiet)
        return engine_of(name, None, n, seed, ablation, direction, quiet), known

    return draw
