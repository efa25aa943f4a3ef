"""Whatever a token, a label or a name holds: in no view does it become a tag, an attribute or a line of a script."""

from __future__ import annotations

import copy
import functools
import importlib.util
import json
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bs4 import BeautifulSoup, Comment
from ipywidgets.embed import dependency_state
from typer.testing import CliRunner

import circuitlib as cl
from circuitlib import cli
from circuitlib.plotting import AttentionView
from circuitlib.reproduction import Reproduction, Row

ROOT = Path(__file__).resolve().parents[1]
TAG = "<img src=x onerror=alert(1)>"
HOSTILE = [
    f"</script>{TAG}",
    f"'>{TAG}",
    f'">{TAG}',
    f"-->{TAG}",
    f"]]>{TAG}",
    f"</title></style></textarea></td>{TAG}",
    "x' onmouseover='alert(1)' y=\" onmouseover=\"alert(1)\"",
    "<!--<script>",
    "${alert(1)}{{alert(1)}}\\u003cimg src=x onerror=alert(1)\\u003e",
    "&lt;img src=x onerror=alert(1)&gt;\u2028\u2029\0",
]
HARMLESS = "a name"


@functools.cache
def model():
    return cl.load_model("docstring-4l")


@functools.cache
def gate():
    it = cl.load_model("handmade-and")
    return cl.Engine(it, cl.default_task(it, n=8))


def tool(name: str):
    path = ROOT / "book" / "tools" / f"{name}.py"
    sys.path.insert(0, str(path.parent))
    try:
        spec = importlib.util.spec_from_file_location(f"tool_{name}", path)
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(path.parent))


# --- views that are HTML -----------------------------------------------------------------------------------------------


def attention(word: str) -> str:
    view = AttentionView(("a0.0",), ("one", word, word), np.tril(np.full((1, 3, 3), 0.4)))
    return view.html() + view.html(bundle=True)


def attention_of_a_model(word: str) -> str:
    return cl.plot_attention(model(), [1, 2, 3], ["a0.0", "a1.0"], labels=[word] * 3).html()


def explorer(word: str) -> str:
    scores = cl.eap(gate())
    claim = cl.Circuit(gate().graph, ["m0→logits"], task=word)
    view = cl.explore({word: scores, word + "2": claim}, claim, roles={word: ["a0.1"]}, title=word, size=3)
    return view.html + view.page + view.at(2).to_html()


def report(word: str) -> str:
    rows = (Row(word, word, 1.0, None, word),)
    return Reproduction("ioi", rows, (word,), {word: word}, {word: cl.plot_circuit(gate().all)}).to_html()


def report_as_markdown(word: str) -> str:
    """As a notebook or GitHub shows it: there tags in Markdown are tags."""
    from markdown_it import MarkdownIt

    text = Reproduction("ioi", (Row(word, word, 1.0, None, word),), (word,), {word: word}).to_markdown()
    return MarkdownIt("commonmark", {"html": True}).enable("table").render(text)


def tables(word: str) -> str:
    circuits = {word: gate().all, word + "2": cl.Circuit(gate().graph, ["m0→logits"], task=word)}
    return cl.evaluate(gate(), circuits)._repr_html_()


def widgets(make):
    """Each text of a widget that becomes HTML. Other texts are set as text, unless a widget is told otherwise."""

    def view(word: str) -> str:
        found = []
        for widget in [one for live in (False, True) for one in make(word, live)]:
            for content in dependency_state([widget]).values():
                state = content["state"]
                assert not state.get("description_allow_html")
                if content["model_name"] in ("HTMLModel", "HTMLMathModel", "LabelModel"):
                    found.append(state.get("value", ""))
        assert found
        return "".join(f"<div>{text}</div>" for text in found)

    return view


@widgets
def attention_widget(word: str, live: bool):
    yield cl.view_attention(model(), {word: [0, 5, 6], "other": [0, 7, 8]}, labels=[word] * 3, live=live)


@widgets
def prompt_widget(word: str, live: bool):
    pair = (f"def link(self, {word} count", f"def link(self, {word} route")
    yield cl.edit_prompts(model(), pair[0], {word: pair[1]}, " item", ["group"], live=live)


@widgets
def ablation_widget(word: str, live: bool):
    task = cl.docstring(model(), n=2)
    marked = {f"{word} {name}": at for name, at in task.positions.items()}
    yield cl.ablate_heads(
        model(), replace(task, name=word, positions=marked, labels=[word] * len(task.labels)), ["a0.0"], live=live
    )


def chapter_map(word: str) -> str:
    it = tool("chapter_map")
    parts = it.read_parts()
    first = parts[0].chapters[0]
    changed = type(first)(**{**vars(first), "title": word[:40]})
    parts = [type(parts[0])(word, (changed, *parts[0].chapters[1:])), *parts[1:]]
    return it.draw(parts, lambda name: f"{name}{word}.html")


def handout(word: str) -> str:
    it = tool("workshop")
    chapter = next(chapter for part in tool("chapter_map").read_parts() for chapter in part.chapters)
    notebook = copy.deepcopy(json.loads((ROOT / f"{chapter.name}.ipynb").read_text("utf8")))
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            output["text"] = [word]
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown" and source.startswith("## What we "):
            title, _, rest = source.partition("\n")
            cell["source"] = f"{title}\n\n{word} {rest}"
    return it.handout(notebook, type(chapter)(**{**vars(chapter), "title": word}))


def exported_page(word: str) -> str:
    return exported(word, ".html", "--title", word)


def exported(word: str, suffix: str, *options: str) -> str:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "c.json", Path(folder) / f"c{suffix}"
        cl.Circuit(gate().graph, ["m0→logits", "a0.1→m0"], task=word).save(path)
        result = CliRunner().invoke(cli.app, ["export", str(path), "--out", str(out), *options])
        assert result.exit_code == 0, result.stderr
        return out.read_text("utf8")


VIEWS = [attention, attention_of_a_model, explorer, report, report_as_markdown, tables, attention_widget, prompt_widget, ablation_widget, chapter_map, handout, exported_page]  # fmt: skip
NAMES = ["attention", "attention of a model", "explorer", "report", "report as Markdown", "tables", "attention widget", "prompt widget", "ablation widget", "chapter map", "handout", "exported page"]  # fmt: skip


def skeleton(text: str) -> tuple[set, int]:
    """Tags with the names of their attributes; how many scripts run."""
    soup = BeautifulSoup(text, "html.parser")
    tags = {(tag.name, *sorted(tag.attrs)) for tag in soup.find_all(True)}
    scripts = [tag for tag in soup.find_all("script") if tag.get("type", "text/javascript") != "application/json"]
    assert not soup.find_all(string=lambda piece: isinstance(piece, Comment) and "alert" in piece)
    assert not any("alert(1)" in script.text or "<img" in script.text for script in scripts)
    assert not any(str(tag.get(name, "")).strip().lower().startswith("javascript:") for tag in soup.find_all(True) for name in ("href", "src"))  # fmt: skip
    return tags, len(scripts)


@functools.cache
def harmless(view):
    return skeleton(view(HARMLESS))


@pytest.mark.parametrize("view", VIEWS, ids=NAMES)
def test_a_hostile_text_adds_no_tag_no_attribute_and_no_script(view):
    tags, scripts = harmless(view)
    for word in HOSTILE[::3] if view is prompt_widget else HOSTILE:  # that one patches a model each time
        text = view(word)
        found, ran = skeleton(text)
        assert found <= tags, (word, found - tags)
        assert ran == scripts, word
        assert ("img", "onerror", "src") not in found and "src=x" not in str(BeautifulSoup(text, "html.parser").find_all("img", src="x"))  # fmt: skip


def test_a_tag_that_got_through_would_be_seen():
    tags, scripts = skeleton("<p>a name</p><script>1</script>")
    assert not skeleton(f"<p>{TAG}</p>")[0] <= tags
    assert not skeleton("<p onmouseover='alert(1)'>a</p>")[0] <= tags
    assert skeleton("<p></p><script></script><script>2</script>")[1] != scripts
    for text in ("<script>'alert(1)'</script>", "<a href='javascript:alert(1)'></a>", "<!--alert-->"):
        with pytest.raises(AssertionError):
            skeleton(text)


# --- files for other programs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", HOSTILE[:8])
def test_a_picture_is_well_formed_and_holds_no_tag_of_a_name(word):
    plain, hostile = (ET.fromstring(exported(text, ".svg", "--title", text)) for text in (HARMLESS, word))
    assert {(e.tag, *sorted(e.attrib)) for e in hostile.iter()} <= {(e.tag, *sorted(e.attrib)) for e in plain.iter()}


@pytest.mark.parametrize("word", HOSTILE[:8])
def test_graphml_gives_the_name_back_as_it_was(word):
    import networkx

    text = exported(word, ".graphml")
    assert networkx.parse_graphml(text).graph["task"] == word
    assert TAG not in text


def test_graphviz_and_tables_hold_no_name_at_all():
    for suffix in (".dot", ".csv"):
        assert exported(HARMLESS, suffix) == exported(HOSTILE[0], suffix)
