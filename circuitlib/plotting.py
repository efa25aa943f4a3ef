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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
        frame = _Frame("layer", row_labels, None, names, cell=(0.46, 0.19), beside=True)
        panels = {name: panel.T for name, panel in panels.items()}
    else:
        frame = _Frame(None, names, "layer", row_labels, cell=(max(0.24, 4.2 / n_pos), 0.36), beside=False, rotate=True)
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

    tokens = torch.as_tensor(tokens)
    tokens = tokens.unsqueeze(0) if tokens.dim() == 1 else tokens
    if tokens.dim() != 2 or len(tokens) != 1 or tokens.shape[1] == 0 or tokens.is_floating_point():
        raise ValueError(f"tokens: expected the token ids of one prompt, [pos], got shape {list(tokens.shape)}")
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
    height_inches = figure.get_size_inches()[1]
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
