"""The chapters notice when the library is wrong: broken in one place, every chapter that uses that place fails under nbval."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import forked
import pytest

ROOT = Path(__file__).resolve().parents[1]
CHAPTERS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@dataclass(frozen=True)
class Mutation:
    """A mistake: ``old`` becomes ``new`` in ``file``. It is felt by chapters whose code matches ``used``, but for ``not_felt``."""

    file: str
    old: str
    new: str
    used: str
    not_felt: dict[str, str] | None = None  # chapter → why


ENGINE = r"cl\.Engine\("
MUTATIONS = {
    "clean and corrupted swapped in the engine": Mutation(
        "engine.py",
        "for tokens in (self.task.clean, self.task.corrupted)",
        "for tokens in (self.task.corrupted, self.task.clean)",
        ENGINE,
    ),
    "clean and corrupted swapped in activation patching": Mutation(
        "patching.py",
        '(task.clean, task.corrupted) if mode == "noising" else (task.corrupted, task.clean)',
        '(task.corrupted, task.clean) if mode == "noising" else (task.clean, task.corrupted)',
        r"cl\.activation_patching\(",
    ),
    "a LayerNorm dropped in the engine": Mutation(
        "engine.py", "return x if weights.eps is None else F.layer_norm", "return x if True else F.layer_norm", ENGINE
    ),
    "a LayerNorm dropped in direct logit attribution": Mutation(
        "heads.py", "        if weights.eps is None\n", "        if True\n", r"cl\.(direct_logit_attribution|self_repair|head_attribution)\("
    ),
    "a LayerNorm dropped on the way back of EAP": Mutation(
        "discovery/eap.py", "    if weights.eps is None:\n        return u", "    if True:\n        return u", r"cl\.eap(_ig)?\("
    ),
    "a head index shifted in the engine": Mutation(
        "graph.py",
        "{name: i for i, name in enumerate(self.senders)}",
        "{name: i for i, name in enumerate((self.senders[0], *self.senders[2:], self.senders[1]))}",
        ENGINE,
    ),
    "a head index shifted in attention scores": Mutation(
        "heads.py", '[cache["pattern", layer] for', '[cache["pattern", layer].roll(1, 1) for', r"cl\.(head_scores|roles|attention_between)\("
    ),
    "the sign of EAP flipped": Mutation(
        "discovery/eap.py",
        "scores *= engine.sign /",
        "scores *= -engine.sign /",
        r"cl\.eap(_ig)?\(",
        {
            "08_acdc": "EAP only says there which edges ACDC starts from, by the size of their scores",
            "11_real_models": "the scores of an untrained model are a control there, ranked by size",
        },
    ),
    "the sign of exact effects flipped": Mutation(
        "discovery/exact.py", "(engine.sign * (whole - less))", "(engine.sign * (less - whole))", r"cl\.exact\("
    ),
    "the sign of path patching flipped": Mutation(
        "patching.py", "effects = engine.sign * (", "effects = -engine.sign * (", r"cl\.(path_patching\w*|composition_graph)\("
    ),
    "the sign of ACDC's step flipped": Mutation(
        "discovery/acdc.py", "return self.engine.sign * (before - after)", "return self.engine.sign * (after - before)", r"cl\.acdc(_sweep)?\("
    ),
}  # fmt: skip


def code_of(chapter: Path) -> str:
    cells = json.loads(chapter.read_text("utf8"))["cells"]
    shown = [c for c in cells if c["cell_type"] == "code" and "nbval-skip" not in (c["metadata"].get("tags") or ())]
    return "\n".join("".join(cell["source"]) for cell in shown)


def chapters_that_use(mutation: Mutation) -> list[Path]:
    return [path for path in CHAPTERS if re.search(mutation.used, code_of(path))]


def broken_copy(folder: Path, mutation: Mutation) -> Path:
    """The package with the mistake in it; weights and tables are links to those of the real one."""
    target = folder / "circuitlib"
    shutil.copytree(ROOT / "circuitlib", target, ignore=shutil.ignore_patterns("__pycache__", "shipped"))
    (target / "models" / "shipped").symlink_to(ROOT / "circuitlib" / "models" / "shipped")
    source = (target / mutation.file).read_text("utf8")
    assert source.count(mutation.old) == 1, f"{mutation.file} no longer has {mutation.old!r} just once"
    (target / mutation.file).write_text(source.replace(mutation.old, mutation.new), "utf8")
    return folder


def nbval(
    chapter: Path, library: Path, sanitize: Path = ROOT / "tests" / "nbval_sanitize.cfg"
) -> subprocess.CompletedProcess:
    command = [
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-p",
        "nbval.plugin",
        "--nbval",
        f"--nbval-kernel-name={forked.NAME}",
    ]
    command += ["--nbval-cell-timeout=600", "--nbval-kernel-startup-timeout=180"]
    command += ["--nbval-sanitize-with", str(sanitize), str(chapter)]
    env = os.environ | {"PYTHONPATH": str(library), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    env |= {"JUPYTER_PATH": forked.jupyter_path(), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run([sys.executable, *command], cwd=ROOT, env=env, capture_output=True, text=True, timeout=1200)


RUNS = [(name, path) for name, mutation in MUTATIONS.items() for path in chapters_that_use(mutation) if path.stem not in (mutation.not_felt or {})]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("name", "chapter"), RUNS, ids=[f"{name}, {path.stem}" for name, path in RUNS])
def test_every_chapter_that_uses_it_fails(name, chapter, tmp_path):
    run = nbval(chapter, broken_copy(tmp_path, MUTATIONS[name]))
    assert run.returncode != 0, "this chapter did not notice"
    # A cell failed, and not pytest or the kernel itself.
    assert run.returncode == 1 and re.search(r"1 failed|FAILED", run.stdout), (run.stdout[-2000:], run.stderr[-2000:])
    assert "ModuleNotFoundError" not in run.stdout and "DeadKernel" not in run.stdout, run.stdout[-2000:]


def test_every_mistake_is_made_in_a_chapter():
    assert {name for name, _ in RUNS} == set(MUTATIONS)


def test_the_mistakes_can_be_made(tmp_path):
    """Each text to replace stands in its file once: else the slow test would break something else, or nothing."""
    for name, mutation in MUTATIONS.items():
        source = (ROOT / "circuitlib" / mutation.file).read_text("utf8")
        assert source.count(mutation.old) == 1, name
        assert mutation.new not in source
        for chapter, why in (mutation.not_felt or {}).items():
            assert why and (ROOT / "notebooks" / f"{chapter}.ipynb").exists()
