"""Files, names and tokens that somebody else chose: no code of theirs runs, and they can ask for little."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from test_training import TINY

import circuitlib as cl
from circuitlib.graph import Circuit, Graph
from circuitlib.models import hub
from circuitlib.models.errors import Missing
from circuitlib.models.training.train import train
from circuitlib.sweep.store import Store

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "circuitlib"


@pytest.fixture(scope="module")
def gate():
    model = cl.load_model("handmade-and")
    return cl.Engine(model, cl.default_task(model, n=8))


# --- no code from a file ------------------------------------------------------------------------------------------------

MODULES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "jsonpickle", "code", "runpy"}
CALLS = {"eval", "exec", "compile", "__import__", "execfile"}
METHODS_OF = {
    ("torch", "save"), ("torch", "jit"), ("os", "system"), ("os", "popen"), ("pd", "read_pickle"), ("pandas", "read_pickle"),
    ("yaml", "load"), ("yaml", "unsafe_load"), ("yaml", "full_load"), ("joblib", "load"), ("joblib", "dump"),
    ("tempfile", "mktemp"), ("hub", "load"),
}  # fmt: skip
SAFE_ONLY_WITH = {("torch", "load"): {"weights_only": True}}
NEVER = {"trust_remote_code": True, "allow_pickle": True, "shell": True, "weights_only": False, "verify": False}


def dangers(source: str) -> list[str]:
    """What in a source file could run what a file or a page holds."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            found += [
                f"import {name}" for name in names if name.split(".")[0] in MODULES and not getattr(node, "level", 0)
            ]
            if isinstance(node, ast.ImportFrom):  # from torch import load: then nothing would be seen below
                pairs = [(node.module or "", alias.name) for alias in node.names]
                found += [f"from {a} import {b}" for a, b in pairs if (a, b) in METHODS_OF | SAFE_ONLY_WITH.keys()]
        elif isinstance(node, ast.Call):
            found += _of_call(node)
    return found


def _of_call(node: ast.Call) -> list[str]:
    found = []
    given = {word.arg: word.value.value if isinstance(word.value, ast.Constant) else ... for word in node.keywords}
    if isinstance(node.func, ast.Name) and node.func.id in CALLS:
        found.append(node.func.id)
    if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
        name = (node.func.value.id, node.func.attr)
        safe = all(given.get(word) is value for word, value in SAFE_ONLY_WITH.get(name, {}).items())
        if name in METHODS_OF or not safe:
            found.append(".".join(name))
    for word, value in NEVER.items():
        # What is no constant might be anything.
        if word in given and (given[word] is value or given[word] is ...):
            found.append(f"{word}={given[word]}")
    return found


SOURCES = [
    path for folder in ("circuitlib", "book/tools", "benchmarks") for path in sorted((ROOT / folder).rglob("*.py"))
]


def test_nothing_that_is_read_is_run():
    assert len(SOURCES) > 60
    found = {str(path.relative_to(ROOT)): dangers(path.read_text("utf8")) for path in SOURCES}
    assert {path: what for path, what in found.items() if what} == {}
    assert sum(source.read_text("utf8").count("torch.load(") for source in SOURCES) == 1  # the one legacy download
    assert not [path for path in PACKAGE.rglob("*") if path.suffix in (".pt", ".pth", ".bin", ".pkl", ".pickle", ".npy", ".npz", ".joblib")]  # fmt: skip


@pytest.mark.parametrize(
    "source",
    [
        "import pickle", "from pickle import loads", "import numpy, dill as d", "eval('1')", "exec(text)", "compile(a, b, c)",
        "torch.load(path)", "torch.load(path, weights_only=False)", "torch.load(path, weights_only=flag)",
        "from torch import load", "yaml.load(text)", "f(trust_remote_code=True)", "f(trust_remote_code=anything)",
        "np.load(path, allow_pickle=True)", "run(c, shell=True)", "os.system(c)", "pd.read_pickle(p)", "joblib.load(p)",
    ],
)  # fmt: skip
def test_each_danger_would_be_seen(source):
    assert dangers(f"def f():\n    {source}")
    assert not dangers("torch.load(path, map_location='cpu', weights_only=True); model.eval(); f(trust_remote_code=False); re.compile('a')")  # fmt: skip


# --- no network ----------------------------------------------------------------------------------------------------------

# Python itself reports each of these, whichever library asks, also where the library swallows the failure.
WATCHED = """
import os, sys
seen = []
def watch(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.bind"):
        seen.append((event, str(arguments[-1])[:80]))
        raise ConnectionError("no network here")
    if event == "pickle.find_class":
        seen.append((event, str(arguments)[:80]))
sys.addaudithook(watch)
"""
BY_DEFAULT = """
import contextlib, io, importlib, pkgutil, tempfile
import circuitlib as cl
for module in pkgutil.walk_packages(cl.__path__, "circuitlib."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
for name in ("docstring-4l", "gpt-mini", "handmade-and", "handmade-docstring"):
    model = cl.load_model(name)
    task = cl.default_task(model, n=4)
    scores = cl.eap(cl.Engine(model, task))
    assert len(cl.explore(scores, size=3).page) > 10_000
cl.models(), cl.model_card("docstring-4l"), cl.training_log("docstring-4l"), cl.results("comparison")
cl.reference_circuit("docstring-4l", "docstring"), cl.published_circuit("ioi"), cl.plot_circuit(scores.top(3))
from circuitlib.cli import app
with tempfile.TemporaryDirectory() as folder:
    for arguments in (["models"], ["discover", "--model", "handmade-or", "--method", "exact", "--top", "3", "--n", "4", "--out", f"{folder}/c.json"],
                      ["evaluate", f"{folder}/c.json", "--model", "handmade-or", "--n", "4"], ["export", f"{folder}/c.json", "--out", f"{folder}/c.html"]):
        app(arguments, standalone_mode=False)
assert seen == [], seen
print("done")
"""


def alone(code: str, **env: str) -> subprocess.CompletedProcess:
    """Run code in a Python of its own that has not been told to stay off the network."""
    told = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_", "WANDB"))}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=told | env, capture_output=True, text=True, timeout=600
    )


def test_nothing_asks_the_network_by_default(tmp_path):
    done = alone(WATCHED + BY_DEFAULT, CIRCUITLIB_CACHE=str(tmp_path), HF_HOME=str(tmp_path / "hub"))
    assert done.returncode == 0 and done.stdout.endswith("done\n"), done.stderr[-2000:]
    assert not list(tmp_path.rglob("*.safetensors"))


def test_a_question_to_the_network_would_be_seen(tmp_path):
    ask = "import circuitlib as cl\ntry:\n    cl.load_model('gpt2')\nexcept OSError as error:\n    print(type(error).__name__, seen[0][0])"
    done = alone(WATCHED + ask, HF_HOME=str(tmp_path))
    assert done.stdout.split()[0] == "NoNetwork" and done.stdout.split()[1].startswith("socket."), done.stderr[-2000:]


# --- files that ask for more than they are worth ---------------------------------------------------------------------

SHAPE = {"n_layers": 2, "n_heads": 2, "mlps": False, "n_pos": None}
GOOD = {
    "format": "circuitlib circuit",
    "version": 1,
    "graph": SHAPE,
    "task": None,
    "ablation": None,
    "edges": ["embed→logits", "embed→a0.1.v"],
}


def foreign(edges: dict, **shape) -> dict:
    """A graph JSON of the EAP-IG repository."""
    cfg = {"n_layers": 1, "n_heads": 1, "d_model": 8, "parallel_attn_mlp": False} | shape
    return {"cfg": cfg, "nodes": {}, "edges": edges}


EDGE = {"score": 1.0, "in_graph": True}


def refused(path: Path, load=Circuit.load) -> str:
    with pytest.raises(ValueError) as error:
        load(path)
    message = str(error.value)
    assert message.startswith(str(path)) and len(message.splitlines()) == 1 and len(message) < len(str(path)) + 600
    message.encode()  # half a surrogate pair would fail where it is printed
    return message


@pytest.mark.parametrize(
    ("change", "said"),
    [
        # A hundred bytes that ask for 200 GB: every shape alone is allowed.
        ({"graph": SHAPE | {"n_layers": 512, "n_heads": 512}}, "places for edges, expected at most 268435456"),
        ({"graph": SHAPE | {"n_layers": 12, "n_heads": 12, "n_pos": 65536}}, "places for edges, expected at most"),
        ({"task": "x" * 1001}, "task: expected text of at most 1000 characters"),
        ({"task": "\ud800"}, r"task: expected text of at most 1000 characters, got '\ud800'"),
        ({"ablation": "\ud800" * 2000}, "ablation: expected text of at most"),
        ({"\ud800\n": 1}, r"unknown key '\ud800\n'"),
        ({"edges": ["embed→logits@" + "9" * 4000]}, "expected text like"),
        ({"edges": ["\ud800→\n"]}, r"edge '\ud800→\n': expected text like"),
        ({"graph": SHAPE | {"n_layers": 1e300}}, "n_layers: expected an integer from 1 to 512"),
    ],
)
def test_a_circuit_file_may_not_ask_for_much(change, said, tmp_path):
    path = tmp_path / "c.json"
    path.write_text(json.dumps(GOOD), "utf8")
    assert len(Circuit.load(path)) == 2
    path.write_text(json.dumps(GOOD | change), "utf8")
    assert said in refused(path)


def test_the_largest_graph_of_a_file_is_larger_than_any_model_of_the_book(tmp_path):
    """GPT-2 XL with a position on each edge, fifty of them, is inside."""
    path = tmp_path / "c.json"
    path.write_text(json.dumps(GOOD | {"graph": {"n_layers": 48, "n_heads": 25, "mlps": True, "n_pos": 50}, "edges": ["embed→a47.24.q@49"]}), "utf8")  # fmt: skip
    assert Circuit.load(path).graph == Graph.from_shape(48, 25, True, 50)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (foreign({}, n_layers=512, n_heads=512), "places for edges"),
        (foreign({}, n_layers=64, n_heads=32), "expected at most 2097152"),
        (foreign({"input->a0.h0<q>": EDGE | {"score": 10**400}}), "score must be a finite number"),
        (foreign({"input->a0.h0<q>": EDGE | {"score": "1"}}), "score must be a number or null, got str"),
        (foreign({"\ud800": EDGE}), r"'\ud800' does not exist in Graph(1 layers"),
        (foreign({"a9.h0->logits": EDGE}), "'a9.h0->logits' does not exist in Graph(1 layers"),
    ],
)
def test_a_graph_of_the_eap_ig_repository_may_not_either(content, said, tmp_path):
    path = tmp_path / "g.json"
    path.write_text(json.dumps(foreign({"input->a0.h0<q>": EDGE})), "utf8")
    circuit, scores = Circuit.from_eap_ig(path)
    assert [str(edge) for edge in circuit] == ["embed→a0.0.q"] and [*scores.values()] == [1.0]
    path.write_text(json.dumps(content), "utf8")
    assert said in refused(path, Circuit.from_eap_ig)
    path.write_text(json.dumps(foreign({"input->a0.h0<q>": EDGE})).replace("1.0", "1e999"), "utf8")
    assert "score must be a finite number" in refused(path, Circuit.from_eap_ig)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_file_that_never_ends_is_not_read(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    endless = tmp_path / "endless.json"
    endless.symlink_to("/dev/zero")
    for path in (pipe, endless):
        for load in (Circuit.load, Circuit.from_eap_ig):
            assert "can't be read (not an ordinary file)" in refused(path, load)


# --- checkpoints ------------------------------------------------------------------------------------------------------

METHODS = {
    "exact": lambda engine, path: cl.exact(engine, checkpoint=path),
    "acdc": lambda engine, path: cl.acdc(engine, threshold=0.1, checkpoint=path),
}
HUGE = 10**400
BAD = {
    "effects": [HUGE, None, "x", {"embed": [1.0]}, {"m0": [HUGE] * 3}, {"m0": [1.0, 1.0]}, {"logits": ["1"] * 4}],
    "seconds": [HUGE, None, "x", [], "\ud800"],
    "decisions": [HUGE, None, [["m0→logits", HUGE, 0.0, False, True]], [["m0→logits"] * 5], [[]] * 3, [{}]],
    "forwards": [HUGE, -1, True, 1e308, "1"],
    "batches": [HUGE, None],
}


@pytest.mark.parametrize("method", METHODS)
def test_a_checkpoint_that_somebody_wrote_is_refused_and_left_alone(gate, method, tmp_path):
    path, run = tmp_path / "kept.json", METHODS[method]
    run(gate, path)
    good = json.loads(path.read_text("utf8"))
    texts = [json.dumps(good | {"state": good["state"] | {name: value}}) for name in good["state"] for value in BAD.get(name, ())]  # fmt: skip
    texts += [json.dumps(good | {"run": good["run"] | change}) for change in ({"model": "\n" * 999}, {"more": 1}, {"metric": HUGE})]  # fmt: skip
    texts += [
        "",
        "null",
        "[" * 50_000,
        path.read_text("utf8")[:-30],
        json.dumps(good | {"format": "circuitlib circuit"}),
    ]
    assert len(texts) > 15
    for text in texts:
        path.write_text(text, "utf8")
        with pytest.raises(ValueError) as error:
            run(gate, path)
        message = str(error.value)
        assert str(path) in message and len(message.splitlines()) == 1 and len(message) < len(str(path)) + 300, message
        assert path.read_text("utf8") == text
    assert [*tmp_path.iterdir()] == [path]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of a tiny recipe that was stopped: what it needs to go on, and its checkpoint."""
    folder = tmp_path_factory.mktemp("trained")
    arguments = (TINY, cl.load_model("docstring-4l").tokenizer, np.arange(5, 2000, dtype=np.uint16))
    train(*arguments, folder, seed=3, stop_at=2)
    return arguments, (folder / "checkpoint.safetensors").read_bytes()


def _with(change):
    def write(path: Path) -> None:
        state, about = load_file(path), {"step": "2"}
        change(state, about)
        save_file(state, path, metadata=about)

    return write


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path: path.write_bytes(b""), "SafetensorError"),
        (lambda path: path.write_bytes(b"\x80\x04." * 99), "SafetensorError"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1000]), "SafetensorError"),
        (lambda path: path.write_bytes(b"\xff" * 7 + b"\x7f" + path.read_bytes()[8:]), "SafetensorError"),
        (_with(lambda state, about: about.pop("step")), "KeyError: 'step'"),
        (_with(lambda state, about: about.update(step="many")), "invalid literal"),
        (_with(lambda state, about: about.update(step="-5")), "step -5"),
        (_with(lambda state, about: state.pop("gates")), "KeyError: 'gates'"),
        (_with(lambda state, about: state.update(gates=torch.zeros(7))), "RuntimeError: "),
        (_with(lambda state, about: state.update({"model.evil": torch.zeros(1)})), "Unexpected key"),
        (_with(lambda state, about: state.update({"adam.x.step": torch.zeros(1)})), "invalid literal"),
    ],
)
def test_a_checkpoint_of_a_training_is_checked(spoil, said, trained, tmp_path):
    arguments, good = trained
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(good)
    spoil(path)
    spoilt = path.read_bytes()
    with pytest.raises(ValueError) as error:
        train(*arguments, tmp_path, seed=3)
    message = str(error.value)
    assert message.startswith(f"{path}: not a checkpoint of this run, or damaged") and said in message
    assert "\n" not in message and len(message) < len(str(path)) + 250
    assert path.read_bytes() == spoilt and [*tmp_path.iterdir()] == [path]


# --- paths in files ----------------------------------------------------------------------------------------------------


def classroom(folder: Path, revision: bytes, manifest: bytes | None = None) -> Path:
    """A folder for CIRCUITLIB_MODELS with one model in it, and what stands in its small files."""
    stored = folder / "models--owner--model"
    (stored / "refs").mkdir(parents=True)
    (stored / "refs" / "main").write_bytes(revision)
    (stored / "snapshots" / "abc").mkdir(parents=True)
    (stored / "snapshots" / "abc" / "config.json").write_text("{}")
    if manifest is not None:
        (folder / "SHA256SUMS").write_bytes(manifest)
    return folder


@pytest.mark.parametrize(
    "revision", [b"../../../outside", b"..", b"/etc", b"a/b", b"\xff", b"", b".", b"abc\n..", b"x" * 9999]
)
def test_a_revision_is_no_path(revision, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "config.json").write_text("{}")
    folder = classroom(tmp_path / "models", revision)
    assert hub.find_snapshot(folder, "owner/model", ["config.json"]) == (None, "config.json")
    (folder / "models--owner--model" / "refs" / "main").write_bytes(b"abc\n")
    found = folder / "models--owner--model" / "snapshots" / "abc"
    assert hub.find_snapshot(folder, "owner/model", ["config.json"]) == (found, None)


NAME = "models--owner--model/snapshots/abc/config.json"
HASH = hashlib.sha256(b"{}").hexdigest()


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        (f"{HASH}  ../{NAME}\n", "is not in"),
        (f"{HASH}  /{NAME}\n", "is not in"),
        (f"{HASH}  ./../models/{NAME}\n", "is not in"),
        (f"{HASH}\n", "line 1: expected a SHA-256 and the name of a file"),
        (f"\n{HASH[1:]}  {NAME}\n", "line 2: expected a SHA-256"),
        (f"{NAME}  {HASH}\n", "line 1: expected a SHA-256"),
        ("\0\x1b[2J" * 9, "line 1: expected a SHA-256"),
        (f"{HASH}  {NAME}\n" * 10_000, "line 1: expected a SHA-256"),
        (f"{'0' * 64}  {NAME}\n", "is damaged"),
    ],
)
def test_a_manifest_is_a_list_of_hashes_and_nothing_else(manifest, said, tmp_path):
    folder = classroom(tmp_path / "models", b"abc", manifest.encode())
    with pytest.raises(Missing) as error:
        hub.check_manifest(folder, [folder / NAME])
    assert said in str(error.value) and len(str(error.value).splitlines()) == 1 and "\x1b" not in str(error.value)
    for good in (f"{HASH}  {NAME}\n", f"\n{HASH} *{NAME}\r\n\n"):
        (folder / "SHA256SUMS").write_text(good, "utf8")
        hub.check_manifest(folder, [folder / NAME])


PROMPT = {"clean": "a", "corrupted": "b", "answer": "c"}


def test_a_sweep_writes_under_names_of_its_own(tmp_path, monkeypatch):
    """Whatever a task file is called, and wherever it lies: cells and circuits are filed under a hash."""
    outside, inside, cells = tmp_path / "outside", tmp_path / "grid", tmp_path / "cells"
    outside.mkdir(), inside.mkdir()
    names = [
        "../outside/secret.jsonl",
        str(outside / "absolute.jsonl"),
        "../outside/$(touch x); rm -rf .jsonl",
        "link.jsonl",
    ]
    for name in names[:3]:
        (inside / name).write_text(json.dumps(PROMPT) + f"\n\n{' ' * len(name)}", "utf8")
    (inside / names[3]).symlink_to(outside / "secret.jsonl")
    (inside / "g.toml").write_text(
        f"circuits = true\n[grid]\nmodel = 'handmade-and'\ntask = {json.dumps(names)}\nmethod = 'eap'\ntop = 1\n",
        "utf8",
    )
    before = sorted(outside.iterdir())
    plan = cl.read_grid(inside / "g.toml")
    assert [cell.task for cell in plan.cells] == names
    with Store(cells).locked():
        for cell in plan.cells:
            Store(cells).save(cell, {"circuit": "{}", "status": "done"}, circuits=True)
    written = [
        path for path in tmp_path.rglob("*") if path.is_file() and cells in path.parents and path.name != ".lock"
    ]
    assert {path.parent for path in written} == {cells, cells / "circuits"} and len(written) == 2 * len(names)
    assert all(path.stem in {cell.key for cell in plan.cells} for path in written)
    assert sorted(outside.iterdir()) == before and sorted(inside.iterdir()) == [
        inside / "g.toml",
        inside / "link.jsonl",
    ]


def test_what_is_written_takes_the_place_of_a_link_and_does_not_go_through_it(gate, tmp_path):
    """Somebody's link in a folder that others write to leads to no other file."""
    precious = tmp_path / "precious"
    precious.write_text("mine")
    for name, write in {
        "circuit.json": lambda path: gate.all.save(path),
        "kept.json": lambda path: METHODS["acdc"](gate, path),
        "task.jsonl": lambda path: cl.save_task(gate.model, gate.task, path),
        "circuit.graphml": lambda path: gate.all.to_graphml(path),
        "page.html": lambda path: cl.explore(gate.all).save(path),
    }.items():
        path = tmp_path / name
        path.symlink_to(tmp_path / "precious" if name != "kept.json" else tmp_path / "nowhere")
        write(path)
        assert path.is_file() and not path.is_symlink() and precious.read_text() == "mine", name
    assert not (tmp_path / "nowhere").exists()
