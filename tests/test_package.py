"""The package from outside: what importing it costs, what it exports, in which order its modules build on each other."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import circuitlib as cl

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "circuitlib"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))

ORDER = (
    "files",
    "models",
    "tasks",
    "graph",
    "circuits",
    "published",
    "engine",
    "patching",
    "heads",
    "discovery",
    "evaluation",
    "comparison",
    "tables",
    "sweep",
    "plotting",
    "explorer",
    "reproduction",
    "widgets",
    "exercises",
    "doctor",
    "cli",
    "__main__",
)


def in_a_fresh_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_circuitlib_loads_neither_torch_nor_transformer_lens():
    code = "import sys, circuitlib; print(*{m.split('.')[0] for m in sys.modules})"
    loaded = set(in_a_fresh_python(code).split())
    assert "circuitlib" in loaded
    assert not loaded & {"torch", "transformer_lens", "transformers", "numpy", "pandas", "matplotlib", "sklearn"}


def test_listing_the_models_loads_no_torch():
    code = "import sys, circuitlib as cl; assert len(cl.models()); print('torch' in sys.modules)"
    assert in_a_fresh_python(code) == "False"


@pytest.mark.parametrize("name", cl.__all__)
def test_every_public_name_is_there(name):
    assert getattr(cl, name) is not None
    assert name in dir(cl)


def test_a_function_wins_over_a_submodule_of_the_same_name():
    code = "import circuitlib as cl; a = cl.models; import circuitlib.models.registry; print(callable(a), callable(cl.models))"
    assert in_a_fresh_python(code) == "True True"


def test_no_public_name_is_a_module_too():
    """Whoever imports the module first would find it in the place of the function. ``models`` is both, and can be called."""
    modules = {path.stem for path in PACKAGE.glob("*.py")} | {
        path.parent.name for path in PACKAGE.glob("*/__init__.py")
    }
    assert modules & {*cl.__all__} == {"models"}


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'patch_everything'"):
        cl.patch_everything  # noqa: B018


# --- who imports whom ---------------------------------------------------------------------------------------------


def _module(path: Path) -> str:
    """The module of the design that a file belongs to: "models" for circuitlib/models/load.py."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _imports(path: Path) -> set[str]:
    """Full names of the circuitlib modules that a file imports, at its top or inside a function."""
    package = ["circuitlib", *path.relative_to(PACKAGE).parent.parts]
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf8"))):
        if isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            # "from . import heads" names a module, "from .heads import roles" a function of one.
            found |= {f"{base}.{alias.name}" for alias in node.names} if node.level and not node.module else {base}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name.split(".")[0] == "circuitlib"}


LIBRARY = [path for path in sorted(PACKAGE.rglob("*.py")) if "training" not in path.parts and path.parent != PACKAGE]
LIBRARY += [path for path in sorted(PACKAGE.glob("*.py")) if path.name != "__init__.py"]


def test_every_module_has_a_place_in_the_order():
    assert {_module(path) for path in LIBRARY} <= set(ORDER)


@pytest.mark.parametrize("path", LIBRARY, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_import_only_from_earlier_ones(path):
    own = ORDER.index(_module(path))
    allowed = {*ORDER[: own + 1], "__version__"}
    for name in _imports(path):
        assert name != "circuitlib", f"{path.name} imports the package as a whole"
        module = name.split(".")[1]
        assert module in allowed, f"{path.name} imports {name}, which comes later"
        assert "training" not in name.split(".") or _module(path) == "cli", (
            f"{path.name} imports {name}, which is a program on top of the library"
        )


def test_the_import_reader_sees_every_form(tmp_path, monkeypatch):
    package = tmp_path / "circuitlib"
    (package / "models").mkdir(parents=True)
    file = package / "models" / "a.py"
    file.write_text(
        "from ..heads import roles\nfrom .. import engine\nimport circuitlib.cli\nfrom . import b\n"
        "def f():\n    from circuitlib.graph import Graph\n"
    )
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", package)
    expected = "circuitlib.heads circuitlib.engine circuitlib.cli circuitlib.models.b circuitlib.graph"
    assert _imports(file) == set(expected.split())


# --- versions -----------------------------------------------------------------------------------------------------


def locked() -> dict[str, Version]:
    versions = {}
    for line in (ROOT / "requirements.txt").read_text("utf8").splitlines():
        if line and not line.startswith("#"):
            found = re.fullmatch(r"([\w.-]+)==(\S+)", line)
            assert found, f"requirements.txt: {line!r} is not an exact version"
            versions[canonicalize_name(found[1])] = Version(found[2])
    return versions


ASKED = {
    "the build": PROJECT["build-system"]["requires"],
    "the package": PROJECT["project"]["dependencies"],
    **{f"the extra {name!r}": asked for name, asked in PROJECT["project"]["optional-dependencies"].items()},
}


@pytest.mark.parametrize(
    ("who", "line"),
    [(who, line) for who, lines in ASKED.items() for line in lines],
    ids=lambda value: value.split("[")[0],
)
def test_the_lock_satisfies_each_range(who, line):
    requirement, versions = Requirement(line), locked()
    assert canonicalize_name(requirement.name) in versions, f"{who} asks for {line}, requirements.txt does not have it"
    version = versions[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(version, prereleases=True), f"{who} asks for {line}, the lock has {version}"


def test_the_lock_is_complete():
    """Whatever a locked package needs here is locked as well; and the versions that run this test are the locked ones."""
    from importlib.metadata import distribution, version

    versions = locked()
    for name, exact in versions.items():
        assert Version(version(name)).public == exact.public, (
            f"{name} {version(name)} is installed, the lock has {exact}"
        )
        for line in distribution(name).requires or []:
            needed = Requirement(line)
            if needed.marker and not needed.marker.evaluate({"extra": ""}):
                continue
            known = canonicalize_name(needed.name)
            from_torch = name == "torch" and re.match(
                r"nvidia-|cuda-|triton", known
            )  # one kind of GPU, pinned by torch
            assert known in versions or from_torch, f"{name} needs {known}, requirements.txt does not have it"


def test_torch_and_numpy_have_only_a_lower_bound():
    """Colab keeps its own: an upper bound would make pip replace them."""
    for line in PROJECT["project"]["dependencies"]:
        requirement = Requirement(line)
        if requirement.name in ("torch", "numpy"):
            assert {specifier.operator for specifier in requirement.specifier} == {">="}


def test_torch_is_pinned_to_the_version_of_the_outputs():
    assert "torch==2.13.0" in (ROOT / "requirements.txt").read_text("utf8").splitlines()


def test_the_version_is_written_in_one_place():
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "circuitlib.__version__"}
    citation = (ROOT / "CITATION.cff").read_text("utf8")
    assert f"\nversion: {cl.__version__}\n" in citation
    assert f"## [{cl.__version__}]" in (ROOT / "CHANGELOG.md").read_text("utf8")


def test_the_shipped_weights_and_the_tables_are_package_data():
    assert PROJECT["tool"]["setuptools"]["package-data"]["circuitlib"] == [
        "models/shipped/**",
        "results/*",
        "explorer/*.js",
        "explorer/*.css",
    ]


# --- what the text says about the package -------------------------------------------------------------------------

PAGES = [ROOT / "README.md", *sorted((ROOT / "book").glob("*.md"))]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_code_in_the_text_uses_names_that_exist(path):
    for block in re.findall(r"^```python\n(.+?)^```", path.read_text("utf8"), flags=re.M | re.S):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "cl":
                assert node.attr in cl.__all__, f"{path.name}: cl.{node.attr}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_commands_in_the_text_exist(path):
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf8"), flags=re.M))
    for command in re.findall(r"(?:^|`)make ([a-z-]+)", path.read_text("utf8"), flags=re.M):
        assert command in targets, f"{path.name}: make {command}"


@pytest.mark.parametrize("path", [*PAGES[:1], ROOT / "CONTRIBUTING.md"], ids=lambda path: path.name)
def test_files_that_the_text_links_to_exist(path):
    for address in re.findall(r"\]\(([^)#\s]+)", path.read_text("utf8")):
        if "://" not in address:
            assert (ROOT / address).exists(), f"{path.name}: {address}"
