"""The models that the book knows, by name."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

SHIPPED = Path(__file__).parent / "shipped"


@dataclass(frozen=True)
class ModelInfo:
    """One line of ``cl.models()``; or what a folder of a model says of itself.

    Args:
        name: what it is called here; of a folder, its path as it was given.
        family: "shipped" (weights in this package), "hand-made" (weights written by a function), "hub" (downloaded) or "folder"
            (of somebody else, or trained oneself).
        tasks: names of the tasks it solves, the default one first.
        repo: for a hub model, the repository on the Hugging Face Hub.
    """

    name: str
    family: str
    n_layers: int
    n_heads: int
    d_model: int
    mlps: bool
    tasks: tuple[str, ...]
    repo: str | None = None

    @property
    def folder(self) -> Path:
        """Where the files of a shipped model are, or those of a folder."""
        return Path(self.name) if self.family == "folder" else SHIPPED / self.name


REGISTRY = {
    model.name: model
    for model in (
        ModelInfo("docstring-4l", "shipped", 4, 8, 128, False, ("docstring", "induction")),
        ModelInfo("gpt-mini", "shipped", 4, 8, 128, True, ("ioi", "greater_than", "induction")),
        ModelInfo("handmade-induction", "hand-made", 2, 2, 280, False, ("induction",)),
        ModelInfo("handmade-docstring", "hand-made", 3, 2, 501, False, ("docstring",)),
        ModelInfo("handmade-or", "hand-made", 1, 2, 7, True, ("gate",)),
        ModelInfo("handmade-and", "hand-made", 1, 2, 7, True, ("gate",)),
        ModelInfo(
            "attn-only-4l", "hub", 4, 8, 512, False, ("docstring", "induction"), "NeelNanda/Attn_Only_4L512W_C4_Code"
        ),
        ModelInfo("gpt2", "hub", 12, 12, 768, True, ("ioi", "greater_than", "induction"), "openai-community/gpt2"),
    )
}


def info(name: str | os.PathLike[str]) -> ModelInfo:
    """What is known of a model before it is loaded: its shape, and the tasks that it may know.

    Args:
        name: a name of ``cl.models()``; or the folder of a model, as ``circuitlib train`` or transformers' ``save_pretrained``
            writes it. A folder that is called like a model of the table is given as a ``Path``, or with "./" before it.

    Raises:
        ValueError: neither of them (the message lists the names), or a folder whose config.json can't be used.
    """
    name = as_text(name)
    if isinstance(name, str):
        if name in REGISTRY:
            return REGISTRY[name]
        from .folder import describe

        if (found := describe(name)) is not None:
            return found
    raise ValueError(f"unknown model {shown(name)}; choose one of: {', '.join(REGISTRY)}, or the folder of a model")


def as_text(name: str | os.PathLike[str]) -> str:
    """A name as it is; a path as a name that is no name of the table."""
    if not isinstance(name, os.PathLike):
        return name
    text = os.fspath(name)
    return os.path.join(os.curdir, text) if text in REGISTRY else text


def training_log(name: str) -> list[dict]:
    """What was measured while a shipped model was trained: one row every so many steps, in order.

    Every row has ``step`` (steps done), ``stage``, ``lr``, ``seconds`` (since the program was last started), ``loss_…`` (training
    losses of that one step, nats a token), ``repeat_loss_…`` (nats a token, on repeated random tokens) and scores of all heads,
    ``[layer][head]``: ``previous_token`` and ``induction`` on repeated random tokens, and those below.

    docstring-4l: ``accuracy_seen`` and ``accuracy_unseen`` (docstrings with names that training docstrings held, and with
    others), ``logit_diff``, and the head score ``mover``.

    gpt-mini: ``ioi_accuracy`` and ``ioi_logit_diff`` (held-out stories), ``years_prob_diff`` (Greater-Than on held-out spans,
    from −1 to 1), and the head scores ``duplicate_token`` (repeated random tokens), ``ioi_<role>`` and ``greater_than_<role>``
    (attention between the two places that a role of ``task.roles`` is about).

    Rows of later stages have also the same measures with the heads alone whose gates are open, ``…_gated``, and their names:
    ``open``, or for gpt-mini ``open_story`` and ``open_span``.

    Raises:
        ValueError: a model that is not shipped, or an unknown name.
    """
    return [json.loads(line) for line in _shipped(name, "training_log.jsonl").splitlines()]


def model_card(name: str) -> str:
    """The model card of a shipped model, as Markdown: what was measured, how it was trained, with what help.

    Raises:
        ValueError: a model that is not shipped, or an unknown name.
    """
    return _shipped(name, "README.md")


def _shipped(name: str, file: str) -> str:
    entry = info(name)
    if entry.family != "shipped" or not (entry.folder / file).exists():
        raise ValueError(
            f"name: expected a shipped model, which has a {file}; {name!r} is of the family {entry.family!r}"
        )
    return (entry.folder / file).read_text("utf8")


def shown(name: object) -> str:
    """A name for a message: quoted, and not too long."""
    text = repr(name)
    return text if len(text) <= 200 else f"{text[:199]}…"


def models():
    """All models as a pandas table: family, shape, size on disk (shipped models) and tasks."""
    import pandas as pd

    rows = [
        {
            "name": model.name,
            "family": model.family,
            "layers": model.n_layers,
            "heads": model.n_heads,
            "d_model": model.d_model,
            "MLPs": model.mlps,
            "size": f"{sum(f.stat().st_size for f in model.folder.iterdir()) / 1e6:.1f} MB"
            if model.folder.is_dir()
            else "",
            "tasks": ", ".join(model.tasks),
        }
        for model in REGISTRY.values()
    ]
    return pd.DataFrame(rows).set_index("name")
