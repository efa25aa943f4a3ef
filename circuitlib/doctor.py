"""What a computer needs for the book, checked before a workshop or after a failure: ``circuitlib doctor``.

Each check is a function without arguments that returns one ``Check``: what was found and, if that is not enough, what to do.
None of them needs torch: what could break or kill a process is tried in another one. ``python -m circuitlib.doctor`` does the
same where even the command itself can't start.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

OK, WRONG, NOTE = "ok", "wrong", "note"
MARKS = {OK: "✓", WRONG: "✗", NOTE: "–"}
PLAIN_MARKS = {OK: "ok", WRONG: "WRONG", NOTE: "-"}  # for a terminal that can't show the others

PACKAGE = Path(__file__).resolve().parent
MAIN_PACKAGES = ("torch", "transformer-lens", "ipywidgets")
# The hungriest chapter takes 1.2 GB at its peak (chapter 6, measured), and a browser wants some. Bytes.
MEMORY = 2.0e9
DISK = 1.0e9  # for results and converted weights; bytes
# What is tried in another process takes seconds on an idle computer, and more where thirty people start at once.
SECONDS = 180.0


@dataclass(frozen=True)
class Check:
    """One line of the doctor.

    Args:
        status: "ok", "wrong" (a chapter will not run, or not as it should) or "note" (good to know).
        found: what is there.
        fix: what to do about it.
    """

    name: str
    status: str
    found: str
    fix: str = ""

    def line(self, marks: dict[str, str] = MARKS) -> str:
        return f"{marks[self.status]} {self.name:<17} {self.found}{f' → {self.fix}' if self.fix else ''}"


def examine() -> Iterator[Check]:
    """All checks, one after the other. A check that fails by itself is a finding, too."""
    for check in CHECKS:
        try:
            found = check()
        except Exception as error:
            found = Check(check.__name__.replace("_", " "), WRONG, _one_line(error), "please report this as a bug")
        yield from [found] if isinstance(found, Check) else found


def report(as_json: bool = False) -> bool:
    """Print what ``examine`` finds, each line as soon as it is known; True if nothing is wrong."""
    marks = MARKS if _can_print("".join(MARKS.values()) + "→") else PLAIN_MARKS
    found = []
    for check in examine():
        found.append(check)
        if not as_json:
            line = check.line(marks)
            print(line if marks is MARKS else line.replace("→", "->").encode("ascii", "replace").decode(), flush=True)
    well = all(check.status != WRONG for check in found)
    if as_json:
        print(json.dumps({"ok": well, "checks": [asdict(check) for check in found]}, indent=1))
    return well


# What Python has ---------------------------------------------------------------------------------


def python() -> Check:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {sys.executable}"
    if tuple(map(int, platform.python_version_tuple()[:2])) < (3, 11):
        return Check("Python", WRONG, found, "install Python 3.11 or newer, and circuitlib into it")
    return Check("Python", OK, found)


def packages() -> list[Check]:
    """One line for each package that the book leans on, and one for all others that circuitlib asks for."""
    try:
        asked = requirements()
    except ImportError:
        return [Check("packages", WRONG, "packaging is missing, so that no version can be compared", _pip("packaging"))]
    lines = []
    for name in MAIN_PACKAGES:
        problem = unmet(asked[name])
        lines.append(
            Check(name, WRONG, problem, _pip(f"{name}{_range(asked[name])}"))
            if problem
            else Check(name, OK, f"{metadata.version(name)} ({_range(asked[name])})")
        )
    others = {name: requirement for name, requirement in asked.items() if name not in MAIN_PACKAGES}
    wrong = {name: problem for name, requirement in others.items() if (problem := unmet(requirement))}
    if wrong:
        found = ", ".join(f"{name}: {problem}" for name, problem in wrong.items())
        lines.append(Check("other packages", WRONG, found, _pip(*(f"{name}{_range(others[name])}" for name in wrong))))
    else:
        lines.append(Check("other packages", OK, f"{len(others)} in range"))
    return lines


def requirements() -> dict:
    """What circuitlib asks for, by name: from pyproject.toml in a clone, else from what pip recorded."""
    import tomllib

    from packaging.requirements import Requirement

    project = PACKAGE.parent / "pyproject.toml"
    stated = tomllib.loads(project.read_text("utf8")).get("project", {}) if project.exists() else {}
    if stated.get("name") == "circuitlib":  # in site-packages there may be that of another package
        lines = stated["dependencies"]
    else:
        lines = [line for line in metadata.requires("circuitlib") or [] if "extra ==" not in line]
    return {requirement.name: requirement for requirement in map(Requirement, lines)}


def unmet(requirement) -> str:
    """Why the installed packages don't do for a requirement; empty if they do."""
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return "not installed"
    if requirement.specifier.contains(version, prereleases=True):
        return ""
    return f"{version} is installed, {_range(requirement)} is needed"


def torch_runs() -> list[Check]:
    """Torch is imported and adds, in a process of its own; then its number of threads against the cores there are."""
    code = "import json, torch; print(json.dumps([int(torch.ones(3).sum()), torch.get_num_threads()]))"
    answer, problem = in_python(code)
    if problem or answer[0] != 3:
        fix = "install it again: " + _pip("--force-reinstall", "torch")
        return [Check("torch runs", WRONG, problem or f"1 + 1 + 1 = {answer[0]}", fix)]
    return [Check("torch runs", OK, "imported, and adds"), threads(answer[1])]


def threads(used: int) -> Check:
    """More threads than cores make torch slow, in a container by a factor of ten."""
    n_cores = cores()
    found = f"torch uses {used} of {n_cores} core{'s' if n_cores > 1 else ''}"
    if used > n_cores:
        return Check("threads", WRONG, found, f"set OMP_NUM_THREADS={n_cores} before Jupyter is started")
    return Check("threads", OK, found)


def cores() -> int:
    """Cores that this process may use: fewer than the machine has inside a container or under a scheduler."""
    n = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        from .models.hub import CONTAINER

        quota, period = (CONTAINER / "cpu.max").read_text("utf8").split()
        return max(1, min(n, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no container, or one without a limit ("max")
        return n


# What the machine has ----------------------------------------------------------------------------


def memory() -> Check:
    from .models.hub import available_memory

    free = available_memory()
    if free is None:
        return Check("memory", NOTE, "unknown: psutil is not installed")
    found = f"{free / 1e9:.1f} GB free"
    if free < MEMORY:
        return Check(
            "memory", WRONG, f"{found}, a chapter needs {MEMORY / 1e9:.0f}", "close other notebooks and programs"
        )
    return Check("memory", OK, found)


def disk() -> Check:
    free = shutil.disk_usage(".").free
    found = f"{free / 1e9:.1f} GB free in this folder"
    if free < DISK:
        return Check("disk", WRONG, f"{found}, {DISK / 1e9:.0f} are needed", "make room, or work in another folder")
    return Check("disk", OK, found)


def write_access() -> Check:
    """Where notebooks and results go, and where libraries put what they can't do without."""
    for folder in (Path.cwd(), Path(tempfile.gettempdir())):
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(b"circuitlib")
        except OSError as error:
            reason = error.strerror or _one_line(error)
            return Check(
                "write access", WRONG, f"{folder}: {reason}", "change to a folder of your own (cd), and try there"
            )
    from .models.hub import cache_folder

    cache = cache_folder()
    there = next(folder for folder in (cache, *cache.parents) if folder.exists())
    if not os.access(there, os.W_OK):
        return Check(
            "write access", NOTE, f"here, but not in {cache}", "set CIRCUITLIB_CACHE, or the real models load slowly"
        )
    return Check("write access", OK, "in this folder")


# What notebooks need -----------------------------------------------------------------------------


def kernel() -> Check:
    """A notebook's kernel starts, is this Python, and finds this circuitlib."""
    for name in ("ipykernel", "jupyter_client"):
        if find_spec(name) is None:
            return Check("kernel", WRONG, f"{name} is not installed, so no notebook can run", _pip("ipykernel"))
    answer, problem = in_python(
        "from circuitlib.doctor import ask_kernel; import json; print(json.dumps(ask_kernel()))"
    )
    if problem:
        return Check("kernel", WRONG, f"does not start: {problem}", _pip("--force-reinstall", "ipykernel"))
    executable, package = answer
    register = f"{sys.executable} -m ipykernel install --user --name python3"
    if not package:
        return Check("kernel", WRONG, f"{executable} starts, but can't import circuitlib", register)
    if Path(package).resolve() != PACKAGE:
        return Check("kernel", WRONG, f"{executable} starts, but imports circuitlib from {package}", register)
    return Check("kernel", OK, "starts, and imports circuitlib")


def ask_kernel() -> tuple[str, str]:
    """Start the kernel that a notebook gets; the Python it runs, and the folder that it imports circuitlib from ("" if none).

    Without what ``in_python`` adds to the path, and in an empty folder: as a notebook outside a clone.
    """
    from jupyter_client.manager import start_new_kernel

    env = {**os.environ, "PYTHONPATH": os.environ["PYTHONPATH"].partition(os.pathsep)[2]}

    code = (
        "import json, sys\n"
        "try:\n    import circuitlib; at = circuitlib.__path__[0]\n"
        "except ImportError:\n    at = ''\n"
        "print(json.dumps([sys.executable, at]))"
    )
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with tempfile.TemporaryDirectory() as folder:
        manager, client = start_new_kernel(startup_timeout=60, kernel_name="python3", env=env, cwd=folder, **quiet)
        try:
            printed = []
            client.execute_interactive(
                code, timeout=60, output_hook=lambda m: printed.append(m["content"].get("text", ""))
            )
            return tuple(json.loads("".join(printed)))
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)


def widgets() -> Check:
    """The Python half of the widgets, the JavaScript half that draws them, and who runs it."""
    if find_spec("ipywidgets") is None:
        return Check("widgets", WRONG, "ipywidgets is not installed", _pip("ipywidgets"))
    try:
        from packaging.requirements import Requirement

        asked = [Requirement(line) for line in metadata.requires("ipywidgets") or [] if "extra ==" not in line]
    except ImportError:
        asked = []
    for requirement in asked:
        if problem := unmet(requirement):
            return Check(
                "widgets", WRONG, f"{requirement.name}: {problem}", _pip(f"{requirement.name}{_range(requirement)}")
            )
    lacking = [name for name, files in EXTENSIONS.items() if not any((p / files).exists() for p in jupyter_folders())]
    if lacking:
        fix = _pip("--force-reinstall", "ipywidgets", "jupyterlab_widgets", "widgetsnbextension")
        return Check("widgets", WRONG, f"the part for {' and for '.join(lacking)} is missing", fix)
    hosts = [f"{label} {metadata.version(name)}" for name, label in HOSTS.items() if _installed(name)]
    if hosts:
        return Check("widgets", OK, f"drawn by {', '.join(hosts)}")
    return Check("widgets", NOTE, "ready; no JupyterLab here (Colab and VS Code need none)", _pip("jupyterlab"))


EXTENSIONS = {
    "JupyterLab": "labextensions/@jupyter-widgets/jupyterlab-manager/package.json",
    "the classic Notebook": "nbextensions/jupyter-js-widgets/extension.js",
}
HOSTS = {"jupyterlab": "JupyterLab", "notebook": "Notebook", "google-colab": "Colab"}


def jupyter_folders() -> list[Path]:
    """Where Jupyter looks for extensions."""
    try:
        from jupyter_core.paths import jupyter_path

        return [Path(folder) for folder in jupyter_path()]
    except ImportError:
        return [Path(sys.prefix) / "share" / "jupyter"]


# The models --------------------------------------------------------------------------------------


def shipped_models() -> list[Check]:
    """The files are those that were shipped, and each model gives the right answer to a prompt."""
    from .models.load import check_files
    from .models.registry import REGISTRY

    lines, whole = {}, []
    for entry in (entry for entry in REGISTRY.values() if entry.family == "shipped"):
        try:
            check_files(entry.folder)
            whole.append(entry.name)
        except (ValueError, OSError) as error:
            lines[entry.name] = Check(entry.name, WRONG, _one_line(error), REINSTALL)
    said, problem = in_python(
        f"import json; from circuitlib.doctor import answers; print(json.dumps(answers({whole})))"
    )
    for name in whole:
        lines[name] = _judge(name, *((None, None, problem) if problem else said[name]))
    return list(lines.values())


REINSTALL = "install circuitlib again as you did before; in a clone: git checkout circuitlib/models"


def _judge(name: str, said: str | None, right: str | None, problem: str) -> Check:
    if problem:
        return Check(name, WRONG, f"does not load: {problem}", f"mend what is wrong above; else {REINSTALL}")
    if said != right:
        found = f"its files are right, but it answers {said!r} where {right!r} is right"
        return Check(name, WRONG, found, "install torch and transformer-lens again")
    return Check(name, OK, f"loads, and answers {said.strip()!r}")


def answers(names: list[str]) -> dict[str, tuple[str | None, str | None, str]]:
    """For each model: the token that it predicts after the first prompt of its task, the right one, and why there is neither."""
    import torch

    from .models import load_model
    from .tasks import default_task

    found = {}
    for name in names:
        try:
            model = load_model(name)
            task = default_task(model, n=1)
            with torch.no_grad():
                predicted = model(task.clean)[0, task.read_positions[-1]].argmax()
            tokens = (predicted, task.answers.flatten()[0])
            found[name] = (*(model.tokenizer.decode([int(token)]) for token in tokens), "")
        except Exception as error:
            found[name] = (None, None, f"{type(error).__name__}: {_one_line(error)}")
    return found


def real_models() -> Check:
    """For chapter 11: a folder of models for a classroom, or else the Hugging Face Hub. Good to know, nothing more."""
    from .models.hub import NEEDED, check_manifest, find_snapshot, kind_of, models_folder, require_hub
    from .models.registry import REGISTRY

    hub = [entry for entry in REGISTRY.values() if entry.family == "hub"]
    folder = models_folder()
    if folder is not None:
        there = {}
        for entry in hub:
            found, lacking = find_snapshot(folder, entry.repo, NEEDED[kind_of(entry)])
            if lacking is None:
                there[entry.name] = [file for pattern in NEEDED[kind_of(entry)] for file in found.glob(pattern)]
        if not there:
            return Check(
                "real models",
                WRONG,
                f"CIRCUITLIB_MODELS is {folder}, which has none",
                "copy the folder again, or unset it",
            )
        try:
            check_manifest(folder, [file for files in there.values() for file in files])
        except OSError as error:
            return Check("real models", WRONG, _one_line(error), "copy the folder again, or unset CIRCUITLIB_MODELS")
        return Check("real models", OK, f"CIRCUITLIB_MODELS has {', '.join(there)}")
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return Check(
            "real models", NOTE, "the Hub is not asked, because HF_HUB_OFFLINE is set; only chapter 11 needs it"
        )
    try:
        require_hub(hub[0].name, hub[0].repo)
    except (OSError, ImportError):
        fix = "go online, or set CIRCUITLIB_MODELS to a folder made by 'circuitlib download'"
        return Check("real models", NOTE, "the Hugging Face Hub can't be reached; only chapter 11 needs it", fix)
    return Check("real models", OK, "the Hugging Face Hub answers")


CHECKS: tuple[Callable[[], Check | list[Check]], ...] = (
    python, packages, torch_runs, memory, disk, write_access, kernel, widgets, shipped_models, real_models,
)  # fmt: skip


# A notebook whose packages were replaced ---------------------------------------------------------


class RestartNeeded(RuntimeError):
    """A loaded package was replaced by another version. In a notebook it is shown as one line."""

    def _render_traceback_(self) -> list[str]:
        return [f"Restart needed: {self}"]


def require_fresh_kernel() -> None:
    """Nothing, if each loaded package is the installed one. The first cell of a chapter calls it after pip has been there.

    Raises:
        RestartNeeded: pip has replaced a package that this kernel had already loaded, so that it runs half of each.
    """
    if changed := replaced_packages():
        found = ", ".join(f"{name} {loaded} by {installed}" for name, loaded, installed in changed)
        raise RestartNeeded(
            f"pip replaced {found}; restart the kernel (Colab: Runtime, Restart session), then run all cells again"
        )


def replaced_packages() -> list[tuple[str, str, str]]:
    """(module, version that is loaded, version that is installed) for what was installed since this Python started.

    A package is judged by its ``__version__``. Without psutil, which every kernel has, nothing is known and the list is empty.
    """
    try:
        import psutil
    except ImportError:
        return []
    started = psutil.Process().create_time()
    found = []
    for folder in dict.fromkeys(map(Path, sys.path)):
        for info in sorted(folder.glob("*.dist-info")):
            if info.stat().st_mtime > started:
                installed = metadata.Distribution.at(info)
                found += [
                    (name, loaded, installed.version)
                    for name in _modules(installed)
                    if isinstance(loaded := getattr(sys.modules.get(name), "__version__", None), str)
                    and loaded != installed.version
                ]
    return found


def _modules(distribution: metadata.Distribution) -> list[str]:
    """Names of the packages at the top of a distribution."""
    return sorted(
        {file.parts[0] for file in distribution.files or [] if len(file.parts) == 2 and file.name == "__init__.py"}
    )


# Helpers -----------------------------------------------------------------------------------------


def in_python(code: str, seconds: float = SECONDS) -> tuple[object, str]:
    """Run ``code`` in another process of this Python, with this circuitlib: what its last line says as JSON, and what went wrong.

    A library that kills its process (a processor that it was not built for, too little memory) is then one line, too.
    """
    env = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TQDM_DISABLE": "1",
        "WANDB_MODE": "disabled",
    }
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(PACKAGE.parent), os.environ.get("PYTHONPATH")]))
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", code],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            env=env,
        )
    except subprocess.TimeoutExpired:
        return None, f"no answer in {seconds:.0f} seconds"
    if done.returncode < 0:
        return None, f"killed by signal {-done.returncode}" + (
            ", perhaps for lack of memory" if done.returncode == -9 else ""
        )
    if done.returncode:
        return None, (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return json.loads(done.stdout.strip().splitlines()[-1]), ""


def _range(requirement) -> str:
    """ ">=4.3,<5": the lower bound first, as people write it."""
    return ",".join(sorted(map(str, requirement.specifier), reverse=True))


def _pip(*arguments: str) -> str:
    quoted = (f'"{argument}"' if re.search(r"[<>=!~]", argument) else argument for argument in arguments)
    python = (
        f'"{sys.executable}"' if " " in sys.executable else sys.executable
    )  # and not whichever comes first on the path
    return f"{python} -m pip install {' '.join(quoted)}"


def _installed(name: str) -> bool:
    try:
        return bool(metadata.version(name))
    except metadata.PackageNotFoundError:
        return False


def _can_print(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


if __name__ == "__main__":
    sys.exit(0 if report("--json" in sys.argv[1:]) else 1)
