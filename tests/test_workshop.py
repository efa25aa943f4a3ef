"""What ``make workshop`` writes: copies for learners that give nothing away, copies for teachers, handouts, and a wheel that works."""

from __future__ import annotations

import ast
import filecmp
import json
import os
import re
import shutil
import subprocess
import sys
from base64 import b64decode
from functools import cache
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "_build" / "html"
sys.path.insert(0, str(ROOT / "book" / "tools"))
import chapter_map  # noqa: E402
import pdf  # noqa: E402
import workshop as tool  # noqa: E402

CHAPTERS = {path.stem: path for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
LISTED = {Path(c.name).name: c for part in chapter_map.read_parts() for c in part.chapters}


@pytest.fixture(params=CHAPTERS)
def name(request) -> str:
    return request.param


@cache
def chapter(name: str) -> dict:
    return json.loads(CHAPTERS[name].read_text("utf8"))


def source(cell: dict) -> str:
    return "".join(cell["source"])


def everything(value: object) -> str:
    """All text that a notebook holds, wherever: sources, outputs, metadata, keys, ids."""
    if isinstance(value, dict):
        return "\n".join(f"{key}\n{everything(below)}" for key, below in value.items())
    if isinstance(value, list):
        lines = all(isinstance(below, str) for below in value)
        return ("" if lines else "\n").join(map(everything, value))
    return str(value)


def solutions(name: str) -> list[str]:
    """Everything that stands in the folded solutions of a chapter, text and code."""
    text = "\n\n".join(source(cell) for cell in chapter(name)["cells"] if cell["cell_type"] == "markdown")
    return [piece.split("</details>")[0].strip() for piece in text.split("<summary>Solution</summary>")[1:]]


def stubs(notebook: dict) -> dict[str, tuple[dict, str]]:
    """Number of an exercise → the cell with its check, and the name of its function."""
    found = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code" and (
            match := re.search(r'^cl\.check\("([\w.]+)", (\w+)\)$', source(cell), flags=re.M)
        ):
            found[match[1]] = cell, match[2]
    return found


# --- copies for learners ------------------------------------------------------------------------------------------


def test_a_learner_gets_every_stub(name):
    asked, given = stubs(chapter(name)), stubs(tool.learner(chapter(name)))
    assert len(asked) == len(solutions(name)) > 0
    assert {number: source(cell) for number, (cell, _) in given.items()} == {
        number: source(cell) for number, (cell, _) in asked.items()
    }
    for cell, function in given.values():
        body = next(
            node for node in ast.parse(source(cell)).body if isinstance(node, ast.FunctionDef) and node.name == function
        ).body
        assert [ast.unparse(node) for node in body] == ["return None"]


def test_a_learner_gets_no_solution_anywhere(name):
    """Neither the whole of one, nor a line that the chapter has nowhere else."""
    held = everything(tool.learner(chapter(name)))
    assert "<summary>Solution" not in held
    rest = everything(
        {
            **chapter(name),
            "cells": [
                dict(cell, source=re.sub(r"<summary>Solution</summary>.*?</details>", "", source(cell), flags=re.S))
                for cell in chapter(name)["cells"]
            ],
        }
    )
    for solution in solutions(name):
        assert solution not in held
        for line in map(str.strip, solution.splitlines()):
            if len(line) > 12 and not line.startswith(("```", "def ")) and line not in rest:
                assert line not in held, line


def test_that_a_solution_would_be_seen():
    """The test above, on a copy that kept one."""
    name = "01_activation_patching"
    assert any(solution in everything(tool.instructor(chapter(name))) for solution in solutions(name))


def test_a_learner_keeps_hints_and_all_other_text(name):
    def texts(notebook: dict) -> list[str]:
        return [re.sub(r"\s+", " ", source(cell)) for cell in notebook["cells"] if cell["cell_type"] == "markdown"]

    cut = [dict(cell, source=tool.SOLUTION.sub("", source(cell))) for cell in chapter(name)["cells"]]
    expected, given = texts({"cells": cut}), texts(tool.learner(chapter(name)))
    assert len(expected) == len(given)
    for i, (before, after) in enumerate(zip(expected, given, strict=True)):
        if i and "../book/" not in before:
            assert after.strip() == before.strip()
    assert "\n".join(given).count("<summary>Hint") == len(solutions(name))
    assert "\n".join(given).count("<details>") == "\n".join(given).count("</details>")


def test_a_learner_gets_no_results(name):
    notebook = tool.learner(chapter(name))
    assert "widgets" not in notebook["metadata"]
    for cell in notebook["cells"]:
        assert set(cell["metadata"]) <= {"tags", "jupyter"}
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None


def test_code_is_the_same_in_all_three(name):
    codes = [
        [source(cell) for cell in notebook["cells"] if cell["cell_type"] == "code"]
        for notebook in (chapter(name), tool.learner(chapter(name)), tool.instructor(chapter(name)))
    ]
    assert codes[0] == codes[1] == codes[2]


# --- copies for teachers ------------------------------------------------------------------------------------------


def test_a_teacher_gets_every_solution_open(name):
    text = "\n\n".join(
        source(cell) for cell in tool.instructor(chapter(name))["cells"] if cell["cell_type"] == "markdown"
    )
    for solution in solutions(name):
        assert solution in text
    opened = re.findall(r"<details open>\s*<summary>(.+?)</summary>", text)
    assert opened == ["Solution"] * len(solutions(name))


def test_a_teacher_gets_the_results_of_the_book(name):
    outputs = [
        [cell.get("outputs") for cell in notebook["cells"]]
        for notebook in (chapter(name), tool.instructor(chapter(name)))
    ]
    assert outputs[0] == outputs[1]


# --- both ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [tool.learner, tool.instructor])
def test_a_copy_is_a_valid_notebook_that_says_what_it_is(name, make):
    notebook = make(chapter(name))
    nbformat.validate(nbformat.from_dict(notebook))
    first = source(notebook["cells"][0])
    assert (
        "colab" not in first.lower()
        and first.startswith(f"# {LISTED[name].title}\n")
        and "*A copy for a workshop" in first
    )
    assert json.dumps(chapter(name)) == json.dumps(json.loads(CHAPTERS[name].read_text("utf8"))), (
        "the chapter was changed"
    )
    for cell in notebook["cells"]:
        folded = "hide-input" in cell["metadata"].get("tags", [])
        assert cell["metadata"].get("jupyter") == ({"source_hidden": True} if folded else None)


@pytest.mark.parametrize("make", [tool.learner, tool.instructor])
def test_links_lead_into_the_folder(name, make):
    for cell in make(chapter(name))["cells"]:
        if cell["cell_type"] == "markdown":
            for address in re.findall(
                r"\]\((?!https?:|#)([^)\s]+)\)", re.sub(r"`[^`]*`|^```.*?^```", "", source(cell), flags=re.M | re.S)
            ):
                path = re.sub(r"#.*", "", address)
                if page := re.fullmatch(r"\.\./book/book/(\w+)\.html", path):
                    assert (ROOT / "book" / f"{page[1]}.md").exists(), address
                else:
                    assert path in {f"{stem}.ipynb" for stem in CHAPTERS}, address


def test_a_stamped_badge_is_left_out():
    notebook = json.loads(CHAPTERS["01_activation_patching"].read_text("utf8"))
    text = source(notebook["cells"][0])
    badge = "\n[![Open in Colab](../book/_static/colab-badge.svg)](https://colab.research.google.com/github/a/b/blob/v1/notebooks/x.ipynb)\n"
    plain = source(tool.learner(notebook)["cells"][0])
    notebook["cells"][0]["source"] = re.sub(
        r"(<!-- colab-badge -->\n)(?:\n\[!.*\n)?", lambda found: found[1] + badge, text
    )
    assert source(tool.learner(notebook)["cells"][0]) == plain


def cell(kind: str, text: str, **more) -> dict:
    code = {"outputs": [], "execution_count": None} if kind == "code" else {}
    return {"cell_type": kind, "id": "a", "metadata": {}, "source": text, **code, **more}


ASKED = "### Exercise 01.1: a thing\n\nDifficulty: ●○○○○ · about 5 minutes\n\nWrite it.\n\n"
SOLVED = "<details>\n<summary>Solution</summary>\n\n```python\ndef f():\n# no heading\n    return 1\n```\n\nBecause.\n\n</details>"


def book(*texts: str) -> dict:
    return {
        "cells": [cell("markdown", "# T\n"), *(cell("markdown", text) for text in texts)],
        "metadata": {},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def test_an_exercise_is_read_with_its_title_minutes_and_code():
    assert tool.exercises(book(ASKED + SOLVED, "## Next\n")) == [
        tool.Exercise("01.1", "a thing", 5, "def f():\n# no heading\n    return 1\n")
    ]


@pytest.mark.parametrize(
    ("notebook", "message"),
    [
        (book(ASKED), r"exercise 01\.1: expected its minutes and a solution"),
        (book(ASKED.replace("about 5 minutes", "hard") + SOLVED), r"exercise 01\.1: expected its minutes"),
        (book(ASKED + SOLVED, "## More\n\n" + SOLVED), r"T: expected a solution for each of 1 exercises, found 2"),
    ],
)
def test_what_a_chapter_lacks_is_named(notebook, message):
    with pytest.raises(ValueError, match=message):
        tool.learner(notebook)


# --- handouts -----------------------------------------------------------------------------------------------------


def plain(html: str) -> str:
    """The words of a page."""
    from bs4 import BeautifulSoup

    return (
        re.sub(r"\s+", " ", BeautifulSoup(html, "html.parser").body.get_text(" ")).replace(" ,", ",").replace(" .", ".")
    )


def words(markdown: str) -> str:
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", markdown)
    return re.sub(r"\s+", " ", re.sub(r"[*_`]", "", text)).strip()


def letters(text: str) -> str:
    return re.sub(r"[\W_]", "", text)


def test_a_handout_has_what_the_chapter_claims(name):
    html = tool.handout(chapter(name), LISTED[name])
    said = letters(plain(html))
    for title in ("What we showed", "What we did not show"):
        items = re.findall(r"^- (.+)$", tool.section(chapter(name), title), flags=re.M)
        assert len(items) >= 2
        for item in items:
            assert letters(words(item)) in said, item
    for item in re.findall(r"^- (.+)$", source(chapter(name)["cells"][1]), flags=re.M):
        assert letters(words(item)) in said, item
    asked = tool.questions(chapter(name))
    assert len(asked) >= 3 and all(letters(words(question)) in said for question in asked)
    assert f"{LISTED[name].minutes} minutes" in html and f"<h1>{LISTED[name].number} · " in html


def test_a_handout_gives_no_answer_away(name):
    html = tool.handout(chapter(name), LISTED[name])
    answers = tool.section(chapter(name), "Check yourself").split("</summary>")[1:]
    said = letters(plain(html))
    for answer in answers:
        for line in answer.split("</details>")[0].splitlines():
            if len(line) > 30:
                assert letters(words(line)) not in said


def test_a_handout_shows_the_signature_result_and_needs_no_other_file(name):
    html = tool.handout(chapter(name), LISTED[name])
    tagged = [cell for cell in chapter(name)["cells"] if "signature" in cell["metadata"].get("tags", [])]
    assert len(tagged) == 1, "tag one code cell of each chapter 'signature': the result that it is known by"
    pictures = ["".join(o["data"]["image/png"]) for o in tagged[0]["outputs"] if "image/png" in o.get("data", {})]
    shown = re.findall(r'<img alt="([^"]+)" src="data:image/png;base64,([^"]+)">', html)
    assert not re.search(r"<(script|link|iframe)\b|url\(|src=\"(?!data:)", html)
    if pictures:
        assert len(shown) == 1 and b64decode(shown[0][1]) == b64decode(pictures[0])
        assert len(shown[0][0].split()) >= 5
    else:
        printed = "".join("".join(o["text"]) for o in tagged[0]["outputs"])
        assert not shown and letters(printed) in letters(plain(html)) and len(letters(printed)) > 20


def test_links_of_a_handout_have_an_address_that_works_elsewhere(name):
    assert all(
        address.startswith("https://")
        for address in re.findall(r'href="([^"]*)"', tool.handout(chapter(name), LISTED[name]))
    )


# --- the folder ---------------------------------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path) -> Path:
    """Stands for the built book."""
    built = tmp_path / "html"
    (built / "book").mkdir(parents=True)
    (built / "index.html").write_text("a book")
    (built / ".ready").write_text("")
    return built


def no_wheel(root: Path, to: Path) -> Path:
    path = to / "circuitlib-1.2.3-py3-none-any.whl"
    path.write_bytes(b"wheel")
    return path


def test_the_folder_holds_everything(site, tmp_path, monkeypatch):
    monkeypatch.setattr(tool, "build_wheel", no_wheel)
    to = tmp_path / "dist" / "workshop"
    assert tool.main(["--to", str(to), "--site", str(site)]) == 0
    assert sorted(path.name for path in to.iterdir()) == ["README.md", "START_HERE.md", "book", "circuitlib-1.2.3-py3-none-any.whl", "constraints.txt", "handouts", "instructor", "learner"]  # fmt: skip
    for folder, suffix in (("learner", "ipynb"), ("instructor", "ipynb"), ("handouts", "html")):
        assert sorted(path.name for path in (to / folder).iterdir()) == [f"{stem}.{suffix}" for stem in CHAPTERS]
    for text in ("README.md", "START_HERE.md"):
        assert "circuitlib-1.2.3-py3-none-any.whl" in (to / text).read_text("utf8")
        assert not re.search(r"\{\w*\}", (to / text).read_text("utf8"))
    assert sorted(path.name for path in (to / "book").iterdir()) == ["book", "index.html"]
    assert (to / "constraints.txt").read_text() == (ROOT / "requirements.txt").read_text()
    assert sorted(path.name for path in to.parent.iterdir()) == ["workshop"]


@pytest.mark.parametrize("fails", ["build_wheel", "handout", "swap"])
def test_a_run_that_fails_leaves_the_last_folder(site, tmp_path, monkeypatch, capsys, fails):
    monkeypatch.setattr(tool, "build_wheel", no_wheel)
    to = tmp_path / "dist" / "workshop"
    assert tool.main(["--to", str(to), "--site", str(site)]) == 0
    (to / "learner" / "mine").write_text("kept")

    def break_down(*_):
        raise OSError("no space left on the stick")

    with monkeypatch.context() as context:
        context.setattr(tool, fails, break_down)
        assert tool.main(["--to", str(to), "--site", str(site)]) == 3
    assert capsys.readouterr().err == "error: no space left on the stick\n"
    assert (to / "learner" / "mine").read_text() == "kept"
    assert sorted(path.name for path in to.parent.iterdir()) == ["workshop"]
    assert tool.main(["--to", str(to), "--site", str(site)]) == 0
    assert not (to / "learner" / "mine").exists()


def test_a_run_killed_between_the_two_renames_loses_nothing(site, tmp_path, monkeypatch):
    monkeypatch.setattr(tool, "build_wheel", no_wheel)
    to = tmp_path / "dist" / "workshop"
    tool.write(to, site)
    to.rename(to.with_name(".workshop.old"))
    (to.with_name(".workshop.new") / "half").mkdir(parents=True)
    tool.recover(to)
    assert (to / "README.md").exists() and sorted(path.name for path in to.parent.iterdir()) == ["workshop"]


def test_without_a_built_book_one_line_says_so(tmp_path, capsys):
    assert tool.main(["--to", str(tmp_path / "x"), "--site", str(tmp_path)]) == 3
    assert capsys.readouterr().err == f"error: {tmp_path} holds no built book: run 'make book' first\n"
    assert not (tmp_path / "x").exists()


def test_a_wheel_that_cannot_be_built_gives_one_line(site, tmp_path, capsys, monkeypatch):
    def fail(root, to):
        raise subprocess.CalledProcessError(1, ["pip"], output="many lines\nerror: no setuptools\n")

    monkeypatch.setattr(tool, "build_wheel", fail)
    assert tool.main(["--to", str(tmp_path / "dist"), "--site", str(site)]) == 3
    assert capsys.readouterr().err == "error: the wheel could not be built: error: no setuptools\n"


# --- the page for teachers ----------------------------------------------------------------------------------------

PAGE = (ROOT / "book" / "workshop.md").read_text("utf8")
SCHEDULES = {"Half a day": 180, "A full day": 450}


def rows(title: str) -> list[list[str]]:
    """The rows of the first table below a heading."""
    text = PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
    table = re.search(r"^\| at .*\n\| ---.*\n((?:\|.*\n)+)", text, flags=re.M)[1]
    return [[entry.strip() for entry in line.strip("|").split("|")] for line in table.splitlines()]


def clock(text: str) -> int:
    hours, minutes = text.split(":")
    return 60 * int(hours) + int(minutes)


def said_minutes(number: str) -> int:
    """What an exercise says that it takes, in its chapter."""
    name = next(name for name in CHAPTERS if name.startswith(number.split(".")[0]))
    return next(exercise.minutes for exercise in tool.exercises(chapter(name)) if exercise.number == number)


@pytest.mark.parametrize("title", SCHEDULES)
def test_the_minutes_of_a_schedule_add_up(title):
    at = clock(rows(title)[0][0])
    for begins, minutes, *_ in rows(title):
        assert clock(begins) == at, begins
        at += int(minutes)
    assert at - clock(rows(title)[0][0]) == SCHEDULES[title]
    text = PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
    if until := re.search(r"From ([\d:]+) to ([\d:]+)", text):
        assert clock(until[1]) == clock(rows(title)[0][0]) and clock(until[2]) == at


@pytest.mark.parametrize("title", SCHEDULES)
def test_a_schedule_agrees_with_the_chapters(title):
    for _, minutes, what, material in rows(title):
        numbers = re.findall(r"\b\w\w\.\d\b", what)
        link = re.search(r"\]\(\.\./notebooks/(\w+)\.ipynb\)(.*)", material)
        assert bool(link) == ("exercise" in what or "task of your own" in what), what
        if not link:
            continue
        name, part = link.groups()
        there = [exercise.number for exercise in tool.exercises(chapter(name))]
        assert set(numbers) <= set(there)
        if part == ", whole":
            assert int(minutes) == LISTED[name].minutes
            assert numbers in ([], there)
        else:
            assert sum(map(said_minutes, numbers)) < int(minutes) < LISTED[name].minutes
            headings = re.findall(r"^##+ (.+)$", tool._markdown(chapter(name)), flags=re.M)
            for section in re.findall(r'"([^"]+)"', part):
                assert section in headings, section
            left_out = re.findall(r"without exercise ([\w.]+)", part)
            assert set(numbers) | set(left_out) == set(there) or "without" not in part


def test_what_can_be_left_out_saves_what_the_page_says():
    found = re.search(r"Leave out exercise ([\w.]+) \(half a day\) or ([\w.]+) \(full day\), (\d+) minutes each", PAGE)
    assert [said_minutes(number) for number in found.groups()[:2]] == [int(found[3])] * 2


# Numbers of the page that come from a chapter, and how the chapter prints them or says them.
QUOTED = {
    "10_pitfalls": {".85": "0.85  the choices of this book", "−.14": "-0.14  1 what stands in: zero", ".92": "0.92  1 what stands in: the mean",
                    "1.00": "m0→logits; faithfulness 1.00", ".37": "chosen on: 0.37", ".22": "on 40 others: 0.22",
                    ".03": "probability 0.03", ".11": "a3.4: logit difference 0.11"},
    "02_path_patching": {"6 true edges": "6 true edges", "12 under zeros": "the hand-made model has 12 true edges and not 6", ".93 each": "0.93  by the mover's key"},
    "08_acdc": {"43 edges": "edges kept by all five: 43", ".79 to .89": "0.79 to 0.89", "41,235": "41,235", ".95": "20 prompts of the search 0.95",
                ".88": "on 40 others 0.88", "740 edges": "740 of them cut", "By 74": "fallen by 74", "by 1.2": "It fell by 1.2"},
    "09_comparison": {".65": "EAP              Jaccard of two resamples 0.65", ".87": "ACDC, share .01  Jaccard of two resamples 0.87"},
    "06_edge_attribution_patching": {".34": "correlation 0.34"},
    "07_integrated_gradients": {".60": "is .60 with 5 steps"},
    "04_mover_heads": {"less than a quarter": "adds less than a quarter of what the weakest mover adds"},
    "05_docstring_circuit": {"28 edges": "28 of 1,281 edges"},
    "12_your_own_task": {"1.02": "faithfulness 1.02"},
    "a1_training_the_models": {"all but nine": "Nine heads are left."},
}  # fmt: skip


@pytest.mark.parametrize("name", QUOTED)
def test_numbers_of_the_page_are_those_of_the_chapters(name):
    held = everything(chapter(name))
    for here, there in QUOTED[name].items():
        assert here in PAGE and there in held, f"{here}: {there}"


def test_each_answer_has_a_number_a_source_or_says_conjecture():
    questions = PAGE.split("## Questions that come up")[1].split("\n## ")[0].strip().split("\n\n")
    assert len(questions) >= 10
    for text in questions:
        assert re.match(r"\*\*.+\?\*\* ", text), text
        assert re.search(r"\]\(\.\./notebooks/|\{cite:|conjecture", text), text


def test_times_are_given_for_every_chapter():
    numbers = re.search(r"^\| chapter \| (.+) \|$", PAGE, flags=re.M)[1].split(" | ")
    seconds = re.search(r"^\| seconds \| (.+) \|$", PAGE, flags=re.M)[1].split(" | ")
    assert numbers == [LISTED[name].number for name in CHAPTERS] and len(seconds) == len(numbers)


def test_the_version_of_torch_is_the_locked_one():
    said = re.findall(r"torch==([\d.]+)", (tool.TEXTS / "README.md").read_text("utf8"))
    assert said and {f"torch=={version}" for version in said} <= set((ROOT / "requirements.txt").read_text().split())


def test_as_many_answers_as_questions():
    questions, answers = (
        PAGE.split("### Questions\n")[1].split("### A small project")[0].split("<summary>Answers</summary>")
    )
    numbers = [re.findall(r"^(\d+)\. ", text, flags=re.M) for text in (questions, answers)]
    assert numbers[0] == numbers[1] == [str(i) for i in range(1, len(numbers[0]) + 1)] and 6 <= len(numbers[0]) <= 8


# --- the real thing -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dist(tmp_path_factory) -> Path:
    """The folder as ``make workshop`` writes it."""
    if not (SITE / "index.html").exists():
        pytest.fail("the book is not built: run 'make book' first, or 'make test-slow', which does", pytrace=False)
    to = tmp_path_factory.mktemp("dist") / "workshop"
    tool.write(to)
    return to


@pytest.fixture(scope="module")
def installed(dist, tmp_path_factory) -> Path:
    """A folder that holds the wheel, installed without a network, and nothing else of this repository."""
    target = tmp_path_factory.mktemp("installed")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-index",
        "--no-deps",
        "--target",
        target,
        *dist.glob("*.whl"),
    ]
    subprocess.run(pip, check=True, capture_output=True)
    return target


def execute(notebook, folder: Path, installed: Path) -> dict:
    """Run a notebook in ``folder``, in a kernel that has circuitlib from the wheel and no network."""
    from nbclient import NotebookClient

    folder.mkdir(exist_ok=True)
    environment = {
        **os.environ, "PYTHONPATH": str(installed), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "TQDM_DISABLE": "1",
    }  # fmt: skip
    running = nbformat.reads(json.dumps(notebook), as_version=4)
    running.cells.append(nbformat.v4.new_code_cell("import circuitlib, sys\nprint(circuitlib.__file__)"))
    client = NotebookClient(
        running, timeout=900, startup_timeout=180, kernel_name="python3", skip_cells_with_tag="nbval-skip"
    )
    client.execute(cwd=str(folder), env=environment)
    at = Path(running.cells.pop().outputs[0]["text"].strip())
    assert at.is_relative_to(installed), f"circuitlib came from {at}"
    return running


def solve(notebook: dict, name: str) -> dict:
    """A learner's notebook with the text of each solution typed over the stub."""
    notebook = json.loads(json.dumps(notebook))
    found = {exercise.number: exercise.solution for exercise in tool.exercises(chapter(name))}
    for number, (stub, function) in stubs(notebook).items():
        stub["source"] = f'{found[number]}\n\ncl.check("{number}", {function})'
    return notebook


def results(notebook: dict) -> dict[str, str]:
    """Number of an exercise → what its check said."""
    said = {}
    for number, (cell, _) in stubs(notebook).items():
        said[number] = "".join(cell["outputs"][-1]["data"]["text/plain"])
    return said


def printed(cell: dict) -> str:
    return "".join("".join(output["text"]) for output in cell.get("outputs", []) if output.get("name") == "stdout")


def read(path: Path) -> dict:
    return json.loads(path.read_text("utf8"))


@pytest.mark.slow
def test_two_runs_give_the_same_bytes(dist, tmp_path):
    again = tmp_path / "workshop"
    tool.write(again)

    def differences(compared: filecmp.dircmp) -> list[str]:
        mine = compared.left_only + compared.right_only
        mine += filecmp.cmpfiles(compared.left, compared.right, compared.common_files, shallow=False)[1]
        return mine + [found for below in compared.subdirs.values() for found in differences(below)]

    assert differences(filecmp.dircmp(dist, again)) == []


@pytest.mark.slow
def test_the_wheel_has_the_models_and_no_leftovers(dist):
    from zipfile import ZipFile

    (wheel,) = dist.glob("*.whl")
    names = set(ZipFile(wheel).namelist())
    packed = {
        f"circuitlib/{path.relative_to(ROOT / 'circuitlib').as_posix()}"
        for path in (ROOT / "circuitlib").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if name.startswith("circuitlib/")} == packed
    assert {
        "circuitlib/models/shipped/docstring-4l/model.safetensors",
        "circuitlib/models/shipped/gpt-mini/model.safetensors",
    } <= names
    assert not any(name.startswith(("tests/", "build/")) for name in names)


@pytest.mark.slow
def test_the_command_works_from_the_wheel(installed, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "circuitlib.cli", "models"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(installed)}, capture_output=True, text=True, timeout=300
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "docstring-4l" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", ["01_activation_patching", "02_path_patching", "10_pitfalls"])
def test_a_learner_who_solves_everything_gets_to_the_end(name, dist, installed, tmp_path):
    """Each cell of the learner's notebook, from a copy outside of the repository, with the wheel."""
    ran = execute(solve(read(dist / "learner" / f"{name}.ipynb"), name), tmp_path / "run", installed)
    said = results(ran)
    assert set(said) == set(stubs(chapter(name))) and all(text.startswith("✓") for text in said.values()), said
    assert [printed(cell) for cell in ran["cells"]] == [printed(cell) for cell in chapter(name)["cells"]]


@pytest.mark.slow
def test_every_exercise_passes_with_the_text_of_its_solution(dist, installed, tmp_path):
    """All chapters, one after the other in one kernel: what they import, and their exercises."""
    cells = []
    for name in CHAPTERS:
        notebook = solve(read(dist / "learner" / f"{name}.ipynb"), name)
        code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        imports = "\n".join(
            ast.unparse(node)
            for cell in code[1:]
            for node in ast.parse(source(cell)).body
            if isinstance(node, ast.Import | ast.ImportFrom)
        )
        cells += [code[0], cell_of(imports), *(stub for stub, _ in stubs(notebook).values())]
    for i, each in enumerate(cells):
        each["id"] = f"cell-{i}"
    ran = execute({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, tmp_path / "run", installed)
    said = results(ran)
    assert set(said) == {number for name in CHAPTERS for number in stubs(chapter(name))}
    assert {number: text for number, text in said.items() if not text.startswith("✓")} == {}


def cell_of(code: str) -> dict:
    return cell("code", code)


@pytest.mark.slow
def test_every_handout_prints_on_one_page_of_a4(dist, tmp_path):
    pypdf = pytest.importorskip("pypdf")
    try:
        chromium = pdf.find_chromium()
    except pdf.NoChromium as error:
        pytest.skip(str(error))
    for name in CHAPTERS:
        to = tmp_path / f"{name}.pdf"
        pdf.print_page(chromium, dist / "handouts" / f"{name}.html", to, offline=True)
        pages = pypdf.PdfReader(to).pages
        width, height = (float(x) * 25.4 / 72 for x in pages[0].mediabox[2:])
        assert len(pages) == 1 and abs(width - 210) < 1 and abs(height - 297) < 1, name
        text = letters(pages[0].extract_text())
        assert letters(LISTED[name].title) in text and "CCBY40" in text, "the last line of the page"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_workshop_is_this_tool():
    done = subprocess.run(["make", "-n", "workshop"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "book/tools/workshop.py" in done.stdout


def test_a_folder_that_is_no_workshop_is_left_alone(tmp_path, capsys):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("mine")
    assert tool.main(["--to", str(tmp_path / "mine"), "--site", str(tmp_path / "site")]) == 2
    assert "is no workshop's folder" in capsys.readouterr().err
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "mine"
