"""``make book`` and what stands in ``_build`` before, while and after it runs. What builds is a stand-in of a few lines."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Takes the arguments of jupyter-book. Writes a site in two steps; between them it does what the file "between" says.
BUILDER = """#!/bin/sh
while [ "$1" != --path-output ]; do shift; done
mkdir -p "$2/_build/html/book"
cat book/index.md > "$2/_build/html/index.html"
echo built >> builds
if [ -e between ]; then . ./between; fi
cat book/index.md > "$2/_build/html/book/index.html"
"""

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture
def book(tmp_path) -> Path:
    """A folder with the Makefile of this book, one page, and an environment that counts as installed."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("_config.yml", "_toc.yml", "requirements.txt", "pyproject.toml", "book/tools/package-lock.json"):
        write(tmp_path / name, "")
    write(tmp_path / "notebooks" / "01.ipynb", "{}")
    write(tmp_path / "book" / "index.md", "first")
    write(tmp_path / ".venv" / "bin" / "python", "#!/bin/sh\n").chmod(0o755)
    write(tmp_path / ".venv" / "bin" / "jupyter-book", BUILDER).chmod(0o755)
    write(tmp_path / ".venv" / ".ready", "")
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf8")
    return path


def edit(book: Path, text: str) -> None:
    """Change the page, and see to it that its time is later than that of what was built from it."""
    page = write(book / "book" / "index.md", text)
    later = time.time() + 2
    os.utime(page, (later, later))


def make(book: Path) -> subprocess.CompletedProcess:
    return subprocess.run(["make", "book"], cwd=book, capture_output=True, text=True, timeout=60)


def site(book: Path) -> dict[str, str]:
    """The pages and what they say."""
    html = book / "_build" / "html"
    return {str(path.relative_to(html)): path.read_text("utf8") for path in sorted(html.rglob("*.html"))}


def both(text: str) -> dict[str, str]:
    return {"book/index.html": text, "index.html": text}


def test_a_site_is_built_where_the_last_line_says(book):
    done = make(book)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"==> Open this file: file://{book}/_build/html/index.html"
    assert site(book) == both("first")
    assert sorted(path.name for path in (book / "_build").iterdir()) == ["html"]


def test_nothing_is_built_again_without_a_change(book):
    make(book)
    make(book)
    assert (book / "builds").read_text().split() == ["built"]


def test_a_change_gives_a_whole_new_site(book):
    make(book)
    write(book / "_build" / "html" / "gone.html", "a page that the book no longer has")
    edit(book, "second")
    assert make(book).returncode == 0
    assert site(book) == both("second")


def test_a_failed_build_leaves_the_last_site_and_says_so(book):
    make(book)
    edit(book, "second")
    write(book / "between", "echo 'page.md:3: WARNING: no such label'; exit 1\n")
    for _ in range(2):  # a failed build does not count as built
        done = make(book)
        assert done.returncode != 0
        assert "no such label" in done.stderr and "error: the book was not built" in done.stderr
        assert site(book) == both("first")
    (book / "between").unlink()
    assert make(book).returncode == 0
    assert site(book) == both("second")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_killed_build_leaves_the_last_site(book, how):
    make(book)
    edit(book, "second")
    write(book / "between", ": > half; exec sleep 60\n")  # no child that a signal could miss
    running = subprocess.Popen(
        ["make", "book"], cwd=book, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 30
        while not (book / "half").exists():
            assert running.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        os.killpg(running.pid, how)
        running.wait(timeout=30)
    assert site(book) == both("first")
    (book / "between").unlink()
    assert make(book).returncode == 0
    assert site(book) == both("second")
    assert sorted(path.name for path in (book / "_build").iterdir()) == ["html"]


def test_the_first_build_that_fails_leaves_no_site(book):
    write(book / "between", "exit 1\n")
    assert make(book).returncode != 0
    assert not (book / "_build" / "html").exists()
