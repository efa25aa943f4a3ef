"""A Sphinx extension: the book's scripts come from the book itself, where a copy is at hand.

- CircuitsVis, which draws the attention views, is copied out of its installed wheel. ``circuitlib.js`` loads it on
  the pages that have such a view.
- MathJax, require.js and the widget manager are used from ``book/_static/vendor`` if ``vendor.py`` has put them
  there, all of them; else the pages take them from their usual CDNs.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

TOOLS = Path(__file__).resolve().parent
VENDOR = TOOLS.parent / "_static" / "vendor"


def circuitsvis_bundle() -> str:
    """The script in the installed wheel, without the line that names a source map, which the book does not carry."""
    wheel = Path(find_spec("circuitsvis").origin).parent
    return re.sub(r"\n//# sourceMappingURL=\S+\s*$", "\n", (wheel / "dist" / "cdn" / "iife.js").read_text("utf8"))


def copy_circuitsvis(folder: Path = VENDOR) -> Path:
    """Write ``circuitsvis.js``; an up-to-date file is left alone, so that nothing is rebuilt for it."""
    target, text = folder / "circuitsvis.js", circuitsvis_bundle()
    if not target.exists() or target.read_text("utf8") != text:
        folder.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf8")
    return target


def prefer_local_copies(app, config) -> None:
    copy_circuitsvis()
    if (VENDOR / ".complete").exists():
        config.mathjax_path = "vendor/mathjax/tex-mml-chtml.js"
        config.nb_ipywidgets_js = {
            "vendor/requirejs/require.js": {},
            "vendor/html-manager/embed-amd.js": {"data-jupyter-widgets-cdn-only": "false"},
        }


def setup(app) -> dict:
    app.connect("config-inited", prefer_local_copies)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
