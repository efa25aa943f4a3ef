"""Pictures for the chapters: heatmaps by matplotlib, attention patterns by CircuitsVis.

The heatmaps share one style and one colour scale: blue is positive, red is negative, white is zero. They need no pyplot,
so nothing stays open after a call. ``plot_attention`` shows a live view where the page has CircuitsVis, and always
carries the same content as text.
"""

from __future__ import annotations

import functools
import hashlib
import html
import io
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .evaluation import Curve, Roc
    from .graph import Circuit

INK = "#24292f"
POSITIVE = "#2166ac"
NO_VALUE = "#c2c7cc"
COLOURS = "RdBu"  # told apart by readers with any common colour blindness; blue = positive, as in CircuitsVis

STYLE = {
    "font.family": "DejaVu Sans",  # ships with matplotlib: the same picture on every machine, and it has ⏎ and ⇥
    "font.size": 10.5,
    "axes.titlesize": 11.5,
    "axes.titlepad": 8,
    "axes.titlelocation": "left",
    "axes.labelsize": 10.5,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#c4c9ce",
    "axes.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
    "text.color": INK,
    "text.usetex": False,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "figure.dpi": 150,
}

TOKENS_ON_X = 20  # more positions than this are drawn downwards: rotated labels of that size can't be read on a phone
COLUMNS_BESIDE = 12  # wider head maps than this are drawn below each other
ARROWS_WITH_NUMBERS = 16
ROW_GAP, BOX_GAP, BEND_WIDTH = 0.62, 0.16, 0.12  # inches
# Told apart with any common colour blindness (Okabe & Ito); what MLPs and the logits read is grey.
PART_COLOURS = {"q": "#0072b2", "k": "#d55e00", "v": "#008a63", "": "#57606a"}
# Colour and dashes (on, off, … in points; solid without): two curves differ in both, so that grey print tells them apart.
CURVES = (
    ("#0072b2", ()),
    ("#d55e00", (5, 1.6)),
    ("#008a63", (1.4, 1.4)),
    ("#57606a", (7, 1.6, 1.4, 1.6)),
    ("#a6518a", (3, 1)),
    ("#8a6d00", (9, 2.5)),
)
ATTENTION_MODES = ("auto", "book", "inline", "static")

_attention_mode = "auto"


def plot_residual(
    matrix: Float[np.ndarray, "layer pos"] | Mapping[str, Float[np.ndarray, "layer pos"]],
    labels: Sequence[str],
    title: str | None = None,
    ax: Axes | None = None,
    *,
    row_labels: Sequence[str] | None = None,
    limit: float | None = None,
    tokens_on: str = "auto",
    row_name: str = "layer",
    value_name: str = "effect",
) -> Figure:
    """Draw a layer × position map, such as the result of patching the residual stream.

    Args:
        matrix: ``[layer, pos]``, an array or a tensor; or title → matrix, to draw several with one colour scale.
        labels: one string per position: tokens, or what stands there. White space is made visible.
        title: above the picture.
        ax: draw there instead of in a new figure (one matrix only).
        row_labels: names of the layers; by default 0, 1, 2 …
        limit: the value with the full colour; by default the largest absolute value of all matrices.
        tokens_on: "x", "y" or "auto": along the bottom up to 20 positions, else down the side.
        row_name: what the rows are.
        value_name: what the colours mean, beside the colour bar.

    Returns:
        the matplotlib figure; NaN is drawn in grey.

    Raises:
        ValueError: a matrix that is not ``[layer, pos]`` with one label per position, or an infinite value.
    """
    panels = _panels(matrix, "[layer, pos]", ax)
    n_rows, n_pos = next(iter(panels.values())).shape
    if len(labels) != n_pos:
        raise ValueError(f"labels: expected one for each of {n_pos} positions, got {len(labels)}")
    row_labels = [str(row) for row in range(n_rows)] if row_labels is None else list(row_labels)
    if len(row_labels) != n_rows:
        raise ValueError(f"row_labels: expected one for each of {n_rows} rows, got {len(row_labels)}")
    if tokens_on not in ("auto", "x", "y"):
        raise ValueError(f"tokens_on: expected 'auto', 'x' or 'y', got {tokens_on!r}")
    down = tokens_on == "y" or (tokens_on == "auto" and n_pos > TOKENS_ON_X)
    names = [visible(label) for label in labels]
    if down:
        frame = _Frame(row_name, row_labels, None, names, cell=(0.46, 0.19), beside=True)
        panels = {name: panel.T for name, panel in panels.items()}
    else:
        frame = _Frame(
            None, names, row_name, row_labels, cell=(max(0.24, 4.2 / n_pos), 0.36), beside=False, rotate=True
        )
    return _heatmaps(panels, frame, title=title, ax=ax, limit=limit, value_name=value_name, annotate=False)


def plot_heads(
    matrix: Float[np.ndarray, "layer head"] | Mapping[str, Float[np.ndarray, "layer head"]],
    title: str | None = None,
    annotate: bool = True,
    ax: Axes | None = None,
    *,
    limit: float | None = None,
    value_name: str = "effect",
) -> Figure:
    """Draw a layer × head map, with the numbers in the cells.

    Args:
        matrix: ``[layer, head]``, an array or a tensor; or title → matrix, to draw several with one colour scale
            (beside each other where there is room, else below each other).
        annotate: write each value into its cell; values that round to zero are left out.
        title, ax, limit, value_name: as in ``plot_residual``.

    Returns:
        the matplotlib figure; NaN is drawn in grey.

    Raises:
        ValueError: a matrix that is not ``[layer, head]``, or an infinite value.
    """
    panels = _panels(matrix, "[layer, head]", ax)
    n_layers, n_heads = next(iter(panels.values())).shape
    frame = _Frame(
        "head",
        [str(head) for head in range(n_heads)],
        "layer",
        [str(layer) for layer in range(n_layers)],
        cell=(min(0.62, max(0.42, 4.6 / n_heads)), 0.42),
        beside=len(panels) * n_heads <= COLUMNS_BESIDE,
    )
    return _heatmaps(panels, frame, title=title, ax=ax, limit=limit, value_name=value_name, annotate=annotate)


def plot_lines(
    curves: Mapping[str, Sequence[float]],
    x: Sequence[float] | None = None,
    title: str | None = None,
    ax: Axes | None = None,
    *,
    x_name: str = "",
    y_name: str = "",
    marks: Mapping[str, float] | None = None,
) -> Figure:
    """Draw curves over one axis, such as a loss by position or a score over training.

    Args:
        curves: name → values; at most six. NaN leaves a gap.
        x: where the values stand; by default 0, 1, 2 …
        title, ax: as in ``plot_heads``.
        x_name, y_name: what the axes are, with the unit.
        marks: name → place on the x axis, drawn as a thin line with its name on top, such as the start of a stage.

    Returns:
        the matplotlib figure.

    Raises:
        ValueError: no curve or more than six, a curve that is not one number for each x, or an infinite number.
    """
    import matplotlib

    values = _curves(curves)
    n = len(next(iter(values.values())))
    x = np.arange(n) if x is None else _numbers_of("x", x)
    for name, curve in values.items():
        if len(curve) != len(x):
            raise ValueError(f"curves: expected {len(x)} values for {name!r}, one for each x, got {len(curve)}")
    alone = ax is None
    with matplotlib.rc_context(STYLE):
        if alone:
            rows = -(-len(values) // _legend_columns(values))
            figure = _picture_class()(figsize=(5.6, 3.1 + 0.2 * rows), layout="constrained")
            ax = figure.subplots()
        for (name, curve), (colour, dashes) in zip(values.items(), CURVES, strict=False):
            style = {"linestyle": (0, dashes) if dashes else "solid", "linewidth": 1.8, "color": colour}
            ax.plot(x, curve, label=name, marker="o" if len(x) <= 12 else None, markersize=3.5, **style)
        if (x == np.round(x)).all():
            ax.xaxis.get_major_locator().set_params(integer=True)
        if min(np.nanmin(curve, initial=0.0) for curve in values.values()) >= 0:
            ax.set_ylim(bottom=0)  # what is never negative starts at zero
        _finish_lines(ax, list(values), marks or {}, title, x_name, y_name, alone)
    return ax.figure


def plot_circuit(
    circuit: Circuit,
    weights: Mapping | None = None,
    title: str | None = None,
    ax: Axes | None = None,
    *,
    roles: Mapping[str, Sequence[str]] | None = None,
    limit: float | None = None,
    annotate: bool | None = None,
    value_name: str = "effect",
) -> Figure:
    """Draw a circuit: the embedding at the bottom, the logits on top, a row for each layer between.

    An arrow ends at the input that it is read by: q, k and v differ in colour, and in their place on the head.

    Args:
        circuit: the edges to draw. Edges that differ in position only are one arrow, as strong as the strongest of them.
        weights: edge (or its text) → number, for the width of the arrows; negative ones are dashed. It may hold more
            edges than the circuit, such as the scores of a whole graph.
        title, ax: as in ``plot_heads``.
        roles: role → heads, as ``cl.roles`` returns; written below the head's name.
        limit: the weight with the full width; by default the largest absolute one.
        annotate: write the weights beside the arrows; by default up to 16 arrows.
        value_name: what the weights are.

    Returns:
        the matplotlib figure; the same circuit gives the same picture.

    Raises:
        ValueError: no circuit, no edges, an edge without a weight, or a weight that is not a finite number.
    """
    import matplotlib

    arrows = _arrows(circuit, weights)
    limit = _limit([np.array([arrow.weight for arrow in arrows])], limit)
    annotate = (len(arrows) <= ARROWS_WITH_NUMBERS if annotate is None else annotate) and weights is not None
    boxes = _lay_out(_boxes(circuit, roles or {}, 0.9 if annotate else 0.54), arrows)
    with matplotlib.rc_context(STYLE):
        if ax is None:
            size = [max(b.x + b.width / 2 for b in boxes), max(b.top for b in boxes)]
            figure = _picture_class()(figsize=(max(3.6, size[0] + 0.1), size[1] + 0.75), layout="constrained")
            ax = figure.subplots()
        width = 0.9 if weights is None else 3.1 if len(arrows) <= 40 else 1.6
        for arrow in arrows:
            _draw_arrow(ax, arrow, limit, width, annotate)
        for box in boxes:
            if not box.bend:
                _draw_box(ax, box, {arrow.part for arrow in arrows if arrow.end is box})
        _finish_circuit(ax, boxes, arrows, title, "" if weights is None else f"{value_name}, widest {limit:.2f}")
    return ax.figure


def plot_roc(
    points: Roc | Mapping[str, Roc],
    title: str | None = None,
    ax: Axes | None = None,
    *,
    convention: str = "pessimistic",
) -> Figure:
    """Draw ROC curves: how many of the true edges (or nodes) are found, against how many of the false ones.

    Args:
        points: of ``cl.roc``; or name → points, to draw several. All of one level.
        title, ax: as in ``plot_heads``.
        convention: "pessimistic" draws stairs, "trapezoid" straight lines. The legend gives the area under what is drawn.

    Returns:
        the matplotlib figure. Dots mark single circuits, where there are few; the dotted diagonal is chance.

    Raises:
        ValueError: nothing to draw or more than six, or edges and nodes in one picture.
    """
    from .evaluation.roc import Roc, auc, envelope

    curves = _named(points, Roc, "points")
    levels = {curve.level for curve in curves.values()}
    if len(levels) > 1:
        raise ValueError("points: expected ROC curves of one level, got edges and nodes")
    level = f"{levels.pop()}s"

    def draw(axis, name, curve, style):
        x, y = zip(*envelope(curve), strict=True)
        area = _area_text(auc(curve, convention))
        label = f"{area}  {name}" if name else area
        axis.plot(x, y, drawstyle="steps-post" if convention == "pessimistic" else "default", label=label, **style)
        if len(curve) <= FEW_POINTS:
            axis.plot(curve.fpr, curve.tpr, "o", markersize=3.6, color=style["color"], clip_on=False, zorder=3)

    legend = {"title": f"AUC ({convention})", "loc": "lower right", "edgecolor": "none", "framealpha": 0.9}
    figure, axis = _draw_named(curves, draw, ax, (4.6, 4.5), title, legend)
    axis.plot([0, 1], [0, 1], color=NO_VALUE, linewidth=1, linestyle=(0, (1, 2)), zorder=0)
    axis.set(xlim=(0, 1), ylim=(0, 1.01), aspect="equal")
    axis.set(xlabel=f"false positive rate ({level})", ylabel=f"true positive rate ({level})")
    return figure


def plot_faithfulness(
    curve: Curve | Mapping[str, Curve], title: str | None = None, ax: Axes | None = None, *, log: bool = True
) -> Figure:
    """Draw faithfulness against size.

    Args:
        curve: of ``cl.faithfulness_curve``; or name → curve, to draw several.
        title, ax: as in ``plot_heads``.
        log: a logarithmic axis, without the empty circuit. CPR and CMD in the legend are areas on the linear axis, always.

    Returns:
        the matplotlib figure; 1 is what the whole model does, 0 what is left without any edge.

    Raises:
        ValueError: nothing to draw, or more than six.
    """
    from .evaluation import Curve, cmd, cpr

    def draw(axis, name, curve, style):
        shown = [i for i, size in enumerate(curve.sizes) if size or not log]
        x, y = [100 * curve.sizes[i] / curve.n_edges for i in shown], [curve.values[i] for i in shown]
        label = f"{_area_text(cpr(curve))}  {_area_text(cmd(curve))}" + (f"  {name}" if name else "")
        axis.plot(x, y, marker="o", markersize=4, label=label, **style)

    curves = _named(curve, Curve, "curve")
    if log and not any(size for one in curves.values() for size in one.sizes):
        raise ValueError("curve: expected at least one size above 0, for a logarithmic axis; or log=False")
    legend = {"title": "CPR  CMD", "loc": "upper left", "bbox_to_anchor": (-0.02, -0.17), "frameon": False}
    figure, axis = _draw_named(curves, draw, ax, (5.6, 3.8 + 0.19 * len(curves)), title, legend)
    for height in (0, 1):
        axis.axhline(height, color=NO_VALUE, linewidth=1.2, zorder=0.6)
    if log:
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set(xlabel="edges kept (% of all)", ylabel="faithfulness")
    return figure


def plot_compare(table, value: str = "auc_pessimistic_edge", title: str | None = None) -> Figure:
    """Draw one column of a comparison: a panel for each task, a row for each method, a dot for each seed.

    Args:
        table: of ``cl.compare``; or what a file holds of it.
        value: the column.
        title: above the picture.

    Returns:
        the matplotlib figure. A line marks the mean over seeds; metrics differ in colour and height. A run that was
        refused has no dot.

    Raises:
        ValueError: a column that does not exist or holds no number, or more than six metrics.
    """
    import matplotlib

    _check_compared(table, value)
    tasks, methods, metrics = (list(dict.fromkeys(table[name])) for name in ("task", "method", "metric"))
    height = max(0.3, 0.2 * len(metrics))
    size = (5.6, len(tasks) * (height * len(methods) + 0.5) + 0.8 + 0.6 * (len(metrics) > 1) + 0.3 * bool(title))
    with matplotlib.rc_context(STYLE):
        figure = _picture_class()(figsize=size, layout="constrained")
        axes = figure.subplots(len(tasks), 1, squeeze=False, sharex=True)[:, 0]
        for axis, task in zip(axes, tasks, strict=True):
            rows = table[table["task"] == task]
            for i, (metric, (colour, _)) in enumerate(zip(metrics, CURVES, strict=False)):
                shift = 0.7 / len(metrics) * (i - (len(metrics) - 1) / 2)
                mine = rows[rows["metric"] == metric]
                _draw_dots(axis, [mine[mine["method"] == method][value] for method in methods], shift, colour)
            axis.set_yticks(range(len(methods)), methods, parse_math=False)
            axis.set_ylim(len(methods) - 0.5, -0.5)
            axis.set_title(task, parse_math=False)
            axis.grid(color="#eceef0", linewidth=0.8)
            axis.set_axisbelow(True)
            axis.spines[["top", "right"]].set_visible(False)
            axis.tick_params(length=0)
        axes[-1].set_xlabel(value, parse_math=False)
        if len(metrics) > 1:
            _metric_legend(figure, metrics)
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=12.5, parse_math=False)
    return figure


def plot_attention(model, tokens, heads: Sequence[str], *, labels: Sequence[str] | None = None) -> AttentionView:
    """Show where heads attend on one prompt: hover over a small map to enlarge it.

    Args:
        model: a ``TransformerBridge``.
        tokens: ``[pos]`` or ``[1, pos]``, token ids.
        heads: names such as "a1.4" (layer 1, head 4).
        labels: one string per position; by default the tokens themselves.

    Returns:
        a view that a notebook displays (see ``set_attention_mode``); its ``pattern`` is ``[head, query, key]``.

    Raises:
        ValueError: tokens of another shape, a head that does not exist, or labels that don't fit.
    """
    import torch

    if isinstance(tokens, str):
        raise ValueError(
            f"tokens: expected the token ids of one prompt, [pos], got text; write model.to_tokens({tokens[:40]!r})"
        )
    tokens = torch.as_tensor(tokens)
    tokens = tokens.unsqueeze(0) if tokens.dim() == 1 else tokens
    if tokens.dim() != 2 or len(tokens) != 1 or tokens.shape[1] == 0 or tokens.is_floating_point():
        raise ValueError(f"tokens: expected the token ids of one prompt, [pos], got shape {list(tokens.shape)}")
    if tokens.min() < 0 or tokens.max() >= model.cfg.d_vocab or tokens.shape[1] > model.cfg.n_ctx:
        raise ValueError(
            f"tokens: expected at most {model.cfg.n_ctx} ids from 0 to {model.cfg.d_vocab - 1}, "
            f"got {tokens.shape[1]} from {int(tokens.min())} to {int(tokens.max())}"
        )
    pairs = [_parse_head(name, model.cfg.n_layers, model.cfg.n_heads) for name in _head_list(heads)]
    labels = model.to_str_tokens(tokens[0], prepend_bos=False) if labels is None else list(labels)
    if len(labels) != tokens.shape[1]:
        raise ValueError(f"labels: expected one for each of {tokens.shape[1]} tokens, got {len(labels)}")
    names = {f"blocks.{layer}.attn.hook_pattern" for layer, _ in pairs}
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens, names_filter=lambda name: name in names)
    pattern = torch.stack([cache[f"blocks.{layer}.attn.hook_pattern"][0, head] for layer, head in pairs])
    return AttentionView(
        heads=tuple(f"a{layer}.{head}" for layer, head in pairs),
        labels=tuple(visible(label, length=None) for label in labels),
        pattern=pattern.float().cpu().numpy(),
    )


def set_attention_mode(mode: str) -> None:
    """Choose how ``plot_attention`` shows its views from now on.

    Args:
        mode: "book", a small element that the book's own script draws; "inline", the same with CircuitsVis' script in
            it (1.3 MB an output: right for a live notebook, wrong for a file that is kept); "static", a picture;
            "auto", the default: "inline" in Colab, VS Code and Jupyter, else "book".

    Raises:
        ValueError: another mode.
    """
    global _attention_mode
    if mode not in ATTENTION_MODES:
        raise ValueError(f"mode: expected one of {', '.join(map(repr, ATTENTION_MODES))}, got {mode!r}")
    _attention_mode = mode


@dataclass(frozen=True, eq=False)
class AttentionView:
    """Attention patterns of some heads on one prompt, ready to be shown.

    Args:
        heads: their names.
        labels: one visible string per position.
        pattern: ``[head, query, key]``, rows sum to 1.
    """

    heads: tuple[str, ...]
    labels: tuple[str, ...]
    pattern: Float[np.ndarray, "head query key"]

    def __repr__(self) -> str:
        return f"AttentionView({', '.join(self.heads)}; {len(self.labels)} tokens)"

    def html(self, bundle: bool = False) -> str:
        """The view as one HTML element with its text alternative; ``bundle`` puts CircuitsVis' script in front.

        The page's script draws ``AttentionHeads`` from ``data-props`` into the first ``div`` and marks it ``data-drawn``.
        Two calls with the same content give the same text.
        """
        props = self._props()
        identity = "cv-" + hashlib.sha256(props.encode()).hexdigest()[:12]
        script = f"<script>{_bundle()}</script>" if bundle else ""
        return (
            f'{script}<div class="circuitlib-attention" id="{identity}" data-element="AttentionHeads" data-props=\'{props}\'></div>'
            f"{self._as_text()}<script>{_DRAW.replace('ID', identity)}</script>"
        )

    def figure(self) -> Figure:
        """The view as a picture: query down, key along the bottom, one panel per head."""
        return _attention_figure(self)

    def strongest(self, head: str, k: int = 5) -> list[tuple[int, int, float]]:
        """The ``k`` strongest (query, key, attention) of a head, without those to the first token, where heads rest."""
        if head not in self.heads:
            raise ValueError(f"head: expected one of {', '.join(self.heads)}, got {head!r}")
        values = np.tril(self.pattern[self.heads.index(head)]).copy()
        values[:, 0] = 0
        # Rounded, then by position: so that noise in the last digits can't change the order.
        found = sorted(
            (-round(float(values[q, p]), 2), int(q), int(p)) for q, p in zip(*np.nonzero(values), strict=True)
        )
        return [(q, p, -value) for value, q, p in found[:k] if value < 0]

    def _props(self) -> str:
        rounded = [[[_number(v) for v in row] for row in head] for head in self.pattern.tolist()]
        return _attribute_json(
            {
                "attention": rounded,
                "attentionHeadNames": list(self.heads),
                "positiveColor": POSITIVE,
                "tokens": list(self.labels),
            }
        )

    def _as_text(self) -> str:
        items = []
        for index, head in enumerate(self.heads):
            pairs = [
                f"{html.escape(self.labels[q])} ({q}) → {html.escape(self.labels[p])} ({p}) {value:.2f}"
                for q, p, value in self.strongest(head)
            ]
            resting = float(self.pattern[index][1:, 0].mean()) if len(self.labels) > 1 else 1.0
            items.append(
                f"<li><b>{head}</b>: {'; '.join(pairs) or 'nothing'}. On the first token, on average {resting:.2f}.</li>"
            )
        return (
            '<details class="circuitlib-attention-text"><summary>Attention as text: '
            f"{', '.join(self.heads)}</summary><p>The strongest pairs, query → key, without the first token:</p>"
            f"<ul>{''.join(items)}</ul></details>"
        )

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict:
        mode = _host_mode() if _attention_mode == "auto" else _attention_mode
        if mode == "static":
            return {"text/plain": repr(self), "image/png": self.figure()._repr_png_()}
        return {"text/plain": repr(self), "text/html": self.html(bundle=mode == "inline")}


def visible(label: str, length: int | None = 14) -> str:
    """A token as a reader can see it: "⏎" for a newline, "⇥" for a tab, "·" for a space at either end.

    Longer labels than ``length`` are cut; a run of spaces is counted.
    """
    text = str(label).replace("\r\n", "⏎").replace("\n", "⏎").replace("\r", "⏎").replace("\t", "⇥")
    bare = text.strip(" ")
    left, right = text[: len(text) - len(text.lstrip(" "))], text[len(text.rstrip(" ")) :] if bare else ""
    text = _dots(left) + (" " if len(left) > 4 and bare else "") + bare + _dots(right)
    text = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text) or "∅"
    return text if length is None or len(text) <= length else text[: length - 1] + "…"


# --- lines --------------------------------------------------------------------------------------------------------


def _curves(curves) -> dict[str, np.ndarray]:
    if not isinstance(curves, Mapping) or not 1 <= len(curves) <= len(CURVES):
        got = len(curves) if isinstance(curves, Mapping) else type(curves).__name__
        raise ValueError(f"curves: expected 1 to {len(CURVES)} curves by name, got {got}")
    return {str(name): _numbers_of("curves", curve) for name, curve in curves.items()}


def _numbers_of(argument: str, values) -> np.ndarray:
    if hasattr(values, "detach"):
        values = values.detach().float().cpu().numpy()
    array = np.asarray(values, dtype=float)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{argument}: expected a row of numbers, got shape {list(array.shape)}")
    if np.isinf(array).any():
        raise ValueError(f"{argument}: expected finite numbers or NaN, got an infinite one")
    return array


def _finish_lines(
    axis, names: list[str], marks: Mapping[str, float], title: str | None, x_name: str, y_name: str, alone: bool
) -> None:
    lines = axis.lines[-len(names) :]
    for i, (name, place) in enumerate(marks.items()):
        axis.axvline(place, color=NO_VALUE, linewidth=0.9, zorder=0)
        style = {"fontsize": 8.5, "color": "#57606a", "ha": "left", "va": "bottom", "parse_math": False}
        above = (0, 2 + 10 * (i % 2))  # in two rows, so that neighbours do not run into each other
        axis.annotate(name, (place, 1), above, xycoords=("data", "axes fraction"), textcoords="offset points", **style)
    axis.set_xlabel(x_name, parse_math=False)
    axis.set_ylabel(y_name, parse_math=False)
    axis.grid(axis="y", color="#eceef0", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(length=0)
    # Below the axis, so that it covers no curve; in a picture of several axes, each has its own.
    style = {"ncol": _legend_columns(names), "frameon": False, "fontsize": 9.5, "handlelength": 2.6}
    if alone:
        legend = axis.figure.legend(lines, names, loc="outside lower left", **style)
    else:
        legend = axis.legend(lines, names, loc="upper left", bbox_to_anchor=(-0.02, -0.2), **style)
    for text in legend.get_texts():
        text.set_parse_math(False)
    if title:
        axis.set_title(title, parse_math=False, pad=8 + 20 * bool(marks))


def _legend_columns(names) -> int:
    """Two, unless the names are so long that the legend would be wider than the picture."""
    return 2 if max(map(len, names)) <= 30 else 1


# --- heatmaps -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Frame:
    """What stands around the cells of a heatmap. ``cell`` is in inches."""

    x_name: str | None
    x_labels: list[str]
    y_name: str | None
    y_labels: list[str]
    cell: tuple[float, float]
    beside: bool
    rotate: bool = False


def _panels(matrix, shape: str, ax) -> dict[str | None, np.ndarray]:
    """The matrices to draw, by title; all of one shape, finite or NaN."""
    several = isinstance(matrix, Mapping)
    if several and not matrix:
        raise ValueError("matrix: expected at least one, got an empty dict")
    if several and len(matrix) > 1 and ax is not None:
        raise ValueError("ax: expected None with several matrices, which need an axis each")
    panels = {name: _array(m, shape) for name, m in (matrix.items() if several else [(None, matrix)])}
    shapes = {panel.shape for panel in panels.values()}
    if len(shapes) > 1:
        raise ValueError(
            f"matrix: expected matrices of one shape, got {', '.join(str(list(s)) for s in sorted(shapes))}"
        )
    return panels


def _array(matrix, shape: str) -> np.ndarray:
    if hasattr(matrix, "detach"):
        matrix = matrix.detach().float().cpu().numpy()
    array = np.asarray(matrix, dtype=float)
    if array.ndim != 2 or array.size == 0:
        raise ValueError(f"matrix: expected {shape}, got shape {list(array.shape)}")
    if np.isinf(array).any():
        raise ValueError(
            f"matrix: expected finite values or NaN, got an infinite one at {np.argwhere(np.isinf(array))[0].tolist()}"
        )
    return array


def _heatmaps(panels, frame: _Frame, *, title, ax, limit, value_name, annotate) -> Figure:
    import matplotlib

    limit = _limit(panels.values(), limit)
    with matplotlib.rc_context(STYLE):
        figure, axes = _axes(panels, frame, ax)
        for index, (axis, (name, panel)) in enumerate(zip(axes, panels.items(), strict=True)):
            image = _draw_cells(axis, panel, limit)
            _label_axes(axis, frame, first=index == 0, last=index == len(axes) - 1)
            if annotate:
                _write_values(axis, panel, limit)
            if name is not None:
                axis.set_title(name, parse_math=False)
        if title and ax is None and len(axes) > 1:
            figure.suptitle(title, x=0.01, ha="left", fontsize=12.5, parse_math=False)
        elif title:
            axes[0].set_title(title if panels.keys() == {None} else f"{title}: {axes[0].get_title()}", parse_math=False)
        _colour_bar(figure, image, axes, value_name)
    return figure


def _limit(panels, limit: float | None) -> float:
    """The value that gets the full colour: never 0, so that an all-zero map is white."""
    if limit is not None:
        if not limit > 0:
            raise ValueError(f"limit: expected a positive number, got {limit!r}")
        return float(limit)
    values = np.concatenate([panel.ravel() for panel in panels])
    values = values[~np.isnan(values)]
    return float(np.abs(values).max()) if values.size and np.abs(values).max() > 0 else 1.0


def _axes(panels, frame: _Frame, ax) -> tuple[Figure, list[Axes]]:
    if ax is not None:
        return ax.figure, [ax]
    n = len(panels)
    rows, columns = (1, n) if frame.beside else (n, 1)
    width = columns * (len(frame.x_labels) * frame.cell[0] + 0.15) + 0.9 + 0.085 * max(map(len, frame.y_labels))
    below = 0.085 * max(map(len, frame.x_labels)) if frame.rotate else 0.2
    height = rows * (len(frame.y_labels) * frame.cell[1] + 0.35) + below + 0.4
    figure = _picture_class()(figsize=(max(width, 3.6), height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharex=not frame.beside, sharey=frame.beside)
    return figure, list(axes.ravel())


def _draw_cells(axis, panel: np.ndarray, limit: float):
    import matplotlib

    colours = matplotlib.colormaps[COLOURS].with_extremes(bad=NO_VALUE)
    image = axis.imshow(
        np.ma.masked_invalid(panel), cmap=colours, vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest"
    )
    rows, columns = panel.shape
    # White lines between the cells, drawn as a minor grid.
    axis.set_xticks(np.arange(columns + 1) - 0.5, minor=True)
    axis.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
    axis.grid(which="minor", color="#eceef0", linewidth=0.8)
    axis.tick_params(which="both", length=0)
    return image


def _label_axes(axis, frame: _Frame, *, first: bool, last: bool) -> None:
    rotation = (
        {"rotation": 90 if len(frame.x_labels) > 12 else 55, "ha": "right", "rotation_mode": "anchor"}
        if frame.rotate
        else {}
    )
    if rotation.get("rotation") == 90:
        rotation["va"] = "center"
    if frame.beside or last:
        axis.set_xticks(range(len(frame.x_labels)), frame.x_labels, parse_math=False, **rotation)
        axis.set_xlabel(frame.x_name or "")
    if not frame.beside or first:
        axis.set_yticks(range(len(frame.y_labels)), frame.y_labels, parse_math=False)
        axis.set_ylabel(frame.y_name or "")
    else:
        axis.tick_params(labelleft=False)


def _write_values(axis, panel: np.ndarray, limit: float) -> None:
    for (row, column), value in np.ndenumerate(panel):
        text = "" if np.isnan(value) else _short(value, limit)
        if text:
            colour = "white" if abs(value) > 0.62 * limit else INK
            axis.text(column, row, text, ha="center", va="center", fontsize=9, color=colour, parse_math=False)


def _short(value: float, limit: float) -> str:
    """A value in a few characters: ".43", "−1.2", "12"; empty when it rounds to zero."""
    decimals = 2 if limit < 1.5 else 1 if limit < 15 else 0
    text = f"{abs(value):.{decimals}f}"
    if float(text) == 0:
        return ""
    return ("−" if value < 0 else "") + (text[1:] if text.startswith("0.") else text)


def _colour_bar(figure, image, axes, value_name: str) -> None:
    height_inches = figure.bbox.height / figure.dpi  # a SubFigure has no size in inches
    bar = figure.colorbar(
        image,
        ax=axes,
        shrink=min(1.0, 2.6 / height_inches),
        aspect=14,
        pad=0.02,
        anchor=(0, 1.0 if height_inches > 4 else 0.5),
    )
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=9)
    limit = image.norm.vmax
    bar.set_ticks([-limit, 0, limit], labels=[f"−{_plain(limit)}", "0", _plain(limit)])
    bar.set_label(value_name, fontsize=9.5, color=INK, parse_math=False)


def _plain(value: float) -> str:
    return f"{value:.3g}" if 0.001 <= value < 1e4 else f"{value:.1e}"


@functools.cache
def _picture_class():
    """A Figure that notebooks show without pyplot: nothing is registered anywhere, nothing has to be closed."""
    from matplotlib.figure import Figure

    class Picture(Figure):
        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            # What matplotlib's own notebook backend does, so that it makes no difference which of the two is asked.
            self.savefig(
                buffer, format="png", dpi=self.dpi, bbox_inches="tight", facecolor="white", metadata={"Software": None}
            )
            return buffer.getvalue()

    return Picture


# --- curves that judge --------------------------------------------------------------------------------------------

FEW_POINTS = 60


def _named(given, kind: type, argument: str) -> dict[str, Any]:
    """What is to be drawn, by name; a single one has none."""
    curves = dict(given) if isinstance(given, Mapping) else {"": given}
    if not 1 <= len(curves) <= len(CURVES):
        raise ValueError(f"{argument}: expected 1 to {len(CURVES)} curves by name, got {len(curves)}")
    for curve in curves.values():
        if not isinstance(curve, kind):
            raise ValueError(f"{argument}: expected a {kind.__name__} or a dict of them, got {type(curve).__name__}")
        if not curve.sizes:
            raise ValueError(f"{argument}: expected at least one point, got none")
    return curves


def _draw_named(curves, draw, ax, size: tuple[float, float], title: str | None, legend: dict) -> tuple[Figure, Axes]:
    """A picture of curves with a legend; ``draw`` draws one of them."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        if ax is None:
            figure = _picture_class()(figsize=size, layout="constrained")
            ax = figure.subplots()
        for (name, curve), (colour, dashes) in zip(curves.items(), CURVES, strict=False):
            draw(ax, name, curve, {"linestyle": (0, dashes) if dashes else "solid", "linewidth": 1.8, "color": colour})
        box = ax.legend(fontsize=9, title_fontsize=9, handlelength=2.6, alignment="left", **legend)
        for text in (box.get_title(), *box.get_texts()):
            text.set_parse_math(False)
        ax.grid(color="#eceef0", linewidth=0.8)
        ax.set_axisbelow(True)
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(length=0)
        if title:
            ax.set_title(title, parse_math=False)
    return ax.figure, ax


def _check_compared(table, value: str) -> None:
    if missing := [name for name in ("task", "method", "metric", value) if name not in getattr(table, "columns", ())]:
        raise ValueError(f"table: expected what cl.compare returns, got one without the column {missing[0]!r}")
    if table[value].dtype.kind not in "fiu" or not np.isfinite(table[value]).any():
        raise ValueError(f"value: expected a column of numbers, {value!r} holds none")
    if (n := table["metric"].nunique()) > len(CURVES):
        raise ValueError(f"table: expected at most {len(CURVES)} metrics, got {n}")


def _draw_dots(axis, values: Sequence[Sequence[float]], shift: float, colour: str) -> None:
    for row, found in enumerate(values):
        found = np.asarray(found, dtype=float)
        found = found[np.isfinite(found)]
        style = {"color": colour, "alpha": 0.55, "markeredgewidth": 0}
        if len(found):
            axis.plot(found, np.full(len(found), row + shift), "o", markersize=5.5, clip_on=False, **style)
        if len(found) > 1:
            axis.plot([found.mean()], [row + shift], "|", markersize=11, markeredgewidth=2, color=colour, zorder=3)


def _metric_legend(figure, metrics: Sequence[str]) -> None:
    from matplotlib.lines import Line2D

    dots = [
        Line2D([], [], marker="o", linestyle="", color=colour, label=metric)
        for metric, (colour, _) in zip(metrics, CURVES, strict=False)
    ]
    style = {"ncol": len(dots), "frameon": False, "fontsize": 9, "handletextpad": 0.2, "title": "metric of the method"}
    legend = figure.legend(handles=dots, loc="outside lower left", title_fontsize=9, alignment="left", **style)
    for text in legend.get_texts():
        text.set_parse_math(False)


def _area_text(area: float) -> str:
    """An area with three decimals, as the papers print it: ".982", "1.000", "−.013"."""
    text = f"{abs(area):.3f}"
    return ("−" if area < 0 and float(text) else "") + (text[1:] if text.startswith("0.") else text)


# --- circuits -----------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Box:
    """A node of the picture, or a bend: the place where a long arrow crosses a row. ``x`` is its middle, in inches."""

    name: str
    row: int
    width: float
    height: float
    role: str = ""
    bend: bool = False
    x: float = 0.0
    below: list[_Box] = field(default_factory=list)
    above: list[_Box] = field(default_factory=list)

    @property
    def y(self) -> float:
        return self.row * (self.height + ROW_GAP)

    @property
    def top(self) -> float:
        return self.y + self.height

    def port(self, part: str) -> float:
        """Where q, k or v is read: to the left, in the middle, to the right."""
        return self.x + {"q": -1, "k": 0, "v": 1}[part] * max(0.16, 0.27 * self.width)


@dataclass(eq=False)
class _Arrow:
    """An arrow from one box to another, through bends."""

    sender: str
    receiver: str
    part: str
    weight: float
    way: list[_Box] = field(default_factory=list)
    tip: float = 0.0  # x of the arrow head
    number: int = 0  # among the arrows with this tip

    @property
    def end(self) -> _Box:
        return self.way[-1]


def _arrows(circuit, weights) -> list[_Arrow]:
    from .graph import Circuit, Edge, node_of

    if not isinstance(circuit, Circuit):
        raise ValueError(f"circuit: expected a Circuit, got {type(circuit).__name__}")
    if not circuit.edges:
        raise ValueError("circuit: expected at least one edge, got none")
    values = {Edge.parse(edge) if isinstance(edge, str) else edge: value for edge, value in (weights or {}).items()}
    strongest: dict[tuple[str, str, str], float] = {}
    for edge in circuit.edges:
        if weights is not None and edge not in values:
            raise ValueError(f"weights: expected one for each edge of the circuit, got none for {edge}")
        weight = float(values[edge]) if weights is not None else 1.0
        if not np.isfinite(weight):
            raise ValueError(f"weights: expected finite numbers, got {weight} for {edge}")
        part = edge.receiver.rpartition(".")[2] if edge.receiver.startswith("a") else ""
        key = (edge.sender, node_of(edge.receiver), part)
        strongest[key] = max(strongest.get(key, 0.0), weight, key=abs)
    return [_Arrow(*key, weight) for key, weight in strongest.items()]


def _boxes(circuit, roles: Mapping[str, Sequence[str]], head_width: float) -> list[_Box]:
    """One box a node, row by row; a row that would be empty is left out."""
    role_of: dict[str, str] = {}
    for role, heads in roles.items():
        for head in [heads] if isinstance(heads, str) else heads:
            role_of[head] = f"{role_of[head]}, {role}" if head in role_of else str(role)
    rows: dict[str, int] = {}
    height = 0.56 if any(name in role_of for name in circuit.nodes()) else 0.4
    boxes = []
    for name in circuit.nodes():
        row = rows.setdefault(name.split(".")[0], len(rows))
        role = role_of.get(name, "").replace("_", " ")
        width = max(head_width if name.startswith("a") else 0.62, 0.068 * len(role) + 0.12)
        boxes.append(_Box(name, row, width, height, role))
    return boxes


def _lay_out(boxes: list[_Box], arrows: list[_Arrow]) -> list[_Box]:
    """Give every box its place, and every arrow its way; boxes and bends come back.

    The usual way to draw layers (Sugiyama, Tagawa & Toda 1981): arrows that skip rows get a bend in each of them, the order
    within rows is that of the mean of the neighbours, swept up and down, and then each box moves as close to that mean
    as its row allows.
    """
    named = {box.name: box for box in boxes}
    rows: list[list[_Box]] = [[] for _ in range(1 + max(box.row for box in boxes))]
    for box in boxes:
        rows[box.row].append(box)
    bends: dict[tuple[str, str, int], _Box] = {}
    for arrow in arrows:
        start, end = named[arrow.sender], named[arrow.receiver]
        arrow.way = [start]
        for row in range(start.row + 1, end.row):
            key = (arrow.sender, arrow.receiver, row)
            if key not in bends:
                bends[key] = _Box("", row, BEND_WIDTH, start.height, bend=True)
                rows[row].append(bends[key])
            arrow.way.append(bends[key])
        arrow.way.append(end)
        for low, high in zip(arrow.way, arrow.way[1:], strict=False):
            low.above.append(high)
            high.below.append(low)
    most = max(sum(box.bend for box in row) for row in rows)
    for bend in bends.values():
        bend.width = min(BEND_WIDTH, 2.5 / most)  # however many there are, the picture stays about as wide as its boxes
    for box in boxes:
        if box.below and not box.name.startswith("a"):
            box.width = max(box.width, len(box.below) * (0.34 if len(box.below) <= 4 else 0.13))
    for row in rows:
        _place(row, [float(i) for i in range(len(row))])
    for sweep in range(24):
        ordered = rows if sweep % 2 else rows[::-1]
        for row in ordered:
            near = [(box.below if sweep % 2 else box.above) if sweep < 16 else box.below + box.above for box in row]
            wish = [sum(b.x for b in bs) / len(bs) if bs else box.x for box, bs in zip(row, near, strict=True)]
            if sweep < 16:
                order = sorted(range(len(row)), key=lambda i: (round(wish[i], 6), i))
                row[:] = [row[i] for i in order]
                wish = [wish[i] for i in order]
            _place(row, wish)
    placed = [box for row in rows for box in row]
    left = min(box.x - box.width / 2 for box in placed)
    for box in placed:
        box.x -= left
    _set_tips(arrows)
    return placed


def _place(row: list[_Box], wish: list[float]) -> None:
    """Put the boxes of a row, in order and apart, where they are closest to ``wish`` (least squares)."""
    offset, total = [], 0.0
    for i, box in enumerate(row):
        if i:
            gap = 0.0 if row[i - 1].bend and box.bend else BOX_GAP
            total += (row[i - 1].width + box.width) / 2 + gap
        offset.append(total)
    groups: list[list[float]] = []  # [mean, size]: neighbours that push against each other move as one
    for want, at in zip(wish, offset, strict=True):
        groups.append([want - at, 1])
        while len(groups) > 1 and groups[-2][0] >= groups[-1][0]:
            (mean, size), (last, more) = groups[-2], groups[-1]
            groups[-2:] = [[(mean * size + last * more) / (size + more), size + more]]
    starts = [mean for mean, size in groups for _ in range(size)]
    for box, start, at in zip(row, starts, offset, strict=True):
        box.x = start + at


def _set_tips(arrows: list[_Arrow]) -> None:
    """Where on its box each arrow ends: q to the left, k in the middle, v to the right; else side by side, in order."""
    ends = {id(arrow.end): arrow.end for arrow in arrows}
    for box in ends.values():
        mine = [arrow for arrow in arrows if arrow.end is box]
        if mine[0].part:
            for arrow in mine:
                arrow.tip, arrow.number = (
                    box.port(arrow.part),
                    sum(a.part == arrow.part for a in mine[: mine.index(arrow)]),
                )
            continue
        mine.sort(key=lambda arrow: arrow.way[-2].x)
        for i, arrow in enumerate(mine):
            arrow.tip = box.x + (i - (len(mine) - 1) / 2) * (0.32 if len(mine) <= 4 else 0.12)


def _draw_arrow(axis, arrow: _Arrow, limit: float, width: float, annotate: bool) -> None:
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path as Line

    points = [(arrow.way[0].x, arrow.way[0].top)]
    points += [(b.x, y) for b in arrow.way[1:-1] for y in (b.y, b.top)]
    points.append((arrow.tip, arrow.end.y - 0.02))
    line, codes = [points[0]], [Line.MOVETO]
    for (x0, y0), (x1, y1) in zip(points, points[1:], strict=False):
        bow = (y1 - y0) * 0.5
        line += [(x0, y0 + bow), (x1, y1 - bow), (x1, y1)]
        codes += [Line.CURVE4] * 3
    share = min(1.0, abs(arrow.weight) / limit)
    axis.add_patch(
        FancyArrowPatch(
            path=Line(line, codes),
            arrowstyle="-|>",
            mutation_scale=7 + 3 * share,
            linewidth=0.7 + width * share,
            linestyle=(0, (2.2, 1.2)) if arrow.weight < 0 else "solid",
            color=PART_COLOURS[arrow.part],
            capstyle="butt",
            joinstyle="miter",
            zorder=1 + share / 2,
        )
    )
    if annotate:
        # Below the tip; q to the left, v to the right and k lower down, so that the numbers do not cover each other.
        side, align, drop = {"q": (-0.05, "right", 0), "v": (0.05, "left", 0), "k": (0, "center", 0.1)}.get(
            arrow.part, (0, "center", 0.12)
        )
        text = f"{abs(arrow.weight):.2f}" if limit < 15 else f"{abs(arrow.weight):.0f}"
        text = ("−" if arrow.weight < 0 else "") + (text[1:] if text.startswith("0.") else text)
        place = (arrow.tip + side, arrow.end.y - 0.2 - drop - 0.16 * arrow.number)
        style = {"fontsize": 8.5, "color": PART_COLOURS[arrow.part], "ha": align, "va": "center", "zorder": 2.5}
        box = {"boxstyle": "round,pad=0.06", "facecolor": "white", "edgecolor": "none", "alpha": 0.9}
        axis.text(*place, text, bbox=box, **style)


def _draw_box(axis, box: _Box, parts: set[str]) -> None:
    from matplotlib.patches import FancyBboxPatch

    corner = (box.x - box.width / 2 + 0.04, box.y + 0.04)
    fill = "#eef2f6" if box.name.startswith(("a", "m")) else "#dfe5ea"
    size = (box.width - 0.08, box.height - 0.08)
    style = {"boxstyle": "round,pad=0.04,rounding_size=0.07", "facecolor": fill, "edgecolor": "#8c959f", "zorder": 3}
    axis.add_patch(FancyBboxPatch(corner, *size, linewidth=0.8, **style))
    letters = sorted(parts - {""})
    lines = 1 + bool(box.role) + bool(letters)
    heights = [box.y + box.height / 2 + 0.085 * (lines - 1) - 0.17 * i for i in range(lines)]
    axis.text(box.x, heights[0], box.name, ha="center", va="center", fontsize=10, fontweight="bold", zorder=4)
    if box.role:
        axis.text(box.x, heights[1], box.role, ha="center", va="center", fontsize=8.5, zorder=4, parse_math=False)
    for letter in letters:
        place, colour = (box.port(letter), heights[-1]), PART_COLOURS[letter]
        axis.text(*place, letter, ha="center", va="center", fontsize=8.5, color=colour, zorder=4)


def _finish_circuit(axis, boxes: list[_Box], arrows: list[_Arrow], title: str | None, value_name: str) -> None:
    from matplotlib.lines import Line2D

    right, top = max(b.x + b.width / 2 for b in boxes), max(b.top for b in boxes)
    axis.set(xlim=(-0.05, right + 0.05), ylim=(-0.05, top + 0.05), aspect="equal")
    axis.axis("off")
    names = {
        "q": "query",
        "k": "key",
        "v": "value",
        "": "MLP, logits" if any(b.name[:1] == "m" for b in boxes) else "logits",
    }
    parts = [part for part in names if any(arrow.part == part for arrow in arrows)]
    handles = [Line2D([], [], color=PART_COLOURS[part], linewidth=2.5, label=names[part]) for part in parts]
    if any(arrow.weight < 0 for arrow in arrows):
        handles.append(Line2D([], [], color=INK, linewidth=1.5, linestyle=(0, (2.2, 1.2)), label="negative"))
    legend = axis.legend(
        handles=handles,
        title=value_name or None,
        title_fontsize=8.5,
        fontsize=8.5,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.01),
        ncol=len(handles),
        frameon=False,
        handlelength=1.1,
        columnspacing=0.9,
        handletextpad=0.4,
    )
    legend.get_title().set_parse_math(False)
    if title:
        axis.set_title(title, parse_math=False)


# --- attention ----------------------------------------------------------------------------------------------------

# Draws every view of this id that is not drawn yet. The same view twice on a page has the same id: each gets its own when drawn.
_DRAW = (
    "(function(){if(!window.CircuitsVis)return;"
    "document.querySelectorAll('[id=\"ID\"]:not([data-drawn])').forEach(function(e,i){"
    "e.dataset.drawn='1';e.id='ID-'+document.querySelectorAll('[id^=\"ID-\"]').length;"
    "CircuitsVis.render(e.id,CircuitsVis[e.dataset.element],JSON.parse(e.dataset.props))})})()"
)


def _head_list(heads) -> list[str]:
    heads = [heads] if isinstance(heads, str) else list(heads)
    if not heads:
        raise ValueError("heads: expected at least one name such as 'a1.4', got none")
    return heads


def _parse_head(name, n_layers: int, n_heads: int) -> tuple[int, int]:
    match = re.fullmatch(r"a(\d+)\.(\d+)", name) if isinstance(name, str) else None
    if not match or int(match[1]) >= n_layers or int(match[2]) >= n_heads:
        raise ValueError(
            f"heads: {name!r} does not exist; expected 'a0.0' to 'a{n_layers - 1}.{n_heads - 1}' (layer.head)"
        )
    return int(match[1]), int(match[2])


def _number(value: float) -> float | int:
    value = round(value, 3)
    return int(value) if value == int(value) else value


def _attribute_json(value) -> str:
    """JSON that can stand between single quotes in HTML: no character in it means anything to an HTML parser."""
    text = json.dumps(value, separators=(",", ":"))  # ASCII only, so U+2028 and U+2029 are escaped already
    for character in "<>&'":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


@functools.cache
def _bundle() -> str:
    """CircuitsVis' script from the installed wheel, fit to stand in a script element."""
    import importlib.util

    spec = importlib.util.find_spec("circuitsvis")
    if spec is None:
        raise ValueError("mode: 'inline' needs the package circuitsvis, which is not installed; choose 'static'")
    text = (Path(spec.origin).parent / "dist" / "cdn" / "iife.js").read_text("utf8")
    text = re.sub(r"\n//# sourceMappingURL=.*\s*$", "", text)
    return (
        "window.CircuitsVis||(window.CircuitsVis=(function(){"
        + text.replace("</script", "<\\/script")
        + "\nreturn CircuitsVis})())"
    )


def _host_mode() -> str:
    """ "inline" where a live notebook shows the output, else "book"."""
    if "google.colab" in sys.modules:
        return "inline"
    try:
        variables = sys.modules["IPython"].get_ipython().user_ns
    except (KeyError, AttributeError):
        return "book"
    # Set by VS Code in the notebook, and by Jupyter's server for the kernels that it starts; by neither in a batch run.
    return "inline" if "__vsc_ipynb_file__" in variables or "JPY_SESSION_NAME" in os.environ else "book"


def _attention_figure(view: AttentionView) -> Figure:
    import matplotlib

    n, size = len(view.heads), len(view.labels)
    side = min(6.0, max(2.6, 0.19 * size))
    names = [label if len(label) <= 14 else label[:13] + "…" for label in view.labels]
    with matplotlib.rc_context(STYLE):
        figure = _picture_class()(figsize=(side + 1.3, n * (side + 0.3) + 0.9), layout="constrained")
        axes = figure.subplots(n, 1, squeeze=False, sharex=True)[:, 0]
        for axis, head, pattern in zip(axes, view.heads, view.pattern, strict=True):
            hidden = np.triu(np.ones((size, size), dtype=bool), k=1)
            image = axis.imshow(
                np.ma.masked_array(pattern, hidden), cmap="Blues", vmin=0, vmax=1, interpolation="nearest"
            )
            axis.set_title(head)
            axis.set_yticks(range(size), names, parse_math=False, fontsize=8.5)
            axis.set_ylabel("query")
            axis.tick_params(length=0)
        axes[-1].set_xticks(range(size), names, parse_math=False, rotation=90, fontsize=8.5)
        axes[-1].set_xlabel("key")
        bar = figure.colorbar(
            image, ax=list(axes), shrink=min(1.0, 2.2 / figure.get_size_inches()[1]), aspect=14, anchor=(0, 1)
        )
        bar.outline.set_visible(False)
        bar.ax.tick_params(length=0, labelsize=9)
        bar.set_label("attention", fontsize=9.5)
    return figure


def _dots(spaces: str) -> str:
    return "·" * len(spaces) if len(spaces) <= 4 else f"·×{len(spaces)}"
