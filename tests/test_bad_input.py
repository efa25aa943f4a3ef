"""What nobody can use: over the whole command line and at the front doors of the library, one line that says what was expected."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import circuitlib as cl
from circuitlib import cli

MODEL = ["--model", "handmade-and"]
DISCOVER = ["discover", *MODEL, "--n", "8", "--quiet", "--method"]
EVALUATE = ["evaluate", "good.json", *MODEL, "--n", "8", "--quiet"]
COMPARE = ["compare", *MODEL, "--n", "8", "--quiet", "--method", "eap"]
GRID = "[grid]\nmodel = 'handmade-and'\nmethod = 'eap'\ntop = 1\n"
PAIR = {"clean": "1 1", "corrupted": "0 0", "answer": "1"}

# Files that lie in the folder of each case: what is fine, and what is not.
FILES = {
    "empty": b"",
    "binary": bytes(range(256)) * 4,
    "half.json": b'{"format": "circuitlib circuit", "version": 1, "gr',
    "list.json": b"[]",
    "deep.json": b"[" * 50_000,
    "number.json": b"1" * 5000,
    "zip.json": b"PK\x03\x04" + bytes(99),
    "bomb.json": json.dumps({"format": "circuitlib circuit", "version": 1, "graph": {"n_layers": 512, "n_heads": 512, "mlps": True, "n_pos": None}, "task": None, "ablation": None, "edges": []}).encode(),
    "s.csv": b"edge,score\nembed->m0,1\n",
    "nan.csv": b"edge,score\nembed->m0,nan\n",
    "long.csv": b"edge,score\nembed->m0," + b"[" * 3000 + b"\n",
    "twice.csv": b"edge,score\nembed->m0,1\nembed->m0,1\n",
    "wide.csv": b"edge,score\n" + b"x" * 200_000 + b",1\n",
    "header.csv": b"a;b\n1;2\n",
    "t.jsonl": json.dumps(PAIR).encode() + b"\n",
    "bad.jsonl": b'{"clean": "1 1"}\n',
    "number.jsonl": b"7\n",
    "half.jsonl": b'{"clean": "1 1", "corr',
    "empty.jsonl": b"",
    "binary.jsonl": b"\xff\xfe\x00{}",
    "words.jsonl": b'{"clean": "no such words", "corrupted": "no such words", "answer": "1"}\n',
    "g.toml": GRID.encode(),
    "broken.toml": b"[grid\n",
    "empty.toml": b"",
    "key.toml": GRID.encode() + b"thershold = 1\n",
    "type.toml": GRID.replace("1", "'one'").encode(),
    "negative.toml": GRID.replace("1", "-1").encode(),
    "huge.toml": GRID.encode() + b"seed = [" + b"1," * 20_000 + b"]\n",
    "date.toml": GRID.replace("1", "1979-05-27").encode(),
    "inf.toml": GRID.replace("top = 1", "threshold = inf").encode(),
    "task.toml": GRID.encode() + b"task = 'none.jsonl'\n",
    "folder.toml": GRID.encode() + b"task = '../.jsonl'\n",
    "utf16.toml": GRID.encode("utf16"),
    "model.toml": GRID.replace("handmade-and", "folder").encode(),
}  # fmt: skip

# Folders of models, each with what is wrong in its config.json.
GPT2 = {"model_type": "gpt2", "n_layer": 1, "n_head": 1, "n_embd": 2, "n_positions": 4, "vocab_size": 5}
CONFIGS = {
    "pickled": GPT2,
    "llama": GPT2 | {"model_type": "llama"},
    "coded": GPT2 | {"auto_map": {"AutoModel": "code.Model"}},
    "vast": GPT2 | {"n_layer": 10**9},
    "hollow": GPT2,
}

COMMANDS = [
    # No such thing.
    (["discover", "--model", "", "--method", "eap", "--top", "1"], 2, "unknown model ''; choose one of"),
    (["discover", "--model", "a\nb", "--method", "eap", "--top", "1"], 2, r"unknown model 'a\nb'"),
    (["discover", "--model", "../../etc/passwd", "--method", "eap", "--top", "1"], 2, "unknown model '../../etc/passwd'"),
    (["discover", "--model", "handmade-and\u200b", "--method", "eap", "--top", "1"], 2, "unknown model"),
    ([*DISCOVER, "eap", "--top", "1", "--task", "gates"], 2, "--task: handmade-and knows gate, got 'gates'"),
    ([*DISCOVER, "eap", "--top", "1", "--task", ""], 2, "--task: handmade-and knows gate, got ''"),
    ([*DISCOVER, "eap", "--top", "1", "--device", "tpu"], 2, "device: expected 'cpu'"),
    ([*DISCOVER, "eap", "--top", "1", "--device", "cuda:999"], 3, "device 'cuda:999' is not there"),
    (["evaluate", "good.json", "--model", "gpt3"], 2, "unknown model 'gpt3'"),
    (["compare", "--model", "handmade-and", "--model", "x"], 2, "unknown model 'x'"),
    (["export", "--model", "x", "--out", "x"], 2, "unknown model 'x'"),
    (["discover", "--model", "folder", "--method", "eap", "--top", "1"], 2, "unknown model 'folder': the folder has no config.json"),
    (["discover", "--model", "good.json", "--method", "eap", "--top", "1"], 2, "unknown model 'good.json'; choose one of"),
    (["discover", "--model", "pickled", "--method", "eap", "--top", "1"], 2, "'pytorch_model.bin' is a pickle"),
    (["evaluate", "good.json", "--model", "llama"], 2, "model_type is 'llama', expected 'gpt2'"),
    (["compare", "--model", "handmade-and", "--model", "coded"], 2, "config.json: auto_map names code"),
    (["discover", "--model", "vast", "--method", "eap", "--top", "1"], 2, "n_layer: expected an integer from 1 to 512, got 1000000000"),
    (["discover", "--model", "hollow", "--method", "eap", "--top", "1"], 2, "model.safetensors: not a safetensors file"),
    (["export", "--model", "docstring-4l", "--out", "x"], 2, "--model: docstring-4l has no form that transformers knows"),
    (["download", "docstring-4l", "--to", "x"], 2, "'docstring-4l' is not a model of the Hub"),
    (["download", "x", "--to", "x"], 2, "unknown model 'x'"),
    (["manifest", "none"], 2, "folder: expected one laid out like the Hub's cache"),
    (["manifest", "empty"], 2, "folder: expected one laid out like the Hub's cache"),
    # Numbers.
    ([*DISCOVER, "eap", "--top", "14"], 2, "--top: 14 edges asked for, expected at most the 13 of handmade-and"),
    ([*DISCOVER, "eap", "--top", "99999999999999999999999"], 2, "--top: 99,999,999,999,999,999,999,999 edges asked for"),
    ([*DISCOVER, "eap", "--threshold", "inf"], 2, "--threshold: expected a finite number"),
    ([*DISCOVER, "acdc", "--threshold", "inf"], 2, "--threshold: expected a finite number"),
    ([*DISCOVER, "eap", "--top", "1", "--min-faithfulness", "inf"], 2, "--min-faithfulness: expected a finite number"),
    ([*DISCOVER, "acdc", "--threshold", "1", "--steps", "3"], 2, "--steps: acdc has none; expected eap-ig"),
    ([*COMPARE, "--min-faithfulness", "1"], 2, None),
    ([*COMPARE, "--seeds", "0"], 2, None),
    ([*DISCOVER, "eap", "--top", "one"], 2, None),
    ([*DISCOVER, "eap", "--top", "1", "--n", "0"], 2, None),
    ([*DISCOVER, "eap", "--top", "1", "--seed", "-1"], 2, None),
    ([*DISCOVER, "eap-ig", "--top", "1", "--steps", "0"], 2, None),
    ([*DISCOVER, "magic", "--top", "1"], 2, None),
    ([*EVALUATE, "--random", "1001"], 2, None),
    (["train", "gpt2"], 2, None),
    (["reproduce", "greater_than"], 2, None),
    (["reproduce", "ioi", "--n", "0"], 2, None),
    # Circuit files.
    (["evaluate", "none.json", *MODEL], 2, "none.json: can't be read (No such file or directory)"),
    (["evaluate", "folder", *MODEL], 2, "folder: can't be read (not an ordinary file)"),
    (["evaluate", "empty", *MODEL], 2, "empty: not valid JSON"),
    (["evaluate", "binary", *MODEL], 2, "binary: not UTF-8 text"),
    (["evaluate", "half.json", *MODEL], 2, "half.json: not valid JSON"),
    (["evaluate", "list.json", *MODEL], 2, "list.json: not a circuit file: file: expected an object, got list"),
    (["evaluate", "deep.json", *MODEL], 2, "deep.json: not valid JSON (nested too deep)"),
    (["evaluate", "number.json", *MODEL], 2, "number.json: not valid JSON"),
    (["evaluate", "zip.json", *MODEL], 2, "zip.json: not"),
    (["evaluate", "bomb.json", *MODEL], 2, "places for edges"),
    (["evaluate", "good.json", "--model", "handmade-docstring", "--quiet"], 2, "circuit: expected one of Graph(3 layers"),
    ([*EVALUATE, "--truth", "list.json"], 2, "list.json: not a circuit file"),
    ([*COMPARE, "--truth", "binary"], 2, "binary: not UTF-8 text"),
    (["export", "list.json", "--out", "x.svg"], 2, "list.json: not a circuit file"),
    (["export", "good.json", "--out", "x.exe"], 2, "--out: expected a name that ends in .csv"),
    (["export", "good.json", "--out", "x"], 2, "--out: expected a name that ends in .csv"),
    (["export", "good.json"], 2, "--out: expected the name of a file"),
    (["export", "--out", "x.svg"], 2, "CIRCUIT: expected a circuit file, or --model"),
    (["export", "small.json", "--out", "x.json"], 2, "--d-model: expected the model's width, for Graph(7 layers"),
    (["export", "good.json", "--out", "x.csv", "--title", "t"], 2, "--title: is for"),
    # Scores.
    (["export", "good.json", "--out", "x.html", "--scores", "none.csv"], 2, "none.csv: can't be read"),
    (["export", "good.json", "--out", "x.html", "--scores", "folder"], 2, "folder: expected a file"),
    (["export", "good.json", "--out", "x.html", "--scores", "s.csv"], 2, "s.csv: 1 edges, expected the 13"),
    (["export", "good.json", "--out", "x.html", "--scores", "nan.csv"], 2, "nan.csv, line 2: score: expected a finite number"),
    (["export", "good.json", "--out", "x.html", "--scores", "twice.csv"], 2, "twice.csv, line 3: edge 'embed→m0' is repeated"),
    (["export", "good.json", "--out", "x.html", "--scores", "long.csv"], 2, "long.csv, line 2: score: expected a number, got '[[["),
    (["export", "good.json", "--out", "x.html", "--scores", "wide.csv"], 2, "wide.csv: not a CSV file (field larger"),
    (["export", "good.json", "--out", "x.html", "--scores", "header.csv"], 2, "header.csv, line 1: expected the columns edge and score"),
    (["export", "good.json", "--out", "x.html", "--scores", "empty"], 2, "empty, line 1: expected the columns"),
    (["export", "good.json", "--out", "x.html", "--scores", "binary"], 2, "binary: not UTF-8 text"),
    # Tasks.
    ([*DISCOVER, "eap", "--top", "1", "--task", "none.jsonl"], 2, "none.jsonl: can't be read"),
    ([*DISCOVER, "eap", "--top", "1", "--task", "folder.jsonl"], 2, "folder.jsonl: "),
    ([*DISCOVER, "eap", "--top", "1", "--task", "bad.jsonl"], 2, "bad.jsonl, line 1: "),
    ([*DISCOVER, "eap", "--top", "1", "--task", "number.jsonl"], 2, "number.jsonl, line 1: "),
    ([*DISCOVER, "eap", "--top", "1", "--task", "half.jsonl"], 2, "half.jsonl, line 1: "),
    ([*DISCOVER, "eap", "--top", "1", "--task", "empty.jsonl"], 2, "empty.jsonl"),
    ([*DISCOVER, "eap", "--top", "1", "--task", "binary.jsonl"], 2, "binary.jsonl, line 1: not UTF-8 text"),
    ([*DISCOVER, "eap", "--top", "1", "--task", "words.jsonl"], 2, "words.jsonl, line 1: "),
    ([*DISCOVER, "eap", "--top", "1", "--task", "t.jsonl", "--corruption", "x"], 2, "--corruption: the corrupted prompts of t.jsonl stand in it"),
    # Sweeps.
    (["sweep", "none.toml"], 2, "none.toml: can't be read"),
    (["sweep", "folder"], 2, "folder: expected a file"),
    (["sweep", "binary"], 2, "binary: not UTF-8 text"),
    (["sweep", "utf16.toml"], 2, "utf16.toml: not UTF-8 text"),
    (["sweep", "broken.toml"], 2, "broken.toml: not valid TOML"),
    (["sweep", "empty.toml"], 2, "empty.toml: grid: expected a table [grid]"),
    (["sweep", "key.toml"], 2, "grid.thershold: unknown key; did you mean 'threshold'?"),
    (["sweep", "type.toml"], 2, "grid.top: expected an integer from 0 to 10,000,000, got 'one'"),
    (["sweep", "negative.toml"], 2, "grid.top: expected an integer from 0"),
    (["sweep", "huge.toml"], 2, "grid.seed: 20,000 values, expected 1 to 10,000"),
    (["sweep", "date.toml"], 2, "grid.top: expected an integer"),
    (["sweep", "inf.toml"], 2, "grid.threshold: expected a number from 0 to 1e9, got inf"),
    (["sweep", "task.toml"], 2, "grid.task: none.jsonl: can't be read"),
    (["sweep", "folder.toml"], 2, "grid.task: ../.jsonl: can't be read"),
    (["sweep", "model.toml"], 2, "grid.model: unknown model 'folder': the folder has no config.json"),
    (["sweep", "g.toml", "--out", "x.xlsx"], 2, "out: expected a name that ends in .csv or .parquet"),
    (["sweep", "g.toml", "--jobs", "-1"], 2, None),
    (["sweep", "g.toml", "--scheduler", "nowhere"], 2, "scheduler"),
    (["sweep", "g.toml", "--dry-run", "--collect"], 2, "--collect: makes a table, and --dry-run a list"),
    # Places.
    ([*DISCOVER, "eap", "--top", "1", "--out", "none/c.json"], 2, "none/c.json: expected the name of a file in a folder that exists"),
    ([*DISCOVER, "eap", "--top", "1", "--out", "folder"], 2, "folder: expected the name of a file"),
    ([*DISCOVER, "eap", "--top", "1", "--out", "empty/c.json"], 2, "empty/c.json: expected the name of a file"),
    ([*DISCOVER, "eap", "--top", "1", "--out", "x" * 300], 3, "File name too long"),
    ([*DISCOVER, "exact", "--top", "1", "--checkpoint", "binary"], 2, "binary: not UTF-8 text"),
    ([*DISCOVER, "exact", "--top", "1", "--checkpoint", "good.json"], 2, "good.json is not a checkpoint of circuitlib"),
    ([*DISCOVER, "acdc", "--threshold", "1", "--checkpoint", "half.json"], 2, "half.json: not valid JSON"),
    ([*DISCOVER, "acdc", "--threshold", "1", "--checkpoint", "folder"], 2, "folder: expected the name of a file"),
    (["compare", *MODEL, "--method", "exact", "--checkpoint", "good.json", "--quiet"], 3, "File exists"),
    ([*COMPARE, "--out", "none/t.csv"], 2, "none/t.csv: expected the name of a file"),
    (["train", "docstring-4l", "--out", "good.json"], 2, "--out: expected a folder, good.json is a file"),
    (["train", "docstring-4l", "--to", "folder"], 2, "--to: folder is there and is no model's folder"),
    (["export", "--model", "gpt-mini", "--out", "folder"], 2, "--out: folder is there; expected a new folder"),
    (["reproduce", "docstring", "--out", "none/r.html"], 2, "none/r.html: expected the name of a file"),
    # Nothing, or too much.
    ([], 2, None),
    (["evaluate", *MODEL], 2, None),
    (["discover"], 2, None),
    (["sweep"], 2, None),
    (["models", "extra"], 2, None),
    (["--versions"], 2, None),
    ([*DISCOVER, "eap"], 2, "--top: eap needs either --top or --threshold"),
    ([*EVALUATE[:2], "good.json", *MODEL], 2, "CIRCUIT: expected 1 to 100 files, each once"),
]  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder").mkdir()
    for name, config in CONFIGS.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
        (tmp_path / name / ("pytorch_model.bin" if name == "pickled" else "model.safetensors")).write_bytes(b"")
    (tmp_path / "folder.jsonl").mkdir()
    cl.Circuit(cl.known_circuit("handmade-and").graph, ["m0→logits"]).save(tmp_path / "good.json")
    cl.Circuit(cl.Graph.from_shape(7, 3, True), ["m0→logits"]).save(tmp_path / "small.json")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def content_of(folder: Path) -> dict:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.parametrize(("arguments", "code", "said"), COMMANDS, ids=[f"{i}: {' '.join(a)[:60]!a}" for i, (a, _, _) in enumerate(COMMANDS)])  # fmt: skip
def test_a_command_says_it_in_one_line(arguments, code, said, folder):
    before = content_of(folder)
    done = CliRunner().invoke(cli.app, arguments)
    assert isinstance(done.exception, SystemExit), repr(done.exception)  # no traceback
    assert done.exit_code == code and (done.stdout == "" or arguments == [])
    if said is None:  # what typer says: which option, and what it takes
        assert re.search(r"Error|Usage", done.stderr + done.stdout) and "Traceback" not in done.stderr
    else:
        lines = done.stderr.splitlines()
        assert lines[-1].startswith("error: ") and said in lines[-1], lines
        assert len([line for line in lines if not line.startswith(("loading ", "training "))]) == 1, lines
        assert len(lines[-1]) < 500 and lines[-1].isprintable()
    assert content_of(folder) == before  # nothing written, nothing changed


# --- the front doors of the library -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gate():
    model = cl.load_model("handmade-and")
    return cl.Engine(model, cl.default_task(model, n=8))


SMALL = cl.Graph.from_shape(2, 2, False)
DOORS = [
    ("load_model", lambda e: cl.load_model(None), "model"),
    ("load_model of a path", lambda e: cl.load_model("./docstring-4l"), "unknown model './docstring-4l'"),
    ("load_model of a folder", lambda e: cl.load_model("."), "unknown model '.': the folder has no config.json"),
    ("load_model on a device", lambda e: cl.load_model("handmade-and", "toaster"), "device: expected 'cpu'"),
    ("model_card", lambda e: cl.model_card("gpt2"), "gpt2"),
    ("docstring", lambda e: cl.docstring(e.model, n=0), "n: expected"),
    ("docstring's corruption", lambda e: cl.docstring(e.model, n=2, corruption="mild"), "corruption: 'mild' is unknown; choose one of"),
    ("ioi", lambda e: cl.ioi(e.model, n=-1), "n: expected"),
    ("ioi's number as text", lambda e: cl.ioi(e.model, n="2"), "n: expected an integer from 1, got '2'"),
    ("docstring's half prompt", lambda e: cl.docstring(e.model, n=1.5), "n: expected an integer from 1, got 1.5"),
    ("load_task", lambda e: cl.load_task(e.model, "none.jsonl"), "none.jsonl: can't be read"),
    ("Graph", lambda e: cl.Graph.from_shape(0, 1, True), "n_layers: expected a positive integer, got 0"),
    ("Edge", lambda e: cl.Edge("logits", "embed"), "sender 'logits' does not exist"),
    ("Edge of a number", lambda e: cl.Edge(3, 4), "sender 3 does not exist"),
    ("Edge.parse", lambda e: cl.Edge.parse("a0.0 to a1.0.q"), "expected text like"),
    ("Edge.parse of None", lambda e: cl.Edge.parse(None), "edge: expected text like 'a0.5→a1.4.v', got NoneType"),
    ("Circuit of text", lambda e: cl.Circuit(SMALL, "embed→logits"), "expected a list of edges, got the single text"),
    ("Circuit of another graph", lambda e: cl.Circuit(SMALL, ["m0→logits"]), "m0"),
    ("Circuit's ablation", lambda e: cl.Circuit(SMALL, [], ablation="none"), "ablation: expected one of"),
    ("Circuit.load of a folder", lambda e: cl.Circuit.load("."), "can't be read"),
    ("random_circuit", lambda e: cl.random_circuit(SMALL, 10**9), "k: expected an integer from 0 to"),
    ("jaccard", lambda e: cl.jaccard(cl.Circuit(SMALL, []), e.all), "c2: expected a circuit of"),
    ("known_circuit", lambda e: cl.known_circuit("gpt2"), "gpt2"),
    ("reference_circuit", lambda e: cl.reference_circuit("docstring-4l", "ioi"), "ioi"),
    ("published_circuit", lambda e: cl.published_circuit("docstrings"), "docstrings"),
    ("Engine's ablation", lambda e: cl.Engine(e.model, e.task, "noise"), "ablation: expected one of"),
    ("Engine's direction", lambda e: cl.Engine(e.model, e.task, direction="up"), "direction: expected"),
    ("Engine of another model", lambda e: cl.Engine(torch.nn.Linear(2, 2), e.task), "model: expected"),
    ("Engine without a task", lambda e: cl.Engine(e.model, None), "task: expected"),
    ("Engine.run", lambda e: e.run(cl.Circuit(SMALL, [])), "circuit: expected one of"),
    ("Engine.run of text", lambda e: e.run("m0→logits"), "circuit"),
    ("activation_patching", lambda e: cl.activation_patching(e.model, e.task, site="brain"), "site: 'brain' is unknown; choose one of"),
    ("activation_patching's mode", lambda e: cl.activation_patching(e.model, e.task, mode="loud"), "mode: expected"),
    ("path_patching", lambda e: cl.path_patching(e, senders=["a9.9"], receivers=["logits"]), "a9.9"),
    ("path_patching upstream", lambda e: cl.path_patching(e, senders=["m0"], receivers=["a0.0.q"]), "a0.0.q"),
    ("ov_copying", lambda e: cl.ov_copying(e.model, after=["a9.9"]), "a9.9"),
    ("composition", lambda e: cl.composition(e.model, "X"), "expected"),
    ("exact's metric", lambda e: cl.exact(e, metric="loss"), "metric: expected"),
    ("eap's metric", lambda e: cl.eap(e, metric=3), "metric: expected"),
    ("eap_ig's steps", lambda e: cl.eap_ig(e, steps=0), "steps: expected"),
    ("eap_ig's variant", lambda e: cl.eap_ig(e, variant="output"), "variant: expected one of"),
    ("acdc's threshold", lambda e: cl.acdc(e, threshold=float("nan")), "threshold: expected"),
    ("acdc's order", lambda e: cl.acdc(e, threshold=1, order="random"), "order: expected"),
    ("acdc_sweep", lambda e: cl.acdc_sweep(e, [-1]), "threshold: expected"),
    ("acdc_sweep of nothing", lambda e: cl.acdc_sweep(e, []), "thresholds: expected at least one"),
    ("acdc_sweep of a number", lambda e: cl.acdc_sweep(e, 0.1), "thresholds: expected at least one number from 0, got 0.1"),
    ("EdgeScores[…]", lambda e: cl.eap(e)["m0→m0"], "points upstream"),
    ("EdgeScores.top", lambda e: cl.eap(e).top(-1), "k: expected an integer from 0 to 13"),
    ("faithfulness", lambda e: cl.faithfulness(e, cl.Circuit(SMALL, [])), "circuit: expected one of"),
    ("faithfulness_curve", lambda e: cl.faithfulness_curve(e, cl.eap(e), sizes=[99]), "k: expected an integer from 0 to 13"),
    ("roc", lambda e: cl.roc(cl.eap(e), cl.Circuit(SMALL, [])), "truth"),
    ("auc", lambda e: cl.auc(cl.roc(cl.eap(e), cl.known_circuit("handmade-and")), "best"), "convention: expected"),
    ("stability", lambda e: cl.stability(e, cl.eap, n=1), "n: expected an integer from 2, got 1"),
    ("stability of a name", lambda e: cl.stability(e, "eap"), "method: expected a function such as cl.eap, got 'eap'"),
    ("compare", lambda e: cl.compare({}, {}, []), "tasks: expected"),
    ("compare of a name", lambda e: cl.compare({"or": (e, None)}, {"eap": "eap"}), "methods: 'eap' is no function"),
    ("results", lambda e: cl.results("all"), "name: expected one of"),
    ("read_grid", lambda e: cl.read_grid("none.toml"), "none.toml: can't be read"),
    ("read_grid of numbers", lambda e: cl.read_grid({"grid": {"model": 3, "method": "eap", "top": 1}}), "grid.model: expected one of"),
    ("plot_attention", lambda e: cl.plot_attention(e.model, [0, 10**6], "a0.0"), "tokens: expected at most"),
    ("plot_attention's heads", lambda e: cl.plot_attention(e.model, e.task.clean[0], "a9.9"), "a9.9"),
    ("plot_circuit", lambda e: cl.plot_circuit(["m0→logits"]), "circuit: expected"),
    ("plot_heads", lambda e: cl.plot_heads(torch.zeros(3)), "expected"),
    ("set_attention_mode", lambda e: cl.set_attention_mode("dance"), "expected"),
    ("explore", lambda e: cl.explore(3), "scores: expected"),
    ("reproduce", lambda e: cl.reproduce("induction"), "name: expected one of"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "said"), [case[1:] for case in DOORS], ids=[case[0] for case in DOORS])
def test_a_function_says_it_in_one_line(call, said, gate, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError) as error:
        call(gate)
    message = str(error.value)
    assert said in message and len(message.splitlines()) == 1 and len(message) < 400, message
    assert not list(tmp_path.iterdir())


def test_a_check_of_an_exercise_never_raises():
    for name, answer in [("99.9", len), (None, None), ("02.1", lambda: 1 / 0), ("02.1", 3), ("../x", "y")]:
        try:
            text = repr(cl.check(name, answer))
        except ValueError as error:  # an exercise that does not exist
            text = str(error)
        assert text and "Traceback" not in text
