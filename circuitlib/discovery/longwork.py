"""What long work needs: a bar that shows how far it is, and its state on disk, so that it can be interrupted."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from ..engine import Engine, _tensors
from ..graph import Circuit, _read_json, _write
from .scores import metric_name

FORMAT = "circuitlib checkpoint"
EVERY_SECONDS = 5.0


def bar(progress: bool, total: int, what: str, unit: str) -> tqdm:
    """A bar on stderr with an estimate of the time left; none without ``progress``, or where ``TQDM_DISABLE`` is set."""
    off = {} if progress else {"disable": True}  # given explicitly, disable=False would win over the environment
    return tqdm(total=total, desc=what, unit=f" {unit}", **off)


class Checkpoint:
    """A JSON file that belongs to one run.

    Args:
        path: the file. If it exists it must be a checkpoint of this very run.
        run: what makes the run what it is, by name: numbers and text.

    Raises:
        ValueError: the file is no checkpoint, or one of another run; one line that says in what they differ.
    """

    def __init__(self, path: str | Path, run: dict[str, Any]):
        self.path, self.run, self.saved = Path(path), run, time.monotonic()

    def load(self) -> dict | None:
        """What ``save`` wrote last; None if there is no such file."""
        if not self.path.exists():
            return None
        content = _read_json(self.path)
        if not isinstance(content, dict) or content.get("format") != FORMAT or content.get("version") != 1:
            raise ValueError(f"checkpoint: {self.path} is not a checkpoint of circuitlib, version 1")
        if not isinstance(content.get("run"), dict) or not isinstance(content.get("state"), dict):
            raise ValueError(f"checkpoint: {self.path} is damaged: 'run' or 'state' is missing")
        for name in (*self.run, *content["run"]):
            found, expected = content["run"].get(name), self.run.get(name)
            if type(found) is not type(expected) or found != expected:
                raise ValueError(
                    f"checkpoint: {self.path} is of another run: its {_say(name)} is {_say(found)}, expected {_say(expected)}"
                )
        return content["state"]

    def save(self, state: dict, now: bool = True) -> None:
        """Replace the file, whole or not at all. Unless ``now``, not more often than every few seconds."""
        if now or time.monotonic() - self.saved >= EVERY_SECONDS:
            try:
                _write(self.path, json.dumps({"format": FORMAT, "version": 1, "run": self.run, "state": state}))
            except OSError as error:
                raise ValueError(f"checkpoint: {self.path} can't be written ({error.strerror})") from None
            self.saved = time.monotonic()


def identity(engine: Engine, circuit: Circuit, metric=None) -> dict[str, str]:
    """What a run's result depends on besides the method's own settings: weights, prompts, metric, ablation, direction, edges.

    Of a metric that is a function its name says little: what it makes of the clean and the corrupted run counts, too.
    """
    task = engine.task
    name = metric_name(metric)
    if callable(metric):
        values = engine.measure(metric)(torch.stack([engine.clean_logits, engine.corrupted_logits])).mean(-1)
        name += ", {:.3g} for the clean prompts and {:.3g} for the corrupted ones".format(*values.tolist())
    prompts = (task.clean, task.corrupted, task.answers, task.distractors, torch.tensor(task.read_positions))
    return {
        "model": _digest(_tensors(engine.weights)),
        "metric": name,
        "task": f"{task.name}, {task.metric_name}, {_digest(prompts)}",
        "ablation": engine.ablation,
        "direction": engine.direction,
        "edges": f"{len(circuit)} of {circuit.graph!r}, {_digest([circuit.mask])}",
    }


def _say(value) -> str:
    text = str(value)
    text = text if text.isprintable() else ascii(text)  # a file's: no line breaks, nothing that a terminal obeys
    return text if len(text) <= 80 else f"{text[:79]}…"


def _digest(tensors: Iterable[Tensor]) -> str:
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(f"{tensor.dtype}{list(tensor.shape)}".encode())
        if tensor.numel():
            sha.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return sha.hexdigest()[:16]
