"""``circuitlib doctor``."""

from __future__ import annotations

import typer

from .common import CHECK_FAILED, Json, answers


@answers
def doctor(as_json: Json = False) -> None:
    """Check that this computer can run the book: Python, versions, memory, kernel, widgets, models; a fix for what is wrong.

    Ends with exit code 1 if something is. Takes about half a minute.

    Example: circuitlib doctor
    """
    from ..doctor import report

    if not report(as_json):
        raise typer.Exit(CHECK_FAILED)
