"""The commands that judge, export and train, and a task of one's own through all of them."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from test_cli import fails, run
from test_training import TINY

import circuitlib as cl
from circuitlib.cli.export import read_scores
from circuitlib.engine import Engine
from circuitlib.evaluation.stability import of_prompts

ROOT = Path(__file__).resolve().parents[1]

EVALUATE = ["--model", "handmade-docstring", "--n", "6", "--quiet"]


@pytest.fixture(scope="module")
def setting():
    model = cl.load_model("handmade-docstring")
    return Engine(model, cl.default_task(model, n=6))


@pytest.fixture
def files(setting, tmp_path) -> list[str]:
    """Two circuit files: the known one, and one that lacks an edge and has a false one."""
    known = cl.known_circuit("handmade-docstring")
    known.save(tmp_path / "known.json")
    (known - ["a2.0→logits"] | ["embed→a0.1.v"]).save(tmp_path / "other.json")
    return [str(tmp_path / "known.json"), str(tmp_path / "other.json")]


# --- evaluate


def test_evaluate_measures_what_the_library_measures(setting, files):
    rows = json.loads(run("evaluate", *files, *EVALUATE, "--thorough", "--json").stdout)
    circuits = [cl.Circuit.load(path) for path in files]
    truth = cl.known_circuit("handmade-docstring")
    expected = cl.evaluate(setting, circuits, truth)
    assert [row["circuit"] for row in rows] == files
    for i, (row, circuit) in enumerate(zip(rows, circuits, strict=True)):
        for column in expected.columns:
            assert row[column] == pytest.approx(float(expected[column][i]), abs=1e-6), column
        drawn = cl.random_baseline(setting, len(circuit), n=20)
        assert row["random_mean"] == pytest.approx(float(drawn.mean()), abs=1e-6)
        assert row["random_best"] == pytest.approx(float(drawn.max()), abs=1e-6)
        ((fpr, tpr),) = cl.roc(circuit, truth)
        assert (row["fpr"], row["tpr"]) == (pytest.approx(fpr), pytest.approx(tpr))
        assert row["auc_pessimistic"] == pytest.approx(cl.auc(cl.roc(circuit, truth)))
        assert row["auc_trapezoid"] == pytest.approx(cl.auc(cl.roc(circuit, truth), "trapezoid"))
        assert row["least_needed_edge"] == pytest.approx(float(cl.minimality(setting, circuit)["change"].abs().min()), abs=1e-6)  # fmt: skip
        assert row["completeness_gap"] == pytest.approx(float(cl.completeness(setting, circuit)["gap"].max()), abs=1e-6)
    assert rows[0]["faithfulness"] == pytest.approx(1, abs=0.1) and rows[1]["faithfulness"] == pytest.approx(0, abs=0.1)
    assert rows[0]["tpr"] == rows[0]["auc_pessimistic"] == 1 and rows[1]["fpr"] > 0


def test_evaluate_prints_a_table_and_writes_one(files, tmp_path):
    printed = run("evaluate", files[0], *EVALUATE).stdout
    assert "faithfulness" in printed and "random_best" in printed and "least_needed_edge" not in printed
    out = tmp_path / "table.csv"
    assert run("evaluate", *files, *EVALUATE, "--out", str(out)).stdout == ""
    assert pd.read_csv(out)["circuit"].tolist() == files


def test_evaluate_takes_the_ablation_from_the_circuit_and_says_what_differs(tmp_path):
    cl.Circuit(cl.known_circuit("handmade-or").graph, ["m0→logits"], "gate", "zero").save(tmp_path / "c.json")
    arguments = ["evaluate", str(tmp_path / "c.json"), "--model", "handmade-or", "--json"]
    result = run(*arguments)
    model = cl.load_model("handmade-or")
    task = cl.default_task(model)
    engines = {ablation: Engine(model, task, ablation) for ablation in ("zero", "mean")}
    circuit = cl.Circuit.load(tmp_path / "c.json")
    for ablation, said in (("zero", ""), ("mean", "c.json is a claim about ablation 'zero', and is judged on 'mean'")):
        result = run(*arguments, *(["--ablation", "mean"] if ablation == "mean" else []))
        row = json.loads(result.stdout)[0]
        assert row["faithfulness"] == pytest.approx(cl.faithfulness(engines[ablation], circuit))
        assert said in result.stderr and ("is a claim" in result.stderr) == bool(said)


def test_evaluate_knows_what_is_enough(files):
    assert run("evaluate", files[0], *EVALUATE, "--min-faithfulness", "0.8").exit_code == 0
    result = run("evaluate", *files, *EVALUATE, "--min-faithfulness", "0.8", code=1)
    assert "faithfulness" in result.stdout and "less than 0.8" in result.stderr


def test_evaluate_circuits_with_positions(setting, tmp_path):
    circuit = cl.eap(setting, per_position=True).top(40)
    circuit.save(tmp_path / "c.json")
    row = json.loads(run("evaluate", str(tmp_path / "c.json"), *EVALUATE, "--random", "3", "--json").stdout)[0]
    assert row["faithfulness"] == pytest.approx(cl.faithfulness(setting, circuit)) and "tpr" not in row
    drawn = [cl.random_circuit(circuit.graph, 40, i) for i in range(3)]
    assert row["random_mean"] == pytest.approx(float(cl.faithfulness(setting, drawn).mean()), abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["known.json", "known.json"], "CIRCUIT: expected 1 to 100 files, each once, got 2"),
        (["none.json"], "none.json: can't be read"),
        (["known.json", "--out", "table.txt"], "--out: expected a name that ends in .csv or .json"),
        (["known.json", "--min-faithfulness", "inf"], "--min-faithfulness: expected a finite number"),
        (["known.json", "--task", "induction"], "--task: handmade-docstring knows docstring"),
        (["gate.json"], "circuit: expected one of Graph(3 layers"),
        (["known.json", "at.json"], "some files have positions and some have none"),
        (["known.json", "--truth", "gate.json"], "--truth: gate.json is of Graph(1 layers"),
        (["known.json", "--truth", "empty.json"], "truth: the circuit is empty"),
    ],
)  # fmt: skip
def test_evaluate_refuses_in_one_line(arguments, said, files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    graph = cl.known_circuit("handmade-docstring").graph
    cl.known_circuit("handmade-or").save("gate.json")
    cl.Circuit(graph, []).save("empty.json")
    cl.Circuit(cl.Graph.from_shape(3, 2, False, n_pos=3), ["embed→logits@1"]).save("at.json")
    assert said in fails("evaluate", *arguments, *EVALUATE, code=2)


# --- export


@pytest.fixture
def scored(tmp_path) -> tuple[cl.Circuit, cl.EdgeScores, Path]:
    """A circuit, the scores that it is made of, and a folder with both as files."""
    model = cl.load_model("handmade-or")
    scores = cl.eap_ig(Engine(model, cl.default_task(model, n=4)))
    circuit = scores.top(5)
    circuit.save(tmp_path / "c.json")
    (tmp_path / "s.csv").write_text(scores.to_pandas().to_csv(), "utf8")
    return circuit, scores, tmp_path


def exported(folder: Path, name: str, *more: str) -> str:
    path = folder / name
    assert run("export", str(folder / "c.json"), "--out", str(path), *more, "--quiet").stdout == ""
    return path.read_text("utf8")


def test_export_a_table(scored):
    circuit, scores, folder = scored
    table = pd.read_csv(io.StringIO(exported(folder, "c.csv")))
    assert table["edge"].tolist() == list(map(str, circuit)) and "score" not in table and "position" not in table
    table = pd.read_csv(io.StringIO(exported(folder, "c.csv", "--scores", str(folder / "s.csv"))))
    assert table["score"].tolist() == pytest.approx([scores[edge] for edge in circuit])


def test_export_graphml(scored):
    import networkx

    circuit, scores, folder = scored
    exported(folder, "c.graphml", "--scores", str(folder / "s.csv"))
    graph = networkx.read_graphml(folder / "c.graphml", force_multigraph=True)
    assert {content["label"] for *_, content in graph.edges(data=True)} == {*map(str, circuit)}
    for *_, content in graph.edges(data=True):
        assert content["score"] == pytest.approx(scores[content["label"]])


def test_export_dot(scored):
    circuit, scores, folder = scored
    line = re.compile(r'  "([a-z0-9.]+)" -> "([a-z0-9.]+)" \[label="([qkv]?)"(?:, weight=(\S+), tooltip="(\S+)")?\];')
    for more in ([], ["--scores", str(folder / "s.csv")]):
        text = exported(folder, "c.dot", *more)
        assert text.startswith("digraph circuit {\n") and text.endswith("}\n")
        found = {}
        for sender, node, part, weight, score in line.findall(text):
            found[f"{sender}→{node}{part and '.'}{part}"] = (weight, score)
        assert found.keys() == {*map(str, circuit)}
        for edge, (weight, score) in found.items():
            if more:
                assert float(score) == pytest.approx(scores[edge], rel=1e-5) and float(weight) == abs(float(score))
            else:
                assert weight == score == ""


def test_export_pictures_are_the_same_every_time(scored):
    circuit, _, folder = scored
    for name, start in (("c.svg", b"<?xml"), ("c.png", b"\x89PNG"), ("c.pdf", b"%PDF")):
        contents = []
        for _ in range(2):
            run("export", str(folder / "c.json"), "--out", str(folder / name), "--title", "a <b> & c", "--quiet")
            contents.append((folder / name).read_bytes())
        assert contents[0] == contents[1] and contents[0].startswith(start)
    ET.fromstring((folder / "c.svg").read_text("utf8"))
    assert not list(folder.glob("*.tmp*"))


def test_export_a_page(scored):
    circuit, scores, folder = scored
    (folder / "t.json").write_text(cl.known_circuit("handmade-or").to_json(), "utf8")
    page = exported(folder, "c.html", "--scores", str(folder / "s.csv"), "--truth", str(folder / "t.json"), "--title", "</script><b>")  # fmt: skip
    assert page.startswith("<!doctype html>") and "</script><b>" not in page
    assert "circuit" in page and "<td>5</td>" in page
    assert exported(folder, "d.html") != page


def test_export_for_eap_ig(scored):
    circuit, scores, folder = scored
    exported(folder, "graph.json", "--scores", str(folder / "s.csv"))
    again, signed = cl.Circuit.from_eap_ig(folder / "graph.json")
    assert again == circuit and {str(e): s for e, s in signed.items()} == pytest.approx({str(e): s for e, s in scores.items()})  # fmt: skip


def test_a_scores_file_is_read_as_it_was_written(scored):
    _, scores, folder = scored
    assert read_scores(folder / "s.csv", scores.graph) == pytest.approx(dict(scores.items()))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: "", "line 1: expected the columns edge and score"),
        (lambda text: text.replace("edge,", "kante,", 1), "line 1: expected the columns edge and score"),
        (lambda text: "\n".join(text.splitlines()[:-1]), ": 12 edges, expected the 13 of"),
        (lambda text: text + text.splitlines()[1], "line 15: edge"),
        (lambda text: text.replace(text.splitlines()[1].rpartition(",")[2], "nan"), "line 2: score: expected a finite number, got nan"),
        (lambda text: text.replace(text.splitlines()[1].rpartition(",")[2], "much"), "line 2: score: expected a number, got 'much'"),
        (lambda text: text.replace("a0.0", "a7.0"), "does not exist in Graph(1 layers"),
        (lambda text: text + "\x00", "not a CSV file|line 15"),
    ],
)  # fmt: skip
def test_a_scores_file_that_is_wrong(change, said, scored):
    _, scores, folder = scored
    (folder / "s.csv").write_text(change((folder / "s.csv").read_text("utf8")), "utf8")
    message = fails("export", str(folder / "c.json"), "--scores", str(folder / "s.csv"), "--out", str(folder / "x.csv"), code=2)  # fmt: skip
    assert any(part in message for part in said.split("|")) and "s.csv" in message and not (folder / "x.csv").exists()


def test_export_a_model_that_transformers_reads(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path / "gpt-mini"
    run("export", "--model", "gpt-mini", "--out", str(folder), "--quiet")
    theirs, model = AutoModelForCausalLM.from_pretrained(folder), cl.load_model("gpt-mini")
    tokens = cl.default_task(model, n=2).clean
    assert torch.allclose(theirs(tokens).logits, model(tokens), atol=1e-4)
    assert AutoTokenizer.from_pretrained(folder).decode(tokens[0]) == model.tokenizer.decode(tokens[0])
    assert list(tmp_path.iterdir()) == [folder]
    assert "is there; expected a new folder" in fails("export", "--model", "gpt-mini", "--out", str(folder), code=2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "CIRCUIT: expected a circuit file, or --model, and not both"),
        (["c.json", "--model", "gpt-mini"], "CIRCUIT: expected a circuit file, or --model, and not both"),
        (["c.json"], "--out: expected the name of a file"),
        (["c.json", "--out", "c.xlsx"], "--out: expected a name that ends in .csv, .graphml"),
        (["c.json", "--out", "c.csv", "--truth", "t.json"], "--truth: is for .html"),
        (["c.json", "--out", "c.csv", "--title", "a"], "--title: is for .svg"),
        (["c.json", "--out", "no/c.csv"], "no/c.csv: expected the name of a file in a folder that exists"),
        (["none.json", "--out", "c.csv"], "none.json: can't be read"),
        (["docstring.json", "--out", "c.json"], "graph: the EAP-IG format can't represent an attention-only model"),
        (["--model", "docstring-4l", "--out", "m"], "--model: docstring-4l has no form that transformers knows; expected gpt-mini"),
        (["--model", "gpt-mini", "--out", "no/m"], "--out: expected a new folder in one that exists"),
        (["--model", "gpt-mini", "--out", "m", "--title", "a"], "--scores, --truth, --title: are about a circuit"),
        (["--model", "gpt-maxi", "--out", "m"], "unknown model 'gpt-maxi'"),
    ],
)  # fmt: skip
def test_export_refuses_in_one_line(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cl.known_circuit("handmade-or").save("c.json")
    cl.known_circuit("handmade-docstring").save("docstring.json")
    before = sorted(tmp_path.iterdir())
    assert said in fails("export", *arguments, code=2)
    assert sorted(tmp_path.iterdir()) == before


# --- train


@pytest.fixture
def tiny(monkeypatch):
    """``train docstring-4l`` trains a model of nine steps; measuring it is done elsewhere."""
    from circuitlib.models.training import card, data, recipes
    from circuitlib.models.training.bars import Bar

    tokenizer = cl.load_model("docstring-4l").tokenizer
    recipe = dataclasses.replace(TINY, name="docstring-4l", seed=3, make_tokenizer=lambda size: tokenizer)
    monkeypatch.setitem(recipes.RECIPES, "docstring-4l", recipe)
    monkeypatch.setattr(data, "code_stream", lambda tokenizer: np.arange(5, 2000, dtype=np.uint16))
    bars = [Bar(**{**dict.fromkeys(field.name for field in dataclasses.fields(Bar)), "name": "a bar", "hard": True})]
    monkeypatch.setattr("circuitlib.models.training.run.measured", lambda name, folder, seed=None: bars)
    monkeypatch.setattr(Bar, "met", True)
    return monkeypatch, card, Bar


def test_a_stopped_training_goes_on_and_ends_as_if_it_had_not_been_stopped(tiny, tmp_path):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert run("train", "docstring-4l", "--out", str(whole), "--quiet").stdout == f"{whole / 'docstring-4l'}\n"
    first = run("train", "docstring-4l", "--out", str(stopped), "--stop-at", "5")
    assert (
        first.stdout == ""
        and "stopped" in first.stderr
        and str(stopped) in first.stderr
        and not (stopped / "docstring-4l").exists()
    )
    run("train", "docstring-4l", "--out", str(stopped), "--quiet")
    weights = [load_file(folder / "docstring-4l" / "model.safetensors") for folder in (whole, stopped)]
    assert weights[0].keys() == weights[1].keys() and all(torch.equal(weights[0][k], weights[1][k]) for k in weights[0])
    assert (whole / "docstring-4l" / "SHA256SUMS").read_text() != "" and (whole / "log.jsonl").exists()


def test_a_missed_bar_is_1(tiny, tmp_path):
    patch, _, bar = tiny
    patch.setattr(bar, "met", False)
    result = run("train", "docstring-4l", "--out", str(tmp_path / "run"), "--quiet", code=1)
    assert result.stderr == "error: 1 bars are not met: a bar\n"


def test_train_leaves_the_package_and_other_folders_alone(tiny, tmp_path, monkeypatch):
    from circuitlib.models.registry import SHIPPED

    (tmp_path / "mine").mkdir()
    (tmp_path / "file").write_text("")
    train = ["train", "docstring-4l", "--out"]
    assert "is in the package" in fails(*train, str(tmp_path / "run"), "--to", str(SHIPPED / "docstring-4l"), code=2)
    assert "is in the package" in fails(*train, str(SHIPPED / "new"), code=2) and not (SHIPPED / "new").exists()
    assert "mine is there and is no model's folder" in fails(*train, str(tmp_path / "run"), "--to", str(tmp_path / "mine"), code=2)  # fmt: skip
    assert "is a file" in fails(*train, str(tmp_path / "file"), code=2)
    run(*train, str(tmp_path / "run"), "--stop-at", "2", "--quiet")
    assert "holds a run with seed 3, got 4" in fails(*train, str(tmp_path / "run"), "--seed", "4", code=2)


# --- a task of one's own


@pytest.fixture
def own(tmp_path) -> Path:
    model = cl.load_model("handmade-docstring")
    cl.save_task(model, cl.default_task(model, n=10, seed=5), tmp_path / "mine.jsonl")
    return tmp_path / "mine.jsonl"


def test_a_file_goes_the_same_way_as_its_task(own, tmp_path):
    out = tmp_path / "c.json"
    common = ["--model", "handmade-docstring", "--method", "eap-ig", "--top", "6", "--quiet", "--out", str(out)]
    contents = []
    for task in (["--task", str(own)], ["--task", "docstring", "--n", "10", "--seed", "5"]):
        run("discover", *common, *task)
        contents.append(out.read_text("utf8"))
    assert contents[0] == contents[1]
    rows = [
        json.loads(run("evaluate", str(out), "--model", "handmade-docstring", *task, "--json", "--quiet").stdout)[0]
        for task in (["--task", str(own)], ["--n", "10", "--seed", "5"])
    ]
    assert rows[0]["faithfulness"] == rows[1]["faithfulness"] and "tpr" in rows[1]
    assert "tpr" not in rows[0]  # of a file of one's own no circuit is known


def test_some_prompts_of_a_file(own, tmp_path):
    from circuitlib.sweep.cell import _drawn

    model = cl.load_model("handmade-docstring")
    task = cl.load_task(model, own)
    arguments = ["--model", "handmade-docstring", "--task", str(own), "--n", "4", "--quiet", "--json"]
    rows = json.loads(run("compare", *arguments, "--method", "exact", "--seeds", "2").stdout)
    for seed, row in enumerate(rows):
        some = _drawn(task, 4, seed)
        which = [task.clean.tolist().index(prompt) for prompt in some.clean.tolist()]
        engine = Engine(model, of_prompts(task, which))
        curve = cl.faithfulness_curve(engine, cl.exact(engine))
        assert row["cpr"] == pytest.approx(cl.cpr(curve), abs=1e-4) and row["seed"] == seed
    assert rows[0]["cpr"] != rows[1]["cpr"]
    message = fails("compare", *arguments, "--n", "11", code=2)
    assert "n: the task file holds 10 pairs of prompts, expected at most that many, got 11" in message


def test_a_task_that_is_none_for_the_model_is_talked_about(tmp_path):
    row = {"clean": "11=", "corrupted": "01=", "answer": "0", "distractors": ["1"]}
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for _ in range(3)))
    arguments = ["discover", "--model", "handmade-and", "--task", str(tmp_path / "t.jsonl"), "--method", "exact", "--top", "1"]  # fmt: skip
    said = run(*arguments).stderr
    assert "look at the task: Are the prompts different? 1 of 3" in said
    assert "look at the task: Right answer above the wrong ones, clean 0%" in said
    assert run(*arguments, "--quiet").stderr == ""
    (tmp_path / "t.jsonl").write_text(json.dumps({**row, "answer": "01"}))
    assert "t.jsonl, line 1: answer: '01' is 2 tokens of this model" in fails(*arguments, code=2)


# --- files that would be lost


def test_no_file_is_read_and_replaced_by_one_command(scored, tmp_path):
    before = (tmp_path / "c.json").read_text("utf8")
    for arguments, said in (
        (["export", str(tmp_path / "c.json"), "--out", f"{tmp_path}/./c.json"], "--out: .* is that of CIRCUIT too"),
        (["export", str(tmp_path / "c.json"), "--scores", "s.csv", "--out", "s.csv"], "--scores: s.csv is that of --out too"),
        (["discover", "--model", "handmade-or", "--method", "eap", "--top", "3", "--out", "x", "--scores", "x"], "--scores: x is that of --out too"),
    ):  # fmt: skip
        assert re.search(said, fails(*arguments, code=2))
    assert (tmp_path / "c.json").read_text("utf8") == before


def test_a_model_takes_the_place_of_nothing_but_a_model(tiny, tmp_path):
    classroom, run_folder = tmp_path / "models", tmp_path / "run"
    classroom.mkdir()
    (classroom / "SHA256SUMS").write_text("")  # as a folder of downloaded models has
    train = ["train", "docstring-4l", "--out", str(run_folder), "--to"]
    assert "models is there and is no model's folder" in fails(*train, str(classroom), code=2)
    for folder in (run_folder, tmp_path):
        assert re.search("--to: .*(take the place of the run|no model's folder)", fails(*train, str(folder), code=2))
    assert not run_folder.exists() and (classroom / "SHA256SUMS").exists()


def test_a_run_that_is_stopped_between_two_checkpoints_keeps_its_steps(tiny, tmp_path):
    from safetensors import safe_open

    run("train", "docstring-4l", "--out", str(tmp_path), "--stop-at", "3", "--quiet")
    with safe_open(tmp_path / "checkpoint.safetensors", "pt") as file:
        assert file.metadata()["step"] == "3"


def test_a_result_is_utf_8_where_the_system_has_another_encoding(tmp_path):
    command = [
        sys.executable,
        "-m",
        "circuitlib.cli",
        "discover",
        "--model",
        "handmade-or",
        "--method",
        "eap",
        "--top",
        "3",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "cp1252"}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=300)
    assert done.returncode == 0 and "m0→logits" in done.stdout.decode("utf8"), done.stderr


def test_a_reader_who_has_enough_is_no_error():
    code = "import sys; from circuitlib.cli import app; sys.argv = ['circuitlib', 'models', '--json']; app()"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:  # fmt: skip
        process.stdout.close()
        assert process.wait(300) == 0 and process.stderr.read() == b""


def test_a_page_of_a_large_circuit_and_of_one_with_positions(tmp_path):
    graph = cl.Graph.from_shape(12, 12, True)
    cl.random_circuit(graph, 2500).save(tmp_path / "large.json")
    run("export", str(tmp_path / "large.json"), "--out", str(tmp_path / "large.html"))
    positions = cl.Graph.from_shape(2, 2, False, n_pos=3)
    cl.random_circuit(positions, 5).save(tmp_path / "positions.json")
    said = fails("export", str(tmp_path / "positions.json"), "--out", str(tmp_path / "p.html"), code=2)
    assert "CIRCUIT: has edges with positions" in said


def test_a_character_that_no_xml_may_hold_makes_no_broken_file(tmp_path):
    graph = cl.Graph.from_shape(1, 2, False)
    cl.Circuit(graph, graph.edges[:3], task="a\x01b\x00").save(tmp_path / "c.json")
    run("export", str(tmp_path / "c.json"), "--out", str(tmp_path / "c.graphml"))
    assert "a\ufffdb\ufffd" in ET.fromstring((tmp_path / "c.graphml").read_text("utf8")).itertext()


def test_a_circuit_that_is_judged_on_something_else_is_said_so(own, tmp_path):
    out = str(tmp_path / "c.json")
    run("discover", "--model", "docstring-4l", "--method", "eap", "--top", "20", "--n", "4", "--corruption", "random_answer", "--direction", "denoising", "--out", out, "--quiet")  # fmt: skip
    circuit = cl.Circuit.load(out)
    assert circuit.conditions == {
        "model": "docstring-4l", "direction": "denoising", "prompts": "4", "corruption": "random_answer", "seed": "0", "method": "eap", "metric": "task",
    }  # fmt: skip
    assert circuit == cl.Circuit(circuit.graph, circuit.edges, circuit.task, circuit.ablation)
    said = run("evaluate", out, "--model", "docstring-4l", "--n", "4", "--random", "0").stderr
    for what in ("corruption 'random_answer'", "direction 'denoising'"):
        assert f"c.json is a claim about {what}, and is judged on" in said
    said = run("evaluate", out, "--model", "docstring-4l", "--n", "4", "--random", "0", "--corruption", "random_answer", "--direction", "denoising").stderr  # fmt: skip
    assert "is a claim" not in said
    small = str(tmp_path / "small.json")
    cl.Circuit(cl.known_circuit("handmade-docstring").graph, ["embed→logits"], "ioi").save(small)
    said = run("evaluate", small, "--model", "handmade-docstring", "--task", str(own), "--random", "0").stderr
    assert "is a claim about task 'ioi', and is judged on 'docstring'" in said


def test_the_width_of_a_model_is_said_or_asked_for(tmp_path):
    for name, shape in (("known", (4, 8)), ("other", (2, 2))):
        cl.random_circuit(cl.Graph.from_shape(*shape, True), 5).save(tmp_path / f"{name}.json")
    out = tmp_path / "out.json"
    assert (
        "d_model: 128, the width of the book's model"
        in run("export", str(tmp_path / "known.json"), "--out", str(out)).stderr
    )
    for name in ("known", "other"):
        run("export", str(tmp_path / f"{name}.json"), "--out", str(out), "--d-model", "48", "--quiet")
        assert json.loads(out.read_text("utf8"))["cfg"]["d_model"] == 48
    assert "--d-model: " in fails("export", str(tmp_path / "other.json"), "--out", str(out), code=2)
    assert "--d-model: is for .json" in fails(
        "export", str(tmp_path / "known.json"), "--out", str(tmp_path / "x.csv"), "--d-model", "48", code=2
    )
