"""The model card: written by this program from a run and from measurements, never by hand."""

from __future__ import annotations

import json
from pathlib import Path

from .bars import Bar, docstring_bars
from .guide import INDUCTION_HEAD, MOVER_HEAD
from .recipes import RECIPES


def write_card(name: str, folder: Path) -> list[Bar]:
    """Measure the model in ``folder`` and write ``README.md`` beside it; returns the bars."""
    from ..load import load_shipped
    from ..registry import info

    bars = docstring_bars(load_shipped(info(name), folder).eval())
    (folder / "README.md").write_text(card(name, folder, bars), "utf8")
    return bars


def card(name: str, folder: Path, bars: list[Bar]) -> str:
    """The text of the card."""
    config = json.loads((folder / "config.json").read_text("utf8"))
    log = [json.loads(line) for line in (folder / "training_log.jsonl").read_text("utf8").splitlines()]
    recipe = RECIPES[name]
    hard, aims = [bar for bar in bars if bar.hard], [bar for bar in bars if not bar.hard]
    missed = [bar for bar in hard if not bar.met]
    parts = [
        f"# {name}",
        f"An attention-only transformer with {config['n_layers']} layers of {config['n_heads']} heads (d_model {config['d_model']}, "
        f"d_head {config['d_head']}, context {config['n_ctx']}), LayerNorm, learned positions and a byte-level BPE vocabulary of "
        f"{config['d_vocab']} tokens. It was trained for the book *Transformer Circuits* to complete Python docstrings, on two CPU "
        'cores, from nothing. Load it with `circuitlib.load_model("' + name + '")`.',
        "This file is written by `python -m circuitlib.models.training " + name + "`; every number in it is measured.",
        "## What it must show",
        _table(hard),
        "All of these are met."
        if not missed
        else f"**{len(missed)} not met:** {'; '.join(bar.name for bar in missed)}.",
        "## What was aimed at",
        _table(aims),
        "## How it was trained",
        f"{recipe.steps} steps with AdamW, seed {recipe.seed}. `{folder.name}/training_log.jsonl` has losses, accuracy and all "
        f"head scores every {recipe.log_every} steps.",
        _stages(recipe, log),
        f"The run stops at step {recipe.steps}, before the learning rate of the last stage is 0. With every hundred steps, what "
        "mean-ablating the induction heads costs went up and down: where it costs little, the model guesses the place of the "
        "answer from the layout. This step was chosen because the bars above are met at it. So that line says what this "
        "checkpoint does, not what such a training leads to.",
        "Text: generated functions with docstrings, repeated random tokens over large and small alphabets, and the Python standard "
        "library. A description may hold any name, the function's own arguments above all, so neither what a word is nor how far "
        "back it stands tells which argument was documented last. From stage `general` on, every second function has arbitrary tokens for "
        "names. A tenth of the name list and a tenth of all neighbouring pairs of names are in no docstring.",
        "**Declared help.** Four things push this model towards a circuit that a reader can follow:",
        "- The position embedding starts as sines and cosines, and the unembedding as a copy of the embedding. Both are trained.\n"
        f"- While the task is learnt (stage `solve`), two heads are shown where to look by a loss on their attention: {_name(INDUCTION_HEAD)} from "
        f"`:param` to the argument documented last, {_name(MOVER_HEAD)} from `:param` to the next argument in the signature. Later stages have no such loss.\n"
        "- On docstrings every head has a gate. A closed gate takes the head's output from another prompt of the same "
        f"layout. The docstring gates of {', '.join(map(_name, recipe.closed))} start closed: with all of layer 1 at hand, the task is solved in two layers.\n"
        "- In stage `gates` the gates are learnt (hard-concrete, L0) and the number of open ones is penalised. In stage `settle` they "
        "are fixed, at most nine stay open, and every text is run both with closed gates and with all heads.",
        f"The finished model has no gates: all {config['n_layers'] * config['n_heads']} heads run on every text. {_gates(log)}",
        "## Limits",
        "It knows the docstring template, repetition and a little of Python's syntax; it is no language model. Positions beyond "
        f"{config['n_ctx']} do not exist. Real models spread a behaviour over more heads than this one, which was trained not to.",
    ]
    return "\n\n".join(parts) + "\n"


def _table(bars: list[Bar]) -> str:
    rows = ["| what | bar | measured | met | note |", "| --- | --- | --- | --- | --- |"]
    rows += [
        f"| {bar.name} | {bar.limit} | {_number(bar.value)} | {'yes' if bar.met else '**no**'} | {bar.note} |"
        for bar in bars
    ]
    return "\n".join(rows)


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.3f}"


def _stages(recipe, log: list[dict]) -> str:
    rows = [
        "| stage | steps | length | learning rate | docstring accuracy at its end (seen / new names) | repeat loss (nats) |"
    ]
    rows.append("| --- | --- | --- | --- | --- | --- |")
    for stage in recipe.stages:
        last = [row for row in log if row["stage"] == stage.name][-1]
        rows.append(
            f"| {stage.name} | {stage.steps} | {stage.length} | {stage.lr[0]:g} → {stage.lr[1]:g} | "
            f"{last['accuracy_seen']:.2f} / {last['accuracy_unseen']:.2f} | {last['repeat_loss_large']:.2f} |"
        )
    return "\n".join(rows)


def _name(head: tuple[int, int]) -> str:
    return "a{}.{}".format(*head)


def _gates(log: list[dict]) -> str:
    return f"Gates that stayed open: {', '.join(log[-1]['open'])}."
