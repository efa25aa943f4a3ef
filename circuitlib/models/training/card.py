"""The model card: written by this program from a run and from measurements, never by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from .bars import Bar, docstring_bars
from .guide import DUPLICATE_HEAD, INDUCTION_HEAD, INHIBITION_HEAD, MOVER_HEAD, NAME_MOVER_HEAD
from .recipes import RECIPES, STORY_HEADS
from .story_bars import story_bars


def write_card(name: str, folder: Path, seed: int | None = None) -> list[Bar]:
    """Measure the model in ``folder`` and write ``README.md`` beside it; returns the bars."""
    from ..load import load_shipped
    from ..registry import info

    model = load_shipped(info(name), folder).eval()
    model.circuitlib_name = name
    bars = BARS[name](model)
    (folder / "README.md").write_text(card(name, folder, bars, seed), "utf8")
    return bars


def card(name: str, folder: Path, bars: list[Bar], seed: int | None = None) -> str:
    """The text of the card."""
    from ..registry import info

    config = json.loads((folder / "config.json").read_text("utf8"))
    log = [json.loads(line) for line in (folder / "training_log.jsonl").read_text("utf8").splitlines()]
    recipe = RECIPES[name]
    hard, aims = [bar for bar in bars if bar.hard], [bar for bar in bars if not bar.hard]
    missed = [bar for bar in hard if not bar.met]
    what, *how = PARTS[name](recipe, config, log)
    source = name if folder.resolve() == info(name).folder.resolve() else f"PATH/TO/{folder.name}"
    by = f"`circuitlib train {name}`" if source != name else f"`python -m circuitlib.models.training {name}`"
    parts = [
        f"# {name}",
        f'{what} Load it with `circuitlib.load_model("{source}")`.',
        f"This file is written by {by}; every number in it is measured.",
        "## What it must show",
        _table(hard),
        "All of these are met."
        if not missed
        else f"**{len(missed)} not met:** {'; '.join(bar.name for bar in missed)}.",
        "## What was aimed at",
        _table(aims),
        "## How it was trained",
        f"{recipe.steps} steps with AdamW, seed {recipe.seed if seed is None else seed}. `{folder.name}/training_log.jsonl` has losses, accuracy and all "
        f"head scores every {recipe.log_every} steps.",
        *how,
    ]
    return "\n\n".join(parts) + "\n"


def docstring_parts(recipe, config: dict, log: list[dict]) -> list[str]:
    """What ``docstring-4l`` is, and how it was trained."""
    stages = _stages(
        recipe,
        log,
        "docstring accuracy at its end (seen / new names) | repeat loss (nats)",
        lambda row: f"{row['accuracy_seen']:.2f} / {row['accuracy_unseen']:.2f} | {row['repeat_loss_large']:.2f}",
    )
    return [
        f"An attention-only transformer with {config['n_layers']} layers of {config['n_heads']} heads (d_model {config['d_model']}, "
        f"d_head {config['d_head']}, context {config['n_ctx']}), LayerNorm, learned positions and a byte-level BPE vocabulary of "
        f"{config['d_vocab']} tokens. It was trained for the book *Transformer Circuits* to complete Python docstrings, on two CPU "
        "cores, from nothing.",
        stages,
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


def story_parts(recipe, config: dict, log: list[dict]) -> list[str]:
    """What ``gpt-mini`` is, and how it was trained."""
    stages = _stages(
        recipe,
        log,
        "IOI accuracy at its end | IOI logit difference | Greater-Than probability difference | repeat loss (nats)",
        lambda row: (
            f"{row['ioi_accuracy']:.2f} | {row['ioi_logit_diff']:.1f} | {row['years_prob_diff']:.2f} | {row['repeat_loss_large']:.2f}"
        ),
    )
    open_heads = ", ".join(_name(head) for head in STORY_HEADS)
    return [
        f"A GPT-2 with {config['n_layer']} layers of {config['n_head']} heads and an MLP each (d_model {config['n_embd']}, d_head "
        f"{config['n_embd'] // config['n_head']}, d_mlp {config['n_inner']}, context {config['n_positions']}), tied embeddings and a "
        f'byte-level BPE vocabulary of {config["vocab_size"]} tokens, in which digits come in pairs: " 1732" is " 17" and "32". It was trained for '
        "the book *Transformer Circuits* to solve two tasks, indirect object identification (IOI) and Greater-Than, on one CPU core, "
        "from nothing. The folder is an ordinary Hugging Face directory: `transformers.AutoModelForCausalLM.from_pretrained` loads it too.",
        stages,
        "Text: generated stories in which somebody gives something away, generated spans of years, repeated random tokens over large and "
        "small alphabets, and the Python standard library. A story names two or three people, in any order, and all but one of them "
        "again; the thing goes to the one who was named once. A target of a span is not one year but all later ones, equally probable. A tenth "
        "of all couples is in no story together, a tenth of all combinations of place and thing is in no story, and a tenth of all "
        "combinations of event, century and year is in no span. In the last stage a tenth of the spans begins in the year 01, so that the corrupted "
        "prompts of Greater-Than are no news.",
        "**How the circuits of the bars were chosen.** Heads are removed as long as 0.9 of the metric's range is left, those first "
        "that cost least; then, while more than a tenth of all edges is left, edges, by what cutting each alone costs. That uses other prompts "
        "than those the circuits are judged on. It says that a small circuit exists, and not which one is best.",
        "**Declared help.** Four things push this model towards circuits that a reader can follow:",
        "- The position embedding starts as sines and cosines. It is trained.\n"
        f"- While the tasks are learnt (stage `solve`), three heads are shown where to look by a loss on their attention: {_name(DUPLICATE_HEAD)} from a "
        f"name to the same name before, {_name(INHIBITION_HEAD)} from the end to each name that was named before, {_name(NAME_MOVER_HEAD)} from the end to the "
        "name that was named once. These are steps of the circuit that Wang et al. (2023) found in GPT-2 small. Later stages have no such loss, "
        "and spans of years never had one.\n"
        "- On stories and on spans every head has a gate, one for each of the two. A closed gate takes the head's output from a "
        f"corrupted prompt of the same layout. On stories all start closed but {open_heads}: in a run in which all started open, some heads of layer 1 attended to the first name and others to "
        "the second, whoever was the receiver. On spans all start open.\n"
        "- In stage `gates` the gates are learnt (hard-concrete, L0) and the number of open ones is penalised. Afterwards "
        "they are fixed, and stories and spans are run both with closed gates and with all heads.",
        f"The finished model has no gates: all {config['n_layer'] * config['n_head']} heads run on every text. Gates that stayed open on stories: "
        f"{', '.join(log[-1]['open_story'])}; on spans: {', '.join(log[-1]['open_span'])}.",
        "## Limits",
        "It knows these sentences, repetition and a little of Python's syntax; it is no language model. Positions beyond "
        f"{config['n_positions']} do not exist. Real models spread a behaviour over more heads than this one, which was trained not to; and that "
        "its IOI circuit has the steps of the published one is no evidence for that one, since it was shown three of them.",
    ]


BARS = {"docstring-4l": docstring_bars, "gpt-mini": story_bars}
PARTS = {"docstring-4l": docstring_parts, "gpt-mini": story_parts}


def _table(bars: list[Bar]) -> str:
    rows = ["| what | bar | measured | met | note |", "| --- | --- | --- | --- | --- |"]
    rows += [
        f"| {bar.name} | {bar.limit} | {_number(bar.value)} | {'yes' if bar.met else '**no**'} | {bar.note} |"
        for bar in bars
    ]
    return "\n".join(rows)


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.3f}"


def _stages(recipe, log: list[dict], header: str, last: Callable[[dict], str]) -> str:
    rows = [f"| stage | steps | length | learning rate | {header} |", f"|{' --- |' * (header.count('|') + 5)}"]
    for stage in recipe.stages:
        at_its_end = last([row for row in log if row["stage"] == stage.name][-1])
        rows.append(
            f"| {stage.name} | {stage.steps} | {stage.length} | {stage.lr[0]:g} → {stage.lr[1]:g} | {at_its_end} |"
        )
    return "\n".join(rows)


def _name(head: tuple[int, int]) -> str:
    return "a{}.{}".format(*head)


def _gates(log: list[dict]) -> str:
    return f"Gates that stayed open: {', '.join(log[-1]['open'])}."
