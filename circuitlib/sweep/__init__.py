"""Many runs from one file: every combination of models, tasks, methods, metrics, thresholds and seeds is a *cell* of a grid.

``grid.py`` makes cells of a TOML file, ``cell.py`` runs one, ``workers.py`` runs many at a time, ``store.py`` keeps what is
finished and makes the table of it, ``run.py`` puts these together. Nothing here loads torch before a cell runs.
"""

from .cell import Cell, run_cell
from .grid import Plan, read_grid
from .run import run_sweep

__all__ = ["Cell", "Plan", "read_grid", "run_cell", "run_sweep"]
