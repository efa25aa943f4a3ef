"""The built site, as a reader's browser would find it. ``make test`` builds it first."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from bs4 import BeautifulSoup

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "_build" / "html"
TOC = yaml.safe_load((ROOT / "_toc.yml").read_text("utf8"))
CONFIG = yaml.safe_load((ROOT / "_config.yml").read_text("utf8"))


def toc_files(entry=TOC) -> list[str]:
    """Every page of the table of contents, in order, without an ending."""
    files = [entry[key] for key in ("root", "file") if key in entry]
    for key in ("parts", "chapters", "sections"):
        for below in entry.get(key, []):
            files += toc_files(below)
    return files


PAGES = toc_files()


@pytest.fixture(autouse=True, scope="module")
def built():
    if not (SITE / "index.html").exists():
        pytest.fail("the book is not built: run 'make book' first, or 'make test', which does", pytrace=False)


@cache
def soup(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text("utf8"), "html.parser")


@pytest.fixture(params=PAGES)
def page(request) -> Path:
    return SITE / f"{request.param}.html"


def test_every_page_of_the_table_of_contents_is_there(page):
    assert page.exists()
    assert soup(page).find("h1") is not None


def test_every_chapter_is_in_the_table_of_contents():
    chapters = {f"notebooks/{path.stem}" for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert chapters == {name for name in PAGES if name.startswith("notebooks/")}


def test_the_first_page_is_where_a_server_looks_for_it():
    target = re.search(r"url=([^\"' ]+)", (SITE / "index.html").read_text("utf8"))[1]
    assert (SITE / target).exists()


def test_every_page_is_reachable_from_the_first(page):
    linked = {
        (SITE / "book" / urlsplit(a["href"]).path).resolve()
        for a in soup(SITE / "book" / "index.html").find_all("a", href=True)
    }
    assert page.resolve() in linked | {(SITE / "book" / "index.html").resolve()}


def resolve(page: Path, address: str) -> tuple[Path, str] | None:
    """The file and the anchor that an address means; None if it leads out of the site."""
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return None
    return (page.parent / unquote(parts.path)).resolve() if parts.path else page, unquote(parts.fragment)


def test_no_internal_link_or_anchor_is_broken(page):
    broken = []
    for a in soup(page).find_all("a", href=True):
        found = resolve(page, a["href"])
        if found is None or a["href"] == "#":
            continue
        target, anchor = found
        if not target.exists() or (anchor and target.suffix == ".html" and not soup(target).find(id=anchor)):
            broken.append(a["href"])
    assert not broken


def test_every_image_script_and_style_is_there(page):
    missing = []
    for tag, attribute in (("img", "src"), ("script", "src"), ("link", "href"), ("source", "src")):
        for element in soup(page).find_all(tag, **{attribute: True}):
            found = resolve(page, element[attribute])
            if found is not None and not element[attribute].startswith("data:") and not found[0].exists():
                missing.append(element[attribute])
    assert not missing


def test_a_page_loads_from_nowhere_else_or_from_the_usual_hosts(page):
    """The site brings its scripts along if npm was there to fetch them."""
    brought = (SITE / "_static" / "vendor" / "mathjax").exists()
    usual = set() if brought else {"cdn.jsdelivr.net", "cdnjs.cloudflare.com"}
    loads = (("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src"))
    elements = [(element, name) for tag, name in loads for element in soup(page).find_all(tag, **{name: True})]
    addresses = [element[name] for element, name in elements if "canonical" not in element.get("rel", ())]
    assert {urlsplit(address).hostname for address in addresses} - {None} <= usual
    if soup(page).select("article .math"):
        assert any("mathjax" in address for address in addresses)


def test_every_image_has_a_text_alternative(page):
    for image in soup(page).find_all("img"):
        alt = image.get("alt", "").strip()
        assert alt, image
        assert not re.search(r"_images/|\.(png|svg|jpe?g)$", alt), f"alt is a file name: {alt}"


def test_no_path_of_the_machine_that_built_it(page):
    text = page.read_text("utf8")
    for path in {str(ROOT), str(Path.home())} - {"/", "/root"}:
        assert path not in text
    assert "file://" not in text


def test_no_sphinx_problem_on_the_page(page):
    assert not soup(page).select(".system-message, .problematic")
    text = soup(page).select_one("article").get_text()
    for pattern in (
        r"\{(ref|cite|numref|doc|term|eq)(:\w+)?\}`",
        r"^:::",
        r"^```\{",
        r"Unknown directive|undefined label",
    ):
        assert not re.search(pattern, text, flags=re.M), pattern


def test_citations_are_resolved():
    text = soup(SITE / "book" / "bibliography.html").select_one("article").get_text()
    entries = re.findall(r"^@\w+\{(\w+),", (ROOT / "book" / "references.bib").read_text("utf8"), flags=re.M)
    assert len(soup(SITE / "book" / "bibliography.html").select("div.citation")) == len(entries)
    assert "Conmy" in text


def test_the_first_page_has_a_map_and_a_table_of_all_chapters():
    first = soup(SITE / "book" / "index.html").select_one("article")
    chapters = [f"../{name}.html" for name in PAGES if name.startswith("notebooks/")]
    assert [a["href"] for a in first.select("svg.chapter-map a")] == chapters
    assert [a["href"] for a in first.select("table td a")] == chapters
    assert len(first.select_one("svg.chapter-map desc").text.split(". ")) >= len(chapters)


def test_the_attention_script_is_there_and_loaded_only_on_demand(page):
    bundle = SITE / "_static" / "vendor" / "circuitsvis.js"
    assert "CircuitsVis" in bundle.read_text("utf8")[:200]
    assert "sourceMappingURL" not in bundle.read_text("utf8")
    scripts = [script.get("src", "") for script in soup(page).find_all("script")]
    assert any("circuitlib.js" in source for source in scripts)
    assert not any("circuitsvis" in source for source in scripts)


def test_outputs_are_shown_and_nothing_was_run_by_the_build():
    assert CONFIG["execute"]["execute_notebooks"] == "off"
    for name in PAGES:
        if name.startswith("notebooks/"):
            assert soup(SITE / f"{name}.html").select(".cell_output"), name


def test_the_address_that_only_the_theme_wants_is_on_no_page(page):
    address = CONFIG["repository"]["url"]
    if address.startswith("https://github.com/-/"):
        assert address not in page.read_text("utf8")


# --- the checks themselves ----------------------------------------------------------------------------------------


def test_resolve_knows_what_is_inside(tmp_path):
    page = tmp_path / "book" / "a.html"
    assert resolve(page, "https://example.org/x") is None
    assert resolve(page, "mailto:a@example.org") is None
    assert resolve(page, "#here") == (page, "here")
    assert resolve(page, "../notebooks/b%20c.html#x") == (tmp_path / "notebooks" / "b c.html", "x")


def test_toc_files_reads_nested_parts():
    nested = {"root": "a", "parts": [{"chapters": [{"file": "b", "sections": [{"file": "c"}]}]}, {"chapters": []}]}
    assert toc_files(nested) == ["a", "b", "c"]
