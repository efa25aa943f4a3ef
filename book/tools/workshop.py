"""Write everything that a workshop needs into one folder that works without a network.

    python book/tools/workshop.py            # or: make workshop, which builds the site first

``dist/workshop`` then holds

- ``learner/``: the chapters without solutions and without outputs,
- ``instructor/``: the chapters with solutions opened and with the outputs of the book,
- ``handouts/``: a page of A4 for each chapter, made of its objectives, its signature result and what it showed,
- ``circuitlib-….whl``, with the models, and ``constraints.txt``, the versions that the book is tested with,
- ``book/``: the built site,
- ``README.md`` for the teacher and ``START_HERE.md`` for everybody.

All of it is generated and none of it is edited by hand. Two runs on the same files give the same bytes; the times in the wheel are
those of the variable SOURCE_DATE_EPOCH. A run that fails or is killed leaves the last folder as it was.
"""

from __future__ import annotations

import argparse
import copy
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from base64 import b64decode, b64encode
from dataclasses import dataclass
from html import escape
from pathlib import Path

from chapter_map import Chapter, read_parts

import notebooks

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "_build" / "html"
TEXTS = Path(__file__).with_name("workshop_files")  # README.md and START_HERE.md, with {wheel} for its name
SIGNATURE_TAG = "signature"
FOLDED_TAG = "hide-input"
BADGE = re.compile(r"^<!-- colab-badge -->\n(?:\n\[!\[Open in Colab\].*\n)?\n?", flags=re.M)
SOLUTION = re.compile(r"<details>\s*<summary>Solution</summary>\n(.*?)</details>\n*", flags=re.S)
EPOCH = "315532800"  # 1980-01-01, the first day that a zip file can name


# Notebooks ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Exercise:
    """An exercise as its chapter prints it.

    Args:
        number: "01.1".
        title: what follows the number in the heading.
        minutes: how long it may take.
        solution: the Python of its solution.
    """

    number: str
    title: str
    minutes: int
    solution: str


def learner(notebook: dict) -> dict:
    """The chapter as a learner gets it: no solutions, no outputs, nothing of either in the metadata; hints stay.

    Raises:
        ValueError: an exercise without a solution to take out, or a solution outside of an exercise.
    """
    made = _copy(notebook, "solutions are left out, and so are all results: run the cells to see yours")
    found = 0
    for cell in made["cells"]:
        if cell["cell_type"] == "markdown":
            text, removed = SOLUTION.subn("", _text(cell))
            found += removed
            cell["source"] = text.rstrip("\n").splitlines(keepends=True)
        else:
            cell["outputs"], cell["execution_count"] = [], None
            cell["metadata"].pop("mystnb", None)  # the text for who can't see a picture says what will be in it
    made["metadata"].pop("widgets", None)
    asked = len(exercises(notebook))
    if found != asked:
        raise ValueError(f"{_title(notebook)}: expected a solution for each of {asked} exercises, found {found}")
    return _finished(made)


def instructor(notebook: dict) -> dict:
    """The chapter as a teacher gets it: solutions open, outputs as in the book."""
    made = _copy(notebook, "solutions are open, and the results are those of the book")
    for cell in made["cells"]:
        if cell["cell_type"] == "markdown":
            opened = re.sub(r"<details>(\s*<summary>Solution</summary>)", r"<details open>\1", _text(cell))
            cell["source"] = opened.splitlines(keepends=True)
    return _finished(made)


def exercises(notebook: dict) -> list[Exercise]:
    """All exercises of a chapter, in order.

    Raises:
        ValueError: an exercise without its minutes, or without a solution in Python.
    """
    found, text = [], _markdown(notebook)
    for heading in re.finditer(
        r"^### Exercise ([\w.]+): ([^\n]+)\n(.*?)(?=^#{1,3} |\Z)", _outside_code(text), flags=re.M | re.S
    ):
        number, title, body = heading[1], heading[2], text[slice(*heading.span(3))]
        minutes = re.search(r"^Difficulty: .* about (\d+) minutes?$", body, flags=re.M)
        solution = SOLUTION.search(body)
        blocks = re.findall(r"^```python\n(.+?)^```", solution[1] if solution else "", flags=re.M | re.S)
        if not minutes or not blocks:
            raise ValueError(f"exercise {number}: expected its minutes and a solution as a ```python block")
        found.append(Exercise(number, title.strip(), int(minutes[1]), "\n".join(blocks)))
    return found


def section(notebook: dict, title: str) -> str:
    """The text below the heading ``## title``, up to the next one.

    Raises:
        ValueError: no such heading.
    """
    text = _markdown(notebook)
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", _outside_code(text), flags=re.M | re.S)
    if not found:
        raise ValueError(f"{_title(notebook)}: expected a section '## {title}'")
    return text[slice(*found.span(1))].strip()


def questions(notebook: dict) -> list[str]:
    """The questions of "Check yourself", without their answers: a numbered list, or the summaries of folded answers."""
    text = section(notebook, "Check yourself")
    folded = [summary for summary in re.findall(r"<summary>(.+?)</summary>", text) if summary != "Answers"]
    return folded or re.findall(r"^\d+\. (.+)$", text.partition("<details>")[0], flags=re.M)


def signature(notebook: dict) -> tuple[bytes | None, str]:
    """The result that a chapter is known by: its picture as PNG and a text for who can't see it, or None and printed text.

    Raises:
        ValueError: no cell, or more than one, tagged ``signature``, or nothing in it to show.
    """
    cells = [cell for cell in notebook["cells"] if SIGNATURE_TAG in cell["metadata"].get("tags", [])]
    if len(cells) != 1:
        raise ValueError(f"{_title(notebook)}: expected one cell tagged '{SIGNATURE_TAG}', found {len(cells)}")
    outputs = cells[0].get("outputs", [])
    pictures = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    printed = "".join("".join(output["text"]) for output in outputs if output.get("name") == "stdout")
    if pictures:
        return b64decode("".join(pictures[0])), cells[0]["metadata"].get("mystnb", {}).get("image", {}).get("alt", "")
    if not printed:
        raise ValueError(f"{_title(notebook)}: the cell tagged '{SIGNATURE_TAG}' shows no picture and prints nothing")
    return None, printed


def _copy(notebook: dict, what: str) -> dict:
    """A copy to be changed; its first cell says what it is, and its links lead to where the book is here."""
    made = copy.deepcopy(notebooks.canonical(notebook))
    for cell in made["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = _links(BADGE.sub("", _text(cell))).splitlines(keepends=True)
    first = made["cells"][0]
    first["source"] = [*first["source"], f"\n\n*A copy for a workshop: {what}.*"]
    return made


def _links(text: str) -> str:
    """Links to the pages of the book lead into the folder ``book`` beside the notebooks."""
    return re.sub(r"\]\(\.\./book/(\w+)\.md(#[\w-]+)?\)", r"](../book/book/\1.html\2)", text)


def _finished(notebook: dict) -> dict:
    """Each cell's id made again from what it says now, and cells folded that the book folds."""
    made = notebooks.canonical(notebook)
    for cell in made["cells"]:
        if cell["cell_type"] == "code" and FOLDED_TAG in cell["metadata"].get("tags", []):
            cell["metadata"]["jupyter"] = {"source_hidden": True}
    return made


def _text(cell: dict) -> str:
    return "".join(cell["source"])


def _markdown(notebook: dict) -> str:
    return "\n\n".join(_text(cell) for cell in notebook["cells"] if cell["cell_type"] == "markdown") + "\n"


def _outside_code(text: str) -> str:
    """As long as ``text``, with blanks where it has code: a comment there is no heading."""
    return re.sub(r"^```.*?^```$", lambda block: re.sub(r".", " ", block[0]), text, flags=re.M | re.S)


def _title(notebook: dict) -> str:
    return _text(notebook["cells"][0]).partition("\n")[0].removeprefix("# ")


# Handouts -----------------------------------------------------------------------------------------

PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{heading}</title>
<style>
@page {{ size: A4; margin: 0; }}
* {{ box-sizing: border-box; }}
html {{ background: #e5e7eb; }}
body {{
  background: #fff; color: #1f2328; display: flex; flex-direction: column; gap: 3.5mm; height: 296mm; margin: 0 auto; padding: 12mm 14mm 9mm; width: 210mm;
  font: 9.2pt/1.38 "Helvetica Neue", Arial, "Liberation Sans", "DejaVu Sans", sans-serif;
}}
h1 {{ border-bottom: 1.5pt solid #0a7d91; font-size: 17pt; line-height: 1.2; margin: 0; padding-bottom: 1.5mm; }}
h1 small {{ color: #55595f; float: right; font-size: 9pt; font-weight: normal; padding-top: 2.4mm; }}
h2 {{ break-after: avoid; color: #075e6d; font-size: 10.5pt; margin: 0 0 1mm; }}
ul, ol {{ margin: 0; padding-left: 4.5mm; }}
li {{ break-inside: avoid; margin: 0 0 0.7mm; }}
p {{ margin: 0; }}
a {{ color: inherit; }}
code, pre {{ font-family: "SF Mono", Consolas, "Liberation Mono", "DejaVu Sans Mono", monospace; font-size: 0.9em; }}
pre {{ background: #f3f4f5; font-size: 10pt; line-height: 1.6; margin: 0; padding: 3mm 5mm; white-space: pre-wrap; }}
figure {{ flex: 1 1 0; margin: 0; min-height: 60mm; min-width: 0; }}
figure.printed {{ flex: none; min-height: 0; }}
figure img {{ display: block; height: 100%; margin: auto; object-fit: contain; width: 100%; }}
.text {{ column-gap: 7mm; columns: 2; }}
.text figure {{ break-inside: avoid; margin: 0 0 3.5mm; }}
.text figure img {{ height: auto; max-height: 125mm; }}
section {{ margin: 0 0 3mm; }}
footer {{ border-top: 0.5pt solid #9aa0a6; color: #55595f; display: flex; font-size: 8pt; justify-content: space-between; margin-top: auto; padding-top: 1.5mm; }}
@media print {{ html {{ background: none; }} }}
</style>
</head>
<body>
<h1>{heading}<small>{minutes} minutes</small></h1>
{above}<main class="text">
{text}
</main>
<footer><span>Transformer circuits · {file}</span><span>CC BY 4.0</span></footer>
</body>
</html>
"""

# Of a page of A4, in millimetres: what the margins leave, and how high the two columns of text get for each word.
PAGE_WIDTH, PAGE_HEIGHT, COLUMN_WIDTH, A_WORD = 182, 250, 87.5, 0.33


def handout(notebook: dict, chapter: Chapter) -> str:
    """One page of A4 as HTML that needs no other file.

    The signature picture stands above the text and takes what the text leaves, or in a column where it comes out larger there.
    """
    texts = {title: section(notebook, title) for title in ("What we showed", "What we did not show")}
    texts = {"Objectives": _text(notebook["cells"][1]).partition("\n")[2], **texts}
    texts["Check yourself"] = "\n".join(f"{i}. {question}" for i, question in enumerate(questions(notebook), 1))
    asked = [f"- {exercise.number}: {exercise.title} ({exercise.minutes} min)" for exercise in exercises(notebook)]
    texts["Exercises"] = "\n".join(asked)
    sections = [f"<section><h2>{title}</h2>{_html(text)}</section>\n" for title, text in texts.items()]
    picture, words = signature(notebook)
    above = True
    if picture is None:
        figure = f'<figure class="printed"><pre>{escape(words.rstrip())}</pre></figure>\n'
    else:
        data = b64encode(picture).decode()
        figure = f'<figure><img alt="{escape(words, quote=True)}" src="data:image/png;base64,{data}"></figure>\n'
        left = PAGE_HEIGHT - A_WORD * sum(len(text.split()) for text in texts.values())
        above = min(PAGE_WIDTH, left / _ratio(picture)) > COLUMN_WIDTH
    if not above:
        sections.insert(1, figure)
    return PAGE.format(
        heading=escape(f"{chapter.number} · {chapter.title}"),
        minutes=chapter.minutes,
        above=figure if above else "",
        text="".join(sections),
        file=f"{Path(chapter.name).name}.ipynb",
    )


def _ratio(png: bytes) -> float:
    """Height by width of a picture, from its header."""
    width, height = struct.unpack(">II", png[16:24])
    return height / width


def _html(text: str) -> str:
    """Markdown as HTML. Links to other pages lose their address: on paper it is of no use."""
    from markdown_it import MarkdownIt

    html = MarkdownIt("commonmark", {"html": False}).render(_links(text))
    return re.sub(r'<a href="(?!https?:)[^"]*">(.*?)</a>', r"\1", html)


# The folder ---------------------------------------------------------------------------------------


def write(to: Path, site: Path = SITE, root: Path = ROOT) -> None:
    """Fill a new folder beside ``to``, then put it in its place.

    Raises:
        FileNotFoundError: ``site`` holds no built book.
        ValueError: a chapter that lacks something, or ``to`` is another folder.
        subprocess.CalledProcessError: the wheel could not be built; the log is its ``output``.
    """
    if not (site / "index.html").exists():
        raise FileNotFoundError(f"{site} holds no built book: run 'make book' first")
    if to.exists() and not ((to / "START_HERE.md").is_file() and (to / "learner").is_dir()):
        raise ValueError(f"--to: {to} is there and is no workshop's folder; expected a new one")
    to.parent.mkdir(parents=True, exist_ok=True)
    recover(to)
    new = _beside(to, "new")
    try:
        for name in ("learner", "instructor", "handouts"):
            (new / name).mkdir(parents=True)
        for part in read_parts(root):
            for chapter in part.chapters:
                _write_chapter(new, root, chapter)
        shutil.copytree(site, new / "book", ignore=shutil.ignore_patterns(".ready", ".buildinfo", ".doctrees"))
        shutil.copy(root / "requirements.txt", new / "constraints.txt")
        wheel = build_wheel(root, new)
        for text in TEXTS.glob("*.md"):
            (new / text.name).write_text(text.read_text("utf8").replace("{wheel}", wheel.name), "utf8")
        swap(new, to)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _write_chapter(new: Path, root: Path, chapter: Chapter) -> None:
    notebook = notebooks.read(root / f"{chapter.name}.ipynb")
    name = Path(chapter.name).name
    for folder, make in (("learner", learner), ("instructor", instructor)):
        (new / folder / f"{name}.ipynb").write_text(notebooks.dumps(make(notebook)), "utf8")
    (new / "handouts" / f"{name}.html").write_text(handout(notebook, chapter), "utf8")


def build_wheel(root: Path, to: Path) -> Path:
    """A wheel of circuitlib in ``to``, built from a copy: what an earlier build left in the tree can't get into it."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "circuitlib"
        ignored = shutil.ignore_patterns("__pycache__", "*.part")
        shutil.copytree(root / "circuitlib", source / "circuitlib", ignore=ignored)
        for name in ("pyproject.toml", "README.md", "LICENSE", "LICENSE-TEXT"):
            shutil.copy(root / name, source)
        pip = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--no-deps",
            "--no-build-isolation",
            "--no-index",
            "-w",
            to,
            source,
        ]
        environment = {"SOURCE_DATE_EPOCH": EPOCH, **os.environ}
        subprocess.run(pip, check=True, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return next(to.glob("circuitlib-*.whl"))


def swap(new: Path, to: Path) -> None:
    """Put ``new`` where ``to`` is, by two renames; ``recover`` undoes the first if the second never came."""
    old = _beside(to, "old")
    if to.exists():
        to.rename(old)
    new.rename(to)
    shutil.rmtree(old, ignore_errors=True)


def recover(to: Path) -> None:
    """After a run that was killed: bring the last folder back, remove what was begun."""
    old = _beside(to, "old")
    if old.exists() and not to.exists():
        old.rename(to)
    for begun in (old, _beside(to, "new")):
        if begun.exists():
            shutil.rmtree(begun)


def _beside(to: Path, what: str) -> Path:
    return to.with_name(f".{to.name}.{what}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write everything that a workshop needs into one folder.")
    parser.add_argument("--to", type=Path, default=ROOT / "dist" / "workshop", help="default: dist/workshop")
    parser.add_argument("--site", type=Path, default=SITE, help="the built book; default: _build/html")
    options = parser.parse_args(arguments)
    try:
        write(options.to.absolute(), options.site)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 3 if isinstance(error, OSError) else 2
    except subprocess.CalledProcessError as error:
        lines = (error.output or "").strip().splitlines() or ["no reason given"]
        print(f"error: the wheel could not be built: {lines[-1]}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
