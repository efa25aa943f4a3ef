"""A Sphinx extension: the map of the chapters and the table of their times, made anew at each build.

Both come from ``_toc.yml`` (which chapters, in which parts) and from the first cell of each notebook (its title, the line
``**Time:** …`` and the line ``**You need:** …``), so that they can't say anything else than the chapters do.

    python book/tools/chapter_map.py map.svg      # the map as a file of its own, for slides

In a page: the directives ``chapter-map`` and ``chapter-times``.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Chapter:
    """What the first cell of a notebook says.

    Args:
        name: as in ``_toc.yml``: "notebooks/01_activation_patching".
        title: its heading.
        minutes: reading and exercises.
        cells: how long the cells run, in words: "about 1 minute"; empty if it does not say.
        needs: names of the chapters that it says it builds on, without those that these build on themselves.
    """

    name: str
    title: str
    minutes: int
    cells: str
    needs: tuple[str, ...] = ()

    @property
    def number(self) -> str:
        """ "1" for ``notebooks/01_…``, "A1" for ``notebooks/a1_…``."""
        return Path(self.name).name.partition("_")[0].lstrip("0").upper()


@dataclass(frozen=True)
class Part:
    """A part of the book that has chapters."""

    caption: str
    chapters: tuple[Chapter, ...]


def read_parts(root: Path = ROOT) -> list[Part]:
    """The parts of ``_toc.yml`` that hold notebooks, in order.

    Raises:
        ValueError: a first cell without a title, a time in minutes or a line that says what is needed.
    """
    import yaml

    toc = yaml.safe_load((root / "_toc.yml").read_text("utf8"))
    names = {
        part["caption"]: [entry["file"] for entry in part["chapters"] if entry["file"].startswith("notebooks/")]
        for part in toc["parts"]
    }
    cells = {name: first_cell(root / f"{name}.ipynb") for listed in names.values() for name in listed}
    titles = {name: _line(name, r"# +(.+)", text) for name, text in cells.items()}
    direct = {name: _mentioned(_line(name, r"\*\*You need:\*\* +(.+)", cells[name]), titles, name) for name in cells}
    chapters = {
        name: Chapter(name, titles[name], *_times(name, text), needs=_nearest(name, direct))
        for name, text in cells.items()
    }
    return [Part(caption, tuple(chapters[name] for name in listed)) for caption, listed in names.items() if listed]


def first_cell(path: Path) -> str:
    return "".join(json.loads(path.read_text("utf8"))["cells"][0]["source"])


def _line(name: str, pattern: str, text: str) -> str:
    found = re.search(rf"^{pattern}$", text, flags=re.M)
    if not found:
        raise ValueError(f"{name}: its first cell has no line of the form {pattern!r}")
    return found[1].strip()


def _times(name: str, text: str) -> tuple[int, str]:
    line = _line(name, r"\*\*Time:\*\* +(.+)", text)
    minutes, cells = re.search(r"(\d+) minutes", line), re.search(r"\bcells\b.*? take (.+?) on two", line)
    if not minutes:
        raise ValueError(f"{name}: its line **Time:** gives no number of minutes")
    return int(minutes[1]), cells[1] if cells else ""


def _mentioned(text: str, titles: dict[str, str], name: str) -> set[str]:
    """The chapters before ``name`` that a line names: by title, up to a colon; by its initials; or by file name."""
    before = list(titles)[: list(titles).index(name)]
    return {
        other for other in before if any(re.search(rf"\b{word}\b", text) for word in _words_for(other, titles[other]))
    }


def _words_for(name: str, title: str) -> list[str]:
    """Patterns: for ``notebooks/06_edge_attribution_patching``, "edge attribution patching" and "EAP"."""
    title = title.partition(":")[0]
    file = Path(name).name
    found = [f"(?i:{re.escape(words)})" for words in (title, file.partition("_")[2].replace("_", " "), file)]
    initials = "".join(word[0] for word in title.split()).upper()
    return [*found, initials] if len(initials) > 2 else found


def _nearest(name: str, direct: dict[str, set[str]]) -> tuple[str, ...]:
    """What ``name`` builds on, without what is implied: 4 needs 2, and 2 needs 1, so 4 need not say 1."""
    implied: set[str] = set()
    pending = [below for other in direct[name] for below in direct[other]]
    while pending:
        other = pending.pop()
        if other not in implied:
            implied.add(other)
            pending += direct[other]
    return tuple(sorted(direct[name] - implied))


# The picture ------------------------------------------------------------------------------------------------------

BOX_WIDTH, BOX, ROW, CAPTION = 292, 36, 42, 30  # of a box: width, height, height with the gap below it; of a caption
GAP, LANE = 16, 12  # from the boxes to the first line beside them, and from line to line
LINE_LENGTH = 28  # characters of a title on one line

# In the book the theme's own colours, light and dark; alone, those after the comma.
STYLE = """
.chapter-map { font-family: system-ui, sans-serif; max-width: 28rem; width: 100%; height: auto; margin: 0 0 1rem; }
.chapter-map text { fill: var(--pst-color-text-base, #323232); font-size: 13px; }
.chapter-map .part { fill: var(--pst-color-text-muted, #55595f); font-size: 12px; font-weight: 600; }
.chapter-map .minutes { fill: var(--pst-color-text-muted, #55595f); font-size: 12px; text-anchor: end; }
.chapter-map .number { font-weight: 700; text-anchor: middle; }
.chapter-map .box { fill: var(--pst-color-surface, #f3f4f5); stroke: var(--pst-color-border, #6b7280); }
.chapter-map .way { fill: none; stroke: var(--pst-color-text-muted, #55595f); stroke-width: 1.5; }
.chapter-map .tip { fill: var(--pst-color-text-muted, #55595f); }
.chapter-map a { text-decoration: none; }
.chapter-map a:hover .box, .chapter-map a:focus-visible .box { stroke: var(--pst-color-primary, #0a7d91); stroke-width: 2.5; }
.chapter-map a:focus-visible { outline: none; }
"""


def in_words(parts: Sequence[Part]) -> str:
    """The map as text, for those who can't see it."""
    numbers = {chapter.name: chapter.number for part in parts for chapter in part.chapters}
    sentences = []
    for part in parts:
        for chapter in part.chapters:
            needs = " and ".join(numbers[name] for name in chapter.needs)
            builds = f", builds on {needs}" if needs else ""
            sentences.append(f"{chapter.number} {chapter.title}, {chapter.minutes} minutes{builds}")
        sentences[-len(part.chapters)] = f"{part.caption}: {sentences[-len(part.chapters)]}"
    return ". ".join(sentences) + "."


def draw(parts: Sequence[Part], address: Callable[[str], str]) -> str:
    """The map as SVG: a box for each chapter, and a way from each to those that build on it.

    Args:
        address: of a chapter's page, by the chapter's name.

    Raises:
        ValueError: a title that does not fit into its box.
    """
    rows, captions, y = {}, [], 0
    for part in parts:
        captions.append((y + 18, part.caption))
        y += CAPTION
        for chapter in part.chapters:
            rows[chapter.name] = y
            y += ROW
    chapters = [chapter for part in parts for chapter in part.chapters]
    lines = _lines(chapters, rows)
    left = GAP + LANE * (1 + max((line.lane for line in lines), default=-1))
    width = left + BOX_WIDTH + 1
    return "\n".join(
        [
            f'<svg class="chapter-map" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" role="group" '
            'aria-labelledby="chapter-map-title" aria-describedby="chapter-map-text">',
            f"<style>{STYLE}</style>",
            '<title id="chapter-map-title">Map of the chapters</title>',
            f'<desc id="chapter-map-text">{escape(in_words(parts))}</desc>',
            *(f'<text class="part" x="{left}" y="{y}">{escape(caption)}</text>' for y, caption in captions),
            *(way for line in lines for way in _ways(line, left)),
            *(_box(chapter, left, rows[chapter.name], address(chapter.name)) for chapter in chapters),
            "</svg>",
        ]
    )


def _box(chapter: Chapter, x: float, y: float, address: str) -> str:
    lines = textwrap.wrap(chapter.title, LINE_LENGTH, break_on_hyphens=False)
    if len(lines) > 2:
        raise ValueError(f"{chapter.name}: a title of {len(chapter.title)} characters does not fit on the map")
    baseline = y + BOX / 2 + 4.5
    first = baseline - 7.5 * (len(lines) - 1)
    title = " ".join(f'<text x="{x + 38}" y="{first + 15 * i:g}">{escape(line)}</text>' for i, line in enumerate(lines))
    # The words that can be seen, in their order and with the same spaces: who speaks to the computer says what is read.
    label = f"Chapter {chapter.number} {chapter.title} {chapter.minutes} min"
    return (
        f'<a href="{escape(address, quote=True)}" aria-label="{escape(label, quote=True)}">'
        f'<rect class="box" x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX}" rx="6"/>'
        f'<text class="number" x="{x + 20}" y="{baseline:g}">{chapter.number}</text> {title} '
        f'<text class="minutes" x="{x + BOX_WIDTH - 10}" y="{baseline:g}">{chapter.minutes} min</text></a>'
    )


@dataclass(frozen=True)
class _Line:
    """A line down the left side, from a chapter to all that build on it."""

    start: float
    stops: tuple[float, ...]
    lane: int


def _lines(chapters: Sequence[Chapter], rows: dict[str, float]) -> list[_Line]:
    """Short lines are put next to the boxes, long ones further out, and no two of a lane overlap."""
    spans = []
    for chapter in chapters:
        stops = tuple(rows[other.name] + BOX / 2 - 6 for other in chapters if chapter.name in other.needs)
        if stops:
            spans.append((rows[chapter.name] + BOX / 2 + 6, stops))
    lines: list[_Line] = []
    for start, stops in sorted(spans, key=lambda span: (span[1][-1] - span[0], span[0])):
        taken = {line.lane for line in lines if start < line.stops[-1] and line.start < stops[-1]}
        lines.append(_Line(start, stops, next(lane for lane in range(len(lines) + 1) if lane not in taken)))
    return lines


def _ways(line: _Line, left: float) -> list[str]:
    x, start = left - GAP - LANE * line.lane, line.start
    ways = [f'<path class="way" d="M{left} {start:g}H{x + 5}Q{x} {start:g} {x} {start + 5:g}V{line.stops[-1] - 5:g}"/>']
    for y in line.stops:
        ways.append(f'<path class="way" d="M{x} {y - 5:g}Q{x} {y:g} {x + 5} {y:g}H{left - 5}"/>')
        ways.append(f'<path class="tip" d="M{left - 7} {y - 4:g}L{left - 0.5} {y:g}L{left - 7} {y + 4:g}Z"/>')
    return ways


# The table --------------------------------------------------------------------------------------------------------


def table(parts: Sequence[Part], link: Callable[[Chapter], str]) -> str:
    """A table in Markdown: chapter, minutes for the reader, time for the computer; and the sum."""
    rows = ["| chapter | reading and exercises | cells |", "| --- | --- | --- |"]
    for part in parts:
        for chapter in part.chapters:
            rows.append(f"| {chapter.number} {link(chapter)} | {chapter.minutes} min | {_short(chapter.cells)} |")
    hours, minutes = divmod(sum(chapter.minutes for part in parts for chapter in part.chapters), 60)
    return "\n".join([*rows, f"| **together** | {hours} h {minutes} min | |"])


def _short(time: str) -> str:
    """ "< 1 min" for "less than 1 minute": a column that is narrow on a phone."""
    for words, sign in (("less than", "<"), ("under", "<"), ("about", "≈"), ("minutes", "min"), ("minute", "min")):
        time = time.replace(words, sign)
    return time.replace(" ", "\N{NO-BREAK SPACE}")


# Sphinx -----------------------------------------------------------------------------------------------------------


def setup(app) -> dict:
    from docutils import nodes
    from docutils.statemachine import StringList
    from sphinx.util.docutils import SphinxDirective

    class FromChapters(SphinxDirective):
        def parts(self) -> list[Part]:
            root = Path(self.env.srcdir)
            try:
                parts = read_parts(root)
            except (ValueError, OSError) as error:
                raise self.error(str(error)) from error
            for path in ["_toc.yml", *(f"{chapter.name}.ipynb" for part in parts for chapter in part.chapters)]:
                self.env.note_dependency(str(root / path))
            return parts

    class Map(FromChapters):
        def run(self):
            picture = draw(self.parts(), lambda name: self.env.app.builder.get_relative_uri(self.env.docname, name))
            return [nodes.raw("", picture, format="html")]

    class Times(FromChapters):
        def run(self):
            up = "../" * self.env.docname.count("/")
            text = table(self.parts(), lambda chapter: f"[{chapter.title}]({up}{chapter.name}.ipynb)")
            holder = nodes.container()
            self.state.nested_parse(StringList(text.splitlines(), source="chapter-times"), self.content_offset, holder)
            return holder.children

    app.add_directive("chapter-map", Map)
    app.add_directive("chapter-times", Times)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if len(arguments) != 1:
        print("usage: python book/tools/chapter_map.py FILE.svg", file=sys.stderr)
        return 2
    Path(arguments[0]).write_text(draw(read_parts(), lambda name: f"{name}.html") + "\n", "utf8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
