"""A folder in the place of a model's name: the same model as by name, and nothing in it is believed or run unchecked."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel
from typer.testing import CliRunner

import circuitlib as cl
from circuitlib import cli
from circuitlib.models import Missing, folder, info, registry
from circuitlib.sweep import Cell, cell, read_grid, run_sweep

SHIPPED = ["docstring-4l", "gpt-mini"]
PAIRS = [
    {"clean": "from city import item; from city import", "corrupted": "from city import item; from path import", "answer": " item", "distractors": [" count"]},
    {"clean": "from path import count; from path import", "corrupted": "from path import count; from city import", "answer": " count", "distractors": [" item"]},
]  # fmt: skip


def command(*arguments, code: int = 0):
    done = CliRunner().invoke(cli.app, list(map(str, arguments)))
    assert done.exit_code == code, (done.stdout, done.stderr, done.exception)
    return done


def error_of(name, kind=ValueError) -> str:
    with pytest.raises(kind) as error:
        cl.load_model(name)
    assert len(str(error.value).splitlines()) == 1
    return str(error.value)


@pytest.fixture
def trained(tmp_path) -> Path:
    """What ``circuitlib train`` leaves: a run's folder with the finished models in it."""
    for name in SHIPPED:
        shutil.copytree(registry.SHIPPED / name, tmp_path / "run" / name)
    return tmp_path / "run"


@pytest.fixture(scope="session")
def saved_gpt2(tmp_path_factory) -> Path:
    """A GPT-2 with random weights as transformers saves it: no SHA256SUMS, and not of this book but for its tokenizer."""
    path = tmp_path_factory.mktemp("saved") / "tiny"
    tokenizer = AutoTokenizer.from_pretrained(registry.SHIPPED / "docstring-4l")
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=32, n_embd=12, n_layer=1, n_head=3, bos_token_id=0, eos_token_id=1)  # fmt: skip
    GPT2LMHeadModel(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def tiny(saved_gpt2, tmp_path) -> Path:
    return Path(shutil.copytree(saved_gpt2, tmp_path / "tiny"))


def rewrite(path: Path, **changes) -> None:
    """Change keys of a JSON file; None takes one away."""
    content = json.loads(path.read_text("utf8")) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}), "utf8")


# --- the same model as by name


@pytest.mark.parametrize("name", SHIPPED)
def test_a_copy_of_a_shipped_model_is_that_model(name, trained):
    ours, theirs = cl.load_model(trained / name), cl.load_model(name)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    task, same = cl.default_task(ours, n=6, seed=3), cl.default_task(theirs, n=6, seed=3)
    assert task.name == same.name and torch.equal(task.clean, same.clean) and torch.equal(task.answers, same.answers)
    assert torch.equal(ours(task.clean), theirs(same.clean))
    assert torch.equal(ours.to_tokens("the large book"), theirs.to_tokens("the large book"))
    assert not ours.training and not any(parameter.requires_grad for parameter in ours.parameters())


@pytest.mark.parametrize("name", SHIPPED)
def test_what_is_known_of_a_folder(name, trained, monkeypatch):
    monkeypatch.chdir(trained.parent)
    expected = info(name)
    for given_name, text in ((f"run/{name}", f"run/{name}"), (Path("run") / name, f"run/{name}")):
        found = info(given_name)
        assert (found.name, found.family, found.repo) == (text, "folder", None)
        for what in ("n_layers", "n_heads", "d_model", "mlps"):
            assert getattr(found, what) == getattr(expected, what)
        assert found.folder == Path(text) and found.tasks == expected.tasks
    assert name in cl.models().index and f"run/{name}" not in cl.models().index


def test_a_path_is_a_folder_even_if_it_is_called_like_a_model(trained, monkeypatch):
    monkeypatch.chdir(trained)
    assert info("gpt-mini").family == "shipped"
    assert info(Path("gpt-mini")).family == info("./gpt-mini").family == "folder"
    with pytest.raises(
        ValueError, match=r"^unknown model './gpt2'; choose one of: docstring-4l, .*, or the folder of a model$"
    ):
        info(Path("gpt2"))


def test_the_model_is_found_again_wherever_one_goes(trained, monkeypatch, tmp_path):
    monkeypatch.chdir(trained)
    model = cl.load_model("./docstring-4l")
    monkeypatch.chdir(tmp_path)
    assert cl.default_task(model, n=2).name == "docstring"


def test_a_folder_is_described_without_torch(trained):
    code = f"import sys; from circuitlib.models.registry import info; print(info({str(trained / 'gpt-mini')!r}).tasks); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["('ioi', 'greater_than', 'induction')", "False"], done.stderr


def test_no_circuit_is_known_of_other_weights(trained):
    for name, task in (("docstring-4l", "docstring"), ("gpt-mini", "ioi"), ("gpt-mini", "greater_than")):
        assert cell.truth_of(name, task, "corrupted", "noising") is not None
        assert cell.truth_of(str(trained / name), task, "corrupted", "noising") is None


def test_a_folder_has_neither_log_nor_card(trained):
    with pytest.raises(
        ValueError, match="^name: expected a shipped model, which has a README.md; .* is of the family 'folder'$"
    ):
        cl.model_card(str(trained / "gpt-mini"))


# --- what transformers saved


def test_a_gpt2_computes_what_transformers_computes(tiny):
    tokens = torch.randint(3, 2000, (4, 20))
    theirs = GPT2LMHeadModel.from_pretrained(tiny, attn_implementation="eager").eval()
    with torch.no_grad():
        assert torch.allclose(cl.load_model(tiny)(tokens), theirs(tokens).logits, atol=1e-6)


@pytest.mark.parametrize("changed", ["half", "old names", "untied"])
def test_other_forms_of_the_same_weights(tiny, changed):
    tokens, before = torch.randint(3, 2000, (2, 9)), None
    before = cl.load_model(tiny)(tokens)
    weights, metadata = load_file(tiny / "model.safetensors"), {"format": "pt"}
    if changed == "half":
        weights = {key: value.half() for key, value in weights.items()}
    elif changed == "old names":
        weights = {key.removeprefix("transformer."): value for key, value in weights.items()}
        weights["h.0.attn.bias"] = torch.ones(1, 1, 32, 32).tril().bool()
    else:
        weights["lm_head.weight"] = 2 * weights["transformer.wte.weight"]
        rewrite(tiny / "config.json", tie_word_embeddings=False)
    save_file(weights, tiny / "model.safetensors", metadata=metadata)
    model = cl.load_model(tiny)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert torch.allclose(model(tokens), before * (2 if changed == "untied" else 1), atol=1e-3 if changed == "half" else 1e-6)  # fmt: skip
    assert not torch.allclose(model(tokens), torch.zeros_like(before), atol=1e-2)


def test_a_gpt2_with_a_task_of_ones_own_from_a_terminal(tiny, tmp_path):
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in PAIRS), "utf8")
    options = ["--model", tiny, "--task", tmp_path / "own.jsonl", "--quiet"]
    command("discover", *options, "--method", "exact", "--top", 8, "--out", tmp_path / "c.json")
    model = cl.load_model(tiny)
    engine = cl.Engine(model, cl.load_task(model, tmp_path / "own.jsonl"))
    assert cl.Circuit.load(tmp_path / "c.json") == cl.exact(engine).top(8)
    row = json.loads(command("evaluate", tmp_path / "c.json", *options, "--json").stdout)[0]
    assert row["faithfulness"] == pytest.approx(float(cl.faithfulness(engine, cl.Circuit.load(tmp_path / "c.json"))), abs=1e-6)  # fmt: skip
    assert "tpr" not in row  # no circuit is known
    table = json.loads(command("compare", *options, "--method", "eap", "--json").stdout)
    assert [one["task"] for one in table] == [str(tiny)]


@pytest.mark.parametrize(("name", "method"), [("docstring-4l", "eap"), ("gpt-mini", "eap-ig")])
def test_a_terminal_finds_the_same_edges(name, method, trained, monkeypatch):
    monkeypatch.chdir(trained.parent)
    options = ["--method", method, "--top", 40, "--n", 6, "--quiet"]
    before = sorted(path.relative_to(trained.parent) for path in trained.parent.rglob("*"))
    found = [json.loads(command("discover", "--model", model, *options).stdout) for model in (f"run/{name}", name)]
    assert [one["conditions"].pop("model") for one in found] == [f"run/{name}", name] and found[0] == found[1]
    assert sorted(path.relative_to(trained.parent) for path in trained.parent.rglob("*")) == before


def test_export_says_that_the_folder_is_what_it_would_make(trained, tmp_path):
    assert "is a folder that transformers reads as it is" in command("export", "--model", trained / "gpt-mini", "--out", tmp_path / "x", code=2).stderr  # fmt: skip
    assert "has no form that transformers knows" in command("export", "--model", trained / "docstring-4l", "--out", tmp_path / "x", code=2).stderr  # fmt: skip


# --- sweeps

SWEEP = '[grid]\nmodel = ["docstring-4l", "run/docstring-4l"]\nmethod = ["eap", "random"]\ntop = [20, 60]\nn = 4\n'


@pytest.fixture
def grid_file(trained) -> Path:
    path = trained.parent / "grid.toml"
    path.write_text(SWEEP, "utf8")
    return path


@pytest.mark.parametrize("jobs", [0, 1])
def test_a_sweep_over_a_folder_is_that_over_the_name(grid_file, tmp_path_factory, monkeypatch, jobs):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))  # the folder is looked for beside the grid
    table = run_sweep(grid_file, grid_file.parent / "cells", jobs=jobs)
    assert list(table["status"]) == ["done"] * 8 and list(table["model"].unique()) == ["docstring-4l", "run/docstring-4l"]  # fmt: skip
    known = [
        "precision",
        "recall",
        *(name for name in table if name.startswith("auc_")),
    ]  # no circuit is known of a folder
    dropped = ["model", "cell", "seconds", "cell_seconds", *known]
    by_name, by_folder = (part.reset_index(drop=True) for _, part in table.groupby("model", sort=False))
    pd.testing.assert_frame_equal(by_name.drop(columns=dropped), by_folder.drop(columns=dropped), check_exact=True)
    assert by_name["precision"].notna().all() and by_folder[known].isna().all(axis=None)
    assert by_folder["cell"].is_unique and set(by_folder["cell"]).isdisjoint(by_name["cell"])
    assert {path.parent for path in (grid_file.parent / "cells").rglob("*.json")} == {grid_file.parent / "cells"}


def change_weights(path: Path) -> None:
    weights = load_file(path / "model.safetensors")
    weights["pos_embed.weight"] += 0.1
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    (path / "SHA256SUMS").unlink()


@pytest.mark.parametrize("what", ["weights", "configuration", "gone"])
def test_a_folder_that_changed_since_it_was_planned(grid_file, what):
    plan = read_grid(grid_file)
    path = grid_file.parent / "run" / "docstring-4l"
    if what == "weights":
        change_weights(path)
    elif what == "configuration":
        rewrite(path / "tokenizer_config.json", model_max_length=96)
    else:
        shutil.rmtree(path)
    said = {
        "weights": "ValueError: model: model.safetensors of run/docstring-4l is not what the sweep was planned with: SHA-256",
        "configuration": "ValueError: model: configuration or tokenizer of run/docstring-4l is not what the sweep was planned with",
        "gone": "ValueError: model: run/docstring-4l is not there: expected the folder",
    }[what]
    table = run_sweep(plan, grid_file.parent / "cells", jobs=0)
    assert list(table["status"]) == ["done"] * 4 + ["failed"] * 4
    assert all(error.startswith(said) for error in table["error"][4:]), table["error"][4]


def test_another_content_is_another_model_in_the_same_process(grid_file):
    path, cells = grid_file.parent / "run" / "docstring-4l", grid_file.parent / "cells"
    first = run_sweep(grid_file, cells, jobs=0)
    change_weights(path)
    second = run_sweep(grid_file, cells, jobs=0)
    changed = second["model"] == "run/docstring-4l"
    assert list(second["status"]) == ["done"] * 8
    assert (first["cell"] == second["cell"]).equals(~changed)
    eap = changed & (second["method"] == "eap")
    assert (first["kl"] != second["kl"])[eap].all() and (first["kl"] == second["kl"])[~changed].all()
    stated = hashlib.sha256((path / "model.safetensors").read_bytes()).hexdigest()
    assert set(second["weights"][changed]) == {stated}


def test_a_cell_made_by_hand_takes_the_folder_as_it_is(trained, monkeypatch):
    monkeypatch.chdir(trained)
    cells = [Cell(name, "docstring", "random", top=5, n=2) for name in ("docstring-4l", "./docstring-4l")]
    by_name, by_folder = map(cl.run_cell, cells)
    assert by_folder["weights"] == by_name["weights"] and by_folder["kl"] == by_name["kl"]
    assert by_folder["circuit"] == by_name["circuit"]
    assert cell.attempt(Cell("./none", "docstring", "random", top=5))["error"].startswith("ValueError: unknown model './none'")  # fmt: skip


def test_where_a_folder_lies_is_no_part_of_a_cell(grid_file, tmp_path_factory):
    moved = shutil.copytree(grid_file.parent, tmp_path_factory.mktemp("moved") / "study")
    here, there = read_grid(grid_file), read_grid(moved / "grid.toml")
    assert here.config == there.config and [one.key for one in here.cells] == [one.key for one in there.cells]
    assert here.cells[-1].folder != there.cells[-1].folder


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("nowhere", "grid.model: expected one of docstring-4l, .*, or the folder of a model, got 'nowhere'"),
        ("run", "grid.model: unknown model '.*run': the folder has no config.json"),
        ("", "grid.model: expected one of"),
        ("grid.toml", "grid.model: expected one of"),
    ],
)
def test_a_grid_with_a_folder_of_no_model(grid_file, model, said):
    grid_file.write_text(SWEEP.replace("run/docstring-4l", model), "utf8")
    assert cl_error(grid_file, said)


def cl_error(path: Path, said: str) -> bool:
    with pytest.raises(ValueError, match=said) as error:
        read_grid(path)
    return str(error.value).startswith(str(path)) and "\n" not in str(error.value)


# --- what is not believed


class Trap:
    """Unpickling one leaves a trace."""

    def __reduce__(self):
        return os.mkdir, ("sprung",)


def write_trap(path: Path) -> None:
    (path / "model.safetensors").unlink()
    (path / "pytorch_model.bin").write_bytes(pickle.dumps({"transformer.wte.weight": Trap()}))


def write_code(path: Path, file: str) -> None:
    (path / "trap.py").write_text("import os\nos.mkdir('sprung')\n", "utf8")
    rewrite(path / file, auto_map={"AutoConfig": "trap.Trap", "AutoModelForCausalLM": "trap.Trap", "AutoTokenizer": ["trap.Trap", None]})  # fmt: skip


def cut(path: Path, file: str, at: float) -> None:
    content = (path / file).read_bytes()
    (path / file).write_bytes(content[: int(len(content) * at)])


def reshape(path: Path, **changes) -> None:
    weights = load_file(path / "model.safetensors")
    for key, value in changes.items():
        weights[key.replace("__", ".")] = value
    save_file({key: value for key, value in weights.items() if value is not None}, path / "model.safetensors")


HUGE = {"n_layer": 400, "n_head": 512, "n_embd": 2**15, "vocab_size": 2**22, "n_positions": 2**16}
WRONG = {
    "no config": (lambda p: (p / "config.json").unlink(), "unknown model '.*': the folder has no config.json"),
    "no weights": (lambda p: (p / "model.safetensors").unlink(), "the folder has no model.safetensors"),
    "pickle": (write_trap, "'pytorch_model.bin' is a pickle, which may run code when it is read, expected model.safetensors"),
    "shards": (lambda p: (p / "model.safetensors").rename(p / "model.safetensors.index.json"), "its weights are in several files"),
    "auto_map": (lambda p: write_code(p, "config.json"), "config.json: auto_map names code that the model brings along, which is never run"),
    "tokenizer's auto_map": (lambda p: write_code(p, "tokenizer_config.json"), "tokenizer_config.json: auto_map names code"),
    "llama": (lambda p: rewrite(p / "config.json", model_type="llama"), "model_type is 'llama', expected 'gpt2', the one kind of Hugging Face model that cl.Engine runs"),
    "model_type 3": (lambda p: rewrite(p / "config.json", model_type=[3]), r"model_type is \[3\], expected 'gpt2'"),
    "no model_type": (lambda p: rewrite(p / "config.json", model_type=None), "config.json: n_layers: expected an integer from 1 to 512, got nothing"),
    "a billion layers": (lambda p: rewrite(p / "config.json", n_layer=10**9), "n_layer: expected an integer from 1 to 512, got 1000000000"),
    "no layers": (lambda p: rewrite(p / "config.json", n_layer=0), "n_layer: expected an integer from 1 to 512, got 0"),
    "true layers": (lambda p: rewrite(p / "config.json", n_layer=True), "n_layer: expected an integer from 1 to 512, got True"),
    "half a layer": (lambda p: rewrite(p / "config.json", n_layer=1.5), "n_layer: expected an integer from 1 to 512, got 1.5"),
    "text": (lambda p: rewrite(p / "config.json", vocab_size="9" * 9000), "vocab_size: expected an integer from 1 to 4,194,304, got '999"),
    "terabytes": (lambda p: rewrite(p / "config.json", **HUGE), r"'wte.weight' has the shape \[2048, 12\], config.json asks for \[4194304, 32768\]"),
    "heads": (lambda p: rewrite(p / "config.json", n_head=5), "n_embd: expected a multiple of n_head, 5, got 12"),
    "more layers": (lambda p: rewrite(p / "config.json", n_layer=2), "has no tensor 'h.1.ln_1.weight', which config.json asks for"),
    "epsilon": (lambda p: rewrite(p / "config.json", layer_norm_epsilon=float("nan")), "layer_norm_epsilon: expected a number between 0 and 1, got nan"),
    "switch": (lambda p: rewrite(p / "config.json", tie_word_embeddings="no"), "tie_word_embeddings: expected true or false, got 'no'"),
    "cross": (lambda p: rewrite(p / "config.json", add_cross_attention=True), "add_cross_attention: expected false"),
    "activation": (lambda p: rewrite(p / "config.json", activation_function="os.system"), "config.json: no such model can be built"),
    "untied": (lambda p: rewrite(p / "config.json", tie_word_embeddings=False), "has no tensor 'lm_head.weight'"),
    "half a config": (lambda p: cut(p, "config.json", 0.5), "config.json: not valid JSON"),
    "a list": (lambda p: (p / "config.json").write_text("[]"), "config.json: expected an object, got list"),
    "deep": (lambda p: (p / "config.json").write_text("[" * 50_000), "config.json: not valid JSON"),
    "binary": (lambda p: (p / "config.json").write_bytes(b"\xff\xfe{}"), "config.json: not UTF-8 text"),
    "long": (lambda p: (p / "config.json").write_text(" " * (2**20 + 1)), "config.json: more than 1,048,576 bytes"),
    "half the weights": (lambda p: cut(p, "model.safetensors", 0.5), "model.safetensors: not a safetensors file"),
    "no bytes": (lambda p: cut(p, "model.safetensors", 0), "model.safetensors: not a safetensors file"),
    "a pickle by another name": (lambda p: (p / "model.safetensors").write_bytes(pickle.dumps(Trap())), "model.safetensors: not a safetensors file"),
    "integers": (lambda p: reshape(p, transformer__wpe__weight=torch.zeros(32, 12, dtype=torch.int64)), "'transformer.wpe.weight' is of the type I64"),
    "a shape": (lambda p: reshape(p, transformer__wpe__weight=torch.zeros(12, 32)), r"'wpe.weight' has the shape \[12, 32\], config.json asks for \[32, 12\]"),
    "a tensor more": (lambda p: reshape(p, score__weight=torch.zeros(2, 12)), "has a tensor 'score.weight', which such a model does not have"),
    "a tensor twice": (lambda p: reshape(p, wpe__weight=torch.zeros(32, 12)), "has a tensor twice, with and without 'transformer.'"),
    "no tokenizer": (lambda p: (p / "tokenizer.json").unlink(), "has no tokenizer.json, nor vocab.json with merges.txt"),
    "half a tokenizer": (lambda p: cut(p, "tokenizer.json", 0.5), "the tokenizer can't be read"),
    "no BOS": (lambda p: (rewrite(p / "tokenizer_config.json", bos_token=None)), "the tokenizer has no BOS token"),
    "damaged": (lambda p: (p / "SHA256SUMS").write_text(f"{'0' * 64}  config.json\n"), "config.json is damaged: its SHA-256 is [0-9a-f]{64}, expected 0{64}"),
    "not listed": (lambda p: (p / "SHA256SUMS").write_text(""), "config.json is not in SHA256SUMS"),
    "no list": (lambda p: (p / "SHA256SUMS").write_text("rm -rf\n"), "SHA256SUMS, line 1: expected a SHA-256 and the name of a file"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_one_line_says_what_is_wrong_and_nothing_is_run(case, tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    change, said = WRONG[case]
    change(tiny)
    with pytest.raises(ValueError, match=said) as error:
        cl.load_model("tiny")
    message = str(error.value)
    assert len(message.splitlines()) == 1 and len(message) < 450 + len(str(tmp_path)) and message.isprintable()
    done = CliRunner().invoke(cli.app, ["discover", "--model", "tiny", "--method", "eap", "--top", "1", "--quiet"])
    assert done.exit_code == 2 and done.stderr.startswith("error: ") and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "sprung").exists() and "trap" not in sys.modules


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_damaged_file_is_named_with_both_hashes(trained, name):
    path = trained / "docstring-4l" / name
    recorded = hashlib.sha256(path.read_bytes()).hexdigest()
    if name == "model.safetensors":
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    else:
        path.write_bytes(path.read_bytes() + b"\n")  # still what it was, to a reader of JSON
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    message = error_of(trained / "docstring-4l")
    assert f"{name} is damaged: its SHA-256 is {found}, expected {recorded}" in message and "install" not in message


@pytest.mark.parametrize(("key", "value"), [("n_heads", 3), ("attn_only", False), ("normalization_type", "RMS"), ("act_fn", "x"), ("d_head", "32"), ("seed", 1)])  # fmt: skip
def test_a_native_config_says_what_circuitlib_train_writes(trained, key, value):
    path = trained / "docstring-4l"
    (path / "SHA256SUMS").unlink()
    rewrite(path / "config.json", **{key: value})
    said = error_of(path)
    assert key in said or key == "n_heads" and "has the shape" in said


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "SHA256SUMS"])
def test_a_pipe_in_the_place_of_a_file_keeps_nobody_waiting(tiny, name):
    (tiny / name).unlink(missing_ok=True)
    os.mkfifo(tiny / name)
    assert name in error_of(tiny)


def test_a_sum_can_t_lead_out_of_the_folder(tiny, tmp_path):
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  ./{file.name}\n" for file in tiny.iterdir()]
    (tiny / "SHA256SUMS").write_text("".join([*lines, f"{'0' * 64}  ../../secret\n"]), "utf8")  # nobody reads that one
    assert cl.load_model(tiny).cfg.n_layers == 1


def test_too_little_memory_is_said_before_it_is_taken(tiny, monkeypatch):
    monkeypatch.setattr("circuitlib.models.hub.available_memory", lambda: 100_000)
    assert "needs about" in error_of(tiny, Missing)
    assert "needs about" in command("discover", "--model", tiny, "--method", "eap", "--top", 1, "--quiet", code=3).stderr  # fmt: skip


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_memory_that_runs_out_is_no_fault_of_the_folder(tiny, monkeypatch, error):
    def run_out(*arguments):
        raise error

    monkeypatch.setattr(folder, "_boot_gpt2", run_out)
    assert error_of(tiny, Missing).endswith("does not fit into the memory of this computer")


def test_a_tokenizer_of_two_files(tiny):
    """As GPT-2 had it first: no tokenizer.json, and nothing said about BOS."""
    model = json.loads((tiny / "tokenizer.json").read_text("utf8"))["model"]
    tokens = cl.load_model(tiny).to_tokens("from city import item", prepend_bos=False)
    words = {("<|endoftext|>" if i == 0 else word): i for word, i in model["vocab"].items()}
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tiny / file).unlink()
    (tiny / "vocab.json").write_text(json.dumps(words), "utf8")
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"]]
    (tiny / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", "utf8")
    again = cl.load_model(tiny)
    assert again.tokenizer.bos_token_id == 0
    assert torch.equal(again.to_tokens("from city import item", prepend_bos=False), tokens)


def test_a_run_s_folder_points_to_the_model_in_it(trained):
    assert error_of(trained).endswith(f"did you mean '{trained / 'docstring-4l'}'?")


def test_a_name_that_would_break_a_line(tiny, tmp_path):
    bad = tiny.rename(tmp_path / "a\nb")
    assert error_of(bad).startswith("unknown model '") and "can be printed" in error_of(bad)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
KEYS = [*folder.SIZES["native"], *folder.SIZES["gpt2"], *folder.NATIVE, *folder.GPT2_SWITCHES, "model_type", "n_inner", "layer_norm_epsilon", "activation_function", "auto_map"]  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(SHIPPED), st.dictionaries(st.sampled_from(KEYS), json_values | st.just("gpt2"), max_size=4))
def test_whatever_a_config_says_it_is_a_model_or_one_line(tmp_path_factory, name, changes):
    path = tmp_path_factory.mktemp("any")
    (path / "model.safetensors").write_bytes(b"")
    content = json.loads((registry.SHIPPED / name / "config.json").read_text("utf8")) | changes
    (path / "config.json").write_text(json.dumps(content), "utf8")
    try:
        found = info(path)
    except ValueError as error:
        assert len(str(error).splitlines()) == 1 and len(str(error)) < 400 + len(str(path))
    else:
        assert 1 <= found.n_layers <= 512 and 1 <= found.n_heads <= 512 and found.tasks in folder.TASKS.values()
