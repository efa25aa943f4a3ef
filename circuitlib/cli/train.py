"""``circuitlib train``: a shipped model, trained again from nothing."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from . import common

OF_A_MODEL = ("config.json", "model.safetensors", "SHA256SUMS")


class Trained(StrEnum):
    docstring = "docstring-4l"
    gpt_mini = "gpt-mini"


@common.answers
def train(
    model: Annotated[Trained, typer.Argument(help="The model.")],
    out: Annotated[
        Path | None, typer.Option(help="A folder for checkpoint and log; by default training/MODEL.")
    ] = None,
    to: Annotated[Path | None, typer.Option(help="A folder for the finished model; by default OUT/MODEL.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="By default that of the shipped model.")] = None,
    stop_at: Annotated[
        int | None,
        typer.Option(min=1, help="Stop after this many steps; the same command goes on from the last checkpoint."),
    ] = None,  # fmt: skip
    quiet: common.Quiet = False,
) -> None:
    """Train a model of the book again, and measure it. Most of an hour on one core; a run that was stopped goes on.

    Ends with exit code 1 if the model misses a bar of its card. The finished folder may stand wherever a model's name stands:
    `circuitlib discover --model run/docstring-4l`, `cl.load_model("run/docstring-4l")`.

    Example: circuitlib train docstring-4l --out run
    """
    from ..models.training.run import make, measured, seed_of

    run = Path("training") / model if out is None else out
    folder = run / str(model) if to is None else to
    _check(run, folder)
    with common.results_apart():
        finished = make(str(model), run, folder, seed=seed, stop_at=stop_at, say=lambda text: common.say(text, quiet))
        if not finished:
            common.say(f"stopped; {run} holds what is done, and the same command without --stop-at goes on", quiet)
            return
        bars = measured(str(model), folder, seed=seed_of(run))
        missed = [bar.name for bar in bars if bar.hard and not bar.met]
    common.emit(str(folder), None)
    if missed:
        common.stop(f"{len(missed)} bars are not met: {'; '.join(missed)}", common.CHECK_FAILED)


def _check(run: Path, folder: Path) -> None:
    """A finished model takes the place of what is in its folder: that must be a model, and not one of the package."""
    from ..models.registry import SHIPPED

    if run.exists() and not run.is_dir():
        raise ValueError(f"--out: expected a folder, {run} is a file")
    if folder.exists() and not all((folder / name).is_file() for name in OF_A_MODEL):
        raise ValueError(f"--to: {folder} is there and is no model's folder; expected a new one")
    if run.resolve().is_relative_to(folder.resolve()):
        raise ValueError(
            f"--to: the model would take the place of the run in {run}; expected another folder, or one in it"
        )
    for path in (run, folder):
        if path.resolve().is_relative_to(SHIPPED.resolve()):
            raise ValueError(f"{path}: is in the package, whose models are never changed; expected another folder")
