"""``python -m circuitlib`` is the command ``circuitlib``."""

from .cli import app

app()
