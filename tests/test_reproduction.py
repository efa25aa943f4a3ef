"""``reproduce`` on stand-ins: every number against a direct computation, the page, and what happens without a model."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from bs4 import BeautifulSoup
from standin import put_models
from typer.testing import CliRunner

import circuitlib as cl
from circuitlib import tasks
from circuitlib.cli import app
from circuitlib.models.errors import Missing
from circuitlib.reproduction import (
    METHODS,
    MODELS,
    PUBLISHED,
    Reproduction,
    Row,
    make_task,
    measure,
    prompts_from,
    reproduce,
)

ROOT = Path(__file__).resolve().parents[1]
NAMES = tuple(MODELS)


@pytest.fixture(scope="module", autouse=True)
def models_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub")
    put_models(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CIRCUITLIB_MODELS", str(folder))
        patch.setenv("CIRCUITLIB_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield folder


@pytest.fixture(scope="module")
def done(models_folder) -> dict[str, Reproduction]:
    """All methods once for docstring; EAP for the two on gpt2."""
    few = {"kl": (0.002, 0.02), "task": (0.1,)}
    return {
        "docstring": reproduce("docstring", n=3, thresholds=few),
        **{name: reproduce(name, n=2, methods=["eap"]) for name in ("ioi", "greater-than")},
    }


@pytest.fixture(scope="module")
def engines(models_folder) -> dict[str, cl.Engine]:
    sizes = {"docstring": 3, "ioi": 2, "greater-than": 2}
    models = {name: cl.load_model(name) for name in set(MODELS.values())}
    return {name: cl.Engine(m := models[MODELS[name]], make_task(m, name, n=n)) for name, n in sizes.items()}


def here(report: Reproduction, what: str, quantity: str) -> float:
    (row,) = [row for row in report.rows if (row.what, row.quantity) == (what, quantity)]
    return row.here


QUANTITY = {"docstring": "logit difference", "ioi": "logit difference", "greater-than": "probability difference"}


@pytest.mark.parametrize("name", NAMES)
def test_the_model_and_the_empty_circuit_are_the_clean_and_the_corrupted_run(done, engines, name):
    task, model = engines[name].task, engines[name].model
    for what, tokens in (("full model", task.clean), ("no edge", task.corrupted)):
        with torch.no_grad():
            expected = task.metric(model(tokens)).mean()
        assert here(done[name], what, QUANTITY[name]) == pytest.approx(float(expected), abs=1e-5)
    with torch.no_grad():
        clean, corrupted = (model(tokens)[:, -1].log_softmax(-1) for tokens in (task.clean, task.corrupted))
    kl = torch.nn.functional.kl_div(corrupted, clean, reduction="batchmean", log_target=True)
    assert here(done[name], "no edge", "KL") == pytest.approx(float(kl), rel=1e-3)
    assert here(done[name], "full model", "KL") == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_the_published_circuit_is_run(done, engines, name):
    engine, truth = engines[name], cl.published_circuit(name)
    value, empty = engine.metric([truth, engine.none]).tolist()
    assert value != empty
    assert here(done[name], "published circuit", QUANTITY[name]) == pytest.approx(value, abs=1e-6)
    assert here(done[name], "published circuit", "edges") == {"docstring": 37, "ioi": 1041, "greater-than": 262}[name]
    assert here(done[name], "full model", "edges") == {"docstring": 1377}.get(name, 32_923)
    assert here(done[name], "random circuit of that size", QUANTITY[name]) != pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize("name", ["docstring", "greater-than"])
def test_methods_are_judged_by_the_published_circuit(done, engines, name):
    scores, truth = cl.eap(engines[name]), set(cl.published_circuit(name))
    ranked = scores.ranked()
    assert len(scores.flat.abs().unique()) > len(ranked) / 2  # hardly any ties
    hits, area, false = 0, 0, 0
    for edge in ranked:  # stairs by hand: each false edge is a step of the width 1 / false ones
        hits, false = hits + (edge in truth), false + (edge not in truth)
        area += 0 if edge in truth else hits
    assert here(done[name], "EAP", "AUC") == pytest.approx(area / (len(truth) * false), abs=0.01)


def test_every_circuit_that_acdc_left_is_measured(done, engines):
    report, engine = done["docstring"], engines["docstring"]
    for threshold in (0.002, 0.02):
        circuit = cl.acdc(engine, threshold=threshold, metric="kl")
        what = f"ACDC, KL, τ = {threshold:g}"
        assert here(report, what, "logit difference") == pytest.approx(float(engine.metric(circuit)), abs=1e-5)
        inputs = {edge.receiver for edge in circuit if edge.receiver != "logits"}
        assert here(report, what, "edges") == len(circuit) + len(inputs)
    assert here(report, "ACDC, logit difference, τ = 0.1", "edges") is not None
    assert 0 <= here(report, "EAP-IG", "AUC") <= 1
    assert {label for label in report.facts if label.startswith("cost of ")} == {
        "cost of EAP",
        "cost of EAP-IG",
        "cost of ACDC, KL",
        "cost of ACDC, logit difference",
    }


@pytest.mark.parametrize("name", NAMES)
def test_each_published_figure_stands_beside_the_readers_own(done, name):
    rows = {(row.what, row.quantity): row for row in done[name].rows}
    assert len(rows) == len(done[name].rows)
    for what, (source, numbers) in PUBLISHED[name].items():
        for quantity, value in numbers.items():
            row = rows[what, quantity]
            assert (row.published, row.source) == (value, source)
            if "τ" not in what and not what.startswith("ACDC"):
                assert row.here is not None
    assert all(row.source for row in done[name].rows if row.published is not None)


def test_faithfulness_is_there_where_there_is_something_to_be_faithful_to(done, engines):
    report, engine = done["docstring"], engines["docstring"]
    assert here(report, "full model", "faithfulness") == 1 and here(report, "no edge", "faithfulness") == 0
    expected = cl.faithfulness(engine, cl.published_circuit("docstring"))
    assert here(report, "published circuit", "faithfulness") == pytest.approx(expected, abs=1e-5)
    same = cl.Engine(engine.model, replace(engine.task, corrupted=engine.task.clean))  # cutting changes nothing
    numbers = measure(same, {"published circuit": cl.published_circuit("docstring")}, "docstring")
    assert {quantity for _, quantity in numbers} == {"logit difference", "KL", "edges"}


def test_the_published_figures():
    """The abstract of what chapter 11 says, with the papers' own signs."""
    stated = {name: {what: numbers for what, (_, numbers) in of.items()} for name, of in PUBLISHED.items()}
    assert stated["docstring"]["full model"]["logit difference"] == 0.48
    assert stated["docstring"]["8 heads, all connections"] == {"logit difference": -0.62, "KL": 0.83, "edges": 464}
    assert stated["docstring"]["published circuit"] == {"logit difference": -1.6, "KL": 1.1, "edges": 37}
    assert [stated[name]["ACDC, KL"]["AUC"] for name in NAMES] == [0.982, 0.869, 0.853]
    ioi, greater = stated["ioi"], stated["greater-than"]
    assert (ioi["full model"]["logit difference"], ioi["published circuit"]["logit difference"]) == (4.11, 3.24)
    shares = [greater[what]["probability difference"] for what in ("full model", "published circuit")]
    assert shares == [0.84, 0.72]


@pytest.mark.parametrize("name", NAMES)
def test_the_published_figures_as_a_table(name):
    table = cl.published_figures(name)
    assert list(table.columns) == [QUANTITY[name], "KL", "edges", "AUC", "source"]
    for what, (source, numbers) in PUBLISHED[name].items():
        assert table.loc[what, "source"] == source
        assert dict(table.loc[what].drop("source").dropna()) == numbers
    with pytest.raises(ValueError, match="^name: expected one of docstring, ioi, greater-than, got 'gate'$"):
        cl.published_figures("gate")


def test_what_was_not_measured_is_none_and_not_a_number(done):
    assert here(done["ioi"], "ACDC, KL", "AUC") is None
    assert "| ACDC, KL | AUC | 0.869 | — | Table 2 |" in done["ioi"].to_markdown()


# --- the report ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_page_holds_all_that_was_measured(done, name):
    page = BeautifulSoup(done[name].to_html(), "html.parser")
    table, facts = page.find_all("table")
    cells = [[cell.text for cell in row.find_all("td")] for row in table.find_all("tr")[1:]]
    assert len(cells) == len(done[name].rows)
    for shown, row in zip(cells, done[name].rows, strict=True):
        assert shown[:2] == [row.what, row.quantity]
        for text, value in ((shown[2], row.published), (shown[3], row.here)):
            if value is None:
                assert text == "—"
            else:
                digits = 0.5 if row.quantity == "edges" else 5e-4
                assert float(text.replace(",", "").replace("−", "-")) == pytest.approx(value, abs=digits)
    known = dict([cell.text for cell in row.find_all("td")] for row in facts.find_all("tr"))
    assert {"date", "model", "circuitlib", "torch", "transformers", "transformer-lens", "Python"} <= known.keys()
    assert known["circuitlib"] == cl.__version__ and known["model"].startswith(MODELS[name])
    assert "our own" in page.text


@pytest.mark.parametrize(("name", "count"), [("docstring", 2), ("ioi", 1), ("greater-than", 1)])
def test_the_pictures_are_inside_and_have_a_text(done, name, count):
    images = BeautifulSoup(done[name].to_html(), "html.parser").find_all("img")
    assert len(images) == count
    for image in images:
        kind, code = image["src"].split(",", 1)
        assert kind == "data:image/png;base64" and base64.b64decode(code).startswith(b"\x89PNG")
        assert len(image["alt"].split()) >= 3


def test_the_page_fetches_nothing_and_escapes_everything(done):
    text = "</td><script>alert(1)</script>"
    report = Reproduction("ioi", (Row(text, text, 1.0, None, text),), (text,), {text: text})
    page = BeautifulSoup(report.to_html(), "html.parser")
    assert not page.find_all("script") and page.find("td").text == text
    for name in NAMES:
        page = BeautifulSoup(done[name].to_html(), "html.parser")
        assert not page.find_all(["script", "link", "iframe"])
        assert all(image["src"].startswith("data:") for image in page.find_all("img"))


def test_the_page_is_written_whole_or_not_at_all(done, tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    assert done["ioi"].write(path) == path
    before = path.read_text("utf8")
    assert before.startswith("<!DOCTYPE html>") and before.endswith("</body></html>\n")

    def full(self, *args):
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        done["docstring"].write(path)
    assert path.read_text("utf8") == before and list(tmp_path.iterdir()) == [path]


def test_the_numbers_as_a_table(done):
    table = done["docstring"].to_pandas()
    assert table.loc[("published circuit", "edges"), "published"] == 37
    assert len(table) == len(done["docstring"].rows)


def test_words_in_use_are_counted(done):
    assert any("110 of 112 argument names" in note for note in done["docstring"].notes)


# --- a file of prompts --------------------------------------------------------------------------------------------


def as_file(task, model, path: Path) -> Path:
    """The task in the format of the auto-circuit repository."""

    def text(tokens) -> str:
        return model.tokenizer.decode(tokens)

    prompts = [
        {
            "clean": text(clean[1:]),
            "corrupt": text(corrupted[1:]),
            "answers": [text([i]) for i in answers.flatten().tolist() if i >= 0],
            "wrong_answers": [text([i]) for i in wrong.tolist() if i >= 0],
        }
        for clean, corrupted, answers, wrong in zip(
            task.clean, task.corrupted, task.answers, task.distractors, strict=True
        )
    ]
    path.write_text(json.dumps({"seq_labels": [], "prompts": prompts}))
    return path


@pytest.mark.parametrize("name", NAMES)
def test_prompts_of_a_file_are_the_prompts(engines, name, tmp_path):
    task, model = engines[name].task, engines[name].model
    read = prompts_from(model, as_file(task, model, tmp_path / "p.json"), name, n=len(task))
    assert torch.equal(read.clean, task.clean) and torch.equal(read.corrupted, task.corrupted)
    assert (read.read_positions, read.metric_name, read.name) == (task.read_positions, task.metric_name, task.name)
    logits = torch.randn(len(task), 1, model.cfg.d_vocab, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(read.metric(logits), task.metric(logits))
    assert len(prompts_from(model, tmp_path / "p.json", name, n=1)) == 1


def test_a_report_says_that_its_prompts_are_from_a_file(engines, tmp_path):
    file = as_file(engines["docstring"].task, engines["docstring"].model, tmp_path / "p.json")
    report = reproduce("docstring", n=2, methods=[], prompts=file)
    assert not any("our own" in note for note in report.notes) and "file" in report.notes[0]
    assert report.facts["prompts"] == "2 of a file"
    assert here(report, "EAP", "AUC") is None if any(r.what == "EAP" for r in report.rows) else True


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "'prompts' is missing"),
        ({"prompts": []}, "prompts: 1 asked for, the file has 0"),
        ({"prompts": "no"}, "prompts: expected a list, got str"),
        ({"prompts": [3]}, "prompt 0: expected an object, got int"),
        ({"prompts": [{"clean": "a", "corrupt": "b", "answers": ["c"]}]}, "prompt 0: 'wrong_answers' is missing"),
        ({"prompts": [{"clean": 1, "corrupt": "b", "answers": ["c"], "wrong_answers": ["d"]}]}, "clean must be text"),
        (
            {"prompts": [{"clean": "a", "corrupt": "b", "answers": [], "wrong_answers": ["d"]}]},
            "answers must be a list",
        ),
        (
            {"prompts": [{"clean": "a", "corrupt": "b c d", "answers": ["c"], "wrong_answers": ["d"]}]},
            "same number of tokens",
        ),
        (
            {"prompts": [{"clean": "a", "corrupt": "b", "answers": [" qxz"], "wrong_answers": ["d"]}]},
            "expected a single one",
        ),
    ],
)
def test_a_bad_file_of_prompts_is_one_line(engines, tmp_path, content, message):
    path = tmp_path / "p.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message) as error:
        prompts_from(engines["docstring"].model, path, "docstring", n=1)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


# --- what can go wrong --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "ioi2"}, "^name: expected one of docstring, ioi, greater-than, got 'ioi2'$"),
        ({"name": "ioi", "methods": ["exact"]}, f"^methods: expected some of {', '.join(METHODS)}, got 'exact'$"),
        ({"name": "ioi", "n": 0}, "^n: expected an integer from 1, got 0$"),
    ],
)
def test_bad_input_is_one_line(arguments, message):
    with pytest.raises(ValueError, match=message):
        reproduce(**arguments)


def test_without_the_model_nothing_heavy_is_loaded(tmp_path):
    """So that the one message comes at once: no torch, no table of numbers, no prompts."""
    code = (
        "import sys\nfrom circuitlib.reproduction import reproduce\nfrom circuitlib.models.errors import Missing\n"
        "try:\n    reproduce('docstring')\nexcept Missing as error:\n    print(error)\n"
        "print('torch' in sys.modules, 'transformers' in sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": "", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    message, loaded = run.stdout.splitlines()
    assert (
        message.startswith("model 'attn-only-4l' is downloaded from the Hugging Face Hub") and loaded == "False False"
    )
    assert run.stderr == ""


def test_a_damaged_model_stops_it_before_any_work(models_folder, monkeypatch, tmp_path):
    monkeypatch.setenv("CIRCUITLIB_MODELS", str(tmp_path))
    monkeypatch.setattr(tasks, "docstring", pytest.fail)
    with pytest.raises(Missing, match="is missing in"):
        reproduce("docstring")


# --- from a terminal ----------------------------------------------------------------------------------------------


def test_the_command_without_network_ends_with_one_line_and_3(tmp_path):
    """A Hub that refuses every connection stands for no network. Nothing heavy is loaded before that is known."""
    settings = {
        "HF_ENDPOINT": "http://127.0.0.1:9",
        "HF_HOME": str(tmp_path / "home"),
        "PYTHONPATH": str(ROOT),
        "PATH": "",
    }
    command = [sys.executable, "-X", "importtime", "-m", "circuitlib.cli", "reproduce", "docstring"]
    done = subprocess.run(command, cwd=tmp_path, env=settings, capture_output=True, text=True, timeout=120)
    *loaded, message = done.stderr.splitlines()
    assert done.returncode == 3 and done.stdout == ""
    assert message.startswith("error: model 'attn-only-4l' is downloaded from the Hugging Face Hub")
    assert all(line.startswith("import time:") for line in loaded)
    names = {line.rpartition("|")[2].strip() for line in loaded}
    assert "huggingface_hub" in names and not names & {"torch", "transformers", "transformer_lens", "pandas"}
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".html"]


def test_the_command_with_the_stand_in_writes_its_report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["reproduce", "docstring", "--n", "2", "--method", "eap", "--method", "acdc"])
    assert done.exit_code == 0, done.stderr
    assert (
        done.stdout.startswith("# The docstring circuit in attn-only-4l")
        and "written: reproduce-docstring.html" in done.stderr
    )
    assert [path.name for path in tmp_path.iterdir()] == ["reproduce-docstring.html"]
    page = BeautifulSoup((tmp_path / "reproduce-docstring.html").read_text("utf8"), "html.parser")
    assert {"EAP", "ACDC, KL, τ = 0.005", "published circuit"} <= {cell.text for cell in page.find_all("td")}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["reproduce", "ioi", "--method", "exact"], 2, "error: methods: expected some of eap, eap-ig, acdc, got 'exact'"),
        (["reproduce", "docstring", "--out", "no/such/folder.html"], 2, "expected the name of a file in a folder that exists"),
        (["reproduce", "docstring", "--n", "2", "--prompts", "p.json"], 2, "error: p.json: can't be read"),
        (["reproduce", "docstrings"], 2, "docstrings"),
        (["download", "docstring-4l", "--to", "x"], 2, "error: names: 'docstring-4l' is not a model of the Hub"),
        (["manifest", "x"], 2, "error: folder: expected one laid out like the Hub's cache"),
    ],
)  # fmt: skip
def test_what_the_commands_can_not_use_is_one_line(arguments, code, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == code and said in " ".join(done.stderr.split())
    assert not list(tmp_path.iterdir())


def test_the_command_writes_a_manifest(models_folder):
    before = (models_folder / "SHA256SUMS").read_text()
    done = CliRunner().invoke(app, ["manifest", str(models_folder)])
    assert done.exit_code == 0 and done.stdout.strip() == str(models_folder / "SHA256SUMS")
    assert (models_folder / "SHA256SUMS").read_text() == before


def test_wrong_answers_of_another_number_are_refused(engines, tmp_path):
    model = engines["docstring"].model
    path = as_file(cl.docstring(model, n=3), model, tmp_path / "p.json")
    content = json.loads(path.read_text())
    content["prompts"][1]["wrong_answers"].pop()
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="wrong_answers: expected as many for each prompt, got 12 to 13"):
        prompts_from(model, path, "docstring", n=3)
