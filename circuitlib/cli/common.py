"""What the commands share: exit codes, options, where results and messages go, how a name becomes a model with a task."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ..files import write_text

CHECK_FAILED, UNUSABLE, MISSING, INTERRUPTED = 1, 2, 3, 130


class Method(StrEnum):
    exact = "exact"
    eap = "eap"
    eap_ig = "eap-ig"
    acdc = "acdc"


class Compared(StrEnum):
    exact = "exact"
    eap = "eap"
    eap_ig = "eap-ig"
    acdc = "acdc"
    random = "random"


class Metric(StrEnum):
    task = "task"
    kl = "kl"


class Ablation(StrEnum):
    corrupted = "corrupted"
    zero = "zero"
    mean = "mean"


class Direction(StrEnum):
    noising = "noising"
    denoising = "denoising"


def answers(command: Callable) -> Callable:
    """What a command raises becomes one line on stderr and an exit code; what it prints on the way goes to stderr."""

    @functools.wraps(command)
    def run(*args, **kwargs):
        try:
            return command(*args, **kwargs)
        except KeyboardInterrupt:
            stop("interrupted", INTERRUPTED)
        except BrokenPipeError:  # whoever read the result has enough of it
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except (OSError, ImportError, MemoryError) as error:  # first: some errors of the Hub are ValueErrors as well
            stop(error, MISSING)
        except ValueError as error:
            stop(error, UNUSABLE)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            stop(f"out of memory: {error}", MISSING)

    return run


# Options that several commands have.
Name = Annotated[str, typer.Option("--model", help="A name that `circuitlib models` lists, or the folder of a model.")]
Task = Annotated[
    str | None,
    typer.Option(help="A task of the model, or a file of your own, NAME.jsonl; by default what the model is made for."),
]
Corruption = Annotated[str | None, typer.Option(help="Which corrupted prompts; a task with several names them.")]
Prompts = Annotated[int | None, typer.Option("--n", min=1, help="How many prompts: 50, or all that a file has.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Which prompts; by default those of seed 0.")]
Steps = Annotated[int | None, typer.Option(min=1, help="Points on the path, for eap-ig; by default 5.")]
Ablated = Annotated[Ablation, typer.Option(help="What a cut edge carries.")]
Device = Annotated[
    str,
    typer.Option(help="cpu, cuda, cuda:1, mps, or auto for a GPU if there is one. The book's numbers are the CPU's."),
]
Directed = Annotated[Direction, typer.Option(help="Cut edges of the clean run, or mend edges of the corrupted run.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")]
MinFaithfulness = Annotated[
    float | None, typer.Option(help="End with exit code 1 if the circuit is less faithful, after writing everything.")
]

PROMPTS, STEPS = 50, 5


# Results and messages ----------------------------------------------------------------------------


def check_place(path: Path | None) -> None:
    """Before the work, not after it."""
    if path is None:
        return
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ValueError(f"{path}: expected the name of a file in a folder that exists")
    if not os.access(path.absolute().parent, os.W_OK):
        raise PermissionError(f"{path}: its folder can't be written to")


@contextlib.contextmanager
def results_apart() -> Iterator[None]:
    """What libraries print while they work goes to stderr, so that stdout holds nothing but the result."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def emit(text: str, out: Path | None) -> None:
    """The result, to stdout or to a file; the old file stays until the new one is whole."""
    if out is None:
        if not sys.stdout.isatty() and hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(encoding="utf-8")  # a file or another program: the same bytes on every system
        print(text.rstrip("\n"), flush=True)
    else:
        write_text(out, text.rstrip("\n") + "\n")


def check_apart(**paths: Path | None) -> None:
    """No two options may name one file: the second result would take the place of the first, or of what was read."""
    seen: dict[str, str] = {}
    for name, path in paths.items():
        if path is not None:
            option = name if name.isupper() else f"--{name}"
            if (other := seen.setdefault(os.path.realpath(path), option)) != option:
                raise ValueError(f"{option}: {path} is that of {other} too; expected two files")


def say(text: str, quiet: bool) -> None:
    if not quiet:
        print(text, file=sys.stderr)


def stop(error: object, code: int) -> None:
    """One line, whatever a library had to say."""
    text = " ".join(str(error).split()) or type(error).__name__
    print(f"error: {text}" if code != INTERRUPTED else text, file=sys.stderr)
    raise typer.Exit(code)


def is_out_of_memory(error: RuntimeError) -> bool:
    """PyTorch's own error, or what its allocators say on a CPU and with MPS."""
    said = ("can't allocate memory", "MPS backend out of memory")
    return type(error).__name__ == "OutOfMemoryError" or any(text in str(error) for text in said)


# From names to models, tasks, methods ------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """What is asked of which model: the options that discover, evaluate and compare have in common.

    Args:
        task: a task's name or the path of a file of one's own; None for what the model is made for.
        n: how many prompts; None for 50, or all that a file has.
        seed: None for 0. Of a file with more than ``n`` prompts it says which.
    """

    model: str
    task: str | None = None
    corruption: str | None = None
    n: int | None = None
    seed: int | None = None
    ablation: str = "corrupted"
    direction: str = "noising"
    device: str = "cpu"
    quiet: bool = False

    @property
    def file(self) -> Path | None:
        """The file that the task is read from, if it is one."""
        return Path(self.task) if self.task is not None and self.task.endswith(".jsonl") else None

    @property
    def task_name(self) -> str:
        """The task's name; for a file the file's."""
        from ..models import info

        known = info(self.model).tasks
        return known[0] if self.task is None else self.task if self.file else self.task.replace("-", "_")

    def check(self) -> None:
        """Before anything is loaded: whether the options go together."""
        from ..models import info

        known = info(self.model).tasks
        if self.file is None and self.task_name not in known:
            raise ValueError(
                f"--task: {self.model} knows {', '.join(known)}, got {self.task!r}; a file of your own ends in .jsonl"
            )
        if self.file and self.corruption is not None:
            raise ValueError(f"--corruption: the corrupted prompts of {self.file.name} stand in it; expected none")
        if self.corruption is not None and self.task_name in ("gate", "induction"):
            raise ValueError(f"--corruption: {self.task_name} has only one kind; expected none")
        if self.file and self.n is None and self.seed is not None:
            raise ValueError("--seed: says which --n prompts of a file are taken; without --n all of them are")

    def engine(self):
        """The model, loaded once, on the task."""
        self.check()
        model = load(self.model, self.device, self.quiet)
        from ..engine import Engine

        return Engine(model, self._made(model), str(self.ablation), str(self.direction))

    def conditions(self, engine) -> dict[str, str]:
        """What a circuit that is found here rests on, besides the task's name and the ablation."""
        found = {"model": self.model, "direction": engine.direction, "prompts": str(len(engine.task))}
        known = {name: engine.task.meta[name] for name in ("corruption", "seed") if name in engine.task.meta}
        return found | {name: str(value) for name, value in known.items()}

    def _made(self, model):
        if self.file is None:
            from .. import tasks

            corruption = {} if self.corruption is None else {"corruption": self.corruption}
            n = PROMPTS if self.n is None else self.n
            return getattr(tasks, self.task_name)(model, n=n, seed=self.seed or 0, **corruption)
        from ..sweep.cell import _drawn
        from ..tasks.jsonl import load_task

        task = _drawn(load_task(model, self.file), self.n, self.seed or 0)
        warn(model, task, self.quiet)
        return task

    def truth(self, path: Path | None = None):
        """The circuit in a file; without one that which is known of the model on this task, or None."""
        from ..graph import Circuit, Graph
        from ..models import info

        if path is None:
            from ..sweep.cell import truth_of

            return truth_of(self.model, self.task_name, str(self.ablation), str(self.direction))
        circuit, shape = Circuit.load(path), info(self.model)
        graph = Graph.from_shape(shape.n_layers, shape.n_heads, shape.mlps)
        if circuit.graph != graph:
            raise ValueError(f"--truth: {path} is of {circuit.graph!r}, {self.model} is {graph!r}")
        return circuit


def warn(model, task, quiet: bool) -> None:
    """What the checklist of ``cl.examine`` says no to: a task of one's own may be no task for this model."""
    if quiet:
        return
    from ..tasks.own import examine

    for question, row in examine(model, task).iterrows():
        if row["ok"] == "NO":
            say(f"look at the task: {question} {row['measured']}", quiet)


@functools.cache
def load(name: str, device: str, quiet: bool):
    from ..models import load_model

    say(f"loading {name}", quiet)
    return load_model(name, device)


def check_finite(**options: float | None) -> None:
    """Numbers that typer lets through: nan and inf."""
    for name, value in options.items():
        if value is not None and not math.isfinite(value):
            raise ValueError(f"--{name.replace('_', '-')}: expected a finite number, got {value}")


def check_faithful(faithful: float, least: float | None) -> None:
    """The end of a command that was told how faithful a circuit has to be."""
    if least is not None and not faithful >= least:
        stop(f"the circuit's faithfulness is {faithful:.3f}, less than {least:g}", CHECK_FAILED)


def method_of(method: Method | Compared, steps: int | None, threshold, progress: bool) -> Callable:
    """A method as ``cl.compare`` takes it; with several thresholds, ACDC at each."""
    steps = STEPS if steps is None else steps
    from .. import discovery
    from ..evaluation import random_scores

    if method == "acdc":
        run = functools.partial(discovery.acdc_sweep, thresholds=threshold)
        return run if isinstance(threshold, tuple) else functools.partial(discovery.acdc, threshold=threshold, progress=progress)  # fmt: skip
    return {
        "exact": functools.partial(discovery.exact, progress=progress),
        "eap": discovery.eap,
        "eap-ig": functools.partial(discovery.eap_ig, steps=steps),
        "random": random_scores,
    }[str(method)]


def report(engine, circuit, quiet: bool) -> float:
    """One line about the circuit on stderr; its faithfulness."""
    from ..evaluation import evaluate

    row = evaluate(engine, circuit).iloc[0]
    say(
        f"{row['edges']:.0f} edges, {row['edges_pruned']:.0f} of them on a path, {row['heads']:.0f} heads; "
        f"faithfulness {row['faithfulness']:.3f}, KL {row['kl']:.3f} nats",
        quiet,
    )
    return float(row["faithfulness"])
