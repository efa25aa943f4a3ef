"""``circuitlib download`` and ``manifest``: models for a classroom."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .common import answers, emit, results_apart


@answers
def download(
    model: Annotated[list[str], typer.Argument(help="Models of the Hugging Face Hub, such as gpt2 and attn-only-4l.")],
    to: Annotated[Path, typer.Option(help="A folder for CIRCUITLIB_MODELS, such as one on a USB stick.")],
) -> None:
    """Download models into a folder for a classroom, with the hash of every file.

    Example: circuitlib download attn-only-4l gpt2 --to models
    """
    from ..models import download_models

    with results_apart():
        written = download_models(model, to)
    emit(f"{written}: give the folder to everyone, and set CIRCUITLIB_MODELS to its place", None)


@answers
def manifest(folder: Annotated[Path, typer.Argument(help="A folder for CIRCUITLIB_MODELS.")]) -> None:
    """Write the hash of every model file in a folder, against which the files are checked when they are loaded.

    Example: circuitlib manifest models
    """
    from ..models import write_manifest

    emit(str(write_manifest(folder)), None)
