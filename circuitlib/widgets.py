"""Live pictures for the chapters: edit a prompt, look through all heads, take heads away.

A widget is a few controls and one picture, which a function makes from what the controls say. In a live notebook the
kernel calls that function whenever a control changes. A page of the book has no kernel: there every picture is made
beforehand, and the page switches between them by itself.

Pictures are HTML with all text in it, so that a screen reader gets the same as an eye. Whatever comes from a prompt is
escaped.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import html
import itertools
import math
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence

import ipywidgets as ipw
import matplotlib
import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from .engine import Engine
from .graph import ABLATIONS
from .heads import graph_heads, out_edges
from .patching import activation_patching
from .plotting import COLOURS, INK, AttentionView, _host_mode, plot_attention, visible
from .tasks import Task
from .tasks.tokens import encode, same_length

PICTURES_AT_MOST = 200  # a page without a kernel carries all of them, at one to eight kilobytes each
MODES = {"corrupted values into the clean run": "noising", "clean values into the corrupted run": "denoising"}
METRIC_NAMES = {
    "logit_diff": "logit difference",
    "logprob": "log-probability of the answer",
    "prob_diff": "probability difference",
}


def edit_prompts(
    model,
    clean: str,
    corrupted: str | Mapping[str, str],
    answer: str,
    wrong: Sequence[str],
    mode: str = "noising",
    *,
    live: bool | None = None,
) -> ipw.VBox:
    """Edit the two prompts of a pair and see what patching the residual stream does, by layer and position.

    Args:
        model: a ``TransformerBridge``.
        clean: the clean prompt, without BOS.
        corrupted: the corrupted prompt; or name → prompt, to choose from.
        answer: what comes next after the clean prompt, one token. Its leading space may be left out; in ``wrong`` too.
        wrong: wrong answers, one token each. The metric is the logit of the answer minus the largest logit of these.
        mode: "noising" or "denoising", as in ``activation_patching``.
        live: whether a kernel answers the controls. By default in Jupyter, VS Code and Colab. Without, a reader chooses
            among the corrupted prompts given here.

    Returns:
        the widget. It shows the change of the metric in its own unit: the patched run minus the run patched into.

    Raises:
        ValueError: prompts that can't be compared, an answer that is not one token, or another mode. A live widget says
            the same in one line about what its reader types.
    """
    examples = {"corrupted": corrupted} if isinstance(corrupted, str) else dict(corrupted)
    wrong = [wrong] if isinstance(wrong, str) else list(wrong)
    if not examples:
        raise ValueError("corrupted: expected at least one prompt, got none")
    if mode not in MODES.values():
        raise ValueError(f"mode: expected 'noising' or 'denoising', got {mode!r}")
    pairs = {name: _pair(model, clean, text, answer, wrong) for name, text in examples.items()}
    example = _choice("Corrupted prompt", {name: name for name in examples})
    chooser = [example] if len(examples) > 1 else []
    if _is_live(live):
        return _column([*chooser, *_editor(model, clean, examples, answer, wrong, mode, example)])
    more = "edit both prompts, the answer and the wrong answers"
    return _column(
        [*chooser, *_shown([example], lambda name: _patching_picture(model, pairs[name], mode), False, more)]
    )


def view_attention(
    model,
    prompts: Int[Tensor, "pos"] | Mapping[str, Int[Tensor, "pos"]],
    *,
    labels: Sequence[str] | None = None,
    start: str = "a0.0",
    live: bool | None = None,
) -> ipw.VBox:
    """Look at the attention pattern of any head: choose prompt, layer and head.

    Args:
        model: a ``TransformerBridge``.
        prompts: the token ids of a prompt, with BOS; or name → token ids, to choose from.
        labels: one string per position, for all prompts; by default the tokens themselves.
        start: the head that is shown first.
        live: as in ``edit_prompts``. A live widget also takes a prompt that is typed in.

    Raises:
        ValueError: no prompt, tokens of another shape, labels that don't fit, or a head that does not exist.
    """
    prompts = dict(prompts) if isinstance(prompts, Mapping) else {"the prompt": prompts}
    if not prompts:
        raise ValueError("prompts: expected at least one prompt, got none")
    n_layers, n_heads = model.cfg.n_layers, model.cfg.n_heads
    heads = [f"a{layer}.{head}" for layer in range(n_layers) for head in range(n_heads)]
    if start not in heads:
        raise ValueError(f"start: expected a head from {heads[0]} to {heads[-1]}, got {start!r}")
    views = {name: plot_attention(model, tokens, heads, labels=labels) for name, tokens in prompts.items()}
    prompt = _choice("Prompt", {name: name for name in views})
    layer = _choice("Layer", {str(i): i for i in range(n_layers)}, ipw.Dropdown)
    head = _choice("Head", {str(i): i for i in range(n_heads)}, ipw.Dropdown)
    layer.value, head.value = divmod(heads.index(start), n_heads)
    live = _is_live(live)
    shown = _shown(
        [prompt, layer, head],
        lambda name, i, j: _attention_picture(views[name], f"a{i}.{j}", name),
        live,
        "type in a prompt of your own",
    )
    row = ipw.HBox([layer, head], layout=ipw.Layout(flex_flow="row wrap"))
    chooser = [prompt] if live or len(views) > 1 else []
    return _column([*chooser, *(_own_prompt(model, prompt, views) if live else []), row, *shown])


def ablate_heads(
    model,
    task: Task,
    heads: Sequence[str] | None = None,
    *,
    ablation: str = "mean",
    live: bool | None = None,
) -> ipw.VBox:
    """Take heads away, one or several, and see what is left of the task's metric and of the accuracy.

    All edges that leave a head are cut; what they carry instead is what ``Engine`` says for the ablation.

    Args:
        model: a ``TransformerBridge``.
        task: its prompts and its metric.
        heads: those that can be taken away, such as ["a0.4", "a0.5"]; by default all heads of the model.
        ablation: the first to be shown; "zero", "mean" and "corrupted" can be chosen.
        live: as in ``edit_prompts``. Without a kernel the widget takes few heads only: each one doubles the pictures.

    Raises:
        ValueError: no heads, one that does not exist or is named twice, or another ablation.
    """
    if ablation not in ABLATIONS:
        raise ValueError(f"ablation: expected one of {', '.join(ABLATIONS)}, got {ablation!r}")
    engine = functools.cache(lambda kind: Engine(model, task, ablation=kind))
    graph = engine(ablation).graph
    everything = [f"a{layer}.{head}" for layer, head in graph_heads(graph)]
    heads = everything if heads is None else [heads] if isinstance(heads, str) else list(heads)
    if not heads or len(set(heads)) < len(heads):
        raise ValueError(f"heads: expected different heads such as 'a0.4', got {heads!r}")
    if unknown := [name for name in heads if name not in everything]:
        raise ValueError(f"heads: expected heads from {everything[0]} to {everything[-1]}, got {unknown[0]!r}")
    live = _is_live(live)
    kind = _choice("Ablation", {name: name for name in ABLATIONS}, ipw.Dropdown)
    kind.value = ablation
    boxes = [
        _tick(name, with_index=not live and len(ABLATIONS) * 2 ** len(heads) <= PICTURES_AT_MOST) for name in heads
    ]

    @functools.cache
    def measured(which: str, removed: tuple[str, ...]) -> tuple[float, float]:
        one = engine(which)
        logits = one.run(one.all - [edge for name in removed for edge in out_edges(graph, name)])
        return float(task.metric(logits).mean()), float(task.accuracy(logits).mean())

    def picture(which: str, *ticked: bool) -> str:
        removed = tuple(name for name, gone in zip(heads, ticked, strict=True) if gone)
        return _ablation_picture(task, which, removed, measured(which, ()), measured(which, removed))

    shown = _shown([kind, *boxes], picture, live, "take away any of the model's heads")
    by_layer = ipw.Layout(grid_template_columns=f"repeat({graph.n_heads}, max-content)", overflow="auto")
    in_a_row = ipw.Layout(flex_flow="row wrap")
    grid = ipw.GridBox(boxes, layout=by_layer) if heads == everything else ipw.Box(boxes, layout=in_a_row)
    return _column([kind, grid, *([_put_back(boxes)] if live else []), *shown])


# --- controls, and how they choose a picture ------------------------------------------------------------------------


def _is_live(live: bool | None) -> bool:
    return _host_mode() == "inline" if live is None else live


def _choice(name: str, options: Mapping[str, object], kind: type = ipw.RadioButtons):
    """A labelled choice. Native controls only: a screen reader can name them, and arrow keys move through them.

    Radio buttons only once in a widget: ipywidgets gives them no name, so arrow keys would go on into the next group.
    """
    style = {"description_width": "initial"}
    layout = ipw.Layout(width="max-content", max_width="100%")
    return kind(options=list(options.items()), description=name, style=style, layout=layout)


def _tick(head: str, with_index: bool):
    """Whether a head is taken away. A page without a kernel needs a control with an index, which a tick box has not."""
    if not with_index:
        return ipw.Checkbox(description=head, indent=False, layout=ipw.Layout(width="4.5rem"))
    return _choice(head, {"in place": False, "removed": True}, ipw.Dropdown)


def _shown(controls: Sequence, picture: Callable[..., str], live: bool, more: str) -> list[ipw.Widget]:
    """The picture for what the controls say, from now on: made when a control changes, or all of them beforehand.

    Args:
        more: what a running notebook can do that a page can't, for the line below the picture.
    """
    if live:
        shown = _html(picture(*(control.value for control in controls)))

        def update(_) -> None:
            shown.value = _guarded(lambda: picture(*(control.value for control in controls)))

        for control in controls:
            control.observe(update, "value")
        return [shown]
    if math.prod(len(getattr(control, "options", (False, True))) for control in controls) > PICTURES_AT_MOST:
        for control in controls:
            control.disabled = True
        only = _html(picture(*(control.value for control in controls)))
        return [only, _note(f"The controls need a kernel. In a running notebook you can {more}")]
    frame = _html("")  # all pictures share one layout and one style: they are half of what a page would have to carry
    made = {
        values: ipw.HTML(picture(*values), layout=frame.layout, style=frame.style)
        for values in itertools.product(*([value for _, value in control.options] for control in controls))
    }
    note = _note(f"These pictures were made when the chapter ran. In a running notebook you can also {more}")
    return [_stack(list(controls), made, (), frame.layout), note]


def _stack(controls: list, made: dict, chosen: tuple, layout: ipw.Layout) -> ipw.Widget:
    """Pictures within pictures: the first control chooses among stacks, in each of which the next one chooses."""
    if not controls:
        return made[chosen]
    first, *rest = controls
    children = [_stack(rest, made, (*chosen, value), layout) for _, value in first.options]
    stack = ipw.Stack(children, selected_index=first.index, layout=layout)
    ipw.jsdlink((first, "index"), (stack, "selected_index"))
    return stack


def _html(value: str) -> ipw.HTML:
    """HTML as a block: in a flex box, which is the default, what is too wide could not scroll."""
    return ipw.HTML(value, layout=ipw.Layout(display="block", width="auto"))


def _column(parts: Sequence[ipw.Widget]) -> ipw.VBox:
    return ipw.VBox(list(parts), layout=ipw.Layout(width="100%"))


def _note(text: str) -> ipw.HTML:
    return _html(
        f"<p style='{_PAPER};font-size:.85em'>{html.escape(text)}: run the chapter's cells up to this one.</p>"
    )


def _guarded(make: Callable[[], str]) -> str:
    """What ``make`` returns, or one line that says why not: a widget has no place for a traceback."""
    try:
        return make()
    except ValueError as error:
        return _message(str(error))
    except Exception as error:  # whatever went wrong, the reader has to be told that the picture is not theirs
        return _message(
            f"This could not be computed ({type(error).__name__}: {next(iter(str(error).splitlines()), '')})."
        )


def _message(text: str) -> str:
    return f"<p role=status style='{_PAPER};border-left:4px solid #b35900'>{html.escape(text)}</p>"


def _put_back(boxes: Sequence[ipw.Checkbox]) -> ipw.Button:
    """A button that clears all tick boxes."""
    button = ipw.Button(description="Put all back", layout=ipw.Layout(width="max-content"))

    def clear(_) -> None:
        with contextlib.ExitStack() as held:  # nobody is told of a change before all are made
            for box in boxes:
                held.enter_context(box.hold_trait_notifications())
                box.value = False

    button.on_click(clear)
    return button


# --- prompts that are typed in --------------------------------------------------------------------------------------


def _editor(model, clean: str, examples: dict[str, str], answer: str, wrong: list[str], mode: str, example) -> list:
    """The fields, the button and the picture of a live ``edit_prompts``."""
    first = next(iter(examples.values()))
    clean_text, corrupted_text = _field("Clean", clean, ipw.Textarea), _field("Corrupted", first, ipw.Textarea)
    right, others = _field("Answer", answer), _field("Wrong answers", " ".join(word.strip() for word in wrong))
    which = _choice("Patch", MODES, ipw.Dropdown)
    which.value = mode
    button = ipw.Button(description="Patch every place", button_style="primary", layout=ipw.Layout(width="max-content"))

    given = others.value

    def picture() -> str:
        # Words as they were given, as long as the reader leaves them: one may hold a space or a comma.
        words = wrong if others.value == given else others.value.replace(",", " ").split()
        pair = _pair(model, clean_text.value, corrupted_text.value, right.value, words)
        return _patching_picture(model, pair, which.value)

    shown = _html(picture())

    def patch(_=None) -> None:
        shown.value = _message("Patching …")
        shown.value = _guarded(picture)

    def take_example(_) -> None:
        corrupted_text.value = examples[example.value]
        patch()

    button.on_click(patch)
    which.observe(patch, "value")
    example.observe(take_example, "value")
    return [clean_text, corrupted_text, right, others, which, button, shown]


def _own_prompt(model, prompt, views: dict[str, AttentionView]) -> list:
    """A field whose text becomes one more of the prompts to choose from, and a place for what is wrong with it."""
    field, problem, first = _field("Your prompt", ""), _html(""), next(iter(views))
    field.placeholder, field.continuous_update = "type a prompt, then press Enter", False

    def view() -> str:
        heads = views[first].heads
        views["your prompt"] = plot_attention(model, torch.tensor(_tokens(model, "your prompt", field.value)), heads)
        return ""

    def take(_) -> None:
        problem.value = _guarded(view)
        if not problem.value:
            prompt.options = [(name, name) for name in views]
            prompt.value = first  # so that a second prompt of the reader's own is a change, too
            prompt.value = "your prompt"

    field.observe(take, "value")
    return [field, problem]


def _field(name: str, value: str, kind: type = ipw.Text):
    layout = ipw.Layout(width="99%", max_width="44rem", height="9.5rem" if kind is ipw.Textarea else None)
    return kind(value=value, description=name, layout=layout, style={"description_width": "7rem"})


def _pair(model, clean: str, corrupted: str, answer: str, wrong: Sequence[str]) -> Task:
    """A task of one pair of prompts; a ValueError of one line if they can't be compared."""
    ids = {"clean": _tokens(model, "clean", clean), "corrupted": _tokens(model, "corrupted", corrupted)}
    if ids["clean"] == ids["corrupted"]:
        raise ValueError("corrupted: expected another prompt than clean, got the same tokens; nothing can be patched")
    if len(ids["clean"]) != len(ids["corrupted"]):
        raise ValueError(_misaligned(model, **ids))
    right = _next_token(model, "answer", answer, clean)
    others = [_next_token(model, "wrong answers", word, clean) for word in wrong]
    if not others:
        raise ValueError("wrong answers: expected at least one word, got none")
    if right in others:
        raise ValueError(f"wrong answers: expected words other than the answer, got {answer.strip()!r}")
    tokens, last = same_length(model, [clean]), len(ids["clean"]) - 1
    return Task(
        name="own",
        clean=tokens,
        corrupted=same_length(model, [corrupted]),
        answers=tokens.new_tensor([right]),
        distractors=tokens.new_tensor([others]),
        positions={"end": last},
        read_positions=(last,),
        labels=tuple(_pieces(model, ids["clean"])),
    )


def _tokens(model, name: str, text: str) -> list[int]:
    """The token ids of a prompt, BOS in front; a ValueError that says what is wrong with the text."""
    if not text.strip():
        raise ValueError(f"{name}: expected some text, got none")
    ids = [model.tokenizer.bos_token_id, *encode(model, text)]
    if len(ids) > model.cfg.n_ctx:
        raise ValueError(f"{name}: expected at most {model.cfg.n_ctx} tokens, which this model reads, got {len(ids)}")
    unknown = model.tokenizer.unk_token_id
    if unknown not in (None, ids[0]) and unknown in ids[1:]:
        words = [word for word in text.split() if unknown in encode(model, word)] or [text.strip()]
        raise ValueError(f"{name}: expected words that this model knows, got {_shortened(words[0])!r}")
    return ids


def _next_token(model, name: str, word: str, prompt: str) -> int:
    """The token that ``word`` is after ``prompt``, with a space before it if neither has one and that is one token."""
    if not word.strip():
        raise ValueError(f"{name}: expected a word, got none")
    spaced = [] if word[0].isspace() or prompt[-1:].isspace() else [f" {word}"]
    found = [encode(model, text) for text in (*spaced, word)]
    one = next((ids[0] for ids in found if len(ids) == 1), None)
    if one is None:
        raise ValueError(
            f"{name}: expected one token each, got {_shortened(word)!r}, which is {len(found[0])} tokens of this model"
        )
    if one == model.tokenizer.unk_token_id != model.tokenizer.bos_token_id:
        raise ValueError(f"{name}: expected words that this model knows, got {_shortened(word)!r}")
    return one


def _misaligned(model, clean: list[int], corrupted: list[int]) -> str:
    """How many tokens the prompts have, and where they part: the word that is cut differently stands there."""
    shorter = min(len(clean), len(corrupted))
    start = next((i for i in range(shorter) if clean[i] != corrupted[i]), shorter)
    rest = next((i for i in range(shorter - start) if clean[-1 - i] != corrupted[-1 - i]), shorter - start)
    parts = [
        " ".join(repr(visible(piece)) for piece in _pieces(model, ids[start : len(ids) - rest])[:8]) or "nothing"
        for ids in (clean, corrupted)
    ]
    return (
        f"corrupted: expected the {len(clean)} tokens that clean has, got {len(corrupted)}; "
        f"at position {start} clean has {parts[0]} and corrupted has {parts[1]}"
    )


def _pieces(model, ids: Sequence[int]) -> list[str]:
    return [model.tokenizer.decode([i], clean_up_tokenization_spaces=False) for i in ids]


def _shortened(text: str) -> str:
    return text if len(text) <= 40 else text[:39] + "…"


# --- pictures -------------------------------------------------------------------------------------------------------

# A paper of its own: the theme's dark mode would leave dark text on a dark page.
_PAPER = f"background:#fff;color:{INK};padding:.4rem .6rem;margin:.3rem 0;line-height:1.4"
_WIDE = "tabindex=0 role=region style=overflow-x:auto"  # what is wider than a phone scrolls by itself, by keyboard too
_CELL = 11  # pixels of an attention pattern's cell, and the height of a line beside it


def _patching_picture(model, task: Task, mode: str) -> str:
    """What patching each place of the residual stream does to the metric of one pair of prompts, as a table."""
    with torch.no_grad():
        runs = {"clean": model(task.clean), "corrupted": model(task.corrupted)}
    before = {name: float(task.metric(logits).mean()) for name, logits in runs.items()}
    change = activation_patching(model, task, "resid_pre", mode, normalize=False)
    change = (change - before["clean" if mode == "noising" else "corrupted"]).cpu().numpy()
    # Less than one logit is pale even where nothing else happens.
    limit = max(1.0, abs(before["clean"] - before["corrupted"]), float(np.abs(change).max()))
    says = {name: _pieces(model, [int(logits[0, -1].argmax())])[0] for name, logits in runs.items()}
    tokens = {
        name: _pieces(model, ids[0].tolist()) for name, ids in (("clean", task.clean), ("corrupted", task.corrupted))
    }
    first = next(i for i, (a, b) in enumerate(zip(task.clean[0], task.corrupted[0], strict=True)) if a != b)
    (answer,) = _pieces(model, task.answers.tolist())
    what, where = ("corrupted", "clean") if mode == "noising" else ("clean", "corrupted")
    same = f" Positions 0 to {first - 1} are the same in both prompts: nothing changes there." if first else ""
    titles = "".join(f"<th scope=col style=padding-right:.8em>{name}" for name in ("position", "clean", "corrupted"))
    titles += "".join(f"<th scope=col style='min-width:3.6em;padding-left:.6em'>layer {i}" for i in range(len(change)))
    rows = (
        _row(i, tokens["clean"][i], tokens["corrupted"][i], change[:, i], limit) for i in range(first, change.shape[1])
    )
    return (
        f"<div style='{_PAPER}'><p>Logit difference for {_text(answer)}: clean {_signed(before['clean'])}, "
        f"corrupted {_signed(before['corrupted'])}. "
        f"First guess: clean {_text(says['clean'])}, corrupted {_text(says['corrupted'])}.</p>"
        f"<p>{what.capitalize()} values into the {where} run, one place at a time: "
        f"change of the logit difference.{same}</p>"
        f"<div {_WIDE} aria-label='Patching, position by position'>"
        f"<table style='border-collapse:collapse;font:.85em monospace;width:auto;margin:0'><tr>{titles}{''.join(rows)}"
        "</table></div></div>"
    )


def _row(position: int, clean: str, corrupted: str, change: np.ndarray, limit: float) -> str:
    other = f"<b>{_text(corrupted)}</b>" if clean != corrupted else "″"
    cells = "".join(_heat_cell(float(value), limit) for value in change)
    return f"<tr><th scope=row>{position}<td>{_text(clean)}<td>{other}{cells}"


def _heat_cell(value: float, limit: float) -> str:
    """A number on its colour; blue is positive. What rounds to zero is left out."""
    if abs(value) < 0.05:
        return "<td>"
    red, green, blue, _ = matplotlib.colormaps[COLOURS](0.5 + value / limit / 2)
    light = 0.2126 * _linear(red) + 0.7152 * _linear(green) + 0.0722 * _linear(blue)
    # Whichever of black and white can be read better: at least 4.6 to 1 on any colour (WCAG 2 asks for 4.5).
    ink = "#000" if (light + 0.05) / 0.05 >= 1.05 / (light + 0.05) else "#fff"
    ground = "#" + "".join(f"{round(255 * channel):02x}" for channel in (red, green, blue))
    return f"<td style=background:{ground};color:{ink};text-align:right>{_signed(value)}"


def _linear(channel: float) -> float:
    """A colour channel as an amount of light (WCAG 2, relative luminance)."""
    return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4


def _attention_picture(view: AttentionView, head: str, prompt: str) -> str:
    """One head's pattern on one prompt: query down, key along the bottom; the strongest pairs as text."""
    pattern = view.pattern[view.heads.index(head)]
    names = [visible(label) for label in view.labels]
    row = pattern[-1]
    # Rounded, then by position: noise in the last digits can't change the order.
    order = sorted(range(len(row)), key=lambda i: (-round(float(row[i]), 2), i))[:3]
    ends = ", ".join(f"{_place(view.labels, i)} {row[i]:.2f}" for i in order if round(float(row[i]), 2) > 0)
    pairs = "; ".join(
        f"{_place(view.labels, q)} → {_place(view.labels, p)} {value:.2f}" for q, p, value in view.strongest(head, 3)
    )
    side = _CELL * len(names)
    labels = html.escape("\n".join(names))
    return (
        f"<div style='{_PAPER}'><p><b>{head}</b>, {html.escape(prompt)}. From the last position: {ends}.</p>"
        f"<div {_WIDE} aria-label='Attention of {head}'>"
        "<div style='display:grid;grid-template-columns:max-content max-content;gap:2px;"
        f"font:{_CELL - 2}px/{_CELL}px monospace'>"
        f"<div aria-hidden=true style='white-space:pre;text-align:right'>{labels}</div>"
        # The class tells the book's theme not to dim the picture in dark mode.
        f"<img class=dark-light alt='Attention of {head}: a row for each position that looks, "
        "a column for each that is looked at.' "
        f"style='image-rendering:pixelated;margin:0;padding:0;max-width:none;width:{side}px;height:{side}px' "
        f"src='data:image/png;base64,{base64.b64encode(_pattern_png(pattern)).decode()}'>"
        "<span></span><div aria-hidden=true style='white-space:pre;text-align:end;writing-mode:vertical-rl;"
        f"transform:rotate(180deg)'>{labels}</div></div></div>"
        f"<p>The strongest pairs, query → key, without those to the first position: {pairs or 'none'}.</p></div>"
    )


def _place(labels: Sequence[str], position: int) -> str:
    return f"{_text(labels[position])} ({position})"


def _pattern_png(pattern: np.ndarray) -> bytes:
    """A pattern ``[query, key]`` as a PNG: one pixel a cell, white for 0 to dark blue for 1, grey for the future."""
    levels, n = 31, len(pattern)
    pixels = np.rint(np.clip(pattern, 0, 1) * levels).astype(np.uint8)
    pixels[np.triu_indices(n, k=1)] = levels + 1
    shades = matplotlib.colormaps["Blues"](np.linspace(0, 1, levels + 1))[:, :3]
    palette = np.rint(255 * np.vstack([shades, [[0.94] * 3]])).astype(np.uint8).tobytes()
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)  # each row starts with its filter: none

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", n, n, 8, 3, 0, 0, 0)  # 8 bits a pixel, colours from the palette
    parts = [(b"IHDR", header), (b"PLTE", palette), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def _ablation_picture(
    task: Task, ablation: str, removed: Sequence[str], whole: tuple[float, float], left: tuple[float, float]
) -> str:
    """Metric and accuracy of the whole model and of what is left of it, as two bars each."""
    gone = ", ".join(removed) or "nothing"
    limits = max(abs(whole[0]), abs(left[0])), 1.0
    rows = {"whole model": whole, f"without {gone}": left} if removed else {"whole model": whole}
    names = (METRIC_NAMES[task.metric_name], "accuracy")
    body = "".join(
        f"<tr style=white-space:nowrap><th scope=row style='text-align:left;padding-right:1rem'>{name}"
        f"{''.join(_bar(value, limit) for value, limit in zip(values, limits, strict=True))}"
        for name, values in rows.items()
    )
    return (
        f"<div style='{_PAPER}'><div {_WIDE} aria-label='What is left'>"
        "<table style='border-collapse:collapse;width:auto;margin:0'>"
        f"<caption style='caption-side:top;text-align:left;color:{INK}'>Removed: {gone}"
        f"{f' (ablation: {ablation})' if removed else ''}. {len(task)} prompts.</caption>"
        f"<tr><td>{''.join(f'<th scope=col style=text-align:left>{name}' for name in names)}{body}</table></div></div>"
    )


def _bar(value: float, limit: float) -> str:
    """A number with a bar as long as its size; blue is positive, red negative, as in all pictures."""
    share = 0 if limit == 0 else min(1.0, abs(value) / limit)
    colour = "#2166ac" if value >= 0 else "#b2182b"
    return (
        "<td style='padding:.2rem 1rem .2rem 0'><span style='display:inline-block;min-width:3.2em;text-align:right'>"
        f"{_signed(value, 2)}</span> "
        f"<span style='display:inline-block;height:.7em;width:{6 * share:.2f}em;background:{colour}'></span>"
    )


def _text(token: str) -> str:
    """A token as a reader can see it, escaped."""
    return html.escape(visible(token))


def _signed(value: float, decimals: int = 1) -> str:
    text = f"{abs(value):.{decimals}f}"
    return ("−" if value < 0 and float(text) else "") + text
