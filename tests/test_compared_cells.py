"""What nbval does not compare is little, and listed here with the reason. A cell that nobody compares can say anything."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CHAPTERS = {path.stem: json.loads(path.read_text("utf8")) for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
UNCOMPARED = {"nbval-skip", "nbval-ignore-output"}
EXPLORER = (
    "holds thousands of scores to three digits, and another processor rounds a few of them differently; what the chapter says "
    "of them is printed and asserted in the cells around it, and tests/test_explore.py looks at the rest"
)
WIDGET = "holds pictures that switch without a kernel; the numbers behind them are printed and asserted in the cells around it"
DOWNLOAD = "needs a model of the Hugging Face Hub; committed without an output"

# (chapter, start of the cell) → why it is not compared
REASONS: dict[tuple[str, str], str] = {
    ("01_activation_patching", "decode = model.tokenizer.decode\ncl.edit_prompts("): WIDGET,
    ("03_induction_heads", "cl.ablate_heads(trained, task"): WIDGET,
    ("04_mover_heads", 'prompts = {"clean prompt"'): WIDGET,
    ("09_comparison", "# Counts, lines and scores are in the page"): EXPLORER,
    ("11_real_models", '# Needs the Hub: about 0.2 GB the first time.\nMODEL = "attn-only-4l"'): DOWNLOAD,
    ("11_real_models", '# Needs the Hub.\ntruth = cl.published_circuit("docstring")'): DOWNLOAD,
    ("11_real_models", '# Needs the Hub.\nprint("by attention:"'): DOWNLOAD,
    ("11_real_models", "# Needs the Hub.\nby_position = cl.eap("): DOWNLOAD,
    ("11_real_models", "# Needs the Hub. In a terminal: circuitlib reproduce docstring"): DOWNLOAD,
    ("11_real_models", "# Needs the Hub: about 0.5 GB the first time."): DOWNLOAD,
    ("11_real_models", '# Needs the Hub.\ncl.reproduce("greater-than"'): DOWNLOAD,
}


def code_cells(chapter: dict) -> list[dict]:
    return [cell for cell in chapter["cells"] if cell["cell_type"] == "code"]


def prints(cell: dict) -> bool:
    """Whether it shows text. A cell that is not run has no output, and counts: it would show some."""
    shown = any(o["output_type"] == "stream" or any(m.startswith("text/") for m in o["data"]) for o in cell["outputs"])
    return shown or "nbval-skip" in cell["metadata"].get("tags", ())


def uncompared() -> list[tuple[str, str]]:
    """The cells that carry a tag by which nbval leaves them alone: their chapter and their text."""
    return [
        (name, "".join(cell["source"]))
        for name, chapter in CHAPTERS.items()
        for cell in code_cells(chapter)
        if UNCOMPARED & set(cell["metadata"].get("tags", ()))
    ]


def test_each_cell_that_is_not_compared_is_listed_with_a_reason():
    found = uncompared()
    unlisted = [(name, text) for name, text in found if not any(name == n and text.startswith(t) for n, t in REASONS)]
    assert not unlisted
    for (chapter, start), why in REASONS.items():
        assert why and len([1 for name, text in found if name == chapter and text.startswith(start)]) == 1, (
            chapter,
            start,
        )


def test_at_least_95_percent_of_the_cells_that_print_are_compared():
    printing = sum(prints(cell) for chapter in CHAPTERS.values() for cell in code_cells(chapter))
    assert printing > 200
    assert len(uncompared()) <= 0.05 * printing


@pytest.mark.parametrize("name", CHAPTERS)
def test_no_comment_switches_the_comparison_off(name):
    """nbval obeys such comments too, and it does not compare a cell that was never run."""
    for cell in code_cells(CHAPTERS[name]):
        assert not re.search(r"^\s*#\s*NBVAL_", "".join(cell["source"]), flags=re.M)
        assert cell["execution_count"] is not None or "nbval-skip" in cell["metadata"].get("tags", ())


def test_nothing_but_addresses_is_overlooked():
    """The file with which nbval rewrites an output before it compares."""
    lines = (ROOT / "tests" / "nbval_sanitize.cfg").read_text("utf8").splitlines()
    assert [line for line in lines if line.startswith("regex:")] == ["regex: 0x[0-9a-f]{6,}"]
