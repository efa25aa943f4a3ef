"""``circuitlib reproduce``: a published circuit on its real model."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from .common import Device, Json, Method, Quiet, answers, check_place, emit, results_apart, say


class Published(StrEnum):
    docstring = "docstring"
    ioi = "ioi"
    greater_than = "greater-than"


@answers
def reproduce(
    circuit: Annotated[Published, typer.Argument(help="The published circuit.")],
    n: Annotated[int, typer.Option(min=1, help="How many prompts.")] = 50,
    seed: Annotated[int, typer.Option(help="Which prompts.")] = 0,
    method: Annotated[
        list[Method] | None,
        typer.Option(help="eap, eap-ig or acdc; may be given several times. acdc is slow on gpt2."),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(help="A file of prompts in the JSON format of auto-circuit, instead of the book's own."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the report here; by default reproduce-CIRCUIT.html.")] = None,
    device: Device = "cpu",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure a published circuit on its real model, beside the published figures, and write a report.

    Example: circuitlib reproduce docstring
    """
    from ..reproduction import reproduce as run

    out = Path(f"reproduce-{circuit}.html") if out is None else out
    check_place(out)
    with results_apart():
        report = run(str(circuit), n=n, seed=seed, methods=method and [str(one) for one in method], prompts=prompts, device=device, progress=not quiet)  # fmt: skip
        report.write(out)
    emit(_as_json(report) if as_json else report.to_markdown(), None)
    say(f"written: {out}", quiet)


def _as_json(report) -> str:
    return report.to_pandas().reset_index().to_json(orient="records", indent=1)
