"""The notebook contract of CONTRIBUTING.md, for every chapter. What the cells print is nbval's business, not this file's."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ROOT / "book" / "tools"
sys.path.insert(0, str(TOOLS))
import notebooks as tool  # noqa: E402

CHAPTERS = sorted((ROOT / "notebooks").glob("*.ipynb"))

VERBS = """
    apply build break choose compare compute count cut define derive design draw explain find follow interpret judge list locate
    make measure name patch plot predict prove rank read recognise reproduce run say see show state swap tell test trace train
    turn use verify write
""".split()
LAST_SECTIONS = ("What we showed", "What we did not show", "Check yourself", "Further reading")
PICTURES = ("image/png", "image/jpeg", "image/svg+xml")


@pytest.fixture(params=CHAPTERS, ids=lambda path: path.stem)
def chapter(request) -> dict:
    """One notebook of the book, as JSON."""
    return tool.read(request.param)


def test_there_are_chapters():
    assert tool.chapters() == CHAPTERS


def test_no_chapters_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no notebook"):
        tool.chapters(tmp_path)


# --- reading a notebook -------------------------------------------------------------------------------------------


def source(cell: dict) -> str:
    return "".join(cell["source"])


def markdown(notebook: dict) -> list[str]:
    return [source(cell) for cell in notebook["cells"] if cell["cell_type"] == "markdown"]


def code_cells(notebook: dict) -> list[dict]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def tags(cell: dict) -> list[str]:
    return cell["metadata"].get("tags", [])


def prose(text: str) -> str:
    """Markdown without its code: neither fenced blocks nor spans."""
    return re.sub(r"`[^`\n]+`", "", re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.M | re.S))


def headings(notebook: dict) -> list[tuple[int, str]]:
    """(level, text) in order."""
    found = re.findall(r"^(#{1,6}) +(.+)$", "\n\n".join(map(prose, markdown(notebook))), flags=re.M)
    return [(len(marks), text.strip()) for marks, text in found]


def section(notebook: dict, title: str) -> list[dict]:
    """The cells from the one that holds the heading ``title`` up to the next heading of this or a higher level."""
    cells: list[dict] = []
    level = None
    for cell in notebook["cells"]:
        found = re.search(r"^(#{1,6}) +(.+)$", source(cell), flags=re.M) if cell["cell_type"] == "markdown" else None
        if level and found and len(found[1]) <= level:
            break
        if not level and found and any(title == text.strip() for _, text in headings({"cells": [cell]})):
            level = next(depth for depth, text in headings({"cells": [cell]}) if text == title)
        if level:
            cells.append(cell)
    return cells


def parsed(cell: dict) -> ast.Module:
    """The cell as Python, without the lines that only IPython understands."""
    return ast.parse(re.sub(r"^( *)[%!].*$", r"\1pass", source(cell), flags=re.M))


def texts(cell: dict) -> list[str]:
    """Everything that a cell printed or showed as text."""
    found = []
    for output in cell["outputs"]:
        if output["output_type"] == "stream":
            found.append("".join(output["text"]))
        elif output["output_type"] == "error":
            found.append("\n".join(output["traceback"]))
        else:
            found += ["".join(text) for mime, text in output["data"].items() if mime.startswith("text/")]
    return found


# --- how a chapter opens ------------------------------------------------------------------------------------------


def test_first_cell_says_what_it_is_how_long_and_what_is_needed(chapter):
    cell = chapter["cells"][0]
    assert cell["cell_type"] == "markdown"
    text = source(cell)
    assert text.startswith("# ")
    assert "<!-- colab-badge -->" in text or "colab.research.google.com" in text
    assert re.search(r"^\*\*Time:\*\* .*\d+ minutes", text, flags=re.M)
    assert re.search(r"^\*\*You need:\*\* \S", text, flags=re.M)


def test_there_is_one_title(chapter):
    assert [text for level, text in headings(chapter) if level == 1] == [headings(chapter)[0][1]]


def test_second_cell_lists_objectives_as_verbs(chapter):
    text = source(chapter["cells"][1])
    assert text.startswith("## Objectives\n")
    items = re.findall(r"^(?:[-*]|\d+\.) +(.+)$", text, flags=re.M)
    assert len(items) >= 2
    for item in items:
        verb = re.sub(r"\W", "", item.split()[0]).lower()
        assert verb in VERBS, f"objective {item!r}: expected it to start with a verb such as show, measure, compare"


def test_setup_cell_is_the_same_everywhere(chapter):
    cell = code_cells(chapter)[0]
    assert source(cell) == tool.SETUP_CELL.read_text("utf8").rstrip("\n")
    assert {"setup", "hide-input"} <= set(tags(cell))
    assert cell["outputs"] == []


# --- what a chapter holds -----------------------------------------------------------------------------------------


def test_there_is_a_negative_control(chapter):
    assert any("control" in tags(cell) for cell in code_cells(chapter)), "tag a code cell 'control'"


def test_numbers_in_the_text_are_asserted(chapter):
    cells = [cell for cell in code_cells(chapter) if "numbers" in tags(cell)]
    assert cells, "tag a code cell 'numbers'"
    for cell in cells:
        asserts = [node for node in ast.walk(parsed(cell)) if isinstance(node, ast.Assert)]
        assert asserts, f"tagged 'numbers', but asserts nothing: {source(cell)!r}"
        assert not any(isinstance(node.test, ast.Constant) for node in asserts), f"asserts a constant: {source(cell)!r}"


def test_nothing_is_left_to_fill_in(chapter):
    for cell in chapter["cells"]:
        assert not re.search(r"\b(TODO|FIXME|XXX|TBD|lorem ipsum)\b|\bgoes here\b", source(cell)), source(cell)


def exercise_titles(notebook: dict) -> list[str]:
    return [text for _, text in headings(notebook) if text.startswith("Exercise ")]


def test_exercises_are_numbered_in_order(chapter, request):
    number = request.node.callspec.id.split("_")[0]
    titles = exercise_titles(chapter)
    assert titles, "expected at least one heading '### Exercise 01.1: …'"
    assert [title.split(":")[0] for title in titles] == [f"Exercise {number}.{i + 1}" for i in range(len(titles))]


def test_each_exercise_is_complete(chapter):
    for title in exercise_titles(chapter):
        number = title.split()[1].rstrip(":")
        cells = section(chapter, title)
        text = "\n\n".join(source(cell) for cell in cells if cell["cell_type"] == "markdown")
        assert re.search(r"^Difficulty: [●○]{5} · about \d+ minutes?$", text, flags=re.M), (
            f"{title}: difficulty and minutes"
        )
        assert re.search(r"<details>\s*<summary>Hint.*?</summary>\n\n.+?</details>", text, flags=re.S), (
            f"{title}: a hint"
        )
        solution = re.search(r"<details>\s*<summary>Solution</summary>\n\n(.+?)</details>", text, flags=re.S)
        assert solution, f"{title}: a solution in <details>"
        stub = learner_function(cells, number)
        assert stub, f"{title}: expected a cell with a function and cl.check({number!r}, its_name)"
        returns = [node for node in ast.walk(stub) if isinstance(node, ast.Return)]
        assert all(node.value is None or ast.unparse(node.value) == "None" for node in returns), (
            f"{title}: a stub returns None"
        )
        assert stub.name in solved(solution[1], title), f"{title}: the solution does not define {stub.name}"


def learner_function(cells: list[dict], number: str) -> ast.FunctionDef | None:
    """The function in ``cells`` that ``cl.check(number, …)`` is called with."""
    trees = [parsed(cell) for cell in cells if cell["cell_type"] == "code"]
    for call in (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if ast.unparse(call.func) == "cl.check" and [ast.unparse(a) for a in call.args[:1]] == [repr(number)]:
            for node in (node for tree in trees for node in ast.walk(tree)):
                if isinstance(node, ast.FunctionDef) and node.name == ast.unparse(call.args[1]):
                    return node
    return None


def solved(text: str, title: str) -> set[str]:
    """Names that the fenced Python in a solution defines; it has to compile."""
    blocks = re.findall(r"^```python\n(.+?)^```", text, flags=re.M | re.S)
    assert blocks, f"{title}: expected the solution as a ```python block"
    return {node.name for block in blocks for node in ast.walk(ast.parse(block)) if isinstance(node, ast.FunctionDef)}


def test_stubs_fail_their_check_and_solutions_pass_it(chapter):
    """Each alone with what the chapter imports: a solution must not lean on a variable from above."""
    import circuitlib as cl

    imports = [
        ast.unparse(node)
        for cell in code_cells(chapter)
        for node in parsed(cell).body
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    for title in exercise_titles(chapter):
        number = title.split()[1].rstrip(":")
        cells = section(chapter, title)
        stub = learner_function(cells, number)
        text = "\n\n".join(source(cell) for cell in cells if cell["cell_type"] == "markdown")
        solution = re.search(r"<summary>Solution</summary>\n\n(.+?)</details>", text, flags=re.S)[1]
        blocks = re.findall(r"^```python\n(.+?)^```", solution, flags=re.M | re.S)
        for code, right in ((ast.unparse(stub), False), ("\n".join(blocks), True)):
            names: dict = {}
            exec("\n".join([*imports, code]), names)
            result = cl.check(number, names[stub.name])
            assert bool(result) == right, f"{title}: {'the solution' if right else 'the stub'}: {result}"
            assert result.hint == "", f"{title}: a hint that nobody asked for"


def test_later_cells_do_not_use_the_learners_function(chapter):
    for title in exercise_titles(chapter):
        cells = section(chapter, title)
        name = learner_function(cells, title.split()[1].rstrip(":")).name
        for cell in code_cells(chapter):
            if cell not in cells:
                used = {node.id for node in ast.walk(parsed(cell)) if isinstance(node, ast.Name)}
                assert name not in used, f"{title}: {name} is used outside of its exercise: {source(cell)!r}"


def test_ends_with_what_was_shown_and_what_was_not(chapter):
    second = [text for level, text in headings(chapter) if level == 2]
    assert tuple(second[-4:]) == LAST_SECTIONS
    for title in LAST_SECTIONS:
        assert len(prose("".join(source(cell) for cell in section(chapter, title)))) > len(f"## {title}\n\n")
    assert "https://" in "".join(source(cell) for cell in section(chapter, "Further reading"))


# --- what must not be there ---------------------------------------------------------------------------------------


def test_only_plain_markdown(chapter):
    for text in markdown(chapter):
        assert not re.search(r"\{[\w:-]+\}`", text), f"a MyST role: {text!r}"
        assert not re.search(r"^\s*(```+|:::+|~~~+)\s*\{", text, flags=re.M), f"a MyST directive: {text!r}"
        assert not re.search(r"^:::", text, flags=re.M), f"a MyST fence: {text!r}"
        assert not re.search(r"^\([\w-]+\)=\s*$", text, flags=re.M), f"a MyST target: {text!r}"
        assert text.count("<details>") == text.count("</details>"), f"an open <details>: {text!r}"


def test_no_cell_ends_with_a_semicolon(chapter):
    for cell in code_cells(chapter):
        assert not source(cell).rstrip().endswith(";"), source(cell)


def test_counts_run_from_one_to_n(chapter):
    run = [cell for cell in code_cells(chapter) if tool.SKIP_TAG not in tags(cell)]
    assert all(source(cell).strip() for cell in run), "an empty code cell"
    assert [cell["execution_count"] for cell in run] == list(range(1, len(run) + 1))


def test_skipped_cells_carry_no_outputs(chapter):
    for cell in code_cells(chapter):
        if tool.SKIP_TAG in tags(cell):
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


def test_no_error_outputs(chapter):
    for cell in code_cells(chapter):
        if "raises-exception" not in tags(cell):
            assert all(output["output_type"] != "error" for output in cell["outputs"]), source(cell)


def test_nothing_on_stderr_and_no_progress_bars(chapter):
    for cell in code_cells(chapter):
        for output in cell["outputs"]:
            assert output.get("name") != "stderr", "".join(output["text"])
        for text in texts(cell):
            assert not re.search(r"\d+%\|.*\||\d+it/s|\bit/s\]|\r", text), text


def test_no_path_and_no_address_of_one_machine(chapter):
    for cell in chapter["cells"]:
        for text in [source(cell), *(texts(cell) if cell["cell_type"] == "code" else [])]:
            assert not re.search(r"(?<![\w.:/])/(home|root|Users|tmp|usr|opt|mnt|private|var|work)/", text), text
            assert not re.search(r"\b[A-Z]:\\\\?\w", text), text
            assert not re.search(r"\b0x[0-9a-f]{6,}\b", text), text


def test_every_picture_has_a_text_alternative(chapter):
    for cell in code_cells(chapter):
        if any(mime in output.get("data", {}) for output in cell["outputs"] for mime in PICTURES):
            alt = cell["metadata"].get("mystnb", {}).get("image", {}).get("alt", "")
            assert len(alt.split()) >= 5, (
                f"metadata mystnb.image.alt is {alt!r}: say what the picture shows: {source(cell)!r}"
            )


def test_no_output_holds_a_whole_library(chapter):
    for cell in code_cells(chapter):
        for text in texts(cell):
            assert len(text) < 200_000, f"{len(text)} characters of output: {source(cell)!r}"


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_canonical_form(path):
    assert tool.dumps(tool.canonical(tool.read(path))) == path.read_text("utf8"), "run 'make execute'"


def test_the_readme_shows_a_picture_of_a_chapter():
    pictures = [picture for path in CHAPTERS if (picture := tool.readme_picture(tool.read(path)))]
    assert pictures == [tool.README_PICTURE.read_bytes()], "run 'make execute'"


# --- the tools ----------------------------------------------------------------------------------------------------


def test_setup_cell_is_short():
    assert len(tool.SETUP_CELL.read_text("utf8").splitlines()) <= 12


def test_setup_cell_on_colab_says_what_is_missing_and_installs_nothing():
    """On a simulated Colab without circuitlib and without an address: one message, no pip."""
    code = f"""
        import importlib.util, re, sys, types
        from pathlib import Path
        from IPython.core.interactiveshell import InteractiveShell

        sys.modules["google.colab"] = types.ModuleType("google.colab")
        importlib.util.find_spec = lambda name: None
        shell = InteractiveShell.instance()
        shell.magics_manager.register_function(lambda line: print("PIP", line), magic_name="pip")
        before, _, after = re.split(r'^REPO = "(.*?)"', Path({str(tool.SETUP_CELL)!r}).read_text("utf8"), flags=re.M)
        shell.run_cell(before + 'REPO = ""' + after)
        print("\\n=====")
        shell.run_cell(before + 'REPO = "git+https://example.org/book"' + after)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, cwd=ROOT, timeout=600
    )
    unstamped, stamped = re.sub(r"\x1b\[[\d;]*m", "", done.stdout).split("\n=====\n")
    assert "AssertionError: this copy of the book has no published address" in unstamped
    assert "PIP" not in unstamped
    command = next(line for line in stamped.splitlines() if line.startswith("PIP"))
    assert command.startswith('PIP install -q "circuitlib @ git+https://example.org/book" torch==')
    assert re.search(r" numpy==[\d.]+$", command)


def noisy(widget: str, time: str, pieces: list[str]) -> dict:
    """A notebook as one run leaves it: with random ids, time stamps and a stream cut into pieces."""
    layout, link, orphan = f"{widget}-layout", f"{widget}-link", f"{widget}-orphan"
    state = {
        orphan: {"model_name": "LayoutModel", "state": {}},
        link: {
            "model_name": "LinkModel",
            "state": {"source": [f"IPY_MODEL_{widget}", "value"], "target": [f"IPY_MODEL_{widget}", "max"]},
        },
        widget: {"model_name": "IntSliderModel", "state": {"layout": f"IPY_MODEL_{layout}", "value": 3}},
        layout: {"model_name": "LayoutModel", "state": {"width": None}},
    }
    view = {tool.WIDGET_VIEW: {"model_id": widget, "version_major": 2}, "text/plain": ["IntSlider(value=3)"]}
    outputs = [{"output_type": "stream", "name": "stdout", "text": piece} for piece in pieces]
    outputs.append({"output_type": "display_data", "data": view, "metadata": {}})
    cell = {
        "cell_type": "code",
        "id": widget[:5],
        "execution_count": 1,
        "metadata": {"tags": ["numbers"], "execution": {"iopub.status.busy": time}, "collapsed": False},
        "source": "print('a')\nprint('b')\n",
        "outputs": outputs,
    }
    metadata = {
        "kernelspec": {"name": "my-env", "display_name": "My env"},
        "language_info": {"name": "python", "version": time},
        "widgets": {tool.WIDGET_STATE: {"state": dict(sorted(state.items())), "version_major": 2, "version_minor": 0}},
    }
    return {"cells": [cell, dict(cell)], "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def test_two_runs_have_one_canonical_form():
    first = tool.canonical(noisy("9f3c", "12:00", ["a\nb\n"]))
    second = tool.canonical(noisy("0a1b", "13:30", ["a\n", "b\n"]))
    assert tool.dumps(first) == tool.dumps(second)
    assert tool.dumps(tool.canonical(first)) == tool.dumps(first)


def test_canonical_form_keeps_what_a_reader_sees():
    notebook = tool.canonical(noisy("9f3c", "12:00", ["a\nb\n"]))
    first, second = notebook["cells"]
    assert source(first) == "print('a')\nprint('b')"
    assert first["metadata"] == {"tags": ["numbers"]}
    assert texts(first) == ["a\nb\n", "IntSlider(value=3)"]
    assert first["id"] != second["id"]
    state = notebook["metadata"]["widgets"][tool.WIDGET_STATE]["state"]
    shown = first["outputs"][1]["data"][tool.WIDGET_VIEW]["model_id"]
    assert state[shown]["state"]["value"] == 3
    assert sorted(model["model_name"] for model in state.values()) == ["IntSliderModel", "LayoutModel", "LinkModel"]
    assert state[shown]["state"]["layout"].removeprefix("IPY_MODEL_") in state


def test_canonical_form_has_no_paths_from_a_traceback():
    notebook = noisy("9f3c", "12:00", [])
    frames = ["File /home/reader/x.py, line 3", "ValueError: no"]
    notebook["cells"][0]["outputs"] = [
        {"output_type": "error", "ename": "ValueError", "evalue": "no", "traceback": frames}
    ]
    assert tool.canonical(notebook)["cells"][0]["outputs"][0]["traceback"] == ["ValueError: no"]


def test_execute_runs_a_notebook_and_leaves_a_failing_one_alone(tmp_path, capsys):
    path = tmp_path / "x.ipynb"
    cell = {
        "cell_type": "code",
        "id": "a",
        "execution_count": None,
        "metadata": {},
        "outputs": [],
        "source": "print(6 * 7)",
    }
    notebook = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(notebook), "utf8")
    assert tool.main(["check", str(path)]) == 1
    assert tool.main(["execute", str(path)]) == 0
    assert texts(tool.read(path)["cells"][0]) == ["42\n"]
    assert tool.main(["check", str(path)]) == 0

    cell["source"] = "1 / 0"
    path.write_text(json.dumps(notebook), "utf8")
    before = path.read_text("utf8")
    assert tool.main(["execute", str(path)]) == 1
    assert path.read_text("utf8") == before
    assert "x.ipynb is left as it was" in capsys.readouterr().err
