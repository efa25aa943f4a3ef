"""``python -m circuitlib.cli``."""

from . import app

app()
