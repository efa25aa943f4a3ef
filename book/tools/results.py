"""Measure the book's comparison and write its tables into ``circuitlib/results``: ``make results``.

What is measured is said in ``circuitlib/comparison.py``. A second run on the same machine gives the same tables, byte for
byte, but for ``seconds.csv``.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pandas as pd
import torch

import circuitlib as cl
from circuitlib import comparison, tables
from circuitlib.discovery.scores import EdgeScores, metric_name
from circuitlib.evaluation.compare import CLOCK, OBJECTS

Run = tuple[str, str, str, int]  # task, method, metric, seed


def main() -> int:
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    written = measure(comparison.tasks(), comparison.METHODS, comparison.SEEDS, comparison.METRICS, progress=True)
    write(*written)
    return 0


def measure(tasks, methods, seeds, metrics, progress: bool = False) -> tuple[dict[str, pd.DataFrame], dict[str, dict]]:
    """The tables by name, and how many edges each task's graph has and are true."""
    kept = Keeper()
    table = cl.compare(kept.tasks(tasks), kept.methods(methods), seeds, metrics=metrics, progress=progress)
    runs = list(table[tables.RUN].itertuples(index=False, name=None))
    table["correlation"] = [kept.correlation(run) for run in runs]
    written = {
        "comparison": table.drop(columns=[*OBJECTS, *CLOCK]),
        "seconds": _rows(runs, lambda run: [(round(kept.seconds[run], 2),)] if run in kept.found else [], ["seconds"]),
        "roc": _rows(runs, kept.points, ["edges", "hits"]),
        "curves": _rows(runs, Curves(runs, table["curve"]), ["edges", "faithfulness"]),
        "circuits": _rows(runs, kept.circuit, ["circuit"]),
        "acdc": _rows(runs, kept.sweep, ["share", "threshold", "edges", "hits", "faithfulness", "forwards"]),
    }
    sizes = {
        task: {"n_edges": truth.graph.n_edges, "n_true": len(truth)} for (task, _), (_, truth) in kept.judge.items()
    }
    return written, sizes


def write(written: dict[str, pd.DataFrame], sizes: dict[str, dict], folder: Path = tables.FOLDER) -> None:
    """The tables, and beside them what they were made of."""
    folder.mkdir(exist_ok=True)
    for name, table in written.items():
        table.to_csv(folder / f"{name}.csv", index=False, lineterminator="\n")
    about = {
        "versions": {"python": platform.python_version(), **{name: version(name) for name in ("torch", "transformer-lens")}},
        "fingerprint": tables.fingerprint(),
        "edges": sizes,
        "files": {name: hashlib.sha256((folder / f"{name}.csv").read_bytes()).hexdigest() for name in sorted(written)},
    }  # fmt: skip
    (folder / tables.ABOUT.name).write_text(json.dumps(about, indent=1) + "\n", "utf8")


class Keeper:
    """Wraps tasks and methods of ``compare``, to keep what they return and how long it took."""

    def __init__(self):
        self.judge: dict[tuple[str, int], tuple] = {}
        self.found: dict[Run, object] = {}
        self.seconds: dict[Run, float] = {}

    def tasks(self, tasks: dict[str, Callable]) -> dict[str, Callable]:
        def kept(name: str, seed: int):
            self.at, self.judge[name, seed] = (name, seed), tasks[name](seed)
            return self.judge[name, seed]

        return {name: lambda seed, name=name: kept(name, seed) for name in tasks}

    def methods(self, methods: dict[str, Callable]) -> dict[str, Callable]:
        def kept(name: str, engine, metric):
            run = (self.at[0], name, metric_name(metric), self.at[1])
            began = time.process_time()  # other work on the machine disturbs it little
            self.found[run] = methods[name](engine, metric=metric)
            self.seconds[run] = time.process_time() - began
            return self.found[run]

        return {name: lambda engine, metric=None, name=name: kept(name, engine, metric) for name in methods}

    def truth(self, run: Run):
        return self.judge[run[0], run[3]][1]

    def correlation(self, run: Run) -> float:
        """Of the scores with the exact effects, by the same metric and on the same prompts."""
        scores, exact = self.found.get(run), self.found.get((run[0], "exact", *run[2:]))
        if not isinstance(scores, EdgeScores) or exact is None:
            return float("nan")
        return float(torch.corrcoef(torch.stack([scores.flat, exact.flat]).double())[0, 1])

    def points(self, run: Run) -> list[tuple[int, int]]:
        if run not in self.found:
            return []
        roc = cl.roc(self.found[run], self.truth(run))
        points = [(size, round(y * roc.n_true)) for size, y in zip(roc.sizes, roc.tpr, strict=True)]
        return _corners(points) if isinstance(self.found[run], EdgeScores) else points

    def circuit(self, run: Run) -> list[tuple[str]]:
        if run not in self.found:
            return []
        found, size = self.found[run], len(self.truth(run))
        one = (
            found.top(size) if isinstance(found, EdgeScores) else min(found, key=lambda c: (abs(len(c) - size), len(c)))
        )
        return [(" ".join(map(str, one)),)]

    def sweep(self, run: Run) -> list[tuple]:
        found, (engine, truth) = self.found.get(run), self.judge[run[0], run[3]]
        if not isinstance(found, list):
            return []
        faithful = cl.faithfulness(engine, found).tolist()
        shares = zip(comparison.SHARES, found, faithful, strict=True)
        return [(share, c.threshold, len(c), len(c & truth), f, c.cost.forwards) for share, c, f in shares]


class Curves:
    """The points of the curve of each run."""

    def __init__(self, runs, curves):
        self.of = dict(zip(runs, curves, strict=True))

    def __call__(self, run: Run) -> list[tuple[int, float]]:
        return [] if self.of[run] is None else list(zip(self.of[run].sizes, self.of[run].values, strict=True))


def _corners(points: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Without the points between two that are just as high: no area needs them."""
    last = len(points) - 1
    return [p for i, p in enumerate(points) if i in (0, last) or points[i - 1][1] != p[1] or points[i + 1][1] != p[1]]


def _rows(runs: list[Run], of: Callable[[Run], list[tuple]], columns: list[str]) -> pd.DataFrame:
    return pd.DataFrame([(*run, *row) for run in runs for row in of(run)], columns=[*tables.RUN, *columns])


if __name__ == "__main__":
    sys.exit(main())
