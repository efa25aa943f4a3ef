"""The command line: what comes out where, the exit codes, and that it answers without loading what it does not need."""

from __future__ import annotations

import importlib
import io
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import circuitlib as cl
from circuitlib import cli
from circuitlib.cli import common
from circuitlib.engine import Engine

ROOT = Path(__file__).resolve().parents[1]
DISCOVER = ["discover", "--model", "handmade-and", "--n", "8"]
COMPARE = ["compare", "--model", "handmade-and", "--n", "8"]


def run(*arguments: str, code: int = 0):
    result = CliRunner().invoke(cli.app, list(arguments))
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


def fails(*arguments: str, code: int) -> str:
    """The message of a call that ends with ``code``; it is one line and nothing else comes out."""
    result = run(*arguments, code=code)
    assert result.stdout == ""
    message = result.stderr.splitlines()[-1]
    assert message.startswith("error: ")
    return message


def engine(name="handmade-and", n=8, seed=0, **more) -> Engine:
    model = cl.load_model(name)
    return Engine(model, cl.default_task(model, n=n, seed=seed), **more)


# --- models


def test_models_lists_them_as_a_table_and_as_json():
    assert "docstring-4l" in run("models").stdout
    rows = json.loads(run("models", "--json").stdout)
    assert [row["name"] for row in rows] == cl.models().index.tolist()
    assert rows[0]["tasks"] == "docstring, induction"


# --- discover


@pytest.mark.parametrize("method", ["exact", "eap", "eap-ig"])
def test_discover_prints_the_circuit_of_the_best_edges(method, tmp_path):
    result = run(*DISCOVER, "--method", method, "--top", "5")
    (tmp_path / "c.json").write_text(result.stdout, "utf8")
    found = {"exact": cl.exact, "eap": cl.eap, "eap-ig": cl.eap_ig}[method](engine()).top(5)
    assert cl.Circuit.load(tmp_path / "c.json") == found == cl.known_circuit("handmade-and")
    assert "5 edges, 5 of them on a path, 2 heads; faithfulness 1.000" in result.stderr


def test_discover_takes_every_option_to_where_it_belongs(tmp_path):
    options = ["--metric", "kl", "--ablation", "mean", "--direction", "denoising", "--seed", "3", "--steps", "2"]
    out, scores = tmp_path / "c.json", tmp_path / "scores.csv"
    result = run(*DISCOVER, "--method", "eap-ig", "--top", "4", *options, "--out", str(out), "--scores", str(scores))
    assert result.stdout == ""
    expected = cl.eap_ig(engine(seed=3, ablation="mean", direction="denoising"), metric="kl", steps=2)
    circuit = cl.Circuit.load(out)
    assert circuit == expected.top(4) and (circuit.task, circuit.ablation) == ("gate", "mean")
    written = pd.read_csv(scores).set_index("edge")["score"]
    assert written.to_dict() == pytest.approx({str(edge): score for edge, score in expected.items()})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.json", "scores.csv"]


def test_discover_goes_on_from_a_checkpoint(tmp_path):
    kept, arguments = tmp_path / "kept.json", [*DISCOVER, "--method", "acdc", "--threshold", "0.1", "--quiet"]
    first = run(*arguments, "--checkpoint", str(kept)).stdout
    assert run(*arguments).stdout == first == run(*arguments, "--checkpoint", str(kept)).stdout
    other = fails(*DISCOVER, "--method", "acdc", "--threshold", "0.2", "--checkpoint", str(kept), code=2)
    assert "kept.json is of another run: its threshold is 0.1, expected 0.2" in other


def test_discover_takes_a_corruption_and_a_device(tmp_path):
    arguments = ["discover", "--model", "handmade-docstring", "--method", "exact", "--top", "3", "--n", "4", "--quiet"]
    found = run(*arguments, "--corruption", "random_answer", "--device", "auto", "--out", str(tmp_path / "c.json"))
    model = cl.load_model("handmade-docstring")
    task = cl.docstring(model, n=4, corruption="random_answer")
    assert found.stdout == "" and cl.Circuit.load(tmp_path / "c.json") == cl.exact(Engine(model, task)).top(3)


def test_discover_by_threshold_and_by_acdc(tmp_path):
    out = tmp_path / "c.json"
    run(*DISCOVER, "--method", "exact", "--threshold", "0.5", "--out", str(out))
    assert cl.Circuit.load(out) == cl.exact(engine()).above(0.5)
    run(*DISCOVER, "--method", "acdc", "--threshold", "0.1", "--task", "gate", "--out", str(out), "--quiet")
    assert cl.Circuit.load(out) == cl.acdc(engine(), threshold=0.1) == cl.known_circuit("handmade-and")


def test_a_circuit_that_is_not_faithful_enough_is_written_and_ends_with_1(tmp_path):
    out, wanted = tmp_path / "c.json", ["--min-faithfulness", "0.9"]
    assert run(*DISCOVER, "--method", "exact", "--top", "5", *wanted, "--quiet").stderr == ""
    message = fails(*DISCOVER, "--method", "exact", "--top", "2", *wanted, "--out", str(out), code=1)
    assert message == "error: the circuit's faithfulness is 0.000, less than 0.9"
    assert len(cl.Circuit.load(out)) == 2


# --- compare


def test_compare_writes_all_columns_and_prints_the_main_ones(tmp_path):
    methods = ["--method", "eap", "--method", "acdc", "--method", "random", "--threshold", "0.1", "--threshold", "0.5"]
    out = tmp_path / "table.csv"
    assert run(*COMPARE, *methods, "--seeds", "2", "--out", str(out), "--quiet").stdout == ""
    table = pd.read_csv(out)
    assert table["method"].tolist() == ["eap", "eap", "acdc", "acdc", "random", "random"]
    assert table["seed"].tolist() == [0, 1] * 3
    assert table[table["method"] != "random"]["auc_pessimistic_edge"].tolist() == pytest.approx([1] * 4)
    curve = cl.faithfulness_curve(engine(), cl.acdc_sweep(engine(), (0.1, 0.5)))
    assert table["cpr"][2] == pytest.approx(cl.cpr(curve), abs=1e-4)
    assert {"auc_trapezoid_node", "kl", "seconds", "refused"} <= set(table.columns) and "roc" not in table

    printed = run(*COMPARE, "--method", "eap", "--quiet").stdout
    shown = pd.read_csv(io.StringIO(printed), sep=r"\s+")
    assert shown["auc_pessimistic_edge"].tolist() == [1] and "auc_trapezoid_edge" not in shown


def test_compare_says_which_method_refused_and_goes_on():
    result = run(*COMPARE, "--method", "eap", "--method", "exact", "--metric", "kl", "--json")
    rows = json.loads(result.stdout)
    assert [row["method"] for row in rows] == ["eap", "exact"] and rows[0]["cpr"] is None and rows[1]["cpr"] > 0
    assert "eap refused kl on handmade-and: metric: the gradient" in result.stderr


def test_compare_with_a_truth_of_ones_own(tmp_path):
    path = tmp_path / "truth.json"
    cl.Circuit(cl.known_circuit("handmade-and").graph, ["a0.0→m0"]).save(path)
    rows = json.loads(run(*COMPARE, "--method", "exact", "--truth", str(path), "--json", "--quiet").stdout)
    # One of five edges with the same effect: they come in together, four false ones of 12 with it.
    assert rows[0]["auc_pessimistic_edge"] == pytest.approx(1 - 4 / 12)
    assert "none.json: can't be read" in fails(*COMPARE, "--truth", str(tmp_path / "none.json"), code=2)
    message = fails("compare", "--model", "handmade-and", "--model", "handmade-docstring", "--truth", str(path), code=2)
    assert (
        message.startswith(f"error: --truth: {path} is of Graph(1 layers")
        and "handmade-docstring is Graph(3" in message
    )


def test_compare_goes_on_from_a_folder_of_checkpoints(tmp_path):
    arguments = [
        *COMPARE,
        "--method",
        "acdc",
        "--method",
        "exact",
        "--threshold",
        "0.1",
        "--json",
        "--quiet",
        "--seeds",
        "2",
    ]
    cost = dict.fromkeys(("seconds", "forwards", "backwards"))  # to go on takes passes as well
    plain = json.loads(run(*arguments).stdout)
    for _ in range(2):
        rows = json.loads(run(*arguments, "--checkpoint", str(tmp_path / "kept")).stdout)
        assert [row | cost for row in rows] == [row | cost for row in plain]
        # The gate's two seeds have the same prompts, so they are one run.
        assert sorted(path.name.split("-")[0] for path in (tmp_path / "kept").iterdir()) == ["acdc", "exact"]


def test_the_truth_is_what_is_known_of_the_model_and_the_task():
    reference = cl.reference_circuit("docstring-4l", "docstring")
    truth = {("docstring-4l", None, reference.ablation): reference, ("docstring-4l", None, "zero"): None}
    truth |= {("docstring-4l", "induction", "corrupted"): None, ("docstring-4l", "mine.jsonl", "corrupted"): None}
    truth |= {("handmade-or", None, "zero"): cl.known_circuit("handmade-or", "zero")}
    truth |= {("gpt2", None, "corrupted"): cl.published_circuit("ioi"), ("gpt2", None, "mean"): None}
    truth |= {("gpt2", "greater-than", "corrupted"): cl.published_circuit("greater-than")}
    truth |= {("attn-only-4l", "docstring", "corrupted"): cl.published_circuit("docstring")}
    for (model, task, ablation), expected in truth.items():
        assert common.Setting(model, task, ablation=ablation).truth() == expected


# --- what goes wrong


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["discover", "--model", "handmade-xor", "--method", "eap", "--top", "3"], "unknown model 'handmade-xor'; choose one of"),
        ([*DISCOVER, "--method", "eap", "--top", "3", "--task", "docstring"], "--task: handmade-and knows gate, got 'docstring'; a file of your own ends in .jsonl"),
        ([*DISCOVER, "--method", "eap", "--top", "3", "--task", "no.jsonl"], "no.jsonl: can't be read"),
        ([*DISCOVER, "--method", "eap", "--top", "3", "--task", "no.jsonl", "--corruption", "abc"], "--corruption: the corrupted prompts of no.jsonl stand in it"),
        (["discover", "--model", "handmade-and", "--method", "eap", "--top", "3", "--task", "no.jsonl", "--seed", "1"], "--seed: says which --n prompts of a file are taken"),
        ([*DISCOVER, "--method", "eap", "--top", "3", "--corruption", "abc"], "--corruption: gate has only one kind; expected none"),
        (["discover", "--model", "handmade-docstring", "--method", "eap", "--top", "3", "--corruption", "abc"], "corruption: 'abc' is unknown; choose one of: random_random"),
        ([*DISCOVER, "--method", "eap", "--top", "3", "--steps", "3"], "--steps: eap has none; expected eap-ig"),
        ([*DISCOVER, "--method", "eap", "--top", "3", "--checkpoint", "c.json"], "--checkpoint: eap is done before it could be written"),
        ([*DISCOVER, "--method", "eap", "--top", "3", "--min-faithfulness", "nan"], "--min-faithfulness: expected a finite number, got nan"),
        ([*DISCOVER, "--method", "exact", "--threshold", "inf"], "--threshold: expected a finite number, got inf"),
        ([*DISCOVER, "--method", "eap", "--top", "3", "--device", "gpu"], "device: expected 'cpu', 'cuda', 'cuda:1', 'mps' or 'auto', got 'gpu'"),
        ([*COMPARE, "--method", "eap", "--threshold", "1"], "--threshold: is that of acdc, which is not among the methods"),
        ([*COMPARE, "--method", "eap", "--steps", "1"], "--steps: are those of eap-ig, which is not among the methods"),
        (["compare", "--model", "handmade-and", "--task", "no.jsonl", "--seeds", "2"], "--seeds: says which --n prompts of a file are taken"),
        ([*COMPARE, "--task", "ioi"], "--task: handmade-and knows gate, got 'ioi'"),
        ([*DISCOVER, "--method", "eap"], "--top: eap needs either --top or --threshold"),
        ([*DISCOVER, "--method", "eap", "--top", "3", "--threshold", "1"], "--top: eap needs either --top or --threshold"),
        ([*DISCOVER, "--method", "acdc", "--top", "3"], "--threshold: acdc needs one"),
        ([*DISCOVER, "--method", "acdc", "--threshold", "1", "--scores", "s.csv"], "--scores: acdc gives no scores"),
        ([*DISCOVER, "--method", "eap", "--top", "99"], "--top: 99 edges asked for, expected at most the 13 of handmade-"),
        ([*DISCOVER, "--method", "eap", "--top", "3", "--metric", "kl"], "metric: the gradient of 'kl' vanishes"),
        ([*DISCOVER, "--method", "eap", "--top", "3", "--out", "no/such/c.json"], "no/such/c.json: expected the name of a file"),
        ([*DISCOVER, "--method", "eap", "--top", "3", "--out", "."], ".: expected the name of a file"),
        ([*COMPARE, "--out", "table.xls"], "--out: expected a name that ends in .csv or .json"),
        ([*COMPARE, "--method", "eap", "--metric", "kl"], "methods: none would run"),
        (["compare", "--model", "handmade-xor"], "unknown model 'handmade-xor'"),
    ],
)  # fmt: skip
def test_unusable_input_is_one_line_and_2(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert said in fails(*arguments, code=2)
    assert not list(tmp_path.iterdir())


def test_a_device_that_is_not_there_is_3():
    assert "device 'cuda:99' is not there" in fails(
        *DISCOVER, "--method", "eap", "--top", "3", "--device", "cuda:99", code=3
    )


@pytest.mark.parametrize("arguments", [["discover"], ["models", "--tabel"], ["dicover"], [*DISCOVER, "--method", "acdcc", "--top", "1"], [*DISCOVER, "--method", "eap", "--top", "-1"], [*DISCOVER, "--method", "acdc", "--threshold", "nan"]])  # fmt: skip
def test_usage_errors_are_2(arguments):
    assert run(*arguments, code=2).stdout == ""


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (ConnectionError("the Hub\ncan't be reached"), 3, "error: the Hub can't be reached"),
        (MemoryError(), 3, "error: MemoryError"),
        (ImportError("No module named 'transformer_lens'"), 3, "error: No module named 'transformer_lens'"),
        (torch.OutOfMemoryError("CUDA out of memory"), 3, "error: out of memory: CUDA out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 3, "error: out of memory: DefaultCPUAllocator"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_what_is_missing_outside_is_3(monkeypatch, raised, code, said):
    def load(name, device, quiet):
        raise raised

    monkeypatch.setattr(common, "load", load)
    result = run(*DISCOVER, "--method", "eap", "--top", "3", code=code)
    assert result.stderr.splitlines()[-1].startswith(said) and result.stdout == ""


def test_a_bug_is_not_dressed_up(monkeypatch):
    monkeypatch.setattr(common, "load", lambda name, device, quiet: 1 / 0)
    result = CliRunner().invoke(cli.app, [*DISCOVER, "--method", "eap", "--top", "3"])
    assert isinstance(result.exception, ZeroDivisionError)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    out = tmp_path / "c.json"
    out.write_text("old")

    def replace(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", replace)
    assert "No space left" in fails(*DISCOVER, "--method", "eap", "--top", "3", "--out", str(out), code=3)
    assert out.read_text() == "old" and list(tmp_path.iterdir()) == [out]


def test_what_libraries_print_does_not_mix_with_the_result(monkeypatch):
    def load(name, device, quiet):
        print("Moving model to device: cpu")
        return cl.load_model(name)

    monkeypatch.setattr(common, "load", load)
    result = run(*DISCOVER, "--method", "eap", "--top", "3")
    assert "Moving model" in result.stderr and len(json.loads(result.stdout)["edges"]) == 3


# --- from a real terminal


def in_a_shell(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-X", "importtime", "-m", "circuitlib.cli", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)


def modules(stderr: str) -> set[str]:
    return {line.rpartition("|")[2].strip().split(".")[0] for line in stderr.splitlines() if line.startswith("import time:")}  # fmt: skip


COMMANDS = [command.callback.__name__ for command in cli.app.registered_commands]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_what_it_does_with_an_example(command):
    text = " ".join(run(command, "--help").stdout.split())
    assert f"circuitlib {command}" in text and "Example" in text


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--help"], 0, "discover"),
        (["evaluate", "--help"], 0, "--thorough"),
        (["train", "--help"], 0, "--stop-at"),
        (
            ["discover", "--model", "gpt2", "--task", "no", "--method", "eap", "--top", "3"],
            2,
            "error: --task: gpt2 knows",
        ),
        (["discover", "--model", "handmade-xor", "--method", "eap", "--top", "3"], 2, "error: unknown model"),
    ],
)
def test_help_and_a_misspelt_name_answer_without_torch(arguments, code, said):
    done = in_a_shell(*arguments)
    assert done.returncode == code and said in (done.stdout if code == 0 else done.stderr)
    assert "typer" in modules(done.stderr) and not modules(done.stderr) & {
        "torch",
        "transformer_lens",
        "numpy",
        "pandas",
    }


def test_the_command_is_installed_with_the_package():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))["project"]["scripts"]
    module, _, name = scripts["circuitlib"].partition(":")
    assert getattr(importlib.import_module(module), name) is cli.app


def test_the_version():
    assert run("--version").stdout == f"circuitlib {cl.__version__}\n"
