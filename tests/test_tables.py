"""The committed tables: they belong to these weights and this code, nobody has edited them, and they agree with each other."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import circuitlib as cl
from circuitlib import comparison, tables

ROOT = Path(__file__).resolve().parents[1]
KEYS = ["task", "method", "metric", "seed"]
TASKS = {"docstring": "docstring-4l", "ioi": "gpt-mini", "greater_than": "gpt-mini"}


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("results_tool", ROOT / "book" / "tools" / "results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def table():
    return cl.results("comparison")


# --- whether they are of here and now -----------------------------------------------------------------------------


def test_they_are_not_stale():
    now, then = tables.fingerprint(), tables.about()["fingerprint"]
    changed = [part for part in now if now[part] != then.get(part)]
    assert not changed, f"stale: run make results (the {' and the '.join(changed)} changed since the tables were made)"


def test_nobody_edited_them():
    files = {path.stem: hashlib.sha256(path.read_bytes()).hexdigest() for path in tables.FOLDER.glob("*.csv")}
    assert files == tables.about()["files"]
    assert set(files) == set(tables.TABLES)


def spoken(code: str) -> str:
    return "".join(tables._spoken(ast.parse(code)))


def test_comments_and_docstrings_do_not_make_them_stale():
    bare = spoken("def f(x):\n    return -x\n")
    assert spoken('"""What."""\n\n\ndef f(x):\n    """Why."""\n    # how\n    return (\n        -x\n    )\n') == bare
    for other in ("def f(x):\n    return x\n", "def f(x):\n    return -x + None\n", "def f(x=0):\n    return -x\n"):
        assert spoken(other) != bare
    assert spoken("x = 'a'") != spoken("x = 'b'") and spoken("return_ = None") != spoken("return_ = 0")


def test_every_piece_of_code_that_runs_is_in_the_fingerprint(tool):
    """But for the loading of models, whose weights are in it."""
    ran = set()
    model = cl.load_model("handmade-or")
    task = (cl.Engine(model, cl.default_task(model, n=4)), cl.known_circuit("handmade-or"))
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, _: ran.add(frame.f_code.co_filename))
    try:
        tool.measure({"or": lambda seed: task}, comparison.METHODS, (0,), (None,))
        for make in comparison.PROMPTS.values():
            make(cl.load_model(TASKS[make.__name__]), n=2)
        cl.reference_circuit("docstring-4l", "docstring")
    finally:
        sys.setprofile(before)
    package = ROOT / "circuitlib"
    ran = {path for path in map(Path, ran) if package in path.parents and path != package / "__init__.py"}
    missed = {str(path.relative_to(package)) for path in ran - set(tables.code_files())}
    assert {path for path in missed if not path.startswith("models/")} == set()
    assert len(ran) > 8


# --- whether they agree with each other, and with what is measured now --------------------------------------------


def test_every_run_is_there(table):
    assert list(map(tuple, table[KEYS].values)) == [
        (task, method, metric, seed)
        for task in TASKS
        for method in comparison.METHODS
        for metric in ("task", "kl")
        for seed in comparison.SEEDS
    ]
    refused = table[table["refused"] != ""]
    assert {*refused["method"]} <= {"EAP", "EAP-IG activations"} and {*refused["metric"]} == {"kl"}


def test_the_areas_are_those_of_the_curves(table):
    """By hand: stairs, lines and trapezoids over the points that stand in the other tables."""
    for row in table[table["refused"] == ""].itertuples():
        points = sorted({(0.0, 0.0), (1.0, 1.0), *row.roc})
        best = [(x, max(y for x2, y in points if x2 <= x)) for x in sorted({x for x, _ in points})]
        stairs = sum((x2 - x1) * y1 for (x1, y1), (x2, _) in zip(best, best[1:], strict=False))
        assert stairs == pytest.approx(row.auc_pessimistic_edge, abs=1e-9)
        assert row.auc_trapezoid_edge >= row.auc_pessimistic_edge - 1e-9
        k, f = np.array([0, *row.curve.sizes, row.curve.n_edges]), np.array([0, *row.curve.values, 1])
        assert np.trapezoid(f, k) / row.curve.n_edges == pytest.approx(row.cpr, abs=1e-6)
        assert np.trapezoid(abs(1 - f), k) / row.curve.n_edges == pytest.approx(row.cmd, abs=1e-6)


def test_the_circuits_have_the_precision_that_the_comparison_says(table):
    circuits = cl.results("circuits").set_index(KEYS)["circuit"].str.split()
    truths = {task: {*map(str, cl.reference_circuit(model, task))} for task, model in TASKS.items()}
    for row in table[table["refused"] == ""].itertuples():
        edges = circuits[row.task, row.method, row.metric, row.seed]
        assert len(edges) == row.edges
        assert len(truths[row.task] & {*edges}) / len(edges) == pytest.approx(row.precision)


def test_acdc_keeps_less_at_a_higher_threshold_on_the_whole(table):
    sweep = cl.results("acdc")
    assert len(sweep) == len(TASKS) * 2 * len(comparison.SEEDS) * len(comparison.SHARES)
    for _, rows in sweep.groupby(["task", "metric", "seed"]):
        assert rows["share"].is_monotonic_decreasing and rows["edges"].iloc[0] < rows["edges"].iloc[-1]
        assert (rows["hits"] <= rows["edges"]).all()
    total = sweep.groupby(["task", "metric", "seed"])["forwards"].sum()
    acdc = table[table["method"] == "ACDC"].set_index(["task", "metric", "seed"])["forwards"]
    assert (total.sort_index() == acdc.sort_index()).all()


def test_a_run_made_again_gives_the_same_row(table):
    columns = [name for name in table if table[name].dtype.kind == "f" and name not in ("seconds", "correlation")]
    again = cl.compare(comparison.tasks(), {"EAP-IG inputs": comparison.METHODS["EAP-IG inputs"]}, (1,))
    for _, row in again.iterrows():
        kept = table.set_index(KEYS).loc[(row["task"], "EAP-IG inputs", "task", 1)]
        np.testing.assert_allclose(
            row[columns].astype(float), kept[columns].astype(float), rtol=2e-3, atol=2e-4, err_msg=row["task"]
        )


# --- the tool -----------------------------------------------------------------------------------------------------


def test_what_the_tool_writes_is_what_compare_returns(tool, tmp_path):
    model = cl.load_model("handmade-and")
    task = {
        "and": lambda seed: (cl.Engine(model, cl.default_task(model, n=4, seed=seed)), cl.known_circuit("handmade-and"))
    }
    written, sizes = tool.measure(task, comparison.METHODS, (0, 1), (None, "kl"))
    assert sizes == {"and": {"n_edges": 13, "n_true": 5}}
    plain = cl.compare(task, comparison.METHODS, (0, 1), metrics=(None, "kl"))
    shared = [name for name in plain if name in written["comparison"]]
    pd.testing.assert_frame_equal(written["comparison"][shared], plain[shared])
    own = written["comparison"].set_index(KEYS)["correlation"]
    assert own["and", "exact", "task", 0] == pytest.approx(1) and np.isnan(own["and", "ACDC", "task", 0])
    assert {"edges", "hits"} < {*written["roc"]} and written["roc"]["hits"].max() == 5
    tool.write(written, sizes, tmp_path)
    read = pd.read_csv(tmp_path / "comparison.csv", float_precision="round_trip")
    assert (read["cpr"].dropna().values == written["comparison"]["cpr"].dropna().values).all()


def test_another_name_is_an_error():
    with pytest.raises(ValueError, match="name: expected one of comparison, seconds, .*got 'auc'"):
        cl.results("auc")
