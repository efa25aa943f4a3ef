"""``circuitlib compare``: methods beside each other, as a table."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from . import common
from .common import Ablation, Compared, Direction, Metric

THRESHOLDS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
SHOWN = ["auc_pessimistic_edge", "auc_pessimistic_node", "cpr", "cmd", "edges", "faithfulness", "kl", "forwards", "backwards", "seconds"]  # fmt: skip


@common.answers
def compare(
    model: Annotated[
        list[str],
        typer.Option(
            help="A name that `circuitlib models` lists, or the folder of a model; may be given several times."
        ),
    ],
    task: common.Task = None,
    method: Annotated[list[Compared] | None, typer.Option(help="May be given several times; by default all.")] = None,
    metric: Annotated[
        list[Metric] | None, typer.Option(help="May be given several times; by default the task's.")
    ] = None,  # fmt: skip
    threshold: Annotated[list[float] | None, typer.Option(min=0, help="Of acdc; may be given several times.")] = None,
    truth: Annotated[
        Path | None, typer.Option(help="A circuit file to compare with; by default what is known of the model.")
    ] = None,  # fmt: skip
    seeds: Annotated[int, typer.Option(min=1, help="How many draws of prompts: seeds 0, 1, …")] = 1,
    corruption: common.Corruption = None,
    n: common.Prompts = None,
    ablation: common.Ablated = Ablation.corrupted,
    direction: common.Directed = Direction.noising,
    steps: common.Steps = None,
    device: common.Device = "cpu",
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="A folder that keeps what exact and acdc have done, from which the same command goes on."),
    ] = None,  # fmt: skip
    as_json: common.Json = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Write all columns to this .csv or .json file instead of printing the main ones."),
    ] = None,  # fmt: skip
    quiet: common.Quiet = False,
) -> None:
    """Compare methods on the tasks of some models: ROC against the known circuit, faithfulness, cost.

    Examples:

    circuitlib compare --model handmade-or --model handmade-and --out table.csv

    circuitlib compare --model gpt2 --task my.jsonl --method eap --method eap-ig
    """
    methods = list(dict.fromkeys(method or Compared))
    _check(out, methods, threshold, steps, seeds, task, n)
    common.check_place(out)
    settings = {
        name: common.Setting(name, task, corruption, n, None, ablation, direction, device, quiet)
        for name in dict.fromkeys(model)
    }
    for setting in settings.values():
        setting.check()
        setting.truth(truth)
    if checkpoint is not None:
        checkpoint.mkdir(exist_ok=True)
    with common.results_apart():
        from ..evaluation import compare as run
        from ..evaluation.compare import OBJECTS

        named = {str(one): _method(one, steps, tuple(threshold or THRESHOLDS), checkpoint) for one in methods}
        metrics = [None if one is Metric.task else "kl" for one in dict.fromkeys(metric or [Metric.task])]
        tasks = {name: _draws(setting, truth) for name, setting in settings.items()}
        table = run(tasks, named, range(seeds), metrics=metrics, progress=not quiet).drop(columns=OBJECTS)
    for row in table[table["refused"] != ""].itertuples():
        common.say(f"{row.method} refused {row.metric} on {row.task}: {row.refused}", quiet)
    if as_json or (out is not None and out.suffix == ".json"):
        common.emit(table.to_json(orient="records", indent=1), out)
    elif out is not None:
        common.emit(table.to_csv(index=False, lineterminator="\n"), out)
    else:
        shown = table[["task", "method", "metric", "seed", *SHOWN]]
        common.emit(shown.to_string(index=False, float_format="{:.3g}".format, na_rep=""), None)


def _check(out, methods: list[Compared], threshold, steps, seeds: int, task: str | None, n: int | None) -> None:
    if out is not None and out.suffix not in (".csv", ".json"):
        raise ValueError(f"--out: expected a name that ends in .csv or .json, got {out.name!r}")
    if threshold and Compared.acdc not in methods:
        raise ValueError("--threshold: is that of acdc, which is not among the methods")
    if steps is not None and Compared.eap_ig not in methods:
        raise ValueError("--steps: are those of eap-ig, which is not among the methods")
    for one in threshold or ():
        common.check_finite(threshold=one)
    if seeds > 1 and n is None and (task or "").endswith(".jsonl"):
        raise ValueError("--seeds: says which --n prompts of a file are taken; without --n all of them are, every time")


def _draws(setting: common.Setting, truth: Path | None) -> Callable:
    """A task of ``cl.compare``: from a seed to an engine and the circuit that is known."""

    def draw(seed: int):
        known = setting.truth(truth)
        if known is None:
            common.say(
                f"{setting.model}: no circuit is known of {setting.task_name} under {setting.ablation} ablation, so its ROC is left out",
                setting.quiet,
            )
        return replace(setting, seed=None if setting.file and setting.n is None else seed).engine(), known

    return draw


def _method(name: Compared, steps: int | None, thresholds: tuple[float, ...], folder: Path | None) -> Callable:
    """A method; with a folder, exact and acdc keep what they have done in a file there, named after the run that it is of."""
    run = common.method_of(name, steps, thresholds, False)
    if folder is None or name not in (Compared.exact, Compared.acdc):
        return run

    def kept(engine, *, metric=None):
        from ..discovery.longwork import identity
        from ..discovery.scores import metric_name

        of = hashlib.sha256(repr(sorted(identity(engine, engine.all).items())).encode()).hexdigest()[:12]
        return run(engine, metric=metric, checkpoint=folder / f"{name}-{metric_name(metric)}-{of}.json")

    return kept
