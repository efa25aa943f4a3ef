"""A Sphinx extension: what the theme and its extensions write into a page, put right for screen readers and offline.

- The list of sources is a list with items (docutils gives each item a role that ARIA 1.2 has dropped).
- A picture of a cell is a link to itself. On a phone, or for weak eyes, it opens at its full size.
- The line that unfolds a hidden cell is named by its own words, "Show code cell source", and not by a label that hides them.
- sphinx-thebe is left out. The book starts no kernel, and its script is declared twice, which is an error on every page.
"""

from __future__ import annotations

import re

INSIDE = r'(?:[^>"]|"[^"]*")*'  # of a tag: a value in quotes may hold ">"
# A picture that is in a link already, as the badge for Colab, keeps that one: the first alternative takes both, and is put back.
PICTURE = rf'(?P<linked><a\b{INSIDE}>\s*<img\b)|<img\b(?={INSIDE}?\ssrc="([^"]*_images/[^"]+)"){INSIDE}>'


def _link(found: re.Match) -> str:
    if found["linked"]:
        return found[0]
    return f'<a class="full-size" href="{found[2]}" title="Open at full size">{found[0]}</a>'


BODY = (
    (re.compile(PICTURE), _link),
    (re.compile(r'role="doc-biblioentry"'), 'role="listitem"'),
    (re.compile(r'<summary aria-label="Toggle hidden content">'), "<summary>"),
    (re.compile(r'<script type="text/x-thebe-config">.*?</script>', re.DOTALL), ""),
)


def mend_body(body: str) -> str:
    """The HTML of a page's own content, with each pattern of ``BODY`` replaced."""
    for pattern, new in BODY:
        body = pattern.sub(new, body)
    return body


def mend(app, pagename: str, templatename: str, context: dict, doctree) -> None:
    if "body" in context:
        context["body"] = mend_body(context["body"])
    for kind in ("script_files", "css_files"):
        context[kind] = [file for file in context.get(kind, ()) if not _is_thebe(file)]


def _is_thebe(file) -> bool:
    """Whether a script or a style sheet, as Sphinx keeps it (a string with attributes), belongs to sphinx-thebe."""
    return "thebe" in str(getattr(file, "filename", file) or "") or "THEBE" in getattr(file, "attributes", {}).get(
        "body", ""
    )


def setup(app) -> dict:
    app.connect("html-page-context", mend, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
