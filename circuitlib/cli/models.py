"""``circuitlib models``."""

from __future__ import annotations

from .common import Json, answers, emit


@answers
def models(as_json: Json = False) -> None:
    """List the models: family, shape, size, tasks.

    Example: circuitlib models
    """
    from ..models import models as table

    rows = table()
    emit(rows.reset_index().to_json(orient="records", indent=1) if as_json else rows.to_string(), None)
