"""What the README says about the terminal, run as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import circuitlib as cl

ROOT = Path(__file__).resolve().parents[1]


def section(heading: str) -> str:
    """The shell lines of a section of the README."""
    text = re.search(rf"^### {heading}\n(.+?)(?=^#)", (ROOT / "README.md").read_text("utf8"), flags=re.M | re.S)
    blocks = re.findall(r"^```bash\n(.+?)^```", text[1], flags=re.M | re.S)
    assert len(blocks) == 1, f"expected one block of commands, found {len(blocks)}"
    return blocks[0]


def test_five_lines_take_a_task_of_ones_own_to_a_judged_circuit(tmp_path):
    lines = section("Your own task, from a terminal")
    assert len(lines.splitlines()) == 5
    program = tmp_path / "bin" / "circuitlib"  # where it is installed, pip makes one like it
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m circuitlib.cli "$@"\n')
    program.chmod(0o755)
    folder = tmp_path / "work"
    folder.mkdir()
    environment = os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-e", "-c", lines], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["circuit.html", "circuit.json", "mine.jsonl"]

    model = cl.load_model("docstring-4l")
    engine = cl.Engine(model, cl.load_task(model, folder / "mine.jsonl"))
    circuit = cl.Circuit.load(folder / "circuit.json")
    assert circuit == cl.eap_ig(engine).top(len(circuit)) and circuit.task == "mine"
    faithful = cl.faithfulness(engine, circuit)
    printed = dict(line.split() for line in done.stdout.splitlines()[1:] if len(line.split()) == 2)
    assert float(printed["faithfulness"]) == round(faithful, 4) and faithful > 0.8
    assert float(printed["random_best"]) < 0.2
    assert "look at the task" not in done.stderr  # it is one that the model can do
    assert (folder / "circuit.html").read_text("utf8").startswith("<!doctype html>")
