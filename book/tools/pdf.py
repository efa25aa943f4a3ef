"""Write the whole book as one PDF: Chromium prints the pages of the built site, pypdf puts them together.

    python book/tools/pdf.py                 # or: make pdf, which builds the site first; writes dist/transformer-circuits.pdf

The pages come in the order of ``_toc.yml``, behind a title page with a table of contents. Everything that is folded on the site is
opened, the solutions among it. Links from page to page lead inside the PDF. Nothing is asked of a network if the scripts of the
pages lie in ``_static/vendor``, as they do where npm was there for the build.

Needs Chromium or Chrome; the variable CHROMIUM says where, if it is not found.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "_build" / "html"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
PLACES = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    r"C:\Program Files\Google\Chrome\Application\chrome.exe",
    r"C:\Program Files (x86)\Microsoft\Edge\Application\msedge.exe",
)
SETTLE = 10_000  # milliseconds of the page's own time in which its scripts set formulas and draw
WIDTH = 672  # of the text on paper, in the pixels of CSS: what a script measures on the screen then fits on paper
SECONDS = 300  # for one page; a chapter takes a few

STYLE = """
@page { size: A4; margin: 17mm 16mm 18mm; }
html { font-size: 10pt !important; font-variant-ligatures: none !important; }
*, ::before, ::after { animation: none !important; transition: none !important; }
.bd-sidebar-primary, .bd-sidebar-secondary, .bd-header, .bd-header-article, .header-article, .bd-footer, .bd-footer-content, .prev-next-footer,
.bd-footer-article, #jb-print-docs-body, .onlyprint, .skip-link, #pst-skip-link, #pst-back-to-top, dialog, .headerlink, .copybtn, .toggle-button,
.circuitlib-no-print { display: none !important; }
.bd-container, .bd-container__inner, .bd-main, .bd-content, .bd-article-container, .bd-article, main, article {
  display: block !important; margin: 0 !important; max-width: none !important; overflow: visible !important; padding: 0 !important; width: auto !important;
}
.bd-main .bd-content .bd-article h1:first-of-type { display: block !important; font-size: 22pt !important; margin: 0 0 4mm !important; text-align: left !important; }
h2 { font-size: 15pt !important; }
h3 { font-size: 12pt !important; }
h1, h2, h3, h4, dt, summary { break-after: avoid; break-inside: avoid; }
p, li { max-width: none !important; orphans: 3; widows: 3; }
pre, code, .highlight { font-size: 7.7pt !important; }
pre { line-height: 1.4 !important; orphans: 4; overflow: visible !important; overflow-wrap: anywhere; white-space: pre-wrap !important; widows: 4; }
p code, li code, td code, summary code { font-size: 0.88em !important; overflow-wrap: anywhere; }
.cell, .cell_output, .cell_input, .output, div.highlight { max-height: none !important; overflow: visible !important; }
.cell_input, .cell_output > *, div.highlight { break-inside: avoid; }
.cell_output .text_html, .pst-scrollable-table-container, .circuitlib-attention, div.math, mjx-container { overflow: visible !important; }
img, svg { break-inside: avoid; max-height: 190mm; max-width: 100% !important; }
img { height: auto !important; object-fit: contain; }
.cell_output .image-reference, .cell_output img { break-inside: avoid; }
table { font-size: 8.5pt !important; width: auto !important; }
tr { break-inside: avoid; }
details { break-inside: auto; }
details.hide > summary { display: none !important; }
details:not(.hide) { border-left: 1.5pt solid #c9ced4; padding-left: 3mm; }
a { overflow-wrap: anywhere; }
"""

# Everything open, the light colours, and views that scroll made as small as the paper is wide (in the pixels of CSS).
OPEN = """
(function () {
  const PAPER = 670;
  document.documentElement.dataset.mode = document.documentElement.dataset.theme = "light";
  function open() { document.querySelectorAll("details").forEach(function (d) { d.open = true; }); }
  function shrink() {
    document.querySelectorAll(".circuitlib-attention > *, .cell_output table").forEach(function (view) {
      if (!view.style.zoom && view.scrollWidth > PAPER) view.style.zoom = PAPER / view.scrollWidth;
    });
  }
  document.addEventListener("DOMContentLoaded", open);
  window.addEventListener("load", open);
  window.setInterval(shrink, 250);
})();
"""

COVER = """\
<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>
@page {{ size: A4; margin: 24mm 24mm 18mm; }}
body {{ color: #1f2328; font: 10.5pt/1.5 "Helvetica Neue", Arial, "Liberation Sans", "DejaVu Sans", sans-serif; font-variant-ligatures: none; margin: 0; }}
h1 {{ font-size: 30pt; margin: 0 0 3mm; }}
h2 {{ color: #075e6d; font-size: 11pt; margin: 5mm 0 0.5mm; }}
p {{ margin: 0 0 8mm; }}
div {{ display: flex; }}
a {{ color: inherit; flex: 1; text-decoration: none; }}
</style></head><body>
<h1>{title}</h1>
<p>{author} · Code: MIT licence. Text and figures: CC BY 4.0.</p>
{contents}
</body></html>
"""

NUMBERS = """\
<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><style>
@page {{ size: A4; margin: 0; }}
body {{ margin: 0; }}
div {{ break-after: page; color: #55595f; font: 8pt Arial, "Liberation Sans", "DejaVu Sans", sans-serif; height: 290mm; padding-top: 284mm; box-sizing: border-box; text-align: center; }}
</style></head><body>{pages}</body></html>
"""


class NoChromium(OSError):
    """There is no Chromium, or it printed nothing."""


@dataclass
class Page:
    """A page of the site and what is printed of it.

    Args:
        name: as in ``_toc.yml``: "notebooks/01_activation_patching".
        part: the caption of its part; empty for the first page.
        title: its heading.
        sections: (anchor, heading) of its sections, one level below the title.
        anchors: what other pages link to in it.
        printed: the PDF of this page alone.
        start: the number of its first page in the book, from 0.
    """

    name: str
    part: str = ""
    title: str = ""
    sections: tuple[tuple[str, str], ...] = ()
    anchors: set[str] = field(default_factory=set)
    printed: Path | None = None
    start: int = 0


def write(to: Path, site: Path = SITE, root: Path = ROOT, only: Sequence[str] = ()) -> int:
    """Print the book, or only the pages named, into ``to``; the number of its pages.

    Raises:
        FileNotFoundError: ``site`` holds no built book.
        NoChromium: no Chromium was found, or it failed.
    """
    if not (site / "index.html").exists():
        raise FileNotFoundError(f"{site} holds no built book: run 'make book' first")
    chromium = find_chromium()
    import yaml

    config = yaml.safe_load((root / "_config.yml").read_text("utf8"))
    pages = [page for page in read_pages(root) if not only or page.name in only]
    to.parent.mkdir(parents=True, exist_ok=True)
    part = to.with_name(f".{to.name}.part")
    folder = Path(
        tempfile.mkdtemp(prefix="printing-", dir=to.parent)
    )  # beside it: a Chromium from a snap can't see /tmp
    try:
        copied, scratch = folder / "site", folder / "printed"
        shutil.copytree(site, copied, ignore=shutil.ignore_patterns(folder.name))
        scratch.mkdir()
        for page in pages:
            read_headings(copied, page)
        for page in pages:
            collect_anchors(copied, page, {other.name: other for other in pages})
        offline = (copied / "_static" / "vendor" / "mathjax").is_dir()
        for i, page in enumerate(pages):
            print(f"printing {page.name}", flush=True)
            prepare(copied / f"{page.name}.html", page)
            page.printed = scratch / f"{i}.pdf"
            print_page(chromium, copied / f"{page.name}.html", page.printed, offline)
        count = put_together(chromium, copied, pages, config, part)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    part.replace(to)
    return count


def find_chromium() -> str:
    """Where Chromium is.

    Raises:
        NoChromium: nowhere.
    """
    named = os.environ.get("CHROMIUM")
    for name in [named] if named else [*NAMES, *PLACES]:
        if found := shutil.which(name):
            return found
    if named:
        raise NoChromium(f"CHROMIUM is {named}, and there is no such program")
    raise NoChromium("Chromium was not found; install Chromium or Chrome, or set CHROMIUM to its place")


def read_pages(root: Path) -> list[Page]:
    """Every page of ``_toc.yml``, in order."""
    import yaml

    toc = yaml.safe_load((root / "_toc.yml").read_text("utf8"))
    listed = [Page(toc["root"])]
    return listed + [Page(entry["file"], part["caption"]) for part in toc["parts"] for entry in part["chapters"]]


# What the browser is given ------------------------------------------------------------------------


def _soup(path: Path):
    from bs4 import BeautifulSoup

    return BeautifulSoup(path.read_text("utf8"), "html.parser")


def read_headings(site: Path, page: Page) -> None:
    article = _soup(site / f"{page.name}.html").select_one("article")
    for link in article.select(".headerlink"):
        link.decompose()
    page.title = " ".join(article.find("h1").get_text().split())
    found = []
    for heading in article.find_all("h2"):
        anchor = heading.get("id") or heading.find_parent("section").get("id")
        if anchor:
            found.append((anchor, " ".join(heading.get_text().split())))
    page.sections = tuple(found)
    page.anchors |= {anchor for anchor, _ in found}


def collect_anchors(site: Path, page: Page, pages: dict[str, Page]) -> None:
    """Note in other pages which of their anchors this one links to."""
    at = site / f"{page.name}.html"
    for link in _soup(at).select("article a[href]"):
        target, anchor = resolve(at.as_uri(), link["href"], site)
        if target in pages and anchor:
            pages[target].anchors.add(anchor)


def resolve(base: str, address: str, site: Path) -> tuple[str, str]:
    """(name of the page, anchor) that an address on the page at ``base`` means; two empty strings if it leads elsewhere."""
    from urllib.parse import urljoin

    parts = urlsplit(urljoin(base, address))
    if parts.scheme != "file":
        return "", ""
    path = Path(url2pathname(parts.path))
    if path.suffix != ".html" or not path.is_relative_to(site):
        return "", ""
    return path.relative_to(site).with_suffix("").as_posix(), unquote(parts.fragment)


def prepare(path: Path, page: Page) -> None:
    """Change a copy of a page for print: open, without the site's own furniture, a place marked for each anchor in use."""
    text = path.read_text("utf8")
    # Chromium marks the places that some link on the same page leads to.
    marks = "".join(f'<a href="#{escape(anchor, quote=True)}"></a>' for anchor in sorted(page.anchors))
    head = f"<style>{STYLE}</style><script>{OPEN}</script></head>"
    text = text.replace("</head>", head, 1)
    end = text.rindex("</body>")
    path.write_text(f'{text[:end]}<div style="display:none">{marks}</div>{text[end:]}', "utf8")


def print_page(chromium: str, page: Path, to: Path, offline: bool) -> None:
    """Let Chromium print one page.

    Raises:
        NoChromium: it did not.
    """
    command = [
        chromium,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-extensions",
        "--disable-pdf-tagging",
        "--no-pdf-header-footer",
        f"--window-size={WIDTH},950",
        f"--user-data-dir={to.parent / 'profile'}",
        f"--virtual-time-budget={SETTLE}",
        f"--print-to-pdf={to}",
        *(["--host-resolver-rules=MAP * ~NOTFOUND"] if offline else []),
        page.as_uri(),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise NoChromium(f"{chromium} did not print {page.name} within {SECONDS} seconds") from None
    if not to.exists():
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise NoChromium(f"{chromium} printed nothing of {page.name}: {last}")


# One PDF ------------------------------------------------------------------------------------------


def put_together(chromium: str, site: Path, pages: list[Page], config: dict, to: Path) -> int:
    from pypdf import PdfReader, PdfWriter

    readers = [PdfReader(page.printed) for page in pages]
    count = 1
    for page, reader in zip(pages, readers, strict=True):
        page.start = count
        count += len(reader.pages)
    cover = _print_text(chromium, site, "cover", _cover(pages, config))
    numbers = _print_text(chromium, site, "numbers", _numbers(count))
    first, counted = PdfReader(cover), PdfReader(numbers)
    if len(first.pages) != 1 or len(counted.pages) < count:
        raise ValueError(
            f"the table of contents takes {len(first.pages)} pages, expected 1; {len(counted.pages)} page numbers for {count} pages"
        )

    writer = PdfWriter()
    for reader in (first, *readers):
        writer.append(reader, import_outline=False)
    for i in range(1, count):
        writer.pages[i].merge_page(counted.pages[i])
        writer.pages[i].compress_content_streams()
    places = {page.name: _places(reader, page.start) for page, reader in zip(pages, readers, strict=True)}
    owners = [None] + [page for page, reader in zip(pages, readers, strict=True) for _ in reader.pages]
    for i, owner in enumerate(owners):
        _link(writer, i, owner, pages, places, site)
    _outline(writer, pages, places)
    writer.add_metadata({"/Title": config["title"], "/Author": config["author"], "/Creator": "Chromium and pypdf"})
    writer.compress_identical_objects()
    writer.write(to)
    return count


def _print_text(chromium: str, site: Path, name: str, html: str) -> Path:
    page = site / f"{name}-of-the-pdf.html"
    page.write_text(html, "utf8")
    to = site.parent / "printed" / f"{name}.pdf"
    print_page(chromium, page, to, offline=True)
    return to


def _cover(pages: list[Page], config: dict) -> str:
    lines, part = [], ""
    for page in pages:
        if page.part != part:
            part = page.part
            lines.append(f"<h2>{escape(part)}</h2>")
        lines.append(
            f'<div><a href="{escape(page.name)}.html">{escape(page.title)}</a><span>{page.start + 1}</span></div>'
        )
    return COVER.format(title=escape(config["title"]), author=escape(config["author"]), contents="\n".join(lines))


def _numbers(count: int) -> str:
    return NUMBERS.format(pages="".join(f"<div>{i + 1 if i else '&nbsp;'}</div>" for i in range(count)))


def _places(reader, start: int) -> dict[str, tuple[int, float]]:
    """Anchor → (number of the page in the book, height on it), as Chromium marked them."""
    numbers = {page.indirect_reference.idnum: i for i, page in enumerate(reader.pages)}
    return {
        name.removeprefix("/"): (start + numbers[place.page.idnum], float(place.top or 0))
        for name, place in reader.named_destinations.items()
    }


def _link(writer, i: int, owner: Page | None, pages: list[Page], places: dict, site: Path) -> None:
    """Let the links on a page of the book lead to pages of the book; those that lead out of it stay."""
    from pypdf.generic import ArrayObject, FloatObject, NameObject, NullObject

    starts = {page.name: page.start for page in pages}
    base = (site / f"{owner.name if owner else 'cover'}.html").as_uri()
    kept = ArrayObject()
    for reference in writer.pages[i].get("/Annots", []):
        annotation = reference.get_object()
        action = annotation.get("/A", {})
        if "/Dest" in annotation and owner:
            name, anchor = owner.name, str(annotation["/Dest"]).removeprefix("/")
        elif "/URI" in action:
            uri = str(action["/URI"])
            if urlsplit(uri).scheme != "file":
                kept.append(reference)
                continue
            name, anchor = resolve(base, uri, site)
        else:
            continue
        if name not in starts:  # a file beside the pages: there is none beside the PDF
            continue
        number, top = places[name].get(anchor, (starts[name], None))
        target = [writer.pages[number].indirect_reference, NameObject("/XYZ"), NullObject()]
        target += [NullObject() if top is None else FloatObject(top), NullObject()]
        annotation.pop("/A", None)
        annotation[NameObject("/Dest")] = ArrayObject(target)
        kept.append(reference)
    if kept:
        writer.pages[i][NameObject("/Annots")] = kept
    elif "/Annots" in writer.pages[i]:
        del writer.pages[i]["/Annots"]


def _outline(writer, pages: list[Page], places: dict) -> None:
    from pypdf.generic import Fit

    parts: dict[str, object] = {}
    for page in pages:
        if page.part and page.part not in parts:
            parts[page.part] = writer.add_outline_item(title=page.part, page_number=page.start)
        entry = writer.add_outline_item(title=page.title, page_number=page.start, parent=parts.get(page.part))
        for anchor, heading in page.sections:
            if anchor in places[page.name]:
                number, top = places[page.name][anchor]
                writer.add_outline_item(title=heading, page_number=number, parent=entry, fit=Fit.xyz(top=top))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the whole book as one PDF.")
    parser.add_argument("--to", type=Path, default=ROOT / "dist" / "transformer-circuits.pdf")
    parser.add_argument("--site", type=Path, default=SITE, help="the built book; default: _build/html")
    parser.add_argument(
        "--only", action="append", default=[], help="a page such as notebooks/01_activation_patching; repeat for more"
    )
    options = parser.parse_args(arguments)
    try:
        count = write(options.to.absolute(), options.site.resolve(), only=options.only)
    except ImportError as error:
        print(f"error: {error.name} is not installed; run 'make install', or pip install '.[book]'", file=sys.stderr)
        return 3
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 3 if isinstance(error, OSError) else 2
    print(f"{options.to}: {count} pages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
