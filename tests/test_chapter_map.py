"""The map of the chapters and the table of their times: what they say is what the notebooks say, and it fits."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "book" / "tools"))
import chapter_map as tool  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"
NAMES = re.findall(r"notebooks/\w+", (ROOT / "_toc.yml").read_text("utf8"))

# title, minutes, what it needs; longer titles and more crossings than a book should have
MADE_UP = {
    "By hand": {
        "01_first": ("First steps", 45, "Python."),
        "02_second": ("The second step", 5, "the chapter on first steps."),
        "03_third": (
            "Third: a title with a colon & an ampersand",
            125,
            "the chapter on the second step, or First steps.",
        ),
    },
    "Between": {"04_alone": ("Alone", 10, "nothing; this is not about thirds or a firsthand look.")},
    "Judging": {
        "10_last_one": ("Last", 15, "the chapters on the THIRD and the second step."),
        "a1_more": ("More", 30, "chapter 01_first, or the one on the last one."),
    },
}


@pytest.fixture
def book(tmp_path) -> Path:
    """A folder with the table of contents and the first cells of MADE_UP."""
    (tmp_path / "notebooks").mkdir()
    parts = [{"caption": "Before", "chapters": [{"file": "book/page"}]}]
    for caption, chapters in MADE_UP.items():
        parts.append({"caption": caption, "chapters": [{"file": f"notebooks/{name}"} for name in chapters]})
        for name, (title, minutes, needs) in chapters.items():
            time = f"about {minutes} minutes of reading; the cells take about 1 minute on two processor cores."
            write(tmp_path, name, f"# {title}\n\n**Time:** {time}\n\n**You need:** {needs}")
    (tmp_path / "_toc.yml").write_text(yaml.safe_dump({"root": "book/index", "parts": parts}, sort_keys=False), "utf8")
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    (root / "notebooks" / f"{name}.ipynb").write_text(json.dumps({"cells": [{"source": [text]}]}), "utf8")


def chapters(parts) -> list:
    return [chapter for part in parts for chapter in part.chapters]


# --- reading ------------------------------------------------------------------------------------------------------


def test_parts_and_chapters(book):
    parts = tool.read_parts(book)
    assert [part.caption for part in parts] == list(MADE_UP)
    assert [chapter.number for chapter in chapters(parts)] == ["1", "2", "3", "4", "10", "A1"]
    expected = [(title, minutes) for part in MADE_UP.values() for title, minutes, _ in part.values()]
    assert [(chapter.title, chapter.minutes) for chapter in chapters(parts)] == expected
    assert {chapter.cells for chapter in chapters(parts)} == {"about 1 minute"}


def test_what_a_chapter_builds_on(book):
    """By title without what follows a colon, by its initials, or by file name; what is implied is left out."""
    needs = {chapter.number: [Path(name).name for name in chapter.needs] for chapter in chapters(tool.read_parts(book))}
    assert needs == {"1": [], "2": ["01_first"], "3": ["02_second"], "4": [], "10": ["03_third"], "A1": ["10_last_one"]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("**Time:** 3 minutes\n\n**You need:** x", "04_alone: its first cell has no line of the form '# "),
        ("# T\n\n**You need:** x", r"04_alone: its first cell has no line of the form .*Time"),
        ("# T\n\n**Time:** an hour\n\n**You need:** x", r"04_alone: its line \*\*Time:\*\* gives no number of minutes"),
        ("# T\n\n**Time:** 3 minutes", r"04_alone: its first cell has no line of the form .*You need"),
    ],
)
def test_a_first_cell_that_lacks_something_is_named(book, text, message):
    write(book, "04_alone", text)
    with pytest.raises(ValueError, match=message):
        tool.read_parts(book)


def test_the_book_itself():
    """Each chapter of the table of contents, with the title and the minutes that its file holds."""
    found = {chapter.name: chapter for chapter in chapters(tool.read_parts())}
    assert list(found) == NAMES
    for name in NAMES:
        text = "".join(json.loads((ROOT / f"{name}.ipynb").read_text("utf8"))["cells"][0]["source"])
        assert text.startswith(f"# {found[name].title}\n")
        assert re.search(rf"^\*\*Time:\*\*.*\b{found[name].minutes} minutes", text, flags=re.M)
        assert "minute" in found[name].cells, f"{name}: the time that the cells take is not on the line **Time:**"
    assert found["notebooks/02_path_patching"].needs == ("notebooks/01_activation_patching",)


# --- the picture --------------------------------------------------------------------------------------------------


@pytest.fixture(params=["made up", "the book"])
def parts(request, book):
    return tool.read_parts(book if request.param == "made up" else ROOT)


def picture(parts) -> ET.Element:
    return ET.fromstring(tool.draw(parts, lambda name: f"../{name}.html?a=1&b=2"))


def text_width(text: str, size: float, bold: bool = False) -> float:
    """In a wide font, DejaVu Sans: the reader's own is rarely wider."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    return TextPath((0, 0), text, size=size, prop=FontProperties(weight="bold" if bold else "normal")).get_extents().x1


def test_each_chapter_has_a_box_that_leads_to_it(parts):
    links = picture(parts).findall(f"{SVG}a")
    assert [link.get("href") for link in links] == [f"../{chapter.name}.html?a=1&b=2" for chapter in chapters(parts)]
    for link, chapter in zip(links, chapters(parts), strict=True):
        texts = {text.get("class"): text.text for text in link.findall(f"{SVG}text")}
        title = " ".join(text.text for text in link.findall(f"{SVG}text") if text.get("class") is None)
        assert (texts["number"], title, texts["minutes"]) == (chapter.number, chapter.title, f"{chapter.minutes} min")
        assert f"{chapter.number} {chapter.title} {chapter.minutes} min" in link.get("aria-label")


def test_texts_stay_in_their_boxes(parts):
    root = picture(parts)
    width = float(root.get("viewBox").split()[2])
    assert 300 <= width <= 400  # on a phone of 390 pixels, letters are then about as large as in the text
    for link in root.findall(f"{SVG}a"):
        rect = link.find(f"{SVG}rect")
        left, right = float(rect.get("x")), float(rect.get("x")) + float(rect.get("width"))
        assert left >= 0 and right <= width
        title_ends, minutes_start = left, right
        for text in link.findall(f"{SVG}text"):
            x, y, kind = float(text.get("x")), float(text.get("y")), text.get("class")
            assert float(rect.get("y")) + 8 < y < float(rect.get("y")) + float(rect.get("height"))
            if kind is None:
                title_ends = max(title_ends, x + text_width(text.text, 13))
            elif kind == "minutes":
                minutes_start = x - text_width(text.text, 12)
            else:
                assert left < x - text_width(text.text, 13, bold=True) / 2
        assert title_ends + 4 < minutes_start
    for caption in root.findall(f"{SVG}text"):
        assert float(caption.get("x")) + text_width(caption.text, 12, bold=True) < width


def test_a_title_that_would_not_fit_is_refused(book):
    write(book, "04_alone", f"# {'Very long ' * 9}\n\n**Time:** 3 minutes\n\n**You need:** x")
    with pytest.raises(ValueError, match="04_alone: a title of 89 characters does not fit"):
        picture(tool.read_parts(book))


def test_a_way_for_each_need_and_none_other(parts):
    """Follow each line down from its box: its branches end at the boxes of the chapters that build on it."""
    root = picture(parts)
    middle = {}
    for link, chapter in zip(root.findall(f"{SVG}a"), chapters(parts), strict=True):
        rect = link.find(f"{SVG}rect")
        middle[float(rect.get("y")) + float(rect.get("height")) / 2] = chapter.name
    drawn, current = set(), None
    for path in root.findall(f"{SVG}path"):
        if path.get("class") == "tip":
            continue
        if found := re.fullmatch(r"M[\d.]+ ([\d.]+)H\S+Q\S+ \S+ (\S+) \S+V([\d.]+)", path.get("d")):
            current = (middle[float(found[1]) - 6], float(found[2]), float(found[3]))
        else:
            x, y = re.fullmatch(r"M(\S+) \S+Q\S+ \S+ \S+ ([\d.]+)H\S+", path.get("d")).groups()
            assert float(x) == current[1] > 0 and float(y) - 5 <= current[2]
            drawn.add((current[0], middle[float(y) + 6]))
    assert drawn == {(need, chapter.name) for chapter in chapters(parts) for need in chapter.needs}


def test_lines_of_one_lane_do_not_touch(parts):
    found = re.findall(r'd="M[\d.]+ ([\d.]+)H\S+Q\S+ \S+ (\S+) \S+V([\d.]+)"', tool.draw(parts, str))
    lines = sorted((float(lane), float(start), float(end)) for start, lane, end in found)
    assert lines
    for (lane, _, end), (next_lane, start, _) in zip(lines, lines[1:], strict=False):
        assert lane != next_lane or end < start


def test_the_map_in_words(book):
    root, words = picture(tool.read_parts(book)), tool.in_words(tool.read_parts(book))
    assert root.find(f"{SVG}desc").text == words
    assert words.startswith("By hand: 1 First steps, 45 minutes. 2 The second step, 5 minutes, builds on 1. 3 Third: a")
    assert words.endswith(
        "Between: 4 Alone, 10 minutes. Judging: 10 Last, 15 minutes, builds on 3. A1 More, 30 minutes, builds on 10."
    )
    ids = {element.get("id") for element in root}
    assert {root.get("aria-labelledby"), root.get("aria-describedby")} <= ids


def test_colours_are_the_theme_s_and_there_are_others_without_it():
    for line in tool.STYLE.split(";"):
        if re.search(r"(fill|stroke): ", line) and "none" not in line:
            assert re.search(r"(fill|stroke): var\(--pst-color-[a-z-]+, #[0-9a-f]{6}\)", line), line
    for rule in re.findall(r"^([^{\n]+)\{", tool.STYLE, flags=re.M):
        assert all(part.strip().startswith(".chapter-map") for part in rule.split(",")), f"{rule} is for the whole page"


# --- the table ----------------------------------------------------------------------------------------------------


def test_the_table(book):
    lines = tool.table(tool.read_parts(book), lambda chapter: f"[{chapter.title}]({chapter.name})").splitlines()
    assert lines[2] == "| 1 [First steps](notebooks/01_first) | 45 min | ≈\N{NO-BREAK SPACE}1\N{NO-BREAK SPACE}min |"
    assert len(lines) == 3 + 6
    assert lines[-1] == "| **together** | 3 h 50 min | |"


def test_a_file_of_its_own(tmp_path, capsys):
    assert tool.main([str(tmp_path / "map.svg")]) == 0
    assert ET.parse(tmp_path / "map.svg").getroot().tag == f"{SVG}svg"
    assert tool.main([]) == 2
    assert "usage" in capsys.readouterr().err
