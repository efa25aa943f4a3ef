"""From a TOML file to cells. A file is somebody else's word until every key and value of it is checked."""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from ..files import read_text
from ..models.folder import fingerprint
from ..models.registry import REGISTRY, info
from .cell import Cell, weights_of

MAX_FILE_BYTES = 2**20
MAX_TASK_FILE_BYTES = 16 * 2**20
MAX_TASK_FILES = 100
MAX_GRIDS = 100
MAX_VALUES = 10_000  # of one key
MAX_CELLS = 100_000
SHOWN = 60  # characters of a wrong value in a message

TASKS = tuple(sorted({task for model in REGISTRY.values() for task in model.tasks}))
# How the corrupted prompts of a task can be made, the usual way first. The tasks themselves would load torch; a test compares.
CORRUPTIONS = {
    "docstring": ("random_random", "random_def", "random_answer", "random_doc", "random_answer_doc", "random_def_doc"),
    "ioi": ("abc", "name_swap"),
    "greater_than": ("01",),
}
METHODS = ("exact", "eap", "eap-ig", "acdc", "random")


@dataclass(frozen=True)
class Key:
    """A key of a grid: one value, or a list of them."""

    expected: str
    fits: Callable[[Any], bool]
    default: tuple = ()


def _one_of(*choices: str, default: tuple = ()) -> Key:
    return Key(f"one of {', '.join(choices)}", lambda value: value in choices, default)


def _whole(least: int, most: int, default: tuple = ()) -> Key:
    return Key(
        f"an integer from {least} to {most:,}", lambda value: type(value) is int and least <= value <= most, default
    )


def _is_threshold(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and 0 <= value <= 1e9


KEYS = {
    "model": Key(
        f"one of {', '.join(REGISTRY)}, or the folder of a model", lambda value: isinstance(value, str) and value != ""
    ),
    "task": Key(
        f"one of {', '.join(TASKS)}, or a file that ends in .jsonl",
        lambda value: isinstance(value, str) and (_named(value) in TASKS or value.endswith(".jsonl")),
    ),
    "method": _one_of(*METHODS),
    "metric": _one_of("task", "kl", default=("task",)),
    "threshold": Key("a number from 0 to 1e9", _is_threshold),
    "top": _whole(0, 10_000_000),
    "seed": _whole(0, 2**31 - 1, default=(0,)),
    "n": _whole(1, 100_000),
    "corruption": _one_of(*(name for names in CORRUPTIONS.values() for name in names)),
    "ablation": _one_of("corrupted", "zero", "mean", default=("corrupted",)),
    "direction": _one_of("noising", "denoising", default=("noising",)),
    "steps": _whole(1, 10_000, default=(5,)),
}
DEFAULT_N = 50
DEVICE = re.compile(r"cpu|mps|cuda(:\d{1,3})?")


@dataclass(frozen=True)
class Plan:
    """What a grid asks for.

    Args:
        cells: all of them, in the order of the table.
        skipped: those that can't be run, with the reason.
        circuits: whether the circuits are kept as well.
        files: SHA-256 → content of the task files.
    """

    cells: tuple[Cell, ...]
    skipped: Mapping[Cell, str] = field(default_factory=dict)
    circuits: bool = False
    files: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def config(self) -> str:
        """A hash of the configuration: of all cells, and of what is kept."""
        content = [self.circuits, [cell.identity() for cell in self.cells]]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def read_grid(source: str | Path | Mapping[str, Any], *, fetch: bool = True) -> Plan:
    """The cells of a grid.

    Args:
        source: a TOML file, or what such a file holds. Task files and folders of models are looked for beside it; without a
            file, here.
        fetch: download models of the Hub that are not on this computer, to know the hash of their weights.

    The file has one table ``grid``, or several, ``[[grid]]``. Each gives all combinations of its values; every key holds one value or
    a list. ``model`` and ``method`` must be there, and ``threshold`` or ``top``, which say which edges are kept. A method takes
    from the grid what it has: ``steps`` is for eap-ig, and acdc, which finds the size by itself, has no ``top``. So does a task: of
    ``corruption`` those that it knows. ``n`` and ``seed`` of a task file draw some of its prompts; without ``n`` all are taken, and
    there is nothing to seed. So no cell comes twice. Without ``task``, each model has the task that it is made for. A model that
    does not know a task of the grid, or a task that knows no corruption of it, is *skipped*: the table says why. Beside the grid stand ``circuits`` (true: keep each circuit as a file), ``device`` and ``threads``.

    Raises:
        ValueError: the file can't be used; one line that names the key.
        Missing: a model of the Hub that can't be had.
    """
    if isinstance(source, Mapping):
        return _Reader("grid", Path()).plan(source, fetch)
    path = Path(source)
    return _Reader(str(path), path.parent).plan(_read_toml(path), fetch)


# The file ----------------------------------------------------------------------------------------


def _read_toml(path: Path) -> dict[str, Any]:
    text = read_text(path, MAX_FILE_BYTES)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError(f"{path}: not valid TOML (nested too deep)") from None
    except ValueError as error:
        raise ValueError(f"{path}: not valid TOML ({error})") from None


class _Reader:
    """Checks what a file holds. Every error begins with the file's name and names the key."""

    def __init__(self, name: str, folder: Path):
        self.name, self.folder = name, folder
        self.files: dict[str, str] = {}
        self.hashes: dict[str, str] = {}  # of task files, by the path in the grid
        self.models: dict[str, tuple[str, str, str]] = {}  # folders: where it is, and the hashes of it

    def plan(self, content: Mapping[str, Any], fetch: bool) -> Plan:
        self._keys(content, ("grid", "circuits", "device", "threads"), "")
        circuits, device, threads = (
            content.get(*of) for of in (("circuits", False), ("device", "cpu"), ("threads", 1))
        )
        if type(circuits) is not bool:
            raise self._error("circuits", "true or false", circuits)
        if not (isinstance(device, str) and DEVICE.fullmatch(device)):
            raise self._error("device", "cpu, cuda, cuda:0 and so on, or mps", device)
        if not _whole(1, 1024).fits(threads):
            raise self._error("threads", "an integer from 1 to 1,024", threads)
        grids = self._grids(content)
        if (count := sum(_size(grid) for _, grid in grids)) > MAX_CELLS:
            raise ValueError(f"{self.name}: grid: {count:,} combinations, expected at most {MAX_CELLS:,}")
        skipped: dict[Cell, str] = {}
        cells: dict[Cell, None] = {}
        for _, grid in grids:
            for cell in self._cells(grid, device, threads, fetch):
                cells[cell] = None
                if reason := _why_not(cell):
                    skipped[cell] = reason
        if len(skipped) == len(cells):
            raise ValueError(f"{self.name}: grid.task: no model can run it; {next(iter(skipped.values()))}")
        return Plan(tuple(cells), skipped, circuits, self.files)

    # Keys and values -----------------------------------------------------------------------------

    def _grids(self, content: Mapping[str, Any]) -> list[tuple[str, dict[str, tuple]]]:
        """Each grid by its name in messages, with all keys."""
        given = content.get("grid")
        if isinstance(given, Mapping):
            return [("grid", self._grid("grid", given))]
        if not isinstance(given, list) or not 1 <= len(given) <= MAX_GRIDS or not all(isinstance(one, Mapping) for one in given):  # fmt: skip
            raise self._error("grid", f"a table [grid], or up to {MAX_GRIDS} tables [[grid]]", given)
        return [(f"grid {i}", self._grid(f"grid {i}", one)) for i, one in enumerate(given, start=1)]

    def _grid(self, where: str, given: Mapping[str, Any]) -> dict[str, tuple]:
        self._keys(given, tuple(KEYS), f"{where}.")
        grid = {name: self._values(f"{where}.{name}", name, given) for name in KEYS}
        for name in ("model", "method"):
            if not grid[name]:
                raise ValueError(f"{self.name}: {where}.{name}: is missing, expected {KEYS[name].expected}")
        scored = [method for method in grid["method"] if method != "acdc"]
        if scored and not grid["threshold"] and not grid["top"]:
            raise ValueError(
                f"{self.name}: {where}.top: is missing, expected top or threshold, which say how many edges of {scored[0]} are kept"
            )
        if "acdc" in grid["method"] and not grid["threshold"]:
            raise ValueError(f"{self.name}: {where}.threshold: is missing, expected at least one number, for acdc")
        for model in grid["model"]:
            if model not in REGISTRY:
                self._read_model(f"{where}.model", model)
        for task in grid["task"]:
            if task.endswith(".jsonl"):
                self._read_task_file(f"{where}.task", task)
        return grid

    def _values(self, where: str, name: str, given: Mapping[str, Any]) -> tuple:
        """What a key holds, as a tuple without repeats in one form: task names with underscores, thresholds as floats."""
        key = KEYS[name]
        if name not in given:
            return key.default
        values = given[name] if isinstance(given[name], list) else [given[name]]
        if not 1 <= len(values) <= MAX_VALUES:
            raise ValueError(f"{self.name}: {where}: {len(values):,} values, expected 1 to {MAX_VALUES:,}")
        for value in values:
            if not key.fits(value):
                raise self._error(where, key.expected, value)
        if name == "task":
            values = [value if value.endswith(".jsonl") else _named(value) for value in values]
        elif name == "threshold":
            values = [abs(float(value)) for value in values]  # abs: -0.0 is 0
        if len(set(values)) != len(values):
            twice = next(value for value in values if values.count(value) > 1)
            raise ValueError(f"{self.name}: {where}: {_shown(twice)} is repeated")
        return tuple(values)

    def _read_model(self, where: str, model: str) -> None:
        if model in self.models:
            return
        folder = self.folder / model
        if not os.path.isdir(folder):
            raise self._error(where, KEYS["model"].expected, model)
        try:
            info(folder)
            self.models[model] = str(folder.absolute()), *fingerprint(folder)
        except ValueError as error:
            raise ValueError(f"{self.name}: {where}: {error}") from None

    def _read_task_file(self, where: str, task: str) -> None:
        if task in self.hashes:
            return
        if len(self.hashes) == MAX_TASK_FILES:
            raise ValueError(f"{self.name}: {where}: more than {MAX_TASK_FILES} files, expected at most that many")
        try:
            text = read_text(self.folder / task, MAX_TASK_FILE_BYTES)
        except ValueError as error:
            raise ValueError(f"{self.name}: {where}: {error}") from None
        self.hashes[task] = hashlib.sha256(text.encode()).hexdigest()
        self.files[self.hashes[task]] = text

    def _keys(self, given: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
        for name in given:
            if name not in known:
                near = difflib.get_close_matches(str(name), known, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"expected some of {', '.join(known)}"
                raise ValueError(f"{self.name}: {where}{str(name)[:SHOWN]}: unknown key; {hint}")

    def _error(self, where: str, expected: str, got: Any) -> ValueError:
        return ValueError(f"{self.name}: {where}: expected {expected}, got {_shown(got)}")

    # Cells ---------------------------------------------------------------------------------------

    def _cells(self, grid: Mapping[str, tuple], device: str, threads: int, fetch: bool) -> Iterator[Cell]:
        """All combinations; those of one engine, and of one list of scores, one after another."""
        for model in grid["model"]:
            folder, weights, files = self.models.get(model) or (None, weights_of(model, fetch), "")
            for task in grid["task"] or info(folder or model).tasks[:1]:
                file = self.hashes.get(task)
                for n, seed, corruption, ablation, direction, metric, method in product(
                    grid["n"] or (DEFAULT_N if file is None else None,),
                    grid["seed"],
                    _corruptions(grid, task),
                    *(grid[name] for name in ("ablation", "direction", "metric", "method")),
                ):
                    for steps, (threshold, top) in product(*_choices(grid, method)):
                        yield Cell(
                            model=model,
                            task=task,
                            method=method,
                            metric=metric,
                            threshold=threshold,
                            top=top,
                            steps=steps,
                            corruption=corruption,
                            ablation=ablation,
                            direction=direction,
                            n=n,
                            seed=None if n is None else seed,
                            device=device,
                            threads=threads,
                            weights=weights,
                            task_file=file,
                            model_files=files,
                            folder=folder,
                        )


def _corruptions(grid: Mapping[str, tuple], task: str) -> tuple:
    """Those of the grid that the task knows; if it knows none of them, all, to be skipped. None for a task with one kind only."""
    if task not in CORRUPTIONS:
        return (None,)
    asked = grid["corruption"] or CORRUPTIONS[task][:1]
    return tuple(name for name in asked if name in CORRUPTIONS[task]) or asked


def _why_not(cell: Cell) -> str:
    """Why a cell can't be run; empty if it can."""
    tasks = info(cell.folder or cell.model).tasks
    if cell.task_file is None and cell.task not in tasks:
        return f"{cell.model} knows {', '.join(tasks)}"
    if cell.corruption is not None and cell.corruption not in CORRUPTIONS[cell.task]:
        return f"{cell.task} knows {', '.join(CORRUPTIONS[cell.task])}"
    return ""


def _choices(grid: Mapping[str, tuple], method: str) -> tuple[list, list]:
    """What a method takes from the grid: its steps, and what says which edges are kept."""
    thresholds = [(threshold, None) for threshold in grid["threshold"]]
    tops = [] if method == "acdc" else [(None, top) for top in grid["top"]]
    return list(grid["steps"]) if method == "eap-ig" else [None], thresholds + tops


def _size(grid: Mapping[str, tuple]) -> int:
    """At most how many cells."""
    kept = len(grid["threshold"]) + len(grid["top"])
    names = ("model", "task", "n", "seed", "corruption", "ablation", "direction", "metric", "method", "steps")
    return kept * math.prod(max(1, len(grid[name])) for name in names)


def _named(task: str) -> str:
    return task.replace("-", "_")


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
