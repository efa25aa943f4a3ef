"""The models that the book knows, by name."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

SHIPPED = Path(__file__).parent / "shipped"


@dataclass(frozen=True)
class ModelInfo:
    """One line of ``cl.models()``.

    Args:
        family: "shipped" (weights in this package), "hand-made" (weights written by a function) or "hub" (downloaded).
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
        """Where a shipped model's files are."""
        return SHIPPED / self.name


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


def info(name: str) -> ModelInfo:
    """The registry's entry for ``name``; a ValueError that lists the names if there is none."""
    if name not in REGISTRY:
        raise ValueError(f"unknown model {name!r}; choose one of: {', '.join(REGISTRY)}")
    return REGISTRY[name]


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
        raise ValueError(f"name: expected a shipped model, which has a {file}; {name!r} is {entry.family}")
    return (entry.folder / file).read_text("utf8")


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
