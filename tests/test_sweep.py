"""Sweeps: what a grid means, what a cell measures, what is kept, and what happens when something goes wrong."""

from __future__ import annotations

import dataclasses
import errno
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import circuitlib as cl
from circuitlib import cli
from circuitlib.evaluation import random_scores
from circuitlib.evaluation.compare import AREAS
from circuitlib.models import Missing
from circuitlib.sweep import Cell, cell, grid, read_grid, run_sweep, store, workers

ROOT = Path(__file__).resolve().parents[1]
SMALL = {"model": "handmade-and", "method": ["exact", "acdc"], "threshold": [0.1, 0.5], "n": 2, "seed": [0, 1]}


def toml_file(folder: Path, **keys) -> Path:
    """A grid as a file."""
    lines = [f"{name} = {json.dumps(value)}" for name, value in keys.items()]
    path = folder / "grid.toml"
    path.write_text("\n".join(["[grid]", *lines, ""]), "utf8")
    return path


def without_clock(table: pd.DataFrame) -> pd.DataFrame:
    return table.drop(columns=list(cell.CLOCK))


def same(one: pd.DataFrame, other: pd.DataFrame) -> None:
    """To the last bit, but for seconds."""
    pd.testing.assert_frame_equal(without_clock(one), without_clock(other), check_exact=True)


def run(*arguments: str | Path, code: int = 0):
    result = CliRunner().invoke(cli.app, ["sweep", *map(str, arguments)])
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


def fails(*arguments: str | Path, code: int) -> str:
    result = run(*arguments, code=code)
    assert result.stdout == ""
    message = result.stderr.splitlines()[-1]
    assert message.startswith("error: ")
    return message


# --- the grid


def test_a_grid_gives_every_combination_once_in_order():
    plan = read_grid({"grid": {**SMALL, "metric": ["task", "kl"]}})
    found = [(c.seed, c.metric, c.method, c.threshold) for c in plan.cells]
    assert found == list(product((0, 1), ("task", "kl"), ("exact", "acdc"), (0.1, 0.5)))
    assert {(c.model, c.task, c.ablation, c.direction, c.n) for c in plan.cells} == {
        ("handmade-and", "gate", "corrupted", "noising", 2)
    }
    assert len({c.key for c in plan.cells}) == 16 and not plan.skipped


def test_a_method_takes_from_the_grid_what_it_has():
    plan = read_grid({"grid": {"model": "handmade-or", "method": list(grid.METHODS), "threshold": 1, "top": [3, 5], "steps": [2, 4]}})  # fmt: skip
    found = {name: {(c.threshold, c.top, c.steps) for c in plan.cells if c.method == name} for name in grid.METHODS}
    kept = [(1.0, None), (None, 3), (None, 5)]
    assert found["acdc"] == {(1.0, None, None)}
    assert found["exact"] == found["eap"] == found["random"] == {(*of, None) for of in kept}
    assert found["eap-ig"] == {(*of, steps) for of in kept for steps in (2, 4)}
    assert len(plan.cells) == len(set(plan.cells)) == 1 + 3 * 3 + 6


def test_defaults_and_forms_of_one_value():
    (found,) = read_grid({"grid": {"model": "gpt-mini", "task": "greater-than", "method": "eap", "top": 10}}).cells
    assert (found.task, found.metric, found.n, found.seed, found.steps) == ("greater_than", "task", 50, 0, None)
    again = {"model": ["gpt-mini"], "task": ["greater_than"], "method": ["eap"], "top": [10], "seed": 0, "n": [50]}
    assert read_grid({"grid": again}).cells == (found,)
    (zero,) = read_grid({"grid": {"model": "handmade-or", "method": "acdc", "threshold": -0.0}}).cells
    assert str(zero.threshold) == "0.0"
    assert [c.task for c in read_grid({"grid": {"model": ["gpt-mini", "docstring-4l"], "method": "eap", "top": 1}}).cells] == ["ioi", "docstring"]  # fmt: skip


def test_several_grids_are_one_table_and_a_cell_in_two_of_them_is_there_once():
    one = {"model": "handmade-or", "method": "acdc", "threshold": [0.1, 0.2]}
    plan = read_grid({"grid": [one, {**one, "metric": "kl", "threshold": 0.5}, {**one, "threshold": [0.2, 0.3]}]})
    found = [(c.metric, c.threshold) for c in plan.cells]
    assert found == [("task", 0.1), ("task", 0.2), ("kl", 0.5), ("task", 0.3)]


def test_a_model_that_does_not_know_a_task_is_skipped_and_the_table_says_why():
    asked = {"model": ["docstring-4l", "gpt-mini"], "task": ["docstring", "ioi"], "method": "eap", "top": 5}
    plan = read_grid({"grid": asked})
    assert [(c.model, c.task, c in plan.skipped) for c in plan.cells] == [
        ("docstring-4l", "docstring", False),
        ("docstring-4l", "ioi", True),
        ("gpt-mini", "docstring", True),
        ("gpt-mini", "ioi", False),
    ]
    table = store.Store("nowhere").table(plan)
    assert table["status"].tolist() == ["pending", "skipped", "skipped", "pending"]
    assert table["error"][2] == "gpt-mini knows ioi, greater_than, induction"
    with pytest.raises(ValueError, match=r"^grid: grid.task: no model can run it; docstring-4l knows"):
        read_grid({"grid": {**asked, "model": "docstring-4l", "task": "ioi"}})


def test_a_task_takes_the_corruptions_that_it_knows():
    for task, names in grid.CORRUPTIONS.items():
        assert tuple(importlib.import_module(f"circuitlib.tasks.{task}").CORRUPTIONS) == names
        assert inspect.signature(getattr(cl, task)).parameters["corruption"].default == names[0]
    asked = {"model": ["gpt-mini", "handmade-or"], "method": "eap", "top": 1, "corruption": ["name_swap", "abc"]}
    assert [c.corruption for c in read_grid({"grid": asked}).cells] == ["name_swap", "abc", None]
    several = {**asked, "model": "gpt-mini", "task": ["ioi", "greater_than", "induction"]}
    plan = read_grid({"grid": several})
    assert [(c.task, c.corruption, plan.skipped.get(c)) for c in plan.cells] == [
        ("ioi", "name_swap", None),
        ("ioi", "abc", None),
        ("greater_than", "name_swap", "greater_than knows 01"),
        ("greater_than", "abc", "greater_than knows 01"),
        ("induction", None, None),
    ]
    # Said or not, the usual way is the same cell.
    usual = read_grid({"grid": {**asked, "model": "gpt-mini", "corruption": "abc"}}).cells
    assert usual == read_grid({"grid": {"model": "gpt-mini", "method": "eap", "top": 1}}).cells


def test_a_task_file_is_found_beside_the_grid_and_known_by_its_content(tmp_path):
    (tmp_path / "tasks").mkdir()
    lines = '{"clean": "11=", "corrupted": "00=", "answer": "1", "distractors": ["0"]}\n'
    (tmp_path / "tasks" / "own.jsonl").write_text(lines, "utf8")
    path = toml_file(tmp_path, model="handmade-and", task=["tasks/own.jsonl", "gate"], method="eap", top=4, seed=[0, 1])
    plan = read_grid(path)
    # All prompts are taken, so there is nothing to seed: one cell.
    assert [(c.task, c.n, c.seed) for c in plan.cells] == [
        ("tasks/own.jsonl", None, None),
        *[("gate", 50, 0), ("gate", 50, 1)],
    ]
    assert list(plan.files.values()) == [lines] and plan.cells[0].task_file == next(iter(plan.files))
    (tmp_path / "tasks" / "own.jsonl").write_text(lines * 2, "utf8")
    assert read_grid(path).cells[0].key != plan.cells[0].key
    assert read_grid(path).config != plan.config
    # ... and nothing of it depends on where the folder is.
    moved = tmp_path / "moved"
    moved.mkdir()
    (moved / "tasks").mkdir()
    (moved / "tasks" / "own.jsonl").write_text(lines, "utf8")
    assert read_grid(path.rename(moved / "grid.toml")).cells == plan.cells


def test_the_hash_of_the_configuration_is_that_of_what_is_asked_and_not_of_how():
    asked = {"model": "handmade-or", "method": "acdc", "threshold": [0.1, 0.2]}
    config = read_grid({"grid": asked}).config
    assert read_grid({"grid": {**asked, "n": 50, "steps": 9}}).config == config  # acdc has no steps
    for other in ({"threshold": [0.1]}, {"threshold": [0.2, 0.1]}, {"seed": 1}, {"n": 49}, {"model": "handmade-and"}):
        assert read_grid({"grid": {**asked, **other}}).config != config
    for other in ({"circuits": True}, {"threads": 2}, {"device": "cuda"}):
        assert read_grid({"grid": asked, **other}).config != config


# Each with the one line that it gives. FILE stands for the name of the file.
G = '[grid]\nmodel = "handmade-or"\nmethod = "eap"\ntop = 3\n'
BAD_GRIDS = [
    ("", "grid: expected a table [grid], or up to 100 tables [[grid]], got None"),
    ("grid = 3", "grid: expected a table [grid], or up to 100 tables [[grid]], got 3"),
    ("grid = []", "grid: expected a table [grid], or up to 100 tables [[grid]], got []"),
    ("grid = [1]", "grid: expected a table [grid], or up to 100 tables [[grid]], got [1]"),
    ("[[grid]]\n" * 101, "grid: expected a table [grid], or up to 100 tables [[grid]], got"),
    ("[grid]", "grid.model: is missing, expected one of docstring-4l, gpt-mini"),
    ("[grid]\nmodel = 'handmade-or'", "grid.method: is missing, expected one of exact, eap"),
    ("[grid]\nmodel = 'handmade-or'\nmethod = 'eap'", "grid.top: is missing, expected top or threshold"),
    ("[grid]\nmodel = 'handmade-or'\nmethod = ['acdc', 'exact']", "grid.top: is missing, expected top or threshold"),
    ("[grid]\nmodel = 'handmade-or'\nmethod = 'acdc'\ntop = 3", "grid.threshold: is missing, expected at least one number, for acdc"),
    ("[[grid]]\nmodel = 'gpt2'\n", "grid 1.method: is missing"),
    ("[[grid]]\n" + G[7:] + "[[grid]]\nmodle = 3", "grid 2.modle: unknown key; did you mean 'model'?"),
    ("modle = 1\n" + G, "modle: unknown key; expected some of grid, circuits, device, threads"),
    ("circuit = true\n" + G, "circuit: unknown key; did you mean 'circuits'?"),
    (G + "tresholds = 1", "grid.tresholds: unknown key; did you mean 'threshold'?"),
    (G + "x = 1", "grid.x: unknown key; expected some of model, task"),
    (G + f"'{'x' * 500}' = 1", f"grid.{'x' * 60}: unknown key"),
    (G + "circuits = true", "grid.circuits: unknown key"),
    ("circuits = 1\n" + G, "circuits: expected true or false, got 1"),
    ("device = 'gpu'\n" + G, "device: expected cpu, cuda, cuda:0 and so on, or mps, got 'gpu'"),
    ("device = ['cpu']\n" + G, "device: expected cpu, cuda"),
    ("threads = 0\n" + G, "threads: expected an integer from 1 to 1,024, got 0"),
    ("threads = true\n" + G, "threads: expected an integer from 1 to 1,024, got True"),
    (G.replace("handmade-or", "handmade-xor"), "grid.model: expected one of docstring-4l, gpt-mini"),
    (G.replace('"handmade-or"', "3"), "grid.model: expected one of docstring-4l, gpt-mini"),
    (G.replace('"handmade-or"', "[]"), "grid.model: 0 values, expected 1 to 10,000"),
    (G.replace('"handmade-or"', "[['gpt2']]"), "grid.model: expected one of docstring-4l"),
    (G.replace('"eap"', "['eap', 'eap']"), "grid.method: 'eap' is repeated"),
    (G.replace('"eap"', "'EAP'"), "grid.method: expected one of exact, eap, eap-ig, acdc, random, got 'EAP'"),
    (G + "task = 'xor'", "grid.task: expected one of docstring, gate"),
    (G + "task = 'docstring'", "grid.task: no model can run it; handmade-or knows gate"),
    (G + "task = 7", "grid.task: expected one of docstring, gate"),
    (G + "task = ['gate', 'gate']", "grid.task: 'gate' is repeated"),
    (G + "task = ['greater_than', 'greater-than']", "grid.task: 'greater_than' is repeated"),
    (G + "task = 'nowhere.jsonl'", "grid.task: FOLDER/nowhere.jsonl: can't be read (No such file or directory)"),
    (G + "task = 'folder.jsonl'", "grid.task: FOLDER/folder.jsonl: expected a file"),
    (G + "task = 'bytes.jsonl'", "grid.task: FOLDER/bytes.jsonl: not UTF-8 text"),
    (G + "task = '/dev/zero.jsonl'", "grid.task: /dev/zero.jsonl: can't be read"),
    (G + "metric = 'KL'", "grid.metric: expected one of task, kl, got 'KL'"),
    (G + "corruption = 'acb'", "grid.corruption: expected one of random_random, random_def"),
    (G + "ablation = 'none'", "grid.ablation: expected one of corrupted, zero, mean, got 'none'"),
    (G + "direction = 'up'", "grid.direction: expected one of noising, denoising, got 'up'"),
    (G + "threshold = -0.1", "grid.threshold: expected a number from 0 to 1e9, got -0.1"),
    (G + "threshold = nan", "grid.threshold: expected a number from 0 to 1e9, got nan"),
    (G + "threshold = inf", "grid.threshold: expected a number from 0 to 1e9, got inf"),
    (G + "threshold = '0.1'", "grid.threshold: expected a number from 0 to 1e9, got '0.1'"),
    (G + "threshold = true", "grid.threshold: expected a number from 0 to 1e9, got True"),
    (G + "threshold = [1, 1.0]", "grid.threshold: 1.0 is repeated"),
    (G + "seed = -1", "grid.seed: expected an integer from 0 to 2,147,483,647, got -1"),
    (G + "seed = 1.0", "grid.seed: expected an integer from 0 to 2,147,483,647, got 1.0"),
    (G + "seed = 99999999999999999999", "grid.seed: expected an integer from 0 to 2,147,483,647"),
    (G + "seed = 2020-01-01", "grid.seed: expected an integer from 0 to 2,147,483,647, got datetime.date"),
    (G + "n = 0", "grid.n: expected an integer from 1 to 100,000, got 0"),
    (G + "n = true", "grid.n: expected an integer from 1 to 100,000, got True"),
    (G + "steps = 0", "grid.steps: expected an integer from 1 to 10,000, got 0"),
    (G.replace("top = 3", "top = -1"), "grid.top: expected an integer from 0 to 10,000,000, got -1"),
    (G.replace("top = 3", "top = 3.5"), "grid.top: expected an integer from 0 to 10,000,000, got 3.5"),
    (G + f"seed = {list(range(10_001))}", "grid.seed: 10,001 values, expected 1 to 10,000"),
    (G + f"seed = {list(range(1000))}\nn = {list(range(1, 102))}", "grid: 101,000 combinations, expected at most 100,000"),
    (G + G, "not valid TOML (Cannot declare ('grid',) twice"),
    (G + "top = 4", "not valid TOML (Cannot overwrite a value"),
    ("[grid", "not valid TOML (Expected ']' at the end of a table declaration"),
    ("x = " + "[" * 100_000, "not valid TOML ("),
    ("x = " + "9" * 10_000, "not valid TOML ("),
    ("# " + "x" * 2**20, "more than 1,048,576 bytes, expected at most that"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "said"), BAD_GRIDS, ids=lambda value: value[:40])
def test_a_bad_grid_gives_one_line_that_names_the_key(text, said, tmp_path):
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff\xfe")
    path = tmp_path / "grid.toml"
    path.write_text(text, "utf8")
    message = fails(path, "--dry-run", code=2)
    assert message.startswith(f"error: {path}: {said.replace('FOLDER', str(tmp_path))}"), message
    assert len(message) < 600
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bytes.jsonl", "folder.jsonl", "grid.toml"]


def test_a_grid_that_is_no_text_file(tmp_path):
    path = tmp_path / "grid.toml"
    assert fails(path, code=2) == f"error: {path}: can't be read (No such file or directory)"
    assert fails(tmp_path, code=2) == f"error: {tmp_path}: expected a file"
    path.write_bytes(b"\xff")
    assert fails(path, code=2) == f"error: {path}: not UTF-8 text"
    path.unlink()
    os.mkfifo(path)
    assert fails(path, code=2) == f"error: {path}: expected a file"  # and nobody waits for what it might say


def test_a_task_file_may_not_be_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr(grid, "MAX_TASK_FILE_BYTES", 10)
    (tmp_path / "own.jsonl").write_text("x" * 11, "utf8")
    path = toml_file(tmp_path, model="handmade-or", task="own.jsonl", method="eap", top=1)
    with pytest.raises(ValueError, match=r"grid.toml: grid.task: .*own.jsonl: more than 10 bytes"):
        read_grid(path)


toml_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["eap", "handmade-or", "a/b.jsonl"]),  # fmt: skip
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*grid.KEYS, "x"]), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(["grid", "circuits", "device", "threads", "x"]), toml_values, max_size=4))
def test_whatever_a_grid_holds_it_is_cells_or_one_line(content):
    try:
        plan = read_grid(content)
    except ValueError as error:
        assert str(error).startswith("grid: ") and "\n" not in str(error) and len(str(error)) < 1000
    else:
        assert plan.cells and all(isinstance(one, Cell) for one in plan.cells)


def test_an_unknown_model_of_the_hub_is_not_downloaded_to_list_cells(tmp_path, monkeypatch):
    monkeypatch.setenv("CIRCUITLIB_MODELS", str(tmp_path))
    cell.weights_of.cache_clear()
    asked = {"grid": {"model": "gpt2", "method": "eap", "top": 3}}
    assert read_grid(asked, fetch=False).cells[0].weights == ""
    with pytest.raises(Missing, match="gpt2"):  # before anything runs
        read_grid(asked)
    cell.weights_of.cache_clear()


# --- a cell


def engine(model="handmade-and", n=2, seed=0, corruption=None, **more) -> cl.Engine:
    loaded = cl.load_model(model)
    task = cl.docstring(loaded, n, corruption, seed) if corruption else cl.default_task(loaded, n=n, seed=seed)
    return cl.Engine(loaded, task, **more)


CELLS = [
    (Cell("handmade-and", "gate", "exact", threshold=0.5, n=2), lambda e: cl.exact(e), lambda s: s.above(0.5)),
    (Cell("handmade-and", "gate", "exact", top=2, n=2, metric="kl"), lambda e: cl.exact(e, metric="kl"), lambda s: s.top(2)),
    (Cell("handmade-and", "gate", "eap", top=5, n=2, ablation="zero"), lambda e: cl.eap(e), lambda s: s.top(5)),
    (Cell("handmade-or", "gate", "eap-ig", top=4, n=3, steps=7, direction="denoising"), lambda e: cl.eap_ig(e, steps=7), lambda s: s.top(4)),
    (Cell("handmade-or", "gate", "acdc", threshold=0.1, n=2, ablation="mean"), lambda e: cl.acdc(e, threshold=0.1), lambda c: c),
    (Cell("handmade-or", "gate", "random", top=6, n=2, seed=1), lambda e: random_scores(e), lambda s: s.top(6)),
    (Cell("handmade-docstring", "docstring", "eap", top=6, n=4, seed=3, corruption="random_def"), lambda e: cl.eap(e), lambda s: s.top(6)),
]  # fmt: skip


@pytest.mark.parametrize(("one", "method", "choose"), CELLS, ids=lambda value: getattr(value, "method", ""))
def test_a_cell_measures_what_the_functions_of_the_library_do(one, method, choose):
    asked = engine(one.model, one.n, one.seed, one.corruption, ablation=one.ablation, direction=one.direction)
    found = method(asked)
    circuit, truth = choose(found), cl.known_circuit(one.model, one.ablation, one.direction)
    row = cl.run_cell(one)
    judged = cl.evaluate(asked, circuit, truth).iloc[0]
    assert (row["status"], row["error"]) == ("done", "")
    for name in ("edges", "edges_pruned", "heads", "faithfulness", "kl", "precision", "recall"):
        assert row[name] == pytest.approx(judged[name], nan_ok=True), name
    assert row["task_metric"] == pytest.approx(float(asked.values(circuit).mean()))
    # A circuit that touches every node has no ROC of nodes.
    every = {*truth.graph.senders, *truth.graph.receivers} <= {end for e in truth for end in (e.sender, e.receiver)}
    assert every == (one.ablation == "zero")
    for convention, level in product(("pessimistic", "trapezoid"), ("edge", "node")):
        area = float("nan") if every and level == "node" else cl.auc(cl.roc(found, truth, level), convention)
        assert row[f"auc_{convention}_{level}"] == pytest.approx(area, nan_ok=True)
    assert (row["forwards"], row["backwards"]) == (found.cost.forwards, found.cost.backwards)
    table = cl.compare({"t": (asked, truth)}, {"m": lambda e, metric: found}).iloc[0]
    assert (row["cpr"], row["cmd"]) == pytest.approx((table["cpr"], table["cmd"]))
    assert json.loads(row["circuit"])["edges"] == [str(edge) for edge in circuit.edges]
    assert {name: row[name] for name in cell.PARAMETERS} == one.parameters()


def test_the_columns_are_those_of_compare_and_evaluate():
    assert set(AREAS) < set(cell.MEASURED)
    table = cl.evaluate(engine(), cl.known_circuit("handmade-and"), cl.known_circuit("handmade-and"))
    assert {*table.columns} - {"logit_diff"} == {*cell.OF_THE_CIRCUIT} - {"task_metric"}


def test_a_cell_is_a_function_of_its_parameters():
    """Whatever ran before it, and however many threads torch had."""
    import torch

    cells = read_grid({"grid": {**SMALL, "model": ["handmade-and", "handmade-or"], "metric": ["task", "kl"]}}).cells
    first = {one: cl.run_cell(one) for one in cells}
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for one in reversed(cells):
            again = cl.run_cell(one)
            assert {k: repr(v) for k, v in again.items() if k not in cell.CLOCK} == {
                k: repr(v) for k, v in first[one].items() if k not in cell.CLOCK
            }
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_one_list_of_scores_serves_all_thresholds_and_a_model_is_loaded_once(monkeypatch):
    calls = []
    real = cl.exact
    monkeypatch.setattr("circuitlib.discovery.exact", lambda *a, **k: calls.append(1) or real(*a, **k))
    for memory in (cell.load, cell._engine, cell._judged):
        memory.cache_clear()
    cells = read_grid({"grid": {**SMALL, "method": "exact", "top": [1, 2, 3]}}).cells
    edges = [cl.run_cell(one)["edges"] for one in cells]
    assert edges == [5, 5, 1, 2, 3] * 2 and len(calls) == 2  # one for each seed
    assert cell.load.cache_info().misses == 1


def test_a_method_that_refuses_is_a_row_and_no_failure():
    row = cell.attempt(Cell("handmade-and", "gate", "eap", metric="kl", top=3, n=2))
    assert row["status"] == "refused" and row["error"].startswith("metric: the gradient of 'kl' vanishes")
    assert all(pd.isna(row[name]) for name in cell.MEASURED)


def test_what_goes_wrong_in_a_cell_is_a_row():
    row = cell.attempt(Cell("handmade-and", "gate", "exact", top=1000, n=2))
    assert (row["status"], row["error"]) == (
        "failed",
        "ValueError: top: 1,000 edges asked for, handmade-and has 13",
    )
    assert row["cell_seconds"] > 0 and pd.isna(row["edges"])
    row = cell.attempt(Cell("handmade-and", "docstring", "exact", top=1))
    assert row["error"] == "ValueError: task: handmade-and knows gate, got 'docstring'"


def test_an_error_of_many_lines_is_one_short_line(monkeypatch):
    def out_of_memory(*_):
        raise RuntimeError("can't allocate memory:\n" + "x" * 5000)

    monkeypatch.setattr(cell, "run_cell", out_of_memory)
    error = cell.attempt(Cell("handmade-and", "gate", "exact", top=1))["error"]
    assert error.startswith("RuntimeError: can't allocate memory: xxx") and len(error) == cell.ERROR_LENGTH


OWN = """\
{"format": "circuitlib task", "version": 1, "name": "mine"}
{"clean": "11=", "corrupted": "00=", "answer": "1", "distractors": ["0"]}
{"clean": "11=", "corrupted": "10=", "answer": "1", "distractors": ["0"]}
{"clean": "11=", "corrupted": "01=", "answer": "1", "distractors": ["0"]}
"""


def test_a_cell_with_a_task_file_measures_its_prompts(tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text(OWN, "utf8")
    asked = cl.Engine(model := cl.load_model("handmade-and"), cl.load_task(model, path))
    one = Cell("handmade-and", "own.jsonl", "exact", top=3, n=None, seed=None, task_file="0" * 64)
    row = cl.run_cell(one, OWN)
    assert row["faithfulness"] == pytest.approx(cl.faithfulness(asked, cl.exact(asked).top(3)))
    assert json.loads(row["circuit"])["task"] == "mine" and pd.isna(row["precision"])  # no circuit of it is known
    drawn = [cell._drawn(asked.task, 2, seed) for seed in range(20)]
    assert {len(task) for task in drawn} == {2}
    pairs = {tuple(map(tuple, task.corrupted.tolist())) for task in drawn}
    every = [tuple(row) for row in asked.task.corrupted.tolist()]
    assert pairs == {(every[0], every[1]), (every[0], every[2]), (every[1], every[2])}  # in their order
    failed = cell.attempt(Cell("handmade-and", "own.jsonl", "exact", top=3, n=4, task_file="0" * 64), OWN)
    assert failed["error"] == "ValueError: n: the task file holds 3 pairs of prompts, expected at most that many, got 4"


def test_an_error_in_a_task_file_names_the_file_as_the_grid_does():
    one = Cell("handmade-and", "tasks/own.jsonl", "exact", top=3, n=None, seed=None, task_file="0" * 64)
    error = cell.attempt(one, OWN.replace('"1"', '"7"'))["error"]
    assert error.startswith("ValueError: tasks/own.jsonl, line 2: answer: ")


def test_what_is_known_of_a_model():
    assert cell.truth_of("handmade-or", "gate", "zero", "noising") == cl.known_circuit("handmade-or", "zero")
    assert cell.truth_of("gpt-mini", "ioi", "corrupted", "noising") == cl.reference_circuit("gpt-mini", "ioi")
    assert cell.truth_of("gpt2", "greater_than", "corrupted", "noising") == cl.published_circuit("greater-than")
    assert cell.truth_of("attn-only-4l", "docstring", "corrupted", "noising") == cl.published_circuit("docstring")
    for unknown in (
        ("gpt-mini", "ioi", "zero"),
        ("gpt-mini", "induction", "corrupted"),
        ("gpt2", "ioi", "mean"),
        ("gpt2", "docstring", "corrupted"),
        ("handmade-or", "own.jsonl", "corrupted"),
    ):
        assert cell.truth_of(*unknown, "noising") is None, unknown


def test_a_key_is_of_parameters_weights_versions_and_code(monkeypatch):
    one = Cell("handmade-and", "gate", "exact", top=3)
    others = [
        Cell("handmade-and", "gate", "exact", top=4),
        Cell("handmade-and", "gate", "exact", top=3, weights="0"),
        Cell("handmade-and", "gate", "exact", top=3, threads=2),
        Cell("handmade-and", "gate", "exact", threshold=3.0),
    ]
    assert len({one.key, *(other.key for other in others)}) == 5
    assert Cell("handmade-and", "gate", "exact", top=3).key == one.key
    stated = cell.versions()
    for name in stated:
        monkeypatch.setattr(cell, "versions", lambda changed=name: {**stated, changed: "other"})
        assert Cell("handmade-and", "gate", "exact", top=3).key != one.key, name


def test_versions_are_those_that_are_loaded():
    import torch

    found = cell.versions()
    assert found["circuitlib"] == cl.__version__ and found["torch"] == torch.__version__.split("+")[0]
    assert re.fullmatch(r"\d+\.\d+.*", found["transformer_lens"]) and re.fullmatch(r"[0-9a-f]{16}", found["code"])
    for pattern in cell.CODE:
        assert list(cell.PACKAGE.glob(pattern)), pattern


# --- what is kept


def test_a_sweep_runs_what_is_not_finished_and_makes_the_same_table(tmp_path, monkeypatch):
    ran = []
    real = workers.attempt
    monkeypatch.setattr(workers, "attempt", lambda one, file: ran.append(one) or real(one, file))
    asked = {"grid": SMALL, "circuits": True}
    whole = run_sweep(asked, tmp_path / "cells", tmp_path / "t.csv", jobs=0)
    plan = read_grid(asked)
    assert ran == list(plan.cells) and set(whole["status"]) == {"done"}

    # Nothing is run again; what is lost, and only that, is.
    same(run_sweep(asked, tmp_path / "cells", jobs=0), whole)
    assert len(ran) == len(plan.cells)
    kept = sorted((tmp_path / "cells").glob("*.json"))
    kept[0].unlink()
    kept[3].write_text(kept[3].read_text("utf8")[:-20], "utf8")  # cut short
    (tmp_path / "cells" / "circuits" / kept[5].name).unlink()
    same(run_sweep(asked, tmp_path / "cells", jobs=0), whole)
    assert {one.key for one in ran[len(plan.cells) :]} == {kept[i].stem for i in (0, 3, 5)}

    # A larger grid takes over what is there.
    more = run_sweep({**asked, "grid": {**SMALL, "seed": [0, 1, 2]}}, tmp_path / "cells", jobs=0)
    assert len(ran) == len(plan.cells) + 3 + 4 and len(more) == 12
    same(more[:8].assign(config=whole["config"]), whole)


def test_the_table_says_what_it_was_made_of_and_circuits_are_files(tmp_path):
    table = run_sweep({"grid": SMALL, "circuits": True}, tmp_path, jobs=0)
    assert tuple(table.columns) == store.COLUMNS
    plan = read_grid({"grid": SMALL, "circuits": True})
    assert set(table["config"]) == {plan.config} and table["cell"].tolist() == [one.key for one in plan.cells]
    assert set(table["weights"]) == {cell.weights_of("handmade-and")} and set(table["torch"]) == {cell.versions()["torch"]}  # fmt: skip
    for row, one in zip(table.itertuples(), plan.cells, strict=True):
        circuit = cl.Circuit.load(tmp_path / row.circuit)
        found = cl.exact(engine(seed=one.seed)).above(one.threshold) if one.method == "exact" else cl.acdc(engine(seed=one.seed), threshold=one.threshold)  # fmt: skip
        assert circuit == found and len(circuit) == row.edges
    assert set(run_sweep({"grid": SMALL}, tmp_path, jobs=0)["circuit"]) == {""}


def test_weights_are_known_by_the_hash_of_their_file():
    lines = (cl.models.registry.info("gpt-mini").folder / "SHA256SUMS").read_text("utf8").splitlines()
    stated = dict(reversed(line.split()) for line in lines)
    assert cell.weights_of("gpt-mini") == stated["model.safetensors"]


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_a_table_in_a_file_is_the_table(name, tmp_path):
    asked = {"grid": {**SMALL, "method": ["exact", "eap", "acdc"], "metric": ["task", "kl"]}}
    table = run_sweep(asked, tmp_path / "cells", tmp_path / name, jobs=0)
    read = pd.read_csv(tmp_path / name) if name.endswith("csv") else pd.read_parquet(tmp_path / name)
    assert {"done", "refused"} == set(read["status"])
    for column in store.COLUMNS:
        for wrote, got in zip(table[column], read[column], strict=True):
            missing = (pd.isna(wrote) or wrote == "") and (pd.isna(got) or got == "")
            assert missing or wrote == got or column in cell.PROVENANCE and str(wrote) == str(got), column
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cells", name]


TAMPERED = {
    "not JSON": lambda content: "{",
    "a list": lambda content: "[]",
    "no row": lambda content: json.dumps({k: v for k, v in content.items() if k != "row"}),
    "another format": lambda content: json.dumps({**content, "version": 2}),
    "another cell": lambda content: json.dumps({**content, "cell": "0" * 24}),
    "one more key": lambda content: json.dumps({**content, "x": 1}),
    "another parameter": lambda content: json.dumps({**content, "row": {**content["row"], "seed": 9}}),
    "a parameter of another type": lambda content: json.dumps({**content, "row": {**content["row"], "seed": 0.0}}),
    "a column more": lambda content: json.dumps({**content, "row": {**content["row"], "x": 1}}),
    "a column less": lambda content: json.dumps({**content, "row": {k: v for k, v in content["row"].items() if k != "kl"}}),
    "text for a number": lambda content: json.dumps({**content, "row": {**content["row"], "kl": "0"}}),
    "an unknown status": lambda content: json.dumps({**content, "row": {**content["row"], "status": "fine"}}),
    "too deep": lambda content: "[" * 60_000,
    "too long": lambda content: json.dumps({**content, "row": {**content["row"], "error": "x" * 2**17}}),
    "not text": lambda content: "\udcff",
}  # fmt: skip


@pytest.mark.parametrize("how", TAMPERED)
def test_a_file_that_no_sweep_wrote_is_made_again(how, tmp_path):
    asked = {"grid": {**SMALL, "seed": 0, "threshold": 0.5, "method": "exact"}}
    whole = run_sweep(asked, tmp_path, jobs=0)
    (path,) = tmp_path.glob("*.json")
    text = TAMPERED[how](json.loads(path.read_text("utf8")))
    path.write_bytes(text.encode("utf8", "surrogateescape"))
    assert store.Store(tmp_path).table(read_grid(asked))["status"].tolist() == ["pending"]
    same(run_sweep(asked, tmp_path, jobs=0), whole)


def test_what_a_cut_write_left_is_cleared_away(tmp_path):
    (tmp_path / "circuits").mkdir()
    begun = f"{'0a' * 12}.123.tmp.json"
    left, others = (
        [tmp_path / begun, tmp_path / "circuits" / begun],
        [tmp_path / "c.123.tmp.json", tmp_path / "mine.tmp"],
    )
    for path in left + others:
        path.write_text("{", "utf8")
    run_sweep({"grid": {**SMALL, "seed": 0}}, tmp_path, jobs=0)
    assert not any(path.exists() for path in left) and all(path.exists() for path in others)


# --- failures


FAILING = {"model": "handmade-and", "method": "exact", "top": [2, 500, 3, 600], "n": 2}


def test_a_cell_that_fails_is_recorded_and_the_others_go_on(tmp_path, monkeypatch):
    grid_file, out = toml_file(tmp_path, **FAILING), tmp_path / "t.csv"
    message = fails(grid_file, "--out", out, "--jobs", "0", "--quiet", code=1)
    assert message == (
        "error: 2 of 4 cells failed; the first said: ValueError: top: 500 edges asked for, handmade-and has 13; "
        "--retry-failed runs them again"
    )
    table = pd.read_csv(out)
    assert table["status"].tolist() == ["done", "failed", "done", "failed"]
    assert table["error"][3].startswith("ValueError: top: 600 edges") and table["edges"].tolist()[::2] == [2, 3]

    ran = []
    real = workers.attempt
    monkeypatch.setattr(workers, "attempt", lambda one, file: ran.append(one.top) or real(one, file))
    fails(grid_file, "--out", out, "--jobs", "0", "--quiet", code=1)
    assert ran == []
    fails(grid_file, "--out", out, "--jobs", "0", "--quiet", "--retry-failed", code=1)
    assert ran == [500, 600]
    monkeypatch.setattr(workers, "attempt", lambda one, file: {**real(one, file), "status": "done", "error": ""})
    run(grid_file, "--out", out, "--jobs", "0", "--quiet", "--retry-failed")
    assert set(pd.read_csv(out)["status"]) == {"done"}


def test_a_full_disk_keeps_what_is_finished(tmp_path, monkeypatch):
    real, writes = Path.write_bytes, []

    def until_full(path, content):
        if path.parent.name == "t.cells":
            writes.append(path)
            if len(writes) > 3:
                real(path, content[: len(content) // 2])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, content)

    monkeypatch.setattr(Path, "write_bytes", until_full)
    grid_file, out = toml_file(tmp_path, **SMALL), tmp_path / "t.csv"
    message = fails(grid_file, "--out", out, "--jobs", "0", "--quiet", code=3)
    assert re.fullmatch(
        rf"error: {tmp_path}/t.cells/[0-9a-f]{{24}}.json: can't be written \(No space left on device\); "
        rf"the cells that are finished are kept in {tmp_path}/t.cells",
        message,
    )
    assert len(list((tmp_path / "t.cells").glob("*.json"))) == 3 and not out.exists()
    assert not list(tmp_path.rglob("*.tmp"))
    monkeypatch.undo()
    run(grid_file, "--out", out, "--jobs", "0", "--quiet")
    assert set(pd.read_csv(out)["status"]) == {"done"}


def test_a_table_that_can_t_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    real = Path.write_bytes

    def full(path, content):
        if path.name.startswith("t.") and path.suffix == ".csv":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, content)

    out = tmp_path / "t.csv"
    out.write_text("old", "utf8")
    monkeypatch.setattr(Path, "write_bytes", full)
    message = fails(toml_file(tmp_path, **SMALL), "--out", out, "--jobs", "0", "--quiet", code=3)
    assert message == f"error: {out}: can't be written (No space left on device)" and out.read_text("utf8") == "old"


def test_a_folder_that_can_t_be_made_or_written(tmp_path, monkeypatch):
    grid_file = toml_file(tmp_path, **SMALL)
    message = fails(grid_file, "--cells", grid_file / "cells", "--jobs", "0", "--quiet", code=3)
    assert message == f"error: {grid_file}/cells: can't be written to (Not a directory)"

    def read_only(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "open", read_only)  # what the lock is made with
    message = fails(grid_file, "--cells", tmp_path / "c", "--jobs", "0", "--quiet", code=3)
    assert message == f"error: {tmp_path}/c: can't be written to (Read-only file system)"


def test_a_folder_belongs_to_one_sweep_at_a_time(tmp_path):
    grid_file = toml_file(tmp_path, **SMALL)
    with store.Store(tmp_path / "c").locked():
        message = fails(grid_file, "--cells", tmp_path / "c", "--jobs", "0", "--quiet", code=3)
        assert message == f"error: {tmp_path}/c: another sweep is at work in it; wait for it, or choose another folder"
        run(grid_file, "--cells", tmp_path / "c", "--dry-run", "--quiet")  # to look is allowed
        run(grid_file, "--cells", tmp_path / "c", "--collect", "--quiet")
    run(grid_file, "--cells", tmp_path / "c", "--jobs", "0", "--quiet")


def test_ctrl_c_ends_with_130_and_keeps_what_is_finished(tmp_path, monkeypatch):
    real, ran = workers.attempt, []

    def interrupted(one, file):
        ran.append(one)
        if len(ran) == 3:
            raise KeyboardInterrupt
        return real(one, file)

    monkeypatch.setattr(workers, "attempt", interrupted)
    grid_file, out = toml_file(tmp_path, **SMALL), tmp_path / "t.csv"
    result = run(grid_file, "--out", out, "--jobs", "0", "--quiet", code=130)
    assert result.stderr == "interrupted\n" and result.stdout == "" and not out.exists()
    assert len(list((tmp_path / "t.cells").glob("*.json"))) == 2
    run(grid_file, "--out", out, "--collect", "--quiet")
    assert pd.read_csv(out)["status"].tolist() == ["done"] * 2 + ["pending"] * 6


def test_a_worker_with_other_versions_or_weights_is_refused(tmp_path, monkeypatch):
    real = workers.attempt
    for name, stated in (("torch", "1.0"), ("code", "0123"), ("weights", "fedc")):
        monkeypatch.setattr(workers, "attempt", lambda one, file, of=(name, stated): {**real(one, file), of[0]: of[1]})
        with pytest.raises(
            Missing, match=rf"^{name}: a worker has {stated}, this machine [0-9a-f.]+; expected the same on all"
        ):
            run_sweep({"grid": SMALL}, tmp_path, jobs=0)
    assert not list(tmp_path.glob("*.json"))


# --- the command


def test_dry_run_lists_the_cells_and_touches_nothing(tmp_path):
    grid_file = toml_file(tmp_path, **SMALL)
    result = run(grid_file, "--cells", tmp_path / "c", "--dry-run")
    lines = result.stdout.splitlines()
    assert lines[0].split()[:3] == ["cell", "status", "model"] and len(lines) == 9
    assert all(line.split()[1] == "pending" for line in lines[1:]) and result.stderr == "8 pending\n"
    assert [path.name for path in tmp_path.iterdir()] == ["grid.toml"]


def test_dry_run_and_help_load_no_torch(tmp_path):
    code = f"""
import sys
from typer.testing import CliRunner
from circuitlib import cli
for arguments in (["--help"], ["sweep", "--help"], ["sweep", {str(toml_file(tmp_path, **SMALL))!r}, "--dry-run"]):
    assert CliRunner().invoke(cli.app, arguments).exit_code == 0
assert not {{"torch", "transformer_lens", "dask", "joblib"}} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_the_main_columns_are_printed_or_all_as_json(tmp_path):
    grid_file, cells = toml_file(tmp_path, **SMALL), tmp_path / "c"
    lines = run(grid_file, "--cells", cells, "--jobs", "0", "--quiet").stdout.splitlines()
    assert lines[0].split() == [
        *["model", "task", "method", "metric", "threshold", "top", "seed", "status"],
        *["edges", "faithfulness", "kl", "auc_pessimistic_edge", "cpr", "cmd"],
    ]
    assert len(lines) == 9 and lines[1].split()[:4] == ["handmade-and", "gate", "exact", "task"]
    rows = json.loads(run(grid_file, "--cells", cells, "--jobs", "0", "--quiet", "--json").stdout)
    assert len(rows) == 8 and tuple(rows[0]) == store.COLUMNS and rows[0]["edges"] == 5


def test_cells_are_kept_beside_the_table_or_named_after_the_grid(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    grid_file = toml_file(tmp_path, **{**SMALL, "seed": 0})
    run(grid_file, "--jobs", "0", "--quiet")
    run(grid_file, "--jobs", "0", "--quiet", "--out", "results/t.csv")
    assert {path.name for path in tmp_path.iterdir()} == {"grid.toml", "grid.cells", "results"}
    assert {path.name for path in (tmp_path / "results").iterdir()} == {"t.csv", "t.cells"}


REFUSED = [
    (["--out", "t.txt"], 2, "out: expected a name that ends in .csv or .parquet, got 't.txt'"),
    (["--out", "nowhere/t.csv"], 2, "out: expected the name of a file in a folder that exists, got nowhere/t.csv"),
    (["--out", "t.csv", "--json"], 2, "--json: with --out nothing is printed; expected one of them"),
    (["--dry-run", "--collect"], 2, "--collect: makes a table, and --dry-run a list; expected one of them"),
    (["--dry-run", "--out", "t.csv"], 2, "--out: there is no table to write with --dry-run"),
    (["--collect", "--retry-failed"], 2, "--retry-failed: --collect runs nothing; expected one of them"),
    (["--jobs", "2", "--scheduler", "tcp://127.0.0.1:1"], 2, "jobs: the workers of a scheduler are what they are; expected either jobs or scheduler"),
    (["--jobs", "2000"], 2, "jobs: expected an integer from 0 to 1,024, got 2000"),
    (["--scheduler", "127.0.0.1:8786"], 2, "scheduler: expected an address such as tcp://127.0.0.1:8786, got '127.0.0.1:8786'"),
    (["--scheduler", "tcp://here"], 2, "scheduler: expected an address such as tcp://127.0.0.1:8786, got 'tcp://here'"),
    (["--scheduler", "file:///tmp/x:1"], 2, "scheduler: expected an address such as tcp://127.0.0.1:8786, got 'file:///tmp/x:1'"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "code", "said"), REFUSED, ids=lambda value: "-".join(value) if isinstance(value, list) else "")  # fmt: skip
def test_options_that_make_no_sense_together(options, code, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    grid_file = toml_file(tmp_path, **SMALL)
    assert fails(grid_file, *options, code=code) == f"error: {said}"
    assert [path.name for path in tmp_path.iterdir()] == ["grid.toml"]


def test_parquet_and_a_cluster_need_the_extra(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    grid_file = toml_file(tmp_path, **SMALL)
    monkeypatch.setattr(store, "find_spec", lambda name: None)
    assert "pip install 'circuitlib[sweep]'" in fails(grid_file, "--out", "t.parquet", code=3)
    monkeypatch.setitem(sys.modules, "dask.distributed", None)
    assert "pip install 'circuitlib[sweep]'" in fails(grid_file, "--scheduler", "tcp://127.0.0.1:1", code=3)


def test_a_scheduler_that_is_not_there_is_one_line_within_seconds(tmp_path):
    began = time.monotonic()
    message = fails(toml_file(tmp_path, **SMALL), "--cells", tmp_path / "c", "--scheduler", "tcp://127.0.0.1:9", "--quiet", code=3)  # fmt: skip
    assert message.startswith("error: scheduler: tcp://127.0.0.1:9 can't be reached (OSError: Timed out")
    assert time.monotonic() - began < 60  # it gives up after 5; an import stands before it


# --- the page of the book

PAGE = (ROOT / "book" / "sweeps.md").read_text("utf8")


def rows_of(heading: str) -> list[list[str]]:
    """The first table below a heading, without its two top lines."""
    table = re.search(rf"^## {heading}\n.*?^(\|.*?)\n\n", PAGE, flags=re.M | re.S)[1]
    return [[text.strip() for text in line.strip("|").split("|")] for line in table.splitlines()]


def test_the_grid_of_the_page_gives_the_table_of_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("gates.toml").write_text(re.search(r"```toml\n(.*?)```", PAGE, flags=re.S)[1], "utf8")
    run("gates.toml", "--out", "gates.csv", "--jobs", "0", "--quiet")
    table = pd.read_csv("gates.csv")
    head, _, *rows = rows_of("A grid and its table")
    assert len(rows) == len(table) == 10 and (tmp_path / "gates.cells").is_dir()
    for stated, (_, found) in zip(rows, table.iterrows(), strict=True):
        assert stated == [found[n] if isinstance(found[n], str) else f"{found[n]:.3g}" for n in head], stated
    assert {f"--{name}" for name in re.findall(r" --([a-z][a-z-]+)", PAGE)} - {"--nworkers", "--nthreads"} <= {
        *re.findall(r"--[a-z-]+", run("--help").stdout)
    }


def test_the_page_has_every_key_with_its_default():
    _, _, *rows = rows_of("The keys")
    stated = {name.strip("`"): default.replace("`", "") for name, _, default in rows}
    assert stated.keys() == grid.KEYS.keys()
    for name, key in grid.KEYS.items():
        if key.default:
            assert stated[name] == str(key.default[0]), name
    assert stated["n"] == f"{grid.DEFAULT_N}, or all prompts of a file"
    for name in ("method", "metric", "ablation", "direction"):
        said = next(text for key, text, _ in rows if key == f"`{name}`")
        choices = re.findall(r"`([a-z-]+)`", said)
        assert all(grid.KEYS[name].fits(choice) for choice in choices) and len(choices) in (2, 3, 5), name


def test_the_page_explains_every_status():
    stated = re.findall(r"^- \*([a-z]+)\*:", PAGE, flags=re.M)
    assert sorted(stated) == sorted([*store.STATES, "skipped", "pending"])


def test_a_plan_whose_weights_are_not_known_is_refused_before_it_runs(tmp_path):
    plan = read_grid({"grid": {"model": "handmade-or", "method": "eap", "top": 3}})
    blind = dataclasses.replace(plan, cells=tuple(dataclasses.replace(one, weights="") for one in plan.cells))
    with pytest.raises(ValueError, match="^plan: the weights of handmade-or are not known"):
        run_sweep(blind, tmp_path / "cells", jobs=0)
