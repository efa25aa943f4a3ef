"""What a sweep has finished, in a folder: a file for each cell, written whole or not at all. And the table of it.

FOLDER/<key>.json             a finished cell's row
FOLDER/circuits/<key>.json    its circuit, where the grid asks for circuits
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..files import read_text, whole
from ..models.errors import Missing
from .cell import CLOCK, MEASURED, PARAMETERS, PROVENANCE, Cell, blank
from .grid import Plan

FORMAT = "circuitlib sweep cell"
MAX_CELL_BYTES = 64 * 1024
SUFFIXES = (".csv", ".parquet")
BEGUN = re.compile(r"[0-9a-f]{24}\.[0-9]+\.tmp\.json")  # what ``whole`` writes to, and nobody else's file
STATES = ("done", "refused", "failed")
COLUMNS = (*PARAMETERS, "status", "error", *MEASURED, "circuit", *PROVENANCE, "cell", "config", *CLOCK)
WHOLE = ("top", "steps", "n", "seed", "threads", "edges", "edges_pruned", "heads", "forwards", "backwards")
TEXT = ("model", "task", "method", "metric", "corruption", "ablation", "direction", "device", "task_file", "status", "error", "circuit", *PROVENANCE, "cell", "config")  # fmt: skip


class Store:
    """The folder with a sweep's finished cells."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder, and keep other sweeps out of it. The lock goes with the process that holds it, however that ends.

        Raises:
            Missing: the folder can't be made or written to, or another sweep is at work in it.
        """
        from filelock import FileLock, Timeout

        try:
            (self.folder / "circuits").mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.folder / ".lock", timeout=0)
            lock.acquire()
        except Timeout:
            raise Missing(
                f"{self.folder}: another sweep is at work in it; wait for it, or choose another folder"
            ) from None
        except OSError as error:
            raise Missing(f"{self.folder}: can't be written to ({error.strerror or error})") from None
        try:
            self._clean()
            yield
        finally:
            lock.release()

    def _clean(self) -> None:
        """Away with what a write left that was cut short."""
        for left in (*self.folder.iterdir(), *(self.folder / "circuits").iterdir()):
            if BEGUN.fullmatch(left.name):
                with contextlib.suppress(OSError):
                    left.unlink()

    def save(self, cell: Cell, row: Mapping[str, Any], circuits: bool) -> None:
        """Keep a row; before it its circuit, so that a row that is there has one.

        Raises:
            Missing: no space, no right to write.
        """
        row = dict(row)
        circuit = row.pop("circuit", None)
        if circuits and circuit is not None:
            self._write(self.folder / self.circuit(cell), circuit + "\n")
        content = {"format": FORMAT, "version": 1, "cell": cell.key, "row": {k: _plain(v) for k, v in row.items()}}
        self._write(self.folder / f"{cell.key}.json", json.dumps(content, ensure_ascii=False) + "\n")

    def _write(self, path: Path, text: str) -> None:
        try:
            write_whole(path, text.encode())
        except OSError as error:
            raise Missing(f"{error}; the cells that are finished are kept in {self.folder}") from None

    def row(self, cell: Cell, circuits: bool) -> dict[str, Any] | None:
        """A finished cell's row; None if it is not finished, or its file is not what was written."""
        try:
            content = json.loads(read_text(self.folder / f"{cell.key}.json", MAX_CELL_BYTES))
        except (ValueError, RecursionError):
            return None
        if not isinstance(content, dict) or not isinstance(row := content.get("row"), dict):
            return None
        rest = {name: content[name] for name in content if name != "row"}
        if rest != {"format": FORMAT, "version": 1, "cell": cell.key} or not _is_row_of(cell, row):
            return None
        if circuits and row["status"] == "done" and not (self.folder / self.circuit(cell)).is_file():
            return None
        return {name: math.nan if value is None and name in MEASURED + CLOCK else value for name, value in row.items()}

    @staticmethod
    def circuit(cell: Cell) -> str:
        """Where in the folder the circuit of a cell is."""
        return f"circuits/{cell.key}.json"

    def table(self, plan: Plan):
        """The table of a plan: a row for each cell, in order; ``status`` is "pending" where it is not finished."""
        import pandas as pd

        rows = []
        for cell in plan.cells:
            if cell in plan.skipped:
                row = {**blank(cell), "status": "skipped", "error": plan.skipped[cell]}
            else:
                row = self.row(cell, plan.circuits) or {**blank(cell), "status": "pending"}
            circuit = self.circuit(cell) if plan.circuits and row["status"] == "done" else ""
            rows.append({**row, "circuit": circuit, "cell": cell.key, "config": plan.config})
        table = pd.DataFrame(rows, columns=list(COLUMNS))
        kinds = {name: "Int64" if name in WHOLE else "string" if name in TEXT else "float64" for name in COLUMNS}
        return table.astype(kinds)


def check_out(path: Path) -> None:
    """Before the work: whether the table can be written there.

    Raises:
        ValueError: another suffix than those of ``SUFFIXES``, or no such folder.
        Missing: pyarrow is not installed.
    """
    if path.suffix not in SUFFIXES:
        raise ValueError(f"out: expected a name that ends in .csv or .parquet, got {path.name!r}")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ValueError(f"out: expected the name of a file in a folder that exists, got {path}")
    if path.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise Missing("out: Parquet needs pyarrow; pip install 'circuitlib[sweep]', or choose a name that ends in .csv")


def write_table(table, path: Path) -> None:
    """Write a table as CSV or Parquet, whole or not at all.

    Raises:
        Missing: the file can't be written.
    """
    if path.suffix == ".csv":
        content = table.to_csv(index=False, lineterminator="\n").encode()
    else:
        buffer = io.BytesIO()
        table.to_parquet(buffer, index=False)
        content = buffer.getvalue()
    try:
        write_whole(path, content)
    except OSError as error:
        raise Missing(str(error)) from None


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file; an interrupted write leaves the old one. An OSError says in one line which file and why."""
    try:
        with whole(path) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        raise OSError(f"{path}: can't be written ({error.strerror or type(error).__name__})") from error


def _plain(value: Any) -> Any:
    """For JSON, which has no NaN."""
    return None if isinstance(value, float) and math.isnan(value) else value


def _is_row_of(cell: Cell, row: dict[str, Any]) -> bool:
    """Whether a row that was read from a file has the form of those that ``attempt`` makes, and is about this cell."""
    if row.keys() != blank(cell).keys() or row["status"] not in STATES:
        return False
    if any(row[name] != value or type(row[name]) is not type(value) for name, value in cell.parameters().items()):
        return False
    if not all(row[name] is None or type(row[name]) in (int, float) for name in MEASURED + CLOCK):
        return False
    return all(isinstance(row[name], str) for name in ("error", *PROVENANCE))
