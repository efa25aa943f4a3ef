"""What the commands share: exit codes, options, where results and messages go, how a name becomes a model with a task."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

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
Task = Annotated[str | None, typer.Option(help="A task of the model; by default the one it is made for.")]
Prompts = Annotated[int, typer.Option("--n", min=1, help="How many prompts.")]
Steps = Annotated[int, typer.Option(min=1, help="Points on the path, for eap-ig.")]
Ablated = Annotated[Ablation, typer.Option(help="What a cut edge carries.")]
Directed = Annotated[Direction, typer.Option(help="Cut edges of the clean run, or mend edges of the corrupted run.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")]


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
        print(text.rstrip("\n"))
        return
    temporary = out.with_name(f"{out.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text.rstrip("\n") + "\n", "utf8")
        temporary.replace(out)
    finally:
        temporary.unlink(missing_ok=True)


def say(text: str, quiet: bool) -> None:
    if not quiet:
        print(text, file=sys.stderr)


def stop(error: object, code: int) -> None:
    """One line, whatever a library had to say."""
    text = " ".join(str(error).split()) or type(error).__name__
    print(f"error: {text}" if code != INTERRUPTED else text, file=sys.stderr)
    raise typer.Exit(code)


def is_out_of_memory(error: RuntimeError) -> bool:
    """PyTorch's own error, or what its allocator says on a CPU."""
    return type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)


# From names to models, tasks, methods ------------------------------------------------------------


def engine_of(name: str, task: str | None, n: int, seed: int, ablation: str, direction: str, quiet: bool):
    from ..models import info

    known = info(name).tasks
    task = known[0] if task is None else task.replace("-", "_")
    if task not in known:
        raise ValueError(f"--task: {name} knows {', '.join(known)}, got {task!r}")
    model = load(name, quiet)
    from .. import tasks
    from ..engine import Engine

    return Engine(model, getattr(tasks, task)(model, n=n, seed=seed), str(ablation), str(direction))


@functools.cache
def load(name: str, quiet: bool):
    from ..models import load_model

    say(f"loading {name}", quiet)
    return load_model(name)


def known_of(name: str, ablation: str, direction: str):
    """The circuit that a hand-made model has, or that the book found in a shipped one; None if neither is there."""
    from ..circuits import known_circuit, reference_circuit
    from ..models import info

    if info(name).family == "hand-made":
        return known_circuit(name, ablation, direction)
    try:
        found = reference_circuit(name, info(name).tasks[0])
    except ValueError:
        return None
    return found if found.ablation == ablation else None


def method_of(method: Method | Compared, steps: int, threshold, progress: bool) -> Callable:
    """A method as ``cl.compare`` takes it; with several thresholds, ACDC at each."""
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
