"""The same jobs from a terminal: ``circuitlib models``, ``discover``, ``compare``, ``reproduce``, ``download``, ``manifest``.

Results go to stdout or to ``--out`` (written whole or not at all), everything else to stderr. Exit codes: 0 done; 1 a check
found something wrong; 2 unusable input; 3 something outside is missing (network, memory, a place to write); 130 interrupted.

Nothing heavy is imported above the functions: ``circuitlib --help`` and a misspelt name answer at once.
"""

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
THRESHOLDS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
SHOWN = ["auc_pessimistic_edge", "auc_pessimistic_node", "cpr", "cmd", "edges", "faithfulness", "kl", "forwards", "backwards", "seconds"]  # fmt: skip

app = typer.Typer(
    help="Find circuits in transformers.", no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False
)


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


class Published(StrEnum):
    docstring = "docstring"
    ioi = "ioi"
    greater_than = "greater-than"


def answers(command: Callable) -> Callable:
    """What a command raises becomes one line on stderr and an exit code; what it prints on the way goes to stderr."""

    @functools.wraps(command)
    def run(*args, **kwargs):
        try:
            return command(*args, **kwargs)
        except KeyboardInterrupt:
            _stop("interrupted", INTERRUPTED)
        except (OSError, ImportError, MemoryError) as error:  # first: some errors of the Hub are ValueErrors as well
            _stop(error, MISSING)
        except ValueError as error:
            _stop(error, UNUSABLE)
        except RuntimeError as error:
            if not _is_out_of_memory(error):
                raise
            _stop(f"out of memory: {error}", MISSING)

    return run


# Options that several commands have.
Task = Annotated[str | None, typer.Option(help="A task of the model; by default the one it is made for.")]
Prompts = Annotated[int, typer.Option("--n", min=1, help="How many prompts.")]
Steps = Annotated[int, typer.Option(min=1, help="Points on the path, for eap-ig.")]
Ablated = Annotated[Ablation, typer.Option(help="What a cut edge carries.")]
Directed = Annotated[Direction, typer.Option(help="Cut edges of the clean run, or mend edges of the corrupted run.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")]


@app.command()
@answers
def models(as_json: Json = False) -> None:
    """List the models: family, shape, size, tasks.

    Example: circuitlib models
    """
    from .models import models as table

    rows = table()
    _emit(rows.reset_index().to_json(orient="records", indent=1) if as_json else rows.to_string(), None)


@app.command()
@answers
def discover(
    model: Annotated[str, typer.Option(help="A name that `circuitlib models` lists.")],
    method: Annotated[Method, typer.Option(help="How to look for the circuit.")],
    task: Task = None,
    top: Annotated[int | None, typer.Option(min=0, help="Keep this many edges (not for acdc).")] = None,
    threshold: Annotated[
        float | None, typer.Option(min=0, help="For acdc its threshold; else keep edges with |score| of at least this.")
    ] = None,  # fmt: skip
    metric: Annotated[
        Metric, typer.Option(help="What counts as an effect: on the task's metric, or on the whole output.")
    ] = Metric.task,  # fmt: skip
    n: Prompts = 50,
    seed: Annotated[int, typer.Option(help="Which prompts.")] = 0,
    ablation: Ablated = Ablation.corrupted,
    direction: Directed = Direction.noising,
    steps: Steps = 5,
    min_faithfulness: Annotated[
        float | None, typer.Option(help="End with exit code 1 if the circuit is less faithful.")
    ] = None,  # fmt: skip
    scores: Annotated[
        Path | None, typer.Option(help="Write the score of every edge to this CSV file (not for acdc).")
    ] = None,  # fmt: skip
    out: Annotated[Path | None, typer.Option(help="Write the circuit to this JSON file instead of to stdout.")] = None,
    quiet: Quiet = False,
) -> None:
    """Find a circuit, and write it as JSON.

    Example: circuitlib discover --model handmade-docstring --method eap-ig --top 6 --out c.json
    """
    _check_choice(method, top, threshold, scores)
    for path in (scores, out):
        _check_place(path)
    with _results_apart():
        engine = _engine(model, task, n, seed, ablation, direction, quiet)
        _say(f"{method} on {engine.task.name}, {n} prompts, {engine.graph.n_edges:,} edges", quiet)
        found = _method(method, steps, threshold, not quiet)(engine, metric=None if metric is Metric.task else "kl")
        if method is not Method.acdc:
            scored, found = found, found.top(top) if top is not None else found.above(threshold)
            if scores is not None:
                _emit(scored.to_pandas().to_csv(), scores)
        faithful = _report(engine, found, quiet)
    _emit(found.to_json(), out)
    if min_faithfulness is not None and not faithful >= min_faithfulness:
        _stop(f"the circuit's faithfulness is {faithful:.3f}, less than {min_faithfulness:g}", CHECK_FAILED)


@app.command()
@answers
def compare(
    model: Annotated[
        list[str], typer.Option(help="A name that `circuitlib models` lists; may be given several times.")
    ],
    method: Annotated[list[Compared] | None, typer.Option(help="May be given several times; by default all.")] = None,
    metric: Annotated[
        list[Metric] | None, typer.Option(help="May be given several times; by default the task's.")
    ] = None,  # fmt: skip
    threshold: Annotated[list[float] | None, typer.Option(min=0, help="Of acdc; may be given several times.")] = None,
    truth: Annotated[
        Path | None, typer.Option(help="A circuit file to compare with; by default what is known of the model.")
    ] = None,  # fmt: skip
    seeds: Annotated[int, typer.Option(min=1, help="How many draws of prompts: seeds 0, 1, …")] = 1,
    n: Prompts = 50,
    ablation: Ablated = Ablation.corrupted,
    direction: Directed = Direction.noising,
    steps: Steps = 5,
    as_json: Json = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Write all columns to this .csv or .json file instead of printing the main ones."),
    ] = None,  # fmt: skip
    quiet: Quiet = False,
) -> None:
    """Compare methods on the tasks of some models: ROC against the known circuit, faithfulness, cost.

    Example: circuitlib compare --model handmade-docstring --model handmade-or --seeds 3 --out table.csv
    """
    if out is not None and out.suffix not in (".csv", ".json"):
        raise ValueError(f"--out: expected a name that ends in .csv or .json, got {out.name!r}")
    _check_place(out)
    methods = dict.fromkeys(method or list(Compared))
    with _results_apart():
        tasks = {name: _draws(name, truth, n, ablation, direction, quiet) for name in dict.fromkeys(model)}
        from .evaluation import compare as run
        from .evaluation.compare import OBJECTS

        thresholds = tuple(threshold or THRESHOLDS)
        named = {str(one): _method(one, steps, thresholds, False) for one in methods}
        metrics = [None if one is Metric.task else "kl" for one in dict.fromkeys(metric or [Metric.task])]
        table = run(tasks, named, range(seeds), metrics=metrics, progress=not quiet).drop(columns=OBJECTS)
    for row in table[table["refused"] != ""].itertuples():
        _say(f"{row.method} refused {row.metric} on {row.task}: {row.refused}", quiet)
    if as_json or (out is not None and out.suffix == ".json"):
        _emit(table.to_json(orient="records", indent=1), out)
    elif out is not None:
        _emit(table.to_csv(index=False), out)
    else:
        shown = table[["task", "method", "metric", "seed", *SHOWN]]
        _emit(shown.to_string(index=False, float_format="{:.3g}".format, na_rep=""), None)


@app.command()
@answers
def reproduce(
    circuit: Annotated[Published, typer.Argument(help="The published circuit.")],
    n: Prompts = 50,
    seed: Annotated[int, typer.Option(help="Which prompts.")] = 0,
    method: Annotated[
        list[Method] | None,
        typer.Option(help="eap, eap-ig or acdc; may be given several times. acdc is slow on gpt2."),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(help="A file of prompts in the JSON format of auto-circuit, instead of the book's own."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the report here; by default reproduce-CIRCUIT.html.")] = None,
    quiet: Quiet = False,
) -> None:
    """Measure a published circuit on its real model, beside the published figures, and write a report.

    Example: circuitlib reproduce docstring
    """
    from .reproduction import reproduce as run

    out = Path(f"reproduce-{circuit}.html") if out is None else out
    _check_place(out)
    with _results_apart():
        report = run(str(circuit), n=n, seed=seed, methods=method and [str(one) for one in method], prompts=prompts, progress=not quiet)  # fmt: skip
        report.write(out)
    _emit(report.to_markdown(), None)
    _say(f"written: {out}", quiet)


@app.command()
@answers
def download(
    model: Annotated[list[str], typer.Argument(help="Models of the Hugging Face Hub, such as gpt2 and attn-only-4l.")],
    to: Annotated[Path, typer.Option(help="A folder for CIRCUITLIB_MODELS, such as one on a USB stick.")],
) -> None:
    """Download models into a folder for a classroom, with the hash of every file.

    Example: circuitlib download attn-only-4l gpt2 --to models
    """
    from .models import download_models

    with _results_apart():
        written = download_models(model, to)
    _emit(f"{written}: give the folder to everyone, and set CIRCUITLIB_MODELS to its place", None)


@app.command()
@answers
def manifest(folder: Annotated[Path, typer.Argument(help="A folder for CIRCUITLIB_MODELS.")]) -> None:
    """Write the hash of every model file in a folder, against which the files are checked when they are loaded.

    Example: circuitlib manifest models
    """
    from .models import write_manifest

    _emit(str(write_manifest(folder)), None)


# What commands share -----------------------------------------------------------------------------


def _check_choice(method: Method, top: int | None, threshold: float | None, scores: Path | None) -> None:
    if method is Method.acdc and (top is not None or threshold is None):
        raise ValueError("--threshold: acdc needs one, and no --top: it finds the size by itself")
    if method is Method.acdc and scores is not None:
        raise ValueError("--scores: acdc gives no scores; expected exact, eap or eap-ig")
    if method is not Method.acdc and (top is None) == (threshold is None):
        raise ValueError(f"--top: {method} needs either --top or --threshold, to know which edges to keep")


def _check_place(path: Path | None) -> None:
    """Before the work, not after it."""
    if path is None:
        return
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ValueError(f"{path}: expected the name of a file in a folder that exists")
    if not os.access(path.absolute().parent, os.W_OK):
        raise PermissionError(f"{path}: its folder can't be written to")


def _engine(name: str, task: str | None, n: int, seed: int, ablation: str, direction: str, quiet: bool):
    from .models import info

    known = info(name).tasks
    task = known[0] if task is None else task.replace("-", "_")
    if task not in known:
        raise ValueError(f"--task: {name} knows {', '.join(known)}, got {task!r}")
    model = _load(name, quiet)
    from . import tasks
    from .engine import Engine

    return Engine(model, getattr(tasks, task)(model, n=n, seed=seed), str(ablation), str(direction))


@functools.cache
def _load(name: str, quiet: bool):
    from .models import load_model

    _say(f"loading {name}", quiet)
    return load_model(name)


def _draws(name: str, truth: Path | None, n: int, ablation: str, direction: str, quiet: bool) -> Callable:
    """A task of ``cl.compare``: from a seed to an engine and the circuit that is known."""
    from .models import info

    info(name)

    def draw(seed: int):
        from .graph import Circuit

        known = _known(name, str(ablation), str(direction)) if truth is None else Circuit.load(truth)
        if known is None:
            _say(f"{name}: no circuit is known under {ablation} ablation, so its ROC is left out", quiet)
        return _engine(name, None, n, seed, ablation, direction, quiet), known

    return draw


def _known(name: str, ablation: str, direction: str):
    """The circuit that a hand-made model has, or that the book found in a shipped one; None if neither is there."""
    from .circuits import known_circuit, reference_circuit
    from .models import info

    if info(name).family == "hand-made":
        return known_circuit(name, ablation, direction)
    try:
        found = reference_circuit(name, info(name).tasks[0])
    except ValueError:
        return None
    return found if found.ablation == ablation else None


def _method(method: Method | Compared, steps: int, threshold, progress: bool) -> Callable:
    """A method as ``cl.compare`` takes it; with several thresholds, ACDC at each."""
    from . import discovery
    from .evaluation import random_scores

    if method == "acdc":
        run = functools.partial(discovery.acdc_sweep, thresholds=threshold)
        return run if isinstance(threshold, tuple) else functools.partial(discovery.acdc, threshold=threshold, progress=progress)  # fmt: skip
    return {
        "exact": functools.partial(discovery.exact, progress=progress),
        "eap": discovery.eap,
        "eap-ig": functools.partial(discovery.eap_ig, steps=steps),
        "random": random_scores,
    }[str(method)]


def _report(engine, circuit, quiet: bool) -> float:
    """One line about the circuit on stderr; its faithfulness."""
    from .evaluation import evaluate

    row = evaluate(engine, circuit).iloc[0]
    _say(
        f"{row['edges']:.0f} edges, {row['edges_pruned']:.0f} of them on a path, {row['heads']:.0f} heads; "
        f"faithfulness {row['faithfulness']:.3f}, KL {row['kl']:.3f} nats",
        quiet,
    )
    return float(row["faithfulness"])


@contextlib.contextmanager
def _results_apart() -> Iterator[None]:
    """What libraries print while they work goes to stderr, so that stdout holds nothing but the result."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def _emit(text: str, out: Path | None) -> None:
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


def _say(text: str, quiet: bool) -> None:
    if not quiet:
        print(text, file=sys.stderr)


def _stop(error: object, code: int) -> None:
    """One line, whatever a library had to say."""
    text = " ".join(str(error).split()) or type(error).__name__
    print(f"error: {text}" if code != INTERRUPTED else text, file=sys.stderr)
    raise typer.Exit(code)


def _is_out_of_memory(error: RuntimeError) -> bool:
    """PyTorch's own error, or what its allocator says on a CPU."""
    return type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)


if __name__ == "__main__":
    app()
