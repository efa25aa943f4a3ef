"""Committed tables of results: what takes longer than a chapter may. ``make results`` writes them, ``cl.results`` reads them.

A table belongs to weights and code. ``fingerprint`` says which: if it differs from the one that was written down beside the
tables, they are stale.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .circuits import reference_circuit
from .comparison import MODELS
from .evaluation import Curve, Roc
from .models.registry import info

FOLDER = Path(__file__).parent / "results"
ABOUT = FOLDER / "about.json"
RUN = ["task", "method", "metric", "seed"]

TABLES = {
    "comparison": "what cl.compare returns, and 'correlation': that of the scores with the exact effects by the same metric",
    "seconds": "processor seconds of each run, from one run of one machine",
    "roc": "the ROC points of each run: 'edges' kept, and 'hits', how many of them are true; of scores only the corners",
    "curves": "the faithfulness curve of each run",
    "circuits": "the circuit of each run that has the size of the truth (of ACDC's, the nearest to it), its edges in one line",
    "acdc": "each of ACDC's circuits: threshold (and as a 'share' of M(all) − M(∅)), edges, hits, faithfulness, forward passes",
}

# What makes the numbers: from prompts to scores to areas. Loading is not among it, for the weights are.
CODE = ("comparison.py", "circuits.py", "engine.py", "graph.py", "models/words.py", "tasks/*.py", "discovery/*.py", "evaluation/*.py")  # fmt: skip
FILES = ("config.json", "model.safetensors", "tokenizer.json")


def results(name: str = "comparison"):
    """A table of the book's comparison.

    Args:
        name: "comparison", as ``cl.compare`` returns it, curves and seconds included; or "roc", "curves", "circuits", "acdc",
            "seconds".

    Raises:
        ValueError: another name.
    """
    if name not in TABLES:
        raise ValueError(f"name: expected one of {', '.join(TABLES)}, got {name!r}")
    table = _read(name)
    return _with_curves(table) if name == "comparison" else table


def about() -> dict[str, Any]:
    """What stands beside the tables: versions, the fingerprint, how many edges there are and are true, a hash of each file."""
    return json.loads(ABOUT.read_text("utf8"))


def fingerprint() -> dict[str, str]:
    """Hashes of what the tables were made of, as it is now: weights and truths, and the code without comments and docstrings."""
    weights, code = hashlib.sha256(), hashlib.sha256()
    for model in sorted({*MODELS.values()}):
        for file in FILES:
            weights.update((info(model).folder / file).read_bytes())
    for task, model in MODELS.items():
        weights.update("\n".join(map(str, reference_circuit(model, task))).encode())
    for path in code_files():
        code.update("".join(_spoken(ast.parse(path.read_text("utf8")))).encode())
    return {"weights": weights.hexdigest(), "code": code.hexdigest()}


def code_files() -> list[Path]:
    """The source files that make the numbers, in order."""
    return [path for pattern in CODE for path in sorted(Path(__file__).parent.glob(pattern))]


# Helpers -----------------------------------------------------------------------------------------


def _read(name: str):
    import pandas as pd

    table = pd.read_csv(FOLDER / f"{name}.csv", float_precision="round_trip")
    return table.assign(refused=table["refused"].fillna("")) if "refused" in table else table


def _with_curves(table):
    """The curves as objects again, so that the pictures can be drawn from the table as from that of ``cl.compare``."""
    edges = about()["edges"]
    seconds, points, curves = (dict(list(_read(name).groupby(RUN))) for name in ("seconds", "roc", "curves"))
    runs = list(table[RUN].itertuples(index=False, name=None))
    rocs = [_roc(points[run], **edges[run[0]]) if run in points else None for run in runs]
    drawn = [_curve(curves[run], edges[run[0]]["n_edges"]) if run in curves else None for run in runs]
    spent = [float(seconds[run]["seconds"].iloc[0]) if run in seconds else float("nan") for run in runs]
    return table.assign(roc=rocs, curve=drawn, seconds=spent)


def _roc(rows, n_edges: int, n_true: int) -> Roc:
    hits, sizes = rows["hits"].tolist(), rows["edges"].tolist()
    fpr = tuple((size - hit) / (n_edges - n_true) for hit, size in zip(hits, sizes, strict=True))
    tpr = tuple(hit / n_true for hit in hits)
    return Roc(fpr, tpr, tuple(sizes), (None,) * len(sizes), "edge", n_true, n_edges - n_true)


def _curve(rows, n_edges: int) -> Curve:
    return Curve(tuple(rows["edges"].tolist()), tuple(rows["faithfulness"].tolist()), n_edges)


def _spoken(node: ast.AST) -> Iterator[str]:
    """What the code says: every node's name and fields, without docstrings, places and empty fields, which differ between Pythons."""
    yield f"{type(node).__name__}("
    for field, value in ast.iter_fields(node):
        if field == "body" and isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            value = value[ast.get_docstring(node, clean=False) is not None :]
        if value is None and field != "value" or value == []:
            continue
        yield f"{field}="
        for part in value if isinstance(value, list) else [value]:
            yield from _spoken(part) if isinstance(part, ast.AST) else [repr(part)]
            yield ","
    yield ")"
