"""Fetch the scripts that the built pages use, so that the book needs no network when it is read.

    python book/tools/vendor.py           # what is missing, as package-lock.json has it
    python book/tools/vendor.py --lock    # after a change of package.json: write package-lock.json anew

Needs npm, which takes the packages from whatever registry it is set to and compares their hashes with the lock. Without
npm, or without a network, the pages take these scripts from their usual CDNs instead. Two folders are filled, both
ignored by git: ``book/_static/vendor``, which becomes a part of the site, and ``book/tools/node_modules`` for the tests.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vendored import TOOLS, VENDOR

MODULES = TOOLS / "node_modules"


@dataclass(frozen=True)
class Script:
    """What the book uses of one npm package.

    Args:
        package: its name in package.json.
        base: the folder in it that the kept paths are relative to.
        keep: patterns of files below ``base``.
        folder: where they go, below ``book/_static/vendor``; "" for a script that only the tests use.
        edit: what is changed in a file, by the file's name.
    """

    package: str
    base: str
    keep: tuple[str, ...]
    folder: str = ""
    edit: Callable[[str], str] | None = None
    edited: str = ""


def fit_to_the_page(text: str) -> str:
    """The widget manager, changed in two points.

    As published it looks for its icon fonts beside the page, and not beside itself. And it asks for MathJax 2, which
    throws an error for each label on a page that has MathJax 3.
    """
    here = "circuitlib_widgets_at"
    text, fonts = re.subn(r'\b\w+\.p\+("[0-9a-f]{20}\.woff2")', rf"{here}+\1", text)
    text, labels = re.subn(r"\bvoid 0!==window\.MathJax&&MathJax\.Hub\.", "window.MathJax?.Hub&&MathJax.Hub.", text)
    if (fonts, labels) != (6, 3):
        raise ValueError(f"html-manager: {fonts} icon fonts and {labels} uses of MathJax, expected 6 and 3")
    return f'var {here}=new URL(".",document.currentScript.src).href;\n{text}'


SCRIPTS = (
    Script(
        "mathjax",
        "es5",
        (
            "tex-mml-chtml.js",
            "input/tex/extensions/*",
            "output/chtml/fonts/**/*",
            "a11y/*",  # the reader turns these on in the menu of a formula: they speak it, or walk through it
            "sre/mathmaps/base.json",
            "sre/mathmaps/en.json",
        ),
        "mathjax",
    ),
    Script("requirejs", ".", ("require.js",), "requirejs"),
    Script(
        "@jupyter-widgets/html-manager",
        "dist",
        ("embed-amd.js", "*.woff2"),
        "html-manager",
        fit_to_the_page,
        "embed-amd.js",
    ),
    Script("axe-core", ".", ("axe.min.js",)),
)


def main(arguments: list[str]) -> int:
    npm = shutil.which("npm")
    try:
        if arguments == ["--lock"]:
            write_lock(npm)
        elif arguments:
            raise ValueError(f"unknown argument {arguments[0]!r}; the only one is --lock")
        elif not is_complete():
            print(fetch(npm), end="")
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def is_complete() -> bool:
    """Whether both folders hold what this lock and this program put there."""
    stamps = [folder / ".complete" for folder in (VENDOR, MODULES)]
    return all(stamp.exists() and stamp.read_text("utf8") == version() for stamp in stamps)


def version() -> str:
    """A hash of all that decides what the folders hold."""
    texts = [(TOOLS / "package-lock.json").read_bytes(), Path(__file__).read_bytes()]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()


def fetch(npm: str | None) -> str:
    """Fill both folders, or leave them as they are and return a line that says why.

    Raises:
        ValueError: if a package is not the one that the lock names. No page should load that.
    """
    instead = "an earlier copy stays" if (VENDOR / ".complete").exists() else "the pages will load MathJax from a CDN"
    if npm is None:
        return f"note: npm is not installed; {instead}\n"
    MODULES.mkdir(exist_ok=True)
    for left_over in MODULES.glob(".fetch-*"):
        shutil.rmtree(left_over)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=MODULES) as work:
        work = Path(work)
        problem = install(npm, work)
        if "EINTEGRITY" in problem:
            raise ValueError("npm got a package whose hash is not the one in book/tools/package-lock.json")
        if problem:
            return f"note: npm could not fetch the scripts ({problem}); {instead}\n"
        for script in SCRIPTS:
            copy(script, work)
        put_in_place(work)
    return ""


def install(npm: str, work: Path) -> str:
    """Let npm unpack what the lock names into ``work/node_modules``; what went wrong, in a line, or nothing."""
    for name in ("package.json", "package-lock.json"):
        shutil.copy(TOOLS / name, work)
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline", "--fetch-retries=1"]
    try:
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=300)
    except (OSError, subprocess.TimeoutExpired) as error:
        return type(error).__name__
    if done.returncode == 0:
        return ""
    codes = re.findall(r"\b(E[A-Z_]{4,})\b", done.stderr)
    return "EINTEGRITY" if "EINTEGRITY" in codes else (codes or [f"exit code {done.returncode}"])[0]


def copy(script: Script, work: Path) -> None:
    """What is kept of one package, from ``work/node_modules`` to ``work/site`` or ``work/tests``."""
    package = work / "node_modules" / script.package
    source = package / script.base
    target = work / "site" / script.folder if script.folder else work / "tests" / script.package
    target.mkdir(parents=True)
    for licence in package.glob("LICENSE*"):
        shutil.copyfile(licence, target / licence.name)
    for pattern in script.keep:
        files = [path for path in source.glob(pattern) if path.is_file()]
        if not files:
            raise ValueError(f"{script.package}: no file is named {pattern}")
        for path in files:
            to = target / path.relative_to(source)
            to.parent.mkdir(exist_ok=True, parents=True)
            if script.edit and path.name == script.edited:
                to.write_text(script.edit(path.read_text("utf8")), "utf8")
            else:
                shutil.copyfile(path, to)


def put_in_place(work: Path) -> None:
    """Replace the two folders, each by a rename. A stamp is the last thing: a folder without one is fetched again."""
    for stamp in (VENDOR / ".complete", MODULES / ".complete"):
        stamp.unlink(missing_ok=True)
    VENDOR.parent.mkdir(parents=True, exist_ok=True)
    new = [(work / "site", VENDOR), *((folder, MODULES / folder.name) for folder in (work / "tests").iterdir())]
    for number, (folder, target) in enumerate(new):
        if target.exists():
            target.rename(work / f"old{number}")
        folder.rename(target)
    for folder in (VENDOR, MODULES):
        (folder / ".complete").write_text(version(), "utf8")


def write_lock(npm: str | None) -> None:
    """Lock the packages of package.json themselves, without what they depend on.

    The files that the book keeps are bundles that hold their dependencies, and npm would unpack 130 packages more. No
    address of a registry is written, so that each reader's npm asks the registry that it is set to.

    Raises:
        ValueError: without npm, or if npm finds no such version.
    """
    if npm is None:
        raise ValueError("npm is not installed; only npm can write the lock")
    with tempfile.TemporaryDirectory() as work:
        shutil.copy(TOOLS / "package.json", work)
        options = ("--package-lock-only", "--ignore-scripts", "--omit-lockfile-registry-resolved", "--no-audit")
        done = subprocess.run([npm, "install", *options], cwd=work, capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise ValueError(f"npm: {(done.stderr.strip() or 'no reason given').splitlines()[0]}")
        lock = json.loads((Path(work) / "package-lock.json").read_text("utf8"))
    root = lock["packages"][""]
    wanted = {f"node_modules/{name}" for group in ("dependencies", "devDependencies") for name in root[group]}
    for name in set(lock["packages"]) - wanted - {""}:
        del lock["packages"][name]
    for name in wanted:
        for group in ("dependencies", "peerDependencies", "optionalDependencies", "resolved"):
            lock["packages"][name].pop(group, None)
    (TOOLS / "package-lock.json").write_text(json.dumps(lock, indent=2) + "\n", "utf8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
