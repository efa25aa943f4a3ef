"""What the extension ``accessible`` changes in a page, on pieces of HTML as the tools before it write them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest
from sphinx.builders.html._assets import _CascadingStyleSheet, _JavaScript

ROOT = Path(__file__).resolve().parents[1]


def load():
    spec = importlib.util.spec_from_file_location("accessible", ROOT / "book" / "tools" / "accessible.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


accessible = load()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            '<div role="list" class="citation-list"><div class="citation" id="id1" role="doc-biblioentry">',
            '<div role="list" class="citation-list"><div class="citation" id="id1" role="listitem">',
        ),
        ('<summary aria-label="Toggle hidden content">\n<p>Show</p>', "<summary>\n<p>Show</p>"),
        ('a<script type="text/x-thebe-config">\n{a: "<b>"}\n</script>b<script>c</script>', "ab<script>c</script>"),
        (
            '<img alt="Heat map: a > b." src="../_images/12ab.png" />',
            '<a class="full-size" href="../_images/12ab.png" title="Open at full size">'
            '<img alt="Heat map: a > b." src="../_images/12ab.png" /></a>',
        ),
        ('<img alt="Logo" src="../_static/logo.svg" />', '<img alt="Logo" src="../_static/logo.svg" />'),
        (
            '<p><a href="https://example.org"><img alt="A badge" src="../_images/badge.svg" /></a></p>',
            '<p><a href="https://example.org"><img alt="A badge" src="../_images/badge.svg" /></a></p>',
        ),
        ('<details><summary aria-label="Answers">', '<details><summary aria-label="Answers">'),
    ],
)
def test_a_piece_of_a_page(before, after):
    assert accessible.mend_body(before) == after


def test_only_the_files_of_sphinx_thebe_are_left_out():
    kept = [_JavaScript("_static/circuitlib.js"), _JavaScript("", body="const a = 1"), _CascadingStyleSheet("a.css")]
    thebe = [
        _JavaScript("_static/sphinx-thebe.js"),
        _JavaScript("", body='const THEBE_JS_URL = "https://x"'),
        _CascadingStyleSheet("_static/sphinx-thebe.css"),
    ]
    context = {"script_files": kept[:2] + thebe[:2], "css_files": [kept[2], thebe[2]]}
    accessible.mend(SimpleNamespace(), "page", "page.html", context, None)
    assert context == {"script_files": kept[:2], "css_files": kept[2:]}
