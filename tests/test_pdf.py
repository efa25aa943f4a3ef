"""``make pdf``: which pages, what the browser is given, and (slowly) the whole book as one file."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "_build" / "html"
sys.path.insert(0, str(ROOT / "book" / "tools"))
import pdf as tool  # noqa: E402
import workshop  # noqa: E402

import notebooks  # noqa: E402

HTML = """<html><head><title>t</title></head><body><main><article><section id="one"><h1>One two<a class="headerlink">#</a></h1>
<section id="part"><h2>A  part<a class="headerlink">#</a></h2><a href="b.html#there">b</a> <a href="#part">here</a>
<a href="https://example.org/c.html#x">out</a> <a href="../book/b.html#that">b</a></section></section></article></main></body></html>"""


@pytest.fixture
def site(tmp_path) -> Path:
    (tmp_path / "book").mkdir()
    (tmp_path / "index.html").write_text("")
    for name in ("a", "b"):
        (tmp_path / "book" / f"{name}.html").write_text(HTML)
    return tmp_path


def test_pages_come_in_the_order_of_the_table_of_contents():
    listed = re.findall(r"(?:root|file): (\S+)", (ROOT / "_toc.yml").read_text("utf8"))
    assert [page.name for page in tool.read_pages(ROOT)] == listed
    assert tool.read_pages(ROOT)[0].part == "" and all(page.part for page in tool.read_pages(ROOT)[1:])


def test_headings_are_read_without_the_signs_that_link_to_them(site):
    page = tool.Page("book/a")
    tool.read_headings(site, page)
    assert (page.title, page.sections, page.anchors) == ("One two", (("part", "A part"),), {"part"})


def test_an_anchor_that_another_page_links_to_is_marked(site):
    a, b = tool.Page("book/a"), tool.Page("book/b")
    tool.collect_anchors(site, a, {"book/a": a, "book/b": b})
    assert b.anchors == {"there", "that"} and a.anchors == {"part"}
    tool.prepare(site / "book" / "b.html", b)
    text = (site / "book" / "b.html").read_text()
    assert '<a href="#that"></a><a href="#there"></a></div></body>' in text and text.count("<style>") == 1


def test_resolve_tells_pages_from_other_addresses(site):
    base = (site / "book" / "a.html").as_uri()
    assert tool.resolve(base, "b.html#x%20y", site) == ("book/b", "x y")
    assert tool.resolve(base, "#x", site) == ("book/a", "x")
    for address in ("https://example.org/book/b.html", "mailto:a@example.org", "../_images/a.png", "../../other.html"):
        assert tool.resolve(base, address, site) == ("", "")


def test_without_chromium_one_line_says_what_to_do(site, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(tool, "PLACES", ())
    monkeypatch.delenv("CHROMIUM", raising=False)
    assert tool.main(["--site", str(site), "--to", str(tmp_path / "x.pdf")]) == 3
    assert (
        capsys.readouterr().err
        == "error: Chromium was not found; install Chromium or Chrome, or set CHROMIUM to its place\n"
    )
    monkeypatch.setenv("CHROMIUM", "/no/such/browser")
    assert tool.main(["--site", str(site), "--to", str(tmp_path / "x.pdf")]) == 3
    assert capsys.readouterr().err == "error: CHROMIUM is /no/such/browser, and there is no such program\n"
    assert not (tmp_path / "x.pdf").exists()


def test_a_browser_that_prints_nothing_gives_one_line(site, monkeypatch, capsys, tmp_path):
    browser = tmp_path / "browser"
    browser.write_text("#!/bin/sh\necho many lines >&2\necho no display >&2\nexit 1\n")
    browser.chmod(0o755)
    monkeypatch.setenv("CHROMIUM", str(browser))
    last = tmp_path / "x.pdf"
    last.write_text("the last one")
    monkeypatch.setattr(tool, "read_pages", lambda root: [tool.Page("book/a")])
    assert tool.main(["--site", str(site), "--to", str(last)]) == 3
    assert capsys.readouterr().err == f"error: {browser} printed nothing of a.html: no display\n"
    assert last.read_text() == "the last one"


def test_without_a_built_book_one_line_says_so(tmp_path, capsys):
    assert tool.main(["--site", str(tmp_path), "--to", str(tmp_path / "x.pdf")]) == 3
    assert capsys.readouterr().err == f"error: {tmp_path} holds no built book: run 'make book' first\n"


# --- the whole book -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """The book as ``make pdf`` prints it, and the text of each page."""
    pypdf = pytest.importorskip("pypdf")
    try:
        tool.find_chromium()
    except tool.NoChromium as error:
        pytest.skip(str(error))
    if not (SITE / "index.html").exists():
        pytest.fail("the book is not built: run 'make book' first, or 'make test-slow', which does", pytrace=False)
    to = tmp_path_factory.mktemp("pdf") / "book.pdf"
    assert tool.main(["--to", str(to)]) == 0
    reader = pypdf.PdfReader(to)
    return reader, [letters(page.extract_text()) for page in reader.pages]


def letters(text: str) -> str:
    return re.sub(r"[\W_]", "", text)


def entries(reader) -> tuple[dict[str, int], set[str]]:
    """Title of each page of the site → its page in the PDF, and the titles of all sections; from the outline."""
    pages, sections = {}, set()
    for children in reader.outline:
        for item in children if isinstance(children, list) else []:
            if isinstance(item, list):
                sections |= {section.title for section in item}
            else:
                pages[item.title] = reader.get_destination_page_number(item)
    return pages, sections


@pytest.mark.slow
def test_the_pdf_has_every_page_of_the_book(printed):
    reader, texts = printed
    assert len(reader.pages) > 10 * len(list((ROOT / "notebooks").glob("*.ipynb")))
    assert reader.metadata.title == yaml.safe_load((ROOT / "_config.yml").read_text("utf8"))["title"]
    outline, sections = entries(reader)
    last = 0
    for page in tool.read_pages(ROOT)[1:]:
        tool.read_headings(SITE, page)
        number = outline[page.title]
        assert number > last, f"{page.title} is out of order"
        assert letters(page.title) in texts[number], page.title
        assert letters(page.title) + str(number + 1) in texts[0], "the table of contents says another page"
        assert texts[number].endswith(str(number + 1)), "the number below the page"
        assert {heading for _, heading in page.sections} <= sections
        last = number
    for page in reader.pages:
        width, height = (float(x) * 25.4 / 72 for x in page.mediabox[2:])
        assert abs(width - 210) < 1 and abs(height - 297) < 1


@pytest.mark.slow
def test_the_pdf_has_every_solution(printed):
    """Of each exercise, every line that is long enough to be one."""
    text = "".join(page.removesuffix(str(i + 1)) for i, page in enumerate(printed[1]))
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for exercise in workshop.exercises(notebooks.read(path)):
            for line in exercise.solution.splitlines():
                assert letters(line) in text, f"{exercise.number}: {line}"


@pytest.mark.slow
def test_links_of_the_pdf_lead_into_it_or_to_the_network(printed):
    reader, _ = printed
    inside = outside = 0
    for page in reader.pages:
        for annotation in page.get("/Annots", []):
            annotation = annotation.get_object()
            if "/Dest" in annotation:
                assert annotation["/Dest"][0].get_object()["/Type"] == "/Page"
                inside += 1
            elif "/URI" in annotation.get("/A", {}):
                assert str(annotation["/A"]["/URI"]).startswith("https://")
                outside += 1
    assert inside > 100 and outside > 50


@pytest.mark.slow
def test_the_pdf_has_set_formulas_and_every_picture(printed):
    reader, texts = printed
    text = "".join(texts)
    for raw in (r"\text{EAP}", r"\frac", "\\lVert"):
        assert letters(raw) not in text, "a formula is not set"
    pictures = sum(
        "image/png" in output.get("data", {})
        for path in (ROOT / "notebooks").glob("*.ipynb")
        for cell in notebooks.read(path)["cells"]
        for output in cell.get("outputs", [])
    )
    placed = 0
    for page in reader.pages:
        objects = page["/Resources"].get_object().get("/XObject", {})
        placed += sum(objects[name].get_object()["/Subtype"] == "/Image" for name in objects)
    assert placed >= pictures > 40
