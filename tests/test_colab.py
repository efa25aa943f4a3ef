"""Publishing, and a reader on Colab who opens chapter 1 and chooses "Run all": rehearsed from the stamp to the last cell.

The published repository is a copy of this one, stamped, committed and tagged. Git is told to find the stamped address there, so
that the setup cell runs as it is. Colab is a new virtual environment with torch, numpy, matplotlib, ipykernel and what these need,
each in the version that runs this test, and a module ``google.colab``. They are the same files, linked, so that nobody has to
download torch. Everything else is what pip finds, so this also tells whether the newest allowed versions still work.

Needs git and a package index that pip can reach; skipped where one is missing, or with NEED_INDEX=1 failed. Several minutes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import distribution, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "book" / "tools"))
import stamp  # noqa: E402

import notebooks  # noqa: E402

pytestmark = pytest.mark.slow

ADDRESS = stamp.Address("some-owner/circuits", "v0.0.1")
PRESENT = ("torch", "numpy", "matplotlib", "ipykernel")
CHAPTER = "01_activation_patching.ipynb"
NOT_PUBLISHED = (".git", ".venv", "_build", "node_modules", "vendor", "__pycache__", ".hypothesis", "*.egg-info")


def call(*command: str | Path, **options) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=900, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Removed at the end: the environment takes more than a gigabyte."""
    folder = tmp_path_factory.mktemp("colab")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def published(folder) -> Path:
    """A copy of this repository, stamped, committed and tagged."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    root = folder / "published"
    shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns(*NOT_PUBLISHED))
    assert stamp.main([f"--repo={ADDRESS.repo}", f"--ref={ADDRESS.ref}"], root) == 0
    git = ("git", "-C", root, "-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")
    call("git", "init", "-q", root)
    call(*git, "add", "-A")
    call(*git, "commit", "-q", "-m", "published")
    call(*git, "tag", ADDRESS.ref)
    return root


@pytest.fixture(scope="module")
def python(folder) -> Path:
    """The Python of an environment like Colab's, before anything is installed into it."""
    require_index(folder)
    call(sys.executable, "-m", "venv", folder / "venv")
    python = next(path for path in (folder / "venv/bin/python", folder / "venv/Scripts/python.exe") if path.exists())
    site = Path(call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    for name in with_needs(PRESENT):
        link(name, site)
    (site / "google" / "colab").mkdir(parents=True)
    (site / "google" / "colab" / "__init__.py").write_text('"""Stands for Colab\'s own."""\n')
    return python


def require_index(folder: Path) -> None:
    """Skip the test if pip can reach no index."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--retries", "0", "--timeout", "20", "-d", folder / "index", "einops"]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        reason = "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    except subprocess.TimeoutExpired:
        reason = "no answer in two minutes"
    if reason and os.environ.get("NEED_INDEX") == "1":
        pytest.fail(f"pip can reach no package index ({reason})", pytrace=False)
    if reason:
        pytest.skip(f"pip can reach no package index ({reason})")


def with_needs(names: tuple[str, ...]) -> list[str]:
    """The installed distributions that these names need, directly or indirectly, and they themselves."""
    found: list[str] = []
    waiting = [canonicalize_name(name) for name in names]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.append(name)
            needs = map(Requirement, distribution(name).requires or [])
            waiting += [canonicalize_name(n.name) for n in needs if not n.marker or n.marker.evaluate({"extra": ""})]
    return found


def link(name: str, site: Path) -> None:
    """Every file of an installed distribution, also its metadata, in ``site``: the same file if the disk allows, else a copy."""
    for file in distribution(name).files:
        source = Path(distribution(name).locate_file(file))
        if ".." in file.parts or file.suffix == ".pyc" or not source.is_file():
            continue  # scripts, and what Python makes by itself
        target = site / file
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        except FileExistsError:
            pass
        except OSError:
            shutil.copy2(source, target)


@pytest.fixture
def colab(folder, published, python, monkeypatch):
    """Runs cells in a kernel of that environment, in an empty folder, as Colab does; returns the notebook with its outputs."""
    from nbclient import NotebookClient
    from nbformat import reads

    monkeypatch.setenv("JUPYTER_PATH", str(folder / "jupyter"))
    monkeypatch.delenv("PYTHONPATH", raising=False)

    def run(cells: list[dict], preloaded: str = "google.colab", stop: bool = True):
        write_kernel(folder / "jupyter" / "kernels" / "colab", python, preloaded, published)
        here = folder / "content"
        shutil.rmtree(here, ignore_errors=True)
        here.mkdir()
        notebook = reads(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}), as_version=4)
        client = NotebookClient(
            notebook,
            timeout=900,
            startup_timeout=180,
            kernel_name="colab",
            resources={"metadata": {"path": str(here)}},
            skip_cells_with_tag=notebooks.SKIP_TAG,
            allow_errors=not stop,
        )
        client.execute()
        return notebook

    return run


def write_kernel(to: Path, python: Path, preloaded: str, published: Path) -> None:
    """A kernel that has some modules loaded from the start, and whose git finds the stamped address in ``published``."""
    start = f"import {preloaded}, runpy; runpy.run_module('ipykernel_launcher', run_name='__main__')"
    spec = {
        "argv": [str(python), "-c", start, "-f", "{connection_file}"],
        "display_name": "Colab",
        "language": "python",
        "env": {
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"url.{published.as_uri()}.insteadOf",
            "GIT_CONFIG_VALUE_0": ADDRESS.url,
            "GIT_TERMINAL_PROMPT": "0",
        },
    }
    to.mkdir(parents=True, exist_ok=True)
    (to / "kernel.json").write_text(json.dumps(spec), "utf8")


def versions(python: Path) -> dict[str, str]:
    code = "import json; from importlib.metadata import distributions as d; print(json.dumps({x.metadata['Name']: x.version for x in d()}))"
    return json.loads(call(python, "-c", code, cwd=python.parent))


def setup_cell(root: Path) -> dict:
    return next(cell for cell in notebooks.read(root / "notebooks" / CHAPTER)["cells"] if cell["cell_type"] == "code")


def printed(cell: dict) -> str:
    return "".join("".join(output.get("text", "")) for output in cell["outputs"])


def test_run_all_of_chapter_1(colab, published, python):
    before = versions(python)
    assert before["torch"] == version("torch") and before["numpy"] == version("numpy") and "circuitlib" not in before
    chapter = notebooks.read(published / "notebooks" / CHAPTER)
    ran = colab(chapter["cells"])

    after = versions(python)
    print("installed:", {name: after[name] for name in sorted(after) if before.get(name) != after[name]})
    assert {name: after[name] for name in ("torch", "numpy")} == {name: before[name] for name in ("torch", "numpy")}
    at, url = call(
        python, "-c", "import circuitlib, importlib.metadata as m; print(circuitlib.__file__, m.distribution('circuitlib').read_text('direct_url.json'))", cwd=python.parent
    ).strip().split(maxsplit=1)  # fmt: skip
    assert Path(at).is_relative_to(python.parent.parent)
    assert json.loads(url)["url"] == ADDRESS.url and json.loads(url)["vcs_info"]["requested_revision"] == ADDRESS.ref

    cells = [cell for cell in ran["cells"] if cell["cell_type"] == "code"]
    print("the setup cell printed:", repr(printed(cells[0])))
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert all(output["output_type"] != "error" for cell in cells for output in cell["outputs"])
    unsolved = [cell for cell in cells if "cl.check(" in cell["source"]]
    assert len(unsolved) >= 2
    committed = [cell for cell in chapter["cells"] if "cl.check(" in "".join(cell["source"])]
    for cell, expected in zip(unsolved, committed, strict=True):
        assert shown(cell) == shown(expected) != ""


def shown(cell: dict) -> str:
    """The text of a cell's results."""
    return "\n".join("".join(output["data"]["text/plain"]) for output in cell["outputs"] if "data" in output)


def test_a_package_that_pip_replaced_under_a_running_kernel_is_named_in_one_line(colab, published, python):
    """After the test above, with all else installed: tqdm is too old and already loaded when the setup cell replaces it."""
    call(python, "-m", "pip", "uninstall", "-q", "-y", "circuitlib")
    call(python, "-m", "pip", "install", "-q", "tqdm==4.65.0")
    again, more = setup_cell(published), {"cell_type": "code", "metadata": {}, "source": "print('went on')", "outputs": [], "execution_count": None}  # fmt: skip
    ran = colab([again, dict(again, id="again"), more], preloaded="google.colab, tqdm", stop=False)
    new = versions(python)["tqdm"]
    assert Requirement("tqdm>=4.66").specifier.contains(new)
    for cell in ran["cells"][:2]:  # and a second time: nothing was loaded anew
        errors = [output for output in cell["outputs"] if output["output_type"] == "error"]
        assert len(errors) == 1 and len(errors[0]["traceback"]) == 1
        line = re.sub(r"\x1b\[[\d;]*m", "", errors[0]["traceback"][0])
        assert (
            line.startswith(f"Restart needed: pip replaced tqdm 4.65.0 by {new}; restart the kernel")
            and "\n" not in line
        )

    restarted = colab([again, more])
    assert printed(restarted["cells"][1]) == "went on\n"
