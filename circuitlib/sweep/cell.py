"""One cell of a sweep: from its parameters to a row of numbers, the same wherever it runs."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from ..models.folder import WEIGHTS, fingerprint
from ..models.hub import NEEDED, TOKENIZER_FILES, find_snapshot, hub_cache, kind_of, models_folder, sha256, snapshot
from ..models.registry import REGISTRY, info

PACKAGE = Path(__file__).parents[1]
# What makes the numbers, besides weights and what is installed. Loading is not among it, for the weights are.
CODE = ("circuits.py", "engine.py", "graph.py", "published.py", "models/words.py", "tasks/*.py", "discovery/*.py", "evaluation/*.py", "sweep/cell.py")  # fmt: skip

# What a cell measures, as in ``cl.evaluate`` and ``cl.compare``: of the circuit that the cell is about …
OF_THE_CIRCUIT = ("edges", "edges_pruned", "heads", "faithfulness", "task_metric", "kl", "precision", "recall")
# … of everything that its method found …
OF_THE_METHOD = ("auc_pessimistic_edge", "auc_trapezoid_edge", "auc_pessimistic_node", "auc_trapezoid_node", "cpr", "cmd", "forwards", "backwards")  # fmt: skip
MEASURED = OF_THE_CIRCUIT + OF_THE_METHOD
OF_THE_ENGINE = ("model", "device", "task", "corruption", "n", "seed", "ablation", "direction")
PROVENANCE = ("circuitlib", "torch", "transformer_lens", "code", "weights")
CLOCK = ("seconds", "cell_seconds")  # what is never the same twice

ERROR_LENGTH = 300
# A process may have several threads that run cells, and torch has one number of threads.
_one_at_a_time = threading.Lock()


@dataclass(frozen=True)
class Cell:
    """The parameters of one run. None where the method or the task has no such parameter.

    Args:
        model: a name of ``cl.models()``, or the folder of a model as the grid says it.
        task: a task of that model, or the path of a task file, as the grid says it.
        method: "exact", "eap", "eap-ig", "acdc" or, as a control, "random".
        metric: "task" or "kl", what the method goes by.
        threshold: for ACDC its τ, else the least |score| of the edges that are kept; in units of the metric.
        top: how many edges are kept, instead of a threshold.
        steps: of EAP-IG.
        corruption: how the task's corrupted prompts are made; None for the usual way.
        n, seed: how many prompts, and which. None for all prompts of a task file.
        device, threads: on what it runs.
        weights: SHA-256 of the model's file of weights; "" where it is not known.
        task_file: SHA-256 of the task file.
        model_files: of a folder, SHA-256 of configuration and tokenizer.
        folder: where a folder is on the machine that planned the cell, and on all that run it. It is no part of what the cell is:
            one that is moved holds the same model.
    """

    model: str
    task: str
    method: str
    metric: str = "task"
    threshold: float | None = None
    top: int | None = None
    steps: int | None = None
    corruption: str | None = None
    ablation: str = "corrupted"
    direction: str = "noising"
    n: int | None = 50
    seed: int | None = 0
    device: str = "cpu"
    threads: int = 1
    weights: str = ""
    task_file: str | None = None
    model_files: str = ""
    folder: str | None = field(default=None, compare=False)

    @functools.cached_property
    def key(self) -> str:
        """What the cell's result is filed under: a hash of its parameters, of the code and of the versions."""
        content = json.dumps({**self.identity(), **versions()}, sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:24]

    def identity(self) -> dict[str, Any]:
        """All that the cell's numbers depend on, besides code and versions."""
        return {name: value for name, value in asdict(self).items() if name != "folder"}

    def parameters(self) -> dict[str, Any]:
        """The columns that say which cell a row is about."""
        return {name: getattr(self, name) for name in PARAMETERS}


PARAMETERS = tuple(one.name for one in fields(Cell) if one.name not in ("weights", "model_files", "folder"))


def run_cell(cell: Cell, file: str | None = None) -> dict[str, Any]:
    """Run a method, and judge the circuit that it finds. A function of its arguments, but for the columns of ``CLOCK``.

    Args:
        file: the content of the task file, for a cell whose task is one.

    Returns:
        A row: the cell's parameters; ``status``, "done", or "refused" with the reason in ``error`` where the method would not
        run; ``MEASURED``, NaN where there is no such number; ``PROVENANCE``; ``seconds`` that the method took; and ``circuit``, in
        the JSON of ``cl.Circuit.save``.

    Raises:
        ValueError: the model does not know the task, the prompts can't be made, and the like.
        Missing: a model that can't be had.
    """
    source = _source(cell)
    with _one_at_a_time, _threads(cell.threads):
        of_engine = {name: getattr(cell, name) for name in OF_THE_ENGINE}
        threshold = cell.threshold if cell.method == "acdc" else None
        judged, found, engine, truth = _judged(
            cell.method, cell.metric, cell.steps, threshold, file=file, source=source, **of_engine
        )
        weights = weights_of(cell.model) if source is None else source.weights
        row = {**blank(cell), "weights": weights, "seconds": judged["seconds"]}
        if found is None:
            return {**row, "status": "refused", "error": one_line(judged["refused"])}
        circuit = found if cell.method == "acdc" else _chosen(found, cell)
        row |= {name: judged[name] for name in OF_THE_METHOD}
        row |= _evaluated(engine, circuit, truth)
        return {**row, "status": "done", "circuit": circuit.to_json()}


def attempt(cell: Cell, file: str | None = None) -> dict[str, Any]:
    """``run_cell``, with what goes wrong as a row too: ``status`` is then "failed"."""
    began = time.perf_counter()
    try:
        row = run_cell(cell, file)
    except Exception as error:
        row = failed(cell, f"{type(error).__name__}: {error}")
    return {**row, "cell_seconds": time.perf_counter() - began}


def failed(cell: Cell, error: str) -> dict[str, Any]:
    """The row of a cell that went wrong."""
    return {**blank(cell), "status": "failed", "error": one_line(error)}


def blank(cell: Cell) -> dict[str, Any]:
    """A row that says which cell it is about, and nothing that would have to be measured."""
    nothing = math.nan
    row = {**cell.parameters(), "status": "", "error": "", **dict.fromkeys(MEASURED, nothing), **versions()}
    return {**row, "weights": cell.weights, **dict.fromkeys(CLOCK, nothing)}


# What numbers depend on --------------------------------------------------------------------------


@functools.cache
def versions() -> dict[str, str]:
    """Of circuitlib, torch and TransformerLens; ``code``, a hash of the source files that make the numbers. Loads none of them."""
    from .. import __version__

    code = hashlib.sha256()
    for path in (path for pattern in CODE for path in sorted(PACKAGE.glob(pattern))):
        code.update(path.read_bytes().replace(b"\r\n", b"\n"))
    installed = {name: metadata.version(name.replace("_", "-")).split("+")[0] for name in ("torch", "transformer_lens")}
    return {"circuitlib": __version__, **installed, "code": code.hexdigest()[:16]}


@functools.cache
def weights_of(name: str, fetch: bool = True) -> str:
    """SHA-256 of a model's file of weights; for a hand-made model of the source that makes them.

    Args:
        name: a name of ``cl.models()``. What is in a folder may change: see ``models.folder.fingerprint``.
        fetch: download a model of the Hub that is not on this computer; else "" for one.

    Raises:
        ValueError: an unknown name.
        Missing: the model can't be had.
    """
    entry = info(name)
    if entry.family == "shipped":
        return sha256(entry.folder / "model.safetensors")
    if entry.family == "hand-made":
        return sha256(PACKAGE / "models" / "handmade.py")
    if entry.family == "folder":
        raise ValueError(f"name: expected a name of cl.models(), got the folder {name!r}")
    kind = kind_of(entry)
    folder, lacking = find_snapshot(models_folder() or hub_cache(), entry.repo, NEEDED[kind])
    if lacking is not None:
        if not fetch:
            return ""
        folder = snapshot(name, entry.repo, NEEDED[kind], TOKENIZER_FILES if kind == "transformers" else ())
    return sha256(next(folder.glob(NEEDED[kind][1])))


# From names to an engine, and what the method found ----------------------------------------------


@dataclass(frozen=True)
class Source:
    """A folder, and the hashes of what the model in it was when the cell was planned (``models.folder.fingerprint``)."""

    folder: str
    weights: str
    model_files: str


def _source(cell: Cell) -> Source | None:
    """Where the model of a cell comes from, if it is a folder; as it is now, for a cell that no grid has planned."""
    if cell.model in REGISTRY:
        return None
    if cell.folder is not None:
        return Source(cell.folder, cell.weights, cell.model_files)
    return Source(os.path.abspath(cell.model), *fingerprint(info(cell.model).folder))


@functools.cache
def load(name: str, device: str, source: Source | None = None):
    """A model, loaded once in each process; from a folder, once for each content of it."""
    from ..models import load_model

    if source is None:
        return load_model(name, device)
    _check_planned(name, source)
    return load_model(source.folder, device)


def _check_planned(name: str, source: Source) -> None:
    """A folder may be another one elsewhere, or not be there, or have changed: its numbers would be others than the table says."""
    if not os.path.isdir(source.folder):
        raise ValueError(
            f"model: {name} is not there: expected the folder {source.folder} on every machine that runs cells"
        )
    found = fingerprint(Path(source.folder))
    of = (WEIGHTS, source.weights, found[0]), ("configuration or tokenizer", source.model_files, found[1])
    for what, expected, here in of:
        if here != expected:
            raise ValueError(
                f"model: {what} of {name} is not what the sweep was planned with: SHA-256 {here[:16]}, expected {expected[:16]}; "
                "expected the same on all machines, and while a sweep runs; start it again"
            )


# Cells of one engine, and of one method's scores, come one after another: the last ones are kept. What they hold is the same
# as if it were made again.
@functools.lru_cache(maxsize=1)
def _engine(
    *,
    model: str,
    device: str,
    task: str,
    corruption,
    n,
    seed,
    ablation: str,
    direction: str,
    file: str | None,
    source: Source | None,
):
    """The engine, and the circuit that is known or None."""
    from .. import tasks
    from ..engine import Engine

    loaded = load(model, device, source)
    found = model if source is None else source.folder
    if file is not None:
        made = _drawn(_task_from(loaded, task, file), n, seed)
    elif task in info(found).tasks:
        how = {} if corruption is None else {"corruption": corruption}
        made = getattr(tasks, task)(loaded, n=n, seed=seed, **how)
    else:
        raise ValueError(f"task: {model} knows {', '.join(info(found).tasks)}, got {task!r}")
    return Engine(loaded, made, ablation, direction), truth_of(found, task, ablation, direction)


@functools.lru_cache(maxsize=1)
def _judged(method: str, metric: str, steps, threshold, **of_engine):
    """What ``cl.compare`` says of the method; what it found, or None; the engine and the known circuit.

    ``threshold`` is ACDC's; for the others one list of scores serves every threshold.
    """
    from ..evaluation.compare import _judged as judge

    engine, truth = _engine(**of_engine)
    kept = []

    def keeping(engine, metric):
        kept.append(_method(method, steps, threshold)(engine, metric=metric))
        return kept[-1]

    row = judge(engine, truth, keeping, None if metric == "task" else metric, ())
    return row, kept[0] if kept else None, engine, truth


def _method(name: str, steps: int | None, threshold: float | None) -> Callable:
    from .. import discovery
    from ..evaluation import random_scores

    return {
        "exact": discovery.exact,
        "eap": discovery.eap,
        "eap-ig": functools.partial(discovery.eap_ig, steps=steps),
        "acdc": functools.partial(discovery.acdc, threshold=threshold),
        "random": random_scores,
    }[name]


def _chosen(scores, cell: Cell):
    """The circuit of the best edges, as ``circuitlib discover`` chooses it."""
    if cell.top is not None and cell.top > scores.graph.n_edges:
        raise ValueError(f"top: {cell.top:,} edges asked for, {cell.model} has {scores.graph.n_edges:,}")
    return scores.above(cell.threshold) if cell.top is None else scores.top(cell.top)


def _evaluated(engine, circuit, truth) -> dict[str, float]:
    from ..evaluation import evaluate

    row = evaluate(engine, circuit, truth).rename(columns={engine.task.metric_name: "task_metric"}).iloc[0]
    return {name: float(row[name]) for name in OF_THE_CIRCUIT if name in row}


def truth_of(model: str, task: str, ablation: str, direction: str):
    """The circuit that is known: by construction, found by hand in the book, or published; None where there is none."""
    from ..circuits import known_circuit, reference_circuit
    from ..published import published_circuit

    entry = info(model)
    if entry.family == "folder":  # other weights: nothing is known of them
        return None
    if entry.family == "hand-made":
        return known_circuit(model, ablation, direction) if task == entry.tasks[0] else None
    try:
        found = reference_circuit(model, task) if entry.family == "shipped" else published_circuit(task)
    except ValueError:
        return None
    return found if found.model == model and found.ablation == ablation else None


@functools.lru_cache(maxsize=1)
def _task_from(model, name: str, content: str):
    """A task file's task. The file is written where only this function knows of it, so that the cell needs no folder."""
    from ..tasks.jsonl import load_task

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / Path(name).name
        path.write_bytes(content.encode())
        try:
            return load_task(model, path)
        except ValueError as error:
            raise ValueError(str(error).replace(f"{path}", name)) from None


def _drawn(task, n: int | None, seed: int | None):
    """``n`` of a task's prompts, in their order; all of them if ``n`` is None."""
    import torch

    if n is None:
        return task
    if n > len(task):
        raise ValueError(f"n: the task file holds {len(task)} pairs of prompts, expected at most that many, got {n}")
    which = torch.randperm(len(task), generator=torch.Generator().manual_seed(seed))[:n].sort().values
    rows = {name: getattr(task, name) for name in ("clean", "corrupted", "answers", "distractors")}
    return replace(task, **{name: tokens[which.to(tokens.device)] for name, tokens in rows.items()})


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """So many threads in torch: sums are then added up in the same order everywhere."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def one_line(text: object) -> str:
    """A message for a table: without line breaks, and not too long."""
    text = " ".join(str(text).split())
    return text if len(text) <= ERROR_LENGTH else f"{text[: ERROR_LENGTH - 1]}…"
