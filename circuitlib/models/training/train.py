"""The training loop: stages, gates, checkpoints, log.

A step is a function of (seed, step) and the state before it; the state is one safetensors file. So a run that
is killed and started again ends with the same weights as one that was not (tested).
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from . import gates
from .data import Batch, code_batch, docstring_batch, repeats_batch, sample_layout, train_tokenizer
from .guide import DOCSTRING_GUIDE, guidance_loss
from .scores import measure
from .stories import span_batch, story_batch
from .transformer import Transformer

ROWS_PER_LAYOUT = 4
CLOSED = -4.0  # log alpha of a gate that is all but never open


@dataclass(frozen=True)
class Stage:
    """Some steps on one mix of text.

    ``gates``, of docstrings, or of stories and spans: "off", "learn", or "fixed" (closed gates stay closed). ``two_runs``: the text
    is also run with all heads, as the finished model will run, and both runs are trained. With it, or with ``from_corrupted``, closed
    heads take their outputs from a run on corrupted prompts; without, from another row of the same run.
    """

    name: str
    steps: int
    lr: tuple[float, float]  # falls linearly from the first to the second
    length: int
    repeats: int  # rows of each kind of text
    docstrings: int = 0
    stories: int = 0
    spans: int = 0
    from_01: bool = False  # a tenth of the spans begins in the year 01
    any_token: bool = False  # every second function has any tokens for names
    code: int = 0
    alphabets: tuple[int, ...] | None = None
    guidance: float = 0.0  # weight of the guidance loss
    gates: str = "off"
    open_cost: float = 0.0  # per expected open gate; rises from 0 over the stage
    doubled_from: int | None = None  # the step of the stage from which the cost is twice as high
    # With fixed gates: how many stay open at most, by log alpha, for each gated text.
    most_open: tuple[int, ...] | None = None
    two_runs: bool = False
    from_corrupted: bool = False
    warmup: int = 0


@dataclass(frozen=True)
class Recipe:
    name: str
    shape: dict[str, int]
    stages: tuple[Stage, ...]
    d_vocab: int = 2048
    seed: int = 0
    gate_lr: float = 0.05
    gate_start: float = 1.0  # log alpha
    gated: tuple[str, ...] = ("docstring",)  # kinds of text that have gates, each a gate for every head
    closed: tuple[tuple[int, int], ...] = ()  # heads whose gates start closed, for the first kind of text
    guided: dict[str, tuple[int, int]] = field(default_factory=lambda: DOCSTRING_GUIDE)  # which head is shown what
    code_weight: float = 0.3
    log_every: int = 100
    stop: int | None = None  # the step at which to stop, if that is before the end of the last stage
    make_tokenizer: Callable = train_tokenizer  # from a vocabulary size
    measure: Callable = measure  # what the log says of a model: (model, tokenizer, open heads or None) -> dict

    @property
    def steps(self) -> int:
        return self.stop or sum(stage.steps for stage in self.stages)

    def at(self, step: int) -> tuple[Stage, int]:
        """The stage that a step belongs to, and the step's number within it."""
        for stage in self.stages:
            if step < stage.steps:
                return stage, step
            step -= stage.steps
        raise IndexError("step past the end of the recipe")


def train(
    recipe: Recipe, tokenizer, stream: np.ndarray, folder: Path, seed: int, stop_at: int | None = None
) -> Transformer:
    """Train from the newest checkpoint in ``folder`` (or from nothing) to the end; append to ``folder/log.jsonl``."""
    torch.manual_seed(seed)
    model = Transformer(d_vocab=len(tokenizer), **recipe.shape)
    n_layers, n_heads = recipe.shape["n_layers"], recipe.shape["n_heads"]
    log_alpha = torch.full((len(recipe.gated), n_layers, n_heads), recipe.gate_start)
    for layer, head in recipe.closed:
        log_alpha[0, layer, head] = CLOSED
    log_alpha.requires_grad_()
    optimizer = torch.optim.AdamW(
        [{"params": model.parameters(), "weight_decay": 0.01}, {"params": [log_alpha], "weight_decay": 0.0}],
        betas=(0.9, 0.98),
    )
    start = restore(folder, model, log_alpha, optimizer)
    began = time.time()
    end = min(stop_at or recipe.steps, recipe.steps)
    for step in range(start, end):
        stage, at = recipe.at(step)
        lr = stage.lr[0] + (stage.lr[1] - stage.lr[0]) * at / stage.steps
        optimizer.param_groups[0]["lr"] = lr * min(1.0, (at + 1) / (stage.warmup + 1))
        optimizer.param_groups[1]["lr"] = recipe.gate_lr if stage.gates == "learn" else 0.0
        harder = stage.doubled_from is not None and at >= stage.doubled_from
        open_cost = stage.open_cost * (2 if harder else 1) * at / stage.steps
        made = batches(tokenizer, stream, stage, seed, step)
        losses = take_step(model, log_alpha, optimizer, stage, made, open_cost, recipe, step)
        if (step + 1) % recipe.log_every == 0 or step + 1 == recipe.steps:
            row = {"step": step + 1, "stage": stage.name, "lr": lr, "seconds": round(time.time() - began, 1)} | losses
            row |= recipe.measure(model, tokenizer, open_heads(log_alpha, stage) if stage.gates != "off" else None)
            save(folder, step + 1, model, log_alpha, optimizer)
            with (folder / "log.jsonl").open("a") as log:
                log.write(json.dumps(row) + "\n")
        elif step + 1 == end:
            save(folder, step + 1, model, log_alpha, optimizer)
    return model


def batches(tokenizer, stream, stage: Stage, seed: int, step: int) -> dict[str, Batch]:
    """The text of one step."""
    rng, words = np.random.default_rng([seed, step]), random.Random(seed * 1_000_003 + step)
    made = {}
    if stage.docstrings:
        # Many layouts, so that no head can find an argument by its distance.
        layouts = [sample_layout(words) for _ in range(stage.docstrings // ROWS_PER_LAYOUT)]
        made["docstring"] = docstring_batch(tokenizer, words, layouts, ROWS_PER_LAYOUT, stage.length, stage.any_token)
    if stage.stories:
        made["story"] = story_batch(tokenizer, words, stage.stories // ROWS_PER_LAYOUT, ROWS_PER_LAYOUT)
    if stage.spans:
        made["span"] = span_batch(tokenizer, words, stage.spans // ROWS_PER_LAYOUT, ROWS_PER_LAYOUT, stage.from_01)
    if stage.repeats:
        alphabets = stage.alphabets if step % 2 else None
        made["repeats"] = repeats_batch(tokenizer, rng, stage.repeats, stage.length, alphabets)
    if stage.code:
        made["code"] = code_batch(tokenizer, stream, rng, stage.code, stage.length)
    return made


def take_step(
    model, log_alpha, optimizer, stage: Stage, made: dict[str, Batch], open_cost: float, recipe: Recipe, step: int
) -> dict[str, float]:
    generator = torch.Generator().manual_seed(step)
    losses, total = {}, 0.0
    for kind, batch in made.items():
        gated, runs = (), []
        if stage.gates != "off" and kind in recipe.gated:
            number = recipe.gated.index(kind)
            gated = choose_gates(model, log_alpha, number, stage, batch, generator)
            if stage.gates == "learn":
                total = total + open_cost * gates.expected_open(log_alpha[number])
            if stage.two_runs:
                runs = [model.run(batch.tokens)[0]]
        residual, _ = model.run(batch.tokens, *gated)
        each = [weighted_loss(model.logits(r[-1]), batch) for r in (*runs, residual)]
        loss = sum(each) / len(each)
        total = total + loss * (recipe.code_weight if kind == "code" else 1.0)
        if stage.guidance and batch.lookups is not None:
            guidance = guidance_loss(model, residual, batch.lookups, recipe.guided)
            total = total + stage.guidance * guidance
            losses["loss_guidance"] = round(guidance.item(), 4)
        losses[f"loss_{kind}"] = round(loss.item(), 4)
    optimizer.zero_grad()
    total.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return losses


def open_heads(log_alpha: Float[Tensor, "kind layer head"], stage: Stage) -> Float[Tensor, "kind layer head"]:
    """The gates of each kind of text when they are frozen: 1 where open, else 0."""
    most = stage.most_open or [None] * len(log_alpha)
    return torch.stack([gates.is_open(one, n) for one, n in zip(log_alpha.detach(), most, strict=True)])


def choose_gates(model, log_alpha, number: int, stage: Stage, batch: Batch, generator: torch.Generator) -> tuple:
    """Arguments for ``run``: gates for every row, and where its closed heads take their outputs from."""
    n_rows = len(batch.tokens)
    if stage.gates == "learn":
        keep = gates.sample(log_alpha[number], n_rows, generator)
    else:
        keep = open_heads(log_alpha, stage)[number].repeat(n_rows, 1, 1)
    if not (stage.two_runs or stage.from_corrupted):
        return keep, partners(batch.group, generator)
    with torch.no_grad():
        return keep, torch.arange(n_rows), model.run(batch.corrupted)[1]


def partners(group, generator: torch.Generator):
    """For each row another row of its group: the next one in a random circle."""
    partner = torch.empty_like(group)
    for g in group.unique():
        rows = torch.nonzero(group == g).flatten()
        circle = rows[torch.randperm(len(rows), generator=generator)]
        partner[circle] = circle.roll(1)
    return partner


def weighted_loss(logits: Float[Tensor, "row pos d_vocab"], batch: Batch) -> Float[Tensor, ""]:
    """Cross-entropy in nats, a weighted mean over target positions; a spread target has weight 1."""
    weight = batch.weight[:, 1:].flatten()
    loss = torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), batch.tokens[:, 1:].flatten(), reduction="none"
    )
    total, sum_of_weights = (loss * weight).sum(), weight.sum()
    if batch.spread is not None:
        log_p = logits[batch.spread.row, batch.spread.pos].log_softmax(-1)
        total = total - (batch.spread.probability * log_p).sum()
        sum_of_weights = sum_of_weights + len(log_p)
    return total / sum_of_weights


# Checkpoints --------------------------------------------------------------------------------------


def save(folder: Path, step: int, model, log_alpha, optimizer) -> None:
    """Write the whole state as one safetensors file, atomically."""
    state = {f"model.{name}": value for name, value in model.state_dict().items()}
    state["gates"] = log_alpha.detach()
    for i, moments in optimizer.state_dict()["state"].items():
        state |= {f"adam.{i}.{name}": value for name, value in moments.items()}
    temporary = folder / "checkpoint.tmp"
    save_file({name: value.contiguous() for name, value in state.items()}, temporary, metadata={"step": str(step)})
    os.replace(temporary, folder / "checkpoint.safetensors")


def restore(folder: Path, model, log_alpha, optimizer) -> int:
    """Load the newest checkpoint into everything; the number of finished steps (0 without a checkpoint).

    Raises:
        ValueError: the file is no checkpoint of such a run. It is left alone.
    """
    path = folder / "checkpoint.safetensors"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        return 0
    try:
        return _take_over(path, model, log_alpha, optimizer)
    except (SafetensorError, RuntimeError, KeyError, TypeError, ValueError) as error:
        said = " ".join(str(error).split())[:120]
        raise ValueError(f"{path}: not a checkpoint of this run, or damaged ({type(error).__name__}: {said})") from None


def _take_over(path: Path, model, log_alpha, optimizer) -> int:
    state = load_file(path)
    with safe_open(path, "pt") as file:
        step = int((file.metadata() or {})["step"])
    if step < 0:
        raise ValueError(f"step {step}")
    model.load_state_dict({name[6:]: value for name, value in state.items() if name.startswith("model.")})
    with torch.no_grad():
        log_alpha.copy_(state["gates"])
    moments: dict[int, dict[str, Tensor]] = {}
    for name, value in state.items():
        if name.startswith("adam."):
            _, i, field = name.split(".", 2)
            moments.setdefault(int(i), {})[field] = value
    optimizer.load_state_dict(optimizer.state_dict() | {"state": moments})
    return step
