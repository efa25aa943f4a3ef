"""The checks of chapter 11: each wrong answer is turned down with a line that points at the mistake. And its skipped cells."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from printed import exercises
from standin import put_models

from circuitlib.exercises import check

count_as_acdc, edges_of_classes, not_beaten = (exercises()[f"11.{i}"][1] for i in range(1, 4))
CHAPTER = Path(__file__).resolve().parents[1] / "notebooks" / "11_real_models.ipynb"


def receivers(edges):
    return {edge.split("→")[1] for edge in edges}


def heads(edges):
    return {receiver[:-2] for receiver in receivers(edges) if receiver[-2:] in (".q", ".k", ".v")}


def layer(head):
    return int(head[1:].split(".")[0])


def all_pairs(classes, rules, keep):
    return [
        f"{a}→{b}.{part}"
        for read, reading, parts in rules
        for a in classes[read]
        for b in classes[reading]
        if keep(a, b)
        for part in parts
    ]


def beaten_strictly(rows):
    return [i for i, row in enumerate(rows) if not any((other < row).all() for other in rows)]


def beaten_by_ties(rows):
    others = [(i, j) for i in range(len(rows)) for j in range(len(rows)) if i != j]
    return sorted({*range(len(rows))} - {i for i, j in others if (rows[j] <= rows[i]).all()})


WRONG = [
    ("11.1", len, r"for \['embed→a0.5.v'\], expected 2, got 1"),
    ("11.1", lambda edges: len(edges) + len(receivers(edges)), r"\['embed→m0', 'm0→logits'\], expected 2, got 4"),
    ("11.1", lambda edges: len(edges) + 3 * len(heads(edges)), r"\['embed→a0.5.v'\], expected 2, got 4"),
    ("11.1", lambda edges: len(edges) + len(heads(edges)), r"'embed→a1.0.k'\], expected 5, got 4"),
    ("11.1", lambda edges: len(edges) + sum(e[-2:] in (".q", ".k", ".v") for e in edges), "expected 5, got 6"),
    ("11.1", lambda edges: count_as_acdc(edges) - len(edges), r"expected 2, got 1"),
    ("11.2", lambda c, r: all_pairs(c, r, lambda a, b: True), r"'a0.1→a0.2.k' should not be there"),
    ("11.2", lambda c, r: all_pairs(c, r, lambda a, b: layer(a) <= layer(b)), r"'a0.1→a0.2.k' should not be there"),
    ("11.2", lambda c, r: all_pairs(c, r, lambda a, b: a < b), r"'a0.1→a0.2.k' should not be there"),
    ("11.2", lambda c, r: all_pairs(c, r, lambda a, b: a.split(".")[0] < b.split(".")[0]), r"read by q, 'a9.9→a10.7.q' is missing"),
    ("11.2", lambda c, r: all_pairs(c, [(b, a, p) for a, b, p in r], lambda a, b: layer(a) < layer(b)), "should not be there|is missing"),
    ("11.2", lambda c, r: [e[:-2] for e in edges_of_classes(c, r)], "'a0.1→a1.0' should not be there"),
    ("11.2", lambda c, r: edges_of_classes(c, r)[:1], "'a0.1→a1.0.v' is missing: you gave 1 edges, expected 2"),
    ("11.2", lambda c, r: len(edges_of_classes(c, r)), "expected texts like .*, got 2"),
    ("11.2", lambda c, r: "a0.1→a1.0.k", "expected texts like"),
    ("11.3", beaten_strictly, r"\(10, 0.5\), \(10, 0.5\), \(10, 0.7\)|\(20, 0.6\)"),
    ("11.3", beaten_by_ties, r"for rows \(10, 0.5\), \(10, 0.5\), \(10, 0.7\)"),
    ("11.3", lambda rows: not_beaten(-rows), "for rows"),
    ("11.3", lambda rows: sorted({*range(len(rows))} - {*not_beaten(rows)}), "expected shape"),
    ("11.3", lambda rows: [int(np.argmin(rows[:, 1]))], "expected shape"),
    ("11.3", lambda rows: rows[not_beaten(rows)], "for rows"),
]  # fmt: skip


@pytest.mark.parametrize(("number", "answer", "message"), WRONG)
def test_a_wrong_answer_is_told_what_is_wrong(number, answer, message):
    result = check(number, answer)
    assert not result
    assert re.search(message, result.message), result.message


def test_other_right_answers_pass():
    assert check("11.2", lambda c, r: {*edges_of_classes(c, r)})
    assert check("11.3", lambda rows: np.array(not_beaten(rows)[::-1]))


@pytest.mark.slow
def test_the_cells_that_need_the_hub_run_on_stand_ins(tmp_path, monkeypatch):
    """In order, in one namespace, with models of the same shapes in place of the real ones."""
    put_models(tmp_path / "models")
    monkeypatch.setenv("CIRCUITLIB_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("CIRCUITLIB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    cells = [cell for cell in json.loads(CHAPTER.read_text("utf8"))["cells"] if cell["cell_type"] == "code"]
    skipped = ["".join(cell["source"]) for cell in cells if "nbval-skip" in cell["metadata"].get("tags", [])]
    assert len(skipped) >= 6 and all(source.startswith("# Needs the Hub") for source in skipped)
    names: dict = {}
    exec("import circuitlib as cl", names)
    for source in skipped:
        exec(source, names)
    assert len(names["measured"]) == 4 and {"edges", "kl"} <= {*names["measured"].columns}
    assert (tmp_path / "reproduce-docstring.html").stat().st_size > 10_000
