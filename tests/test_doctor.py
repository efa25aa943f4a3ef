"""``circuitlib doctor``: each check finds what it is for, on a computer where that is really wrong wherever a test can make it so."""

from __future__ import annotations

import builtins
import io
import json
import os
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from typer.testing import CliRunner

import circuitlib as cl
from circuitlib import cli, doctor
from circuitlib.doctor import NOTE, OK, WRONG, Check
from circuitlib.models import NoNetwork, hub, registry

ROOT = Path(__file__).resolve().parents[1]


def one(check, status: str, said: str, fix: str = "") -> Check:
    assert (check.status, said in check.found, fix in check.fix) == (status, True, True), check
    assert "\n" not in check.line() and (check.status != WRONG or check.fix)
    return check


@pytest.fixture
def modules(tmp_path, monkeypatch) -> Path:
    """A folder that every new Python looks into before site-packages."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


# --- the report ---------------------------------------------------------------------------------------------------

GOOD, BAD, SO_SO = Check("a", OK, "fine"), Check("b", WRONG, "gone", "buy one"), Check("c", NOTE, "well")


@pytest.mark.parametrize(("checks", "code"), [([GOOD, SO_SO], 0), ([GOOD, BAD], 1), ([BAD], 1), ([], 0)])
def test_exit_code_and_json(monkeypatch, checks, code):
    monkeypatch.setattr(doctor, "CHECKS", (lambda: checks,))
    result = CliRunner().invoke(cli.app, ["doctor"])
    assert result.exit_code == code and len(result.stdout.splitlines()) == len(checks) and result.stderr == ""
    result = CliRunner().invoke(cli.app, ["doctor", "--json"])
    said = json.loads(result.stdout)
    assert result.exit_code == code and said["ok"] == (code == 0)
    assert [Check(**check) for check in said["checks"]] == checks


def test_a_line_has_a_mark_what_was_found_and_the_fix():
    assert BAD.line() == "✗ b                 gone → buy one"
    assert GOOD.line() == "✓ a                 fine" and SO_SO.line().startswith("– c ")


def test_a_terminal_that_knows_only_ascii(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    monkeypatch.setattr(doctor, "CHECKS", (lambda: [GOOD, BAD, Check("d", OK, "/home/zoë")],))
    assert doctor.report() is False
    sys.stdout.flush()
    lines = raw.getvalue().decode("ascii").splitlines()
    assert lines[1] == "WRONG b                 gone -> buy one" and lines[2].endswith("/home/zo?")


def test_a_check_that_breaks_is_a_finding_and_the_others_go_on(monkeypatch):
    def broken_one():
        raise RuntimeError("two\nlines")

    monkeypatch.setattr(doctor, "CHECKS", (broken_one, lambda: GOOD))
    found = list(doctor.examine())
    assert found[0] == Check("broken one", WRONG, "two lines", "please report this as a bug") and found[1] == GOOD


# --- Python and packages ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "status"), [("3.10.14", WRONG), ("3.11.0", OK), ("3.14.1", OK), ("4.0.0", OK)])
def test_python(monkeypatch, version, status):
    monkeypatch.setattr("platform.python_version_tuple", lambda: tuple(version.split(".")))
    one(doctor.python(), status, sys.executable)


def test_packages_are_compared_with_the_ranges_of_pyproject():
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))["project"]["dependencies"]
    assert [str(requirement) for requirement in doctor.requirements().values()] == [str(Requirement(a)) for a in asked]
    found = doctor.packages()
    assert [check.name for check in found] == ["torch", "transformer-lens", "ipywidgets", "other packages"]
    assert {check.status for check in found} == {OK}
    assert found[0].found == f"{metadata.version('torch')} (>=2.6)" and found[1].found.endswith("(>=4.3,<5)")
    assert found[3].found == f"{len(asked) - 3} in range"


def test_without_a_clone_the_ranges_are_those_that_pip_recorded(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "PACKAGE", tmp_path / "circuitlib")
    monkeypatch.setattr(metadata, "requires", lambda name: ["torch>=2.6", 'pytest>=8; extra == "test"'])
    assert list(doctor.requirements()) == ["torch"]


@pytest.mark.parametrize(
    ("package", "version", "line", "said", "fix"),
    [
        ("torch", "2.5.1+cu121", "torch", "2.5.1+cu121 is installed, >=2.6 is needed", 'pip install "torch>=2.6"'),
        ("transformer-lens", "5.0.0", "transformer-lens", "5.0.0 is installed, >=4.3,<5 is needed", '"transformer-lens>=4.3,<5"'),
        ("ipywidgets", "7.7.1", "ipywidgets", "7.7.1 is installed", '"ipywidgets>=8.1,<9"'),
        ("ipywidgets", None, "ipywidgets", "not installed", '"ipywidgets>=8.1,<9"'),
        ("pandas", "1.5.3", "other packages", "pandas: 1.5.3 is installed, >=2.2 is needed", '"pandas>=2.2"'),
    ],
)  # fmt: skip
def test_a_package_out_of_range(monkeypatch, package, version, line, said, fix):
    real = metadata.version

    def fake(name):
        if name == package and version is None:
            raise metadata.PackageNotFoundError(name)
        return version if name == package else real(name)

    monkeypatch.setattr(metadata, "version", fake)
    found = {check.name: check for check in doctor.packages()}
    one(found[line], WRONG, said, fix)
    assert [check.name for check in found.values() if check.status == WRONG] == [line]


def test_without_packaging_it_says_so(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("packaging"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    (check,) = doctor.packages()
    one(check, WRONG, "packaging is missing", "pip install packaging")


# --- torch --------------------------------------------------------------------------------------------------------

BROKEN = {
    "raise OSError('libcudart.so.12: cannot open\\nshared object file')": "shared object file",
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)": "killed by signal 9, perhaps for lack of memory",
    "import os, signal; os.kill(os.getpid(), signal.SIGILL)": "killed by signal 4",
    "import os; os._exit(7)": "exit code 7",
    "ones = lambda n: Sum()\nget_num_threads = lambda: 1\nclass Sum:\n    def sum(self):\n        return 4": "1 + 1 + 1 = 4",
}


@pytest.mark.parametrize("code", BROKEN, ids=BROKEN.values())
def test_a_torch_that_breaks(modules, code):
    (modules / "torch.py").write_text(code)
    (check,) = doctor.torch_runs()
    one(check, WRONG, BROKEN[code], "pip install --force-reinstall torch")


def test_a_torch_that_hangs(modules):
    (modules / "torch.py").write_text("import time\ntime.sleep(60)")
    assert doctor.in_python("import torch", seconds=1) == (None, "no answer in 1 seconds")


def test_torch_here(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    works, used = doctor.torch_runs()
    one(works, OK, "adds")
    one(used, OK, "torch uses 1 of ")


@pytest.mark.parametrize(
    ("limit", "n"), [("150000 100000", 2), ("50000 100000", 1), ("max 100000", 64), ("900000 1000", 64), (None, 64)]
)
def test_cores_are_those_of_the_container(monkeypatch, tmp_path, limit, n):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    monkeypatch.setattr(hub, "CONTAINER", tmp_path)
    if limit:
        (tmp_path / "cpu.max").write_text(limit + "\n")
    assert doctor.cores() == n
    one(
        doctor.threads(64),
        OK if n == 64 else WRONG,
        f"torch uses 64 of {n} core",
        "" if n == 64 else f"OMP_NUM_THREADS={n}",
    )


# --- the machine --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("free", "status", "said"), [(8e9, OK, "8.0 GB free"), (5e8, WRONG, "0.5 GB free, a chapter needs"), (None, NOTE, "unknown")])  # fmt: skip
def test_memory(monkeypatch, free, status, said):
    monkeypatch.setattr(hub, "available_memory", lambda: free)
    one(doctor.memory(), status, said)


@pytest.mark.parametrize(("free", "status"), [(5e9, OK), (9e8, WRONG)])
def test_disk(monkeypatch, free, status):
    usage = type(shutil.disk_usage("."))(2**40, 0, int(free))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    one(doctor.disk(), status, f"{free / 1e9:.1f} GB free")


def test_write_access(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CIRCUITLIB_CACHE", str(tmp_path / "cache" / "below"))
    one(doctor.write_access(), OK, "in this folder")
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    one(doctor.write_access(), NOTE, "below", "CIRCUITLIB_CACHE")


def test_a_folder_that_can_not_be_written_to(monkeypatch, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    monkeypatch.setattr(Path, "cwd", lambda: gone)
    gone.rmdir()  # for a user who may write everywhere, this is what refuses
    one(doctor.write_access(), WRONG, "No such file or directory", "cd")


# --- notebooks ----------------------------------------------------------------------------------------------------


def kernelspec(folder: Path, monkeypatch, argv: list[str], **env: str) -> None:
    """Another kernel called python3, which comes first."""
    to = folder / "kernels" / "python3"
    to.mkdir(parents=True)
    spec = {"argv": argv, "display_name": "Python 3", "language": "python", "env": env}
    (to / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(folder))


LAUNCH = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]


def test_the_kernel_starts(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    one(doctor.kernel(), OK, "imports circuitlib")


def test_a_kernel_that_dies(monkeypatch, tmp_path):
    kernelspec(tmp_path, monkeypatch, [sys.executable, "-c", "raise SystemExit(1)", "{connection_file}"])
    one(doctor.kernel(), WRONG, "does not start", "pip install --force-reinstall ipykernel")


def test_a_kernel_of_another_python(monkeypatch, tmp_path):
    """The usual reason why a notebook can't import what was just installed."""
    (tmp_path / "circuitlib").mkdir()
    (tmp_path / "circuitlib" / "__init__.py").write_text("")
    kernelspec(tmp_path / "jupyter", monkeypatch, LAUNCH, PYTHONPATH=str(tmp_path))
    monkeypatch.chdir(tmp_path)
    one(
        doctor.kernel(),
        WRONG,
        f"imports circuitlib from {tmp_path / 'circuitlib'}",
        "-m ipykernel install --user --name python3",
    )
    (tmp_path / "circuitlib" / "__init__.py").write_text("raise ImportError")
    one(doctor.kernel(), WRONG, "starts, but can't import circuitlib")


@pytest.mark.parametrize("name", ["ipykernel", "jupyter_client"])
def test_without_a_kernel(monkeypatch, name):
    monkeypatch.setattr(doctor, "find_spec", lambda asked: None if asked == name else True)
    one(doctor.kernel(), WRONG, f"{name} is not installed", "pip install ipykernel")


def test_widgets_here():
    assert doctor.widgets().status in (OK, NOTE)


def test_widgets_name_what_draws_them(monkeypatch):
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "4.5.0" if name == "jupyterlab" else real(name))
    one(doctor.widgets(), OK, "drawn by JupyterLab 4.5.0")


def test_widgets_without_the_half_that_draws(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "jupyter_folders", lambda: [tmp_path])
    one(
        doctor.widgets(), WRONG, "the part for JupyterLab and for the classic Notebook is missing", "widgetsnbextension"
    )
    there = tmp_path / doctor.EXTENSIONS["JupyterLab"]
    there.parent.mkdir(parents=True)
    there.touch()
    one(doctor.widgets(), WRONG, "the part for the classic Notebook is missing")


def test_widgets_whose_halves_do_not_fit(monkeypatch):
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "1.1.11" if name == "jupyterlab_widgets" else real(name))
    one(doctor.widgets(), WRONG, "jupyterlab_widgets: 1.1.11 is installed", '"jupyterlab_widgets')


def test_without_widgets(monkeypatch):
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    one(doctor.widgets(), WRONG, "ipywidgets is not installed", "pip install ipywidgets")


# --- models -------------------------------------------------------------------------------------------------------


def test_a_shipped_model_gives_the_right_answer(monkeypatch):
    found = doctor.answers(["docstring-4l", "handmade-xor"])
    said, right, problem = found["docstring-4l"]
    model = cl.load_model("docstring-4l")
    task = cl.default_task(model, n=1)
    assert said == right == model.tokenizer.decode([int(task.answers[0])]) and problem == ""
    assert found["handmade-xor"][2].startswith("ValueError: unknown model 'handmade-xor'")


def test_a_damaged_file_is_found_before_the_model_is_loaded(monkeypatch, tmp_path):
    shutil.copytree(registry.SHIPPED, tmp_path / "shipped")
    weights = tmp_path / "shipped" / "gpt-mini" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    monkeypatch.setattr(registry, "SHIPPED", tmp_path / "shipped")
    loaded = []
    monkeypatch.setattr(
        doctor, "in_python", lambda code: (loaded.append(code), ({"docstring-4l": ["x", "x", ""]}, ""))[1]
    )
    bad, good = sorted(doctor.shipped_models(), key=lambda check: check.status == OK)
    one(good, OK, "answers 'x'")
    one(bad, WRONG, f"{weights} is damaged: its SHA-256 is ", "git checkout circuitlib/models")
    assert len(loaded) == 1 and "docstring-4l" in loaded[0] and "gpt-mini" not in loaded[0]


def test_models_that_do_not_load_or_answer_wrong(monkeypatch):
    monkeypatch.setattr(doctor, "in_python", lambda code: (None, "killed by signal 9"))
    for check in doctor.shipped_models():
        one(check, WRONG, "does not load: killed by signal 9")
    answers = {"docstring-4l": ["b", "a", ""], "gpt-mini": [None, None, "OSError: no"]}
    monkeypatch.setattr(doctor, "in_python", lambda code: (answers, ""))
    wrong, broken = doctor.shipped_models()
    one(wrong, WRONG, "answers 'b' where 'a' is right")
    one(broken, WRONG, "does not load: OSError: no")


@pytest.fixture
def online(monkeypatch):
    for name in ("CIRCUITLIB_MODELS", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)


def test_the_hub(online, monkeypatch):
    monkeypatch.setattr(hub, "require_hub", lambda *arguments: None)
    one(doctor.real_models(), OK, "the Hugging Face Hub answers")

    def unreachable(name, repo):
        raise NoNetwork("no")

    monkeypatch.setattr(hub, "require_hub", unreachable)
    one(doctor.real_models(), NOTE, "can't be reached; only chapter 11 needs it", "CIRCUITLIB_MODELS")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    one(doctor.real_models(), NOTE, "HF_HUB_OFFLINE is set")


def test_a_folder_for_a_classroom(online, monkeypatch, tmp_path):
    monkeypatch.setenv("CIRCUITLIB_MODELS", str(tmp_path))
    one(doctor.real_models(), WRONG, f"{tmp_path}, which has none", "copy the folder again")
    stored = tmp_path / "models--openai-community--gpt2"
    (stored / "refs").mkdir(parents=True)
    (stored / "refs" / "main").write_text("abc")
    files = stored / "snapshots" / "abc"
    files.mkdir(parents=True)
    for name in hub.NEEDED["transformers"]:
        (files / name).write_text("content")
    one(doctor.real_models(), WRONG, "has no SHA256SUMS")
    hub.write_manifest(tmp_path)
    assert one(doctor.real_models(), OK, "CIRCUITLIB_MODELS has gpt2").found.endswith("gpt2")
    (files / "model.safetensors").write_text("other")
    one(doctor.real_models(), WRONG, "model.safetensors is damaged", "copy the folder again")


# --- a kernel whose packages were replaced ------------------------------------------------------------------------


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Puts a package on the path as pip leaves it, and returns its folder of metadata."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(version: str, distribution="the-package", module="the_package") -> Path:
        for old in tmp_path.glob("*.dist-info"):
            shutil.rmtree(old)
        (tmp_path / module).mkdir(exist_ok=True)
        (tmp_path / module / "__init__.py").write_text(f"__version__ = {version!r}\n")
        info = tmp_path / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        (info / "RECORD").write_text(f"{module}/__init__.py,,\n{info.name}/METADATA,,\n")
        return info

    yield install
    sys.modules.pop("the_package", None)


def test_a_replaced_package_that_is_loaded_is_named(installed):
    installed("1.0")
    import the_package

    assert the_package.__version__ == "1.0"
    cl.require_fresh_kernel()
    installed("2.0")
    assert doctor.replaced_packages() == [("the_package", "1.0", "2.0")]
    with pytest.raises(
        RuntimeError, match=r"^pip replaced the_package 1\.0 by 2\.0; restart the kernel \(Colab: .*\), then run all"
    ):
        cl.require_fresh_kernel()


def test_what_was_not_loaded_or_was_there_before_needs_no_restart(installed):
    info = installed("1.0")
    import the_package

    installed("2.0", module="another_package")
    assert doctor.replaced_packages() == []
    info = installed("2.0")
    os.utime(info, (1e9, 1e9))  # a package whose __version__ differs from what pip says, since ever
    assert the_package.__version__ == "1.0" and doctor.replaced_packages() == []


def test_nothing_was_replaced_in_this_process():
    assert doctor.replaced_packages() == []


def test_a_notebook_shows_one_line():
    code = "from IPython.core.interactiveshell import InteractiveShell as S; from circuitlib.doctor import RestartNeeded as R; s = S.instance(); s.push({'R': R}); s.run_cell('1\\nraise R(\"now\")')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "Restart needed: now"


# --- as a reader calls it -----------------------------------------------------------------------------------------


def test_with_a_broken_torch_the_rest_is_still_checked(modules):
    """Also that nothing here imports torch by itself."""
    (modules / "torch.py").write_text("raise ImportError('no torch today')")
    env = {
        **os.environ,
        "PYTHONPATH": f"{modules}{os.pathsep}{ROOT}",
        "HF_HUB_OFFLINE": "1",
        "PYTHONIOENCODING": "utf8",
    }
    done = subprocess.run([sys.executable, "-m", "circuitlib.cli", "doctor"], cwd=modules, env=env, capture_output=True, text=True, timeout=600, encoding="utf8")  # fmt: skip
    lines = {line[2:20].strip(): line for line in done.stdout.splitlines()}
    assert done.returncode == 1 and done.stderr == ""
    wrong = [name for name, line in lines.items() if line.startswith("✗")]
    assert wrong == ["torch runs", "docstring-4l", "gpt-mini"]
    assert all("no torch today" in lines[name] for name in wrong)
    assert {"Python", "memory", "disk", "write access", "kernel", "widgets", "real models"} <= set(lines)


@pytest.mark.slow
def test_here_nothing_is_wrong():
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", "circuitlib.doctor", "--json"], cwd=ROOT, env=env, capture_output=True, text=True, timeout=600)  # fmt: skip
    said = json.loads(done.stdout)
    assert done.returncode == 0 and said["ok"], said
    found = {check["name"]: check for check in said["checks"]}
    assert found["docstring-4l"]["status"] == found["gpt-mini"]["status"] == found["kernel"]["status"] == OK
