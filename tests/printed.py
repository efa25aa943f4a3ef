"""The exercises as the chapters print them: the stub and the solution of each, as functions."""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Callable
from pathlib import Path

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"


def solutions() -> dict[str, Callable]:
    """Number of an exercise → its solution, of all chapters."""
    return {number: solution for number, (_, solution) in exercises().items()}


@functools.cache
def exercises() -> dict[str, tuple[Callable, Callable]]:
    """Number of an exercise → its stub and its solution. Each runs alone with what its chapter imports."""
    found = {}
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        cells = [(c["cell_type"], "".join(c["source"])) for c in json.loads(path.read_text("utf8"))["cells"]]
        imports = "\n".join(_imports(text) for kind, text in cells if kind == "code")
        for number, title_at in _titles(cells):
            stub, name, at = _stub(cells, number, title_at)
            between = "\n".join(text for kind, text in cells[title_at : at + 1] if kind == "markdown")
            printed = between.split(f"### Exercise {number}:")[1].split("<summary>Solution</summary>")[1]
            blocks = re.findall(r"^```python\n(.+?)^```", printed, flags=re.M | re.S)
            assert blocks, f"exercise {number}: expected its solution as a ```python block"
            found[number] = tuple(_function(f"{imports}\n{code}", name) for code in (stub, "\n".join(blocks)))
    return found


def _imports(text: str) -> str:
    tree = ast.parse(re.sub(r"^( *)[%!].*$", r"\1pass", text, flags=re.M))
    return "\n".join(ast.unparse(node) for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom))


def _titles(cells) -> list[tuple[str, int]]:
    pattern = re.compile(r"^### Exercise ([\w.]+):", flags=re.M)
    return [
        (number, i) for i, (kind, text) in enumerate(cells) if kind == "markdown" for number in pattern.findall(text)
    ]


def _stub(cells, number: str, start: int) -> tuple[str, str, int]:
    """The source of the stub's cell without the check, the function's name, and where the cell is."""
    call = re.compile(rf'^cl\.check\("{re.escape(number)}", (\w+)\)$', flags=re.M)
    for i, (kind, text) in enumerate(cells[start:], start):
        if kind == "code" and (match := call.search(text)):
            return call.sub("", text), match[1], i
    raise AssertionError(f"exercise {number}: expected a cell with cl.check({number!r}, its_name)")


def _function(code: str, name: str) -> Callable:
    names: dict = {}
    exec(code, names)
    return names[name]
