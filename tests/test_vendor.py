"""The scripts that the site brings along: what is fetched, what is checked, and what happens when it can't be."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ROOT / "book" / "tools"
LOCK = json.loads((TOOLS / "package-lock.json").read_text("utf8"))
PACKAGES = {name.removeprefix("node_modules/"): entry for name, entry in LOCK["packages"].items() if name}

# Stands for npm: makes the packages that the lock names, with the files that are kept of them, then runs "$AFTER".
NPM = """#!/usr/bin/env python3
import json, os, pathlib, sys
assert sys.argv[1:3] == ["ci", "--ignore-scripts"], sys.argv
for name in json.loads(pathlib.Path("package-lock.json").read_text())["packages"]:
    for file in {files}.get(name.removeprefix("node_modules/"), []):
        path = pathlib.Path(name, file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(os.environ.get("SAYS", "") + {font!r} * (path.name == "embed-amd.js"))
os.environ["PARENT"] = str(os.getppid())
sys.exit(os.system(os.environ.get("AFTER", "true")) and 1)
"""
FONT = 'f=n.p+"0123456789abcdef0123.woff2";' * 6
LABEL = "void 0!==window.MathJax&&MathJax.Hub.Queue(x);" * 3
FILES = {
    "mathjax": [
        "LICENSE",
        "es5/tex-mml-chtml.js",
        "es5/tex-svg.js",
        "es5/input/tex/extensions/color.js",
        "es5/output/chtml/fonts/woff-v2/a.woff",
        "es5/a11y/explorer.js",
        "es5/sre/mathmaps/base.json",
        "es5/sre/mathmaps/en.json",
        "es5/sre/mathmaps/fr.json",
    ],
    "requirejs": ["require.js", "bin/r.js"],
    "@jupyter-widgets/html-manager": ["dist/embed-amd.js", "dist/embed.js", "dist/0123456789abcdef0123.woff2"],
    "axe-core": ["axe.min.js", "axe.js"],
}
KEPT = {
    "book/_static/vendor/mathjax/LICENSE",
    "book/_static/vendor/mathjax/tex-mml-chtml.js",
    "book/_static/vendor/mathjax/input/tex/extensions/color.js",
    "book/_static/vendor/mathjax/output/chtml/fonts/woff-v2/a.woff",
    "book/_static/vendor/mathjax/a11y/explorer.js",
    "book/_static/vendor/mathjax/sre/mathmaps/base.json",
    "book/_static/vendor/mathjax/sre/mathmaps/en.json",
    "book/_static/vendor/requirejs/require.js",
    "book/_static/vendor/html-manager/embed-amd.js",
    "book/_static/vendor/html-manager/0123456789abcdef0123.woff2",
    "book/tools/node_modules/axe-core/axe.min.js",
}


@pytest.fixture
def book(tmp_path) -> Path:
    """A copy of the tools that vendor.py needs, and a folder for commands."""
    for name in ("vendor.py", "vendored.py", "package.json", "package-lock.json"):
        (tmp_path / "book" / "tools").mkdir(parents=True, exist_ok=True)
        shutil.copy(TOOLS / name, tmp_path / "book" / "tools" / name)
    (tmp_path / "bin").mkdir()
    return tmp_path


def with_npm(book: Path) -> Path:
    npm = book / "bin" / "npm"
    npm.write_text(NPM.format(files=FILES, font=FONT + LABEL), "utf8")
    npm.chmod(0o755)
    return book


def vendor(book: Path, *arguments: str, path: str | None = None, **environment: str) -> subprocess.CompletedProcess:
    """Run it with a PATH that has nothing but ``bin`` and the interpreters that the stand-in needs."""
    python = Path(sys.executable).parent
    env = os.environ | {"PATH": path or f"{book / 'bin'}:{python}:/usr/bin:/bin"} | environment
    command = [sys.executable, "book/tools/vendor.py", *arguments]
    return subprocess.run(command, cwd=book, capture_output=True, text=True, timeout=400, env=env)


def files(book: Path) -> set[str]:
    """All files that were put in place, stamps left out."""
    folders = (book / "book" / "_static", book / "book" / "tools" / "node_modules")
    found = {path for folder in folders for path in folder.rglob("*") if path.is_file()}
    return {str(path.relative_to(book)) for path in found if path.name != ".complete"}


@pytest.fixture
def load(book, monkeypatch):
    """A function that imports one of the tools from the copy; they are forgotten after the test."""
    monkeypatch.syspath_prepend(book / "book" / "tools")
    known = {name: sys.modules.pop(name) for name in ("vendor", "vendored") if name in sys.modules}
    yield importlib.import_module
    for name in ("vendor", "vendored"):
        sys.modules.pop(name, None)
    sys.modules.update(known)


# --- the lock -----------------------------------------------------------------------------------------------------


def test_the_lock_holds_what_package_json_asks_for():
    wanted = json.loads((TOOLS / "package.json").read_text("utf8"))
    assert wanted["dependencies"] | wanted["devDependencies"] == {
        name: entry["version"] for name, entry in PACKAGES.items()
    }
    assert LOCK["packages"][""]["dependencies"] == wanted["dependencies"]
    assert LOCK["packages"][""]["devDependencies"] == wanted["devDependencies"]


@pytest.mark.parametrize("name", PACKAGES)
def test_each_package_has_a_strong_hash_and_no_address(name):
    assert re.fullmatch(r"sha512-[A-Za-z0-9+/]{86}==", PACKAGES[name]["integrity"])
    assert "://" not in json.dumps(PACKAGES[name])


# --- what is put in place -----------------------------------------------------------------------------------------


def test_only_the_kept_files_are_put_in_place(book):
    done = vendor(with_npm(book))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert files(book) == KEPT


def test_a_second_run_asks_npm_for_nothing_until_the_lock_changes(book):
    vendor(with_npm(book), SAYS="old ")
    assert vendor(book, AFTER="false").stdout == ""
    lock = book / "book" / "tools" / "package-lock.json"
    lock.write_text(lock.read_text("utf8") + "\n", "utf8")
    vendor(book, SAYS="new ")
    assert (book / "book/_static/vendor/requirejs/require.js").read_text("utf8") == "new "


def test_the_widget_manager_looks_for_its_fonts_beside_itself_and_for_no_mathjax_2(book):
    vendor(with_npm(book))
    text = (book / "book/_static/vendor/html-manager/embed-amd.js").read_text("utf8")
    assert text.count('f=circuitlib_widgets_at+"0123456789abcdef0123.woff2"') == 6
    assert text.count("window.MathJax?.Hub&&MathJax.Hub.Queue(x)") == 3 and "void 0" not in text
    assert text.startswith('var circuitlib_widgets_at=new URL(".",document.currentScript.src).href;\n')


def test_a_widget_manager_of_another_shape_is_an_error(book):
    npm = with_npm(book) / "bin" / "npm"
    npm.write_text(npm.read_text("utf8").replace(FONT, FONT[: len(FONT) // 2]), "utf8")
    done = vendor(book)
    assert done.returncode == 1
    assert done.stderr == "error: html-manager: 3 icon fonts and 3 uses of MathJax, expected 6 and 3\n"
    assert files(book) == set()


# --- when it can't be fetched -------------------------------------------------------------------------------------


def test_without_npm_one_line_says_that_the_pages_use_the_network(book):
    done = vendor(book, path=str(book / "bin"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "note: npm is not installed; the pages will load MathJax from a CDN\n"
    assert files(book) == set()


def test_without_npm_an_earlier_copy_stays(book):
    vendor(with_npm(book))
    (book / "book" / "tools" / "package-lock.json").write_text("{}", "utf8")
    done = vendor(book, path="/nowhere")
    assert done.stdout == "note: npm is not installed; an earlier copy stays\n"
    assert files(book) == KEPT


def test_without_a_network_one_line_says_so(book):
    done = vendor(with_npm(book), AFTER="echo npm error code ENOTFOUND >&2; exit 1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "note: npm could not fetch the scripts (ENOTFOUND); the pages will load MathJax from a CDN\n"
    )
    assert files(book) == set()


def test_a_package_that_is_not_the_locked_one_is_an_error(book):
    done = vendor(with_npm(book), AFTER="echo npm error code EINTEGRITY >&2; exit 1")
    assert done.returncode == 1
    assert done.stderr == "error: npm got a package whose hash is not the one in book/tools/package-lock.json\n"
    assert files(book) == set()


def test_an_unknown_argument_is_an_error(book):
    done = vendor(book, "--lok")
    assert (done.returncode, done.stderr) == (1, "error: unknown argument '--lok'; the only one is --lock\n")


def test_killed_while_npm_runs_nothing_is_there_and_the_next_run_cleans_up(book):
    done = vendor(with_npm(book), AFTER="kill -9 $PARENT")
    assert done.returncode == -9
    assert not (book / "book" / "_static").exists()
    assert not (book / "book" / "tools" / "node_modules" / ".complete").exists()
    assert vendor(book).returncode == 0
    assert files(book) == KEPT


@pytest.mark.parametrize("at", range(1, 11))
def test_interrupted_while_files_are_put_in_place(book, load, monkeypatch, at):
    """Each rename and each stamp is a place to stop at: what is there then is whole, or is known not to be."""
    module = load("vendor")
    monkeypatch.setenv("PATH", f"{with_npm(book) / 'bin'}:{os.environ['PATH']}")
    npm = str(book / "bin" / "npm")
    monkeypatch.setenv("SAYS", "old ")
    module.fetch(npm)
    monkeypatch.setenv("SAYS", "new ")
    calls = iter(range(1, 100))

    def stop_at(name):
        real = getattr(Path, name)

        def method(self, *arguments, **more):
            if next(calls) == at:
                raise KeyboardInterrupt
            return real(self, *arguments, **more)

        return method

    with monkeypatch.context() as patch:
        for name in ("rename", "unlink", "write_text"):
            patch.setattr(Path, name, stop_at(name))
        try:
            module.fetch(npm)
        except KeyboardInterrupt:
            stopped = True
        else:
            stopped = False
    assert stopped == (at <= 9)  # embed-amd.js, two stamps removed, four renames, two stamps
    said = {
        path.read_text("utf8")[:4]
        for path in module.VENDOR.rglob("*")
        if path.is_file() and path.name not in (".complete", "embed-amd.js")
    }
    assert len(said) <= 1  # never a mixture
    if module.is_complete():
        assert files(book) == KEPT
    module.fetch(npm)
    assert module.is_complete() and files(book) == KEPT
    assert (module.VENDOR / "requirejs" / "require.js").read_text("utf8") == "new "


# --- what the pages load ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stamp", [True, False])
def test_the_build_uses_the_copies_only_if_they_are_whole(book, load, stamp):
    vendored = load("vendored")
    vendor(with_npm(book))
    folder = vendored.VENDOR
    if not stamp:
        (folder / ".complete").unlink()
    config = SimpleNamespace(mathjax_path="cdn", nb_ipywidgets_js="cdn")
    vendored.prefer_local_copies(None, config)
    paths = [config.mathjax_path, *config.nb_ipywidgets_js] if stamp else []
    assert stamp == (config.mathjax_path != "cdn") == (config.nb_ipywidgets_js != "cdn")
    assert all((folder.parent / path).exists() for path in paths)


# --- npm itself ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_npm_installs_the_lock_and_refuses_another_archive(book):
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    path = os.environ["PATH"]
    done = vendor(book, path=path)
    if "could not fetch" in done.stdout:
        pytest.skip(done.stdout.strip())
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    real = files(book)
    assert {name for name in KEPT if not re.search(r"0123|a\.woff", name)} <= real
    assert len([name for name in real if name.endswith(".woff2")]) == 3
    lock = book / "book" / "tools" / "package-lock.json"
    whole = lock.read_text("utf8")
    lock.write_text(whole.replace(PACKAGES["requirejs"]["integrity"], "sha512-" + "A" * 86 + "=="), "utf8")
    done = vendor(book, path=path)
    assert done.returncode == 1 and "hash is not the one" in done.stderr
    assert files(book) == real
    done = vendor(book, "--lock", path=path)
    assert done.returncode == 0, done.stderr
    assert lock.read_text("utf8") == whole
