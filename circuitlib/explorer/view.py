"""The circuit explorer's content: checked, made small, and put into one piece of HTML.

Everything that the view shows is in the JSON that is made here. ``explorer.js`` draws it and computes nothing but counts,
so that the same text works in a live notebook, in Colab and in the built book.
"""

from __future__ import annotations

import functools
import html
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..discovery import EdgeScores
from ..evaluation import Curve
from ..graph import Circuit, Graph, _write

METHODS = 6  # more pictures than this side by side can't be told apart
MOST = 2000
SIZE = 30  # where the slider starts if there is no known circuit
DIGITS = 3
KEYS = ("edges", "hits", "missed", "false", "precision", "recall", "faithfulness")


def explore(
    scores: EdgeScores | Circuit | Sequence[Circuit] | Mapping[str, Any],
    truth: Circuit | None = None,
    *,
    curve: Curve | Mapping[str, Curve] | None = None,
    roles: Mapping[str, Sequence[str]] | None = None,
    size: int | None = None,
    title: str | None = None,
    most: int = MOST,
) -> Explorer:
    """Show which edges methods keep: a slider for the size of the circuit, a picture for each method, counts and a table.

    Of scores the view keeps the first k edges, as ``scores.top(k)`` does. Circuits, such as ``cl.acdc_sweep`` returns, are
    shown as they are: of each row of them the one whose size is nearest to k.

    Args:
        scores: of a graph without positions. ``EdgeScores``, a circuit, a list of circuits, or name → one of these: up to
            six, shown side by side.
        truth: a known circuit. Its edges are told from the others, and hits and misses are counted.
        curve: of ``cl.faithfulness_curve``, or name → such a curve. Faithfulness is read from it; between two sizes that
            were measured, on a straight line. A row of circuits needs a curve of just these circuits.
        roles: role → heads, as ``cl.roles`` returns; None for those of ``truth``, if it has any.
        size: where the slider starts; None for the size of ``truth``, else 30.
        title: a line above the view.
        most: in a graph with more edges than this, the view holds the strongest ones of each ranking only (and the true
            ones), and leaves out circuits with more. It says so.

    Returns:
        A view that a notebook displays. ``.save(path)`` writes it as a page of its own.

    Raises:
        ValueError: another kind of argument; a graph with positions; a truth, a circuit or a curve of another graph; a
            head that does not exist.
    """
    named = _named("scores", scores, (EdgeScores, Circuit, Sequence))
    graph = _graph(named, truth)
    _check_number("most", most, 1, None)
    known = None if truth is None else _ids(truth)
    curves = _curves(curve, named, graph)
    methods = [_method(name, given, curves.get(name), known or [], most) for name, given in named.items()]
    top = graph.n_edges if graph.n_edges <= most else most
    if size is None:
        size = min(top, len(truth) if truth else SIZE)
    _check_number("size", size, 0, top)
    if not (title is None or isinstance(title, str)):
        raise ValueError(f"title: expected text or None, got {type(title).__name__}")
    return Explorer(
        {
            "title": title or "",
            "shape": [graph.n_layers, graph.n_heads, int(graph.mlps)],
            "edges": graph.n_edges,
            "most": top,
            "size": size,
            "truth": known,
            "roles": _roles(roles, truth, graph),
            "methods": methods,
        }
    )


@dataclass(frozen=True, eq=False)
class Explorer:
    """A view of what methods keep, ready to be shown.

    Args:
        data: what the page's script reads; ``explorer.js`` says what it means.
    """

    data: Mapping[str, Any]

    @property
    def html(self) -> str:
        """The view as one piece of HTML: data, script and style, and a table for where no script runs.

        It asks for nothing outside itself. The same content gives the same text.
        """
        return self._html(self.data["title"])

    @property
    def page(self) -> str:
        """The view as a whole page."""
        title = html.escape(self.data["title"] or "Circuit explorer")
        return _PAGE.format(title=title, view=self._html(title=""))

    def save(self, path: str | Path) -> None:
        """Write ``page`` to a file that a browser opens, also without a network."""
        _write(path, self.page)

    def at(self, size: int):
        """The counts that the view shows at a size: a table with a row for each method.

        Columns: ``edges``, those kept; with a known circuit ``hits`` (kept and true), ``missed`` (true, not kept), ``false``
        (kept, not true), ``precision`` and ``recall``; with a curve ``faithfulness``. NaN where there is none.
        """
        import pandas as pd

        _check_number("size", size, 0, self.data["most"])
        rows = [_counts(self.data, method, size) for method in self.data["methods"]]
        table = pd.DataFrame(rows, index=pd.Index([m["name"] for m in self.data["methods"]], name="method"))
        return table[[key for key in KEYS if key in rows[0]]]

    def _html(self, title: str) -> str:
        text = _json({**self.data, "title": title})
        return (
            f'<style>{_read("page.css")}</style><div class="circuitlib-explorer">{self._fallback()}'
            f'<script type="application/json">{text}</script></div><script>{_script()}</script>'
        )

    def _fallback(self) -> str:
        """What stands where no script runs: the counts at the first size."""
        table = self.at(self.data["size"])
        heads = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in ("method", *table.columns))
        rows = "".join(
            f'<tr><th scope="row">{html.escape(name)}</th>{"".join(f"<td>{_plain(value)}</td>" for value in row)}</tr>'
            for name, *row in table.itertuples()
        )
        title = html.escape(self.data["title"] or "Circuit explorer")
        return (
            f"<p>{title}, at {self.data['size']} edges. Where scripts may run, a slider and pictures stand here.</p>"
            f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
        )

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        names = ", ".join(method["name"] or "scores" for method in self.data["methods"])
        true = "" if self.data["truth"] is None else f", {len(self.data['truth'])} of them in the known circuit"
        return f"Explorer({names}; {self.data['edges']:,} edges{true})"


# Arguments ---------------------------------------------------------------------------------------


def _named(argument: str, given, kinds: tuple[type, ...]) -> dict[str, Any]:
    """What was given, by name; a single one has none."""
    named = dict(given) if isinstance(given, Mapping) else {"": given}
    if not 1 <= len(named) <= METHODS:
        raise ValueError(f"{argument}: expected 1 to {METHODS} by name, got {len(named)}")
    for name, one in named.items():
        if not isinstance(name, str):
            raise ValueError(f"{argument}: expected names that are text, got {name!r}")
        if not isinstance(one, kinds) or isinstance(one, str):
            names = {"Sequence": "a list of circuits"}
            expected = " or ".join(names.get(kind.__name__, kind.__name__) for kind in kinds)
            raise ValueError(f"{argument}: expected {expected}, or a dict of them, got {type(one).__name__}")
    return named


def _graph(named: Mapping[str, Any], truth: Circuit | None) -> Graph:
    """The one graph that everything is about."""
    graphs = [(name, graph) for name, one in named.items() for graph in _graphs_of(one)]
    graph = graphs[0][1]
    for name, other in graphs:
        if other != graph:
            raise ValueError(f"scores: expected one graph for all, got {graph!r}, and {other!r} for {name!r}")
    if graph.per_position:
        raise ValueError("scores: expected a graph without positions; compute them with per_position=False")
    if truth is not None and not isinstance(truth, Circuit):
        raise ValueError(f"truth: expected a Circuit or None, got {type(truth).__name__}")
    if truth is not None and truth.graph != graph:
        raise ValueError(f"truth: expected a circuit of {graph!r}, got one of {truth.graph!r}")
    return graph


def _graphs_of(one) -> list[Graph]:
    if isinstance(one, EdgeScores | Circuit):
        return [one.graph]
    if not one:
        raise ValueError("scores: expected at least one circuit in a list, got none")
    for circuit in one:
        if not isinstance(circuit, Circuit):
            raise ValueError(f"scores: expected only circuits in a list, got {type(circuit).__name__} among them")
    return [circuit.graph for circuit in one]


def _curves(curve, named: Mapping[str, Any], graph: Graph) -> dict[str, Curve]:
    if curve is None:
        return {}
    curves = _named("curve", curve, (Curve,))
    for name, one in curves.items():
        if name not in named:
            names = ", ".join(map(repr, named))
            raise ValueError(f"curve: expected curves by the names of scores, {names}; got {name!r}")
        if one.n_edges != graph.n_edges:
            raise ValueError(f"curve: expected one of a graph of {graph.n_edges:,} edges, got {one.n_edges:,} edges")
        if not one.sizes or len(one.sizes) != len(one.values) or not all(map(math.isfinite, one.values)):
            raise ValueError(f"curve: expected sizes with finite values, at least one, got {one!r:.80}")
    return curves


def _roles(roles, truth: Circuit | None, graph: Graph) -> list:
    roles = getattr(truth, "roles", None) or {} if roles is None else roles
    if not isinstance(roles, Mapping):
        raise ValueError(f"roles: expected role → heads, as cl.roles returns, got {type(roles).__name__}")
    nodes = {*graph.senders} - {"embed"}
    for role, heads in roles.items():
        for head in [heads] if isinstance(heads, str) else heads:
            if not isinstance(head, str) or head not in nodes:
                raise ValueError(f"roles: expected heads such as 'a0.0' for {role!r}, got {head!r:.60}")
    return [[str(role), [heads] if isinstance(heads, str) else list(heads)] for role, heads in roles.items()]


def _check_number(name: str, value, least: int, most: int | None) -> None:
    if type(value) is not int or value < least or (most is not None and value > most):
        to = "" if most is None else f" to {most:,}"
        raise ValueError(f"{name}: expected an integer from {least}{to}, got {value!r}")


# Data --------------------------------------------------------------------------------------------


def _method(name: str, given, curve: Curve | None, known: list[int], most: int) -> dict[str, Any]:
    if isinstance(given, EdgeScores):
        method = {"name": name, **_ranking(given, known, most)}
        points = None if curve is None else [list(curve.sizes), [_short(value, 4) for value in curve.values]]
        return method if points is None else {**method, "curve": points}
    circuits = list(dict.fromkeys([given] if isinstance(given, Circuit) else given))
    circuits = sorted(circuits, key=len)
    kept = [circuit for circuit in circuits if len(circuit) <= max(most, len(known))]
    if not kept:
        raise ValueError(f"most: every circuit of {name!r} has more than {most:,} edges; expected room for one")
    steps = [{"at": _threshold(circuit), "ids": _ids(circuit)} for circuit in kept]
    if curve is not None:
        sizes = tuple(len(circuit) for circuit in circuits)
        if curve.sizes != sizes:
            raise ValueError(
                f"curve: {name!r} has circuits of {sizes} edges, expected a curve of them, got {curve.sizes}"
            )
        for step, value in zip(steps, curve.values, strict=False):
            step["faithfulness"] = _short(value, 4)
    return {"name": name, "steps": steps, "omitted": len(circuits) - len(kept)}


def _ranking(scores: EdgeScores, known: list[int], most: int) -> dict[str, list]:
    """Scores in canonical order; of a large graph, edges and scores, the strongest first, and then the true ones that are left."""
    values = scores.flat.detach().cpu().double().numpy()
    order = np.argsort(-np.abs(values), kind="stable")
    short = _in_order(values, order)
    if len(values) <= most:
        return {"scores": short}
    first = order[:most].tolist()
    shown = first + [edge for edge in order[most:].tolist() if edge in {*known}]
    return {"ids": shown, "scores": [short[edge] for edge in shown]}


def _in_order(values: np.ndarray, order: np.ndarray) -> list[float]:
    """Each value with few digits; with as many as it takes, where fewer would change the order by |value|."""
    digits = np.full(len(values), DIGITS)
    while True:
        short = [_short(value, int(d)) for value, d in zip(values.tolist(), digits, strict=True)]
        size = np.abs(np.array(short, dtype=float))[order]
        before, after = order[:-1], order[1:]
        wrong = (size[:-1] < size[1:]) | ((size[:-1] == size[1:]) & (before > after))
        if not wrong.any():
            return short
        for end in (before[wrong], after[wrong]):
            digits[end] = np.minimum(digits[end] + 1, 17)


def _short(value: float, digits: int = DIGITS) -> float | int:
    value = float(f"{value:.{digits}g}")
    return int(value) if value == int(value) and abs(value) < 1e15 else value


def _threshold(circuit: Circuit) -> float | None:
    threshold = getattr(circuit, "threshold", None)
    return None if threshold is None else _short(threshold)


def _ids(circuit: Circuit) -> list[int]:
    """Places of the circuit's edges in ``graph.edges``."""
    mask = circuit.mask[circuit.graph.edge_mask]
    return mask.nonzero()[:, 0].tolist()


def _counts(data: Mapping[str, Any], method: Mapping[str, Any], size: int) -> dict[str, float]:
    """What the script counts, counted here from the same data."""
    ids, faithfulness = _kept(data, method, size)
    found = {"edges": len(ids)}
    if data["truth"] is not None:
        hits, true = len({*ids} & {*data["truth"]}), len(data["truth"])
        found |= {"hits": hits, "missed": true - hits, "false": len(ids) - hits}
        found |= {"precision": _ratio(hits, len(ids)), "recall": _ratio(hits, true)}
    if any("curve" in one or "faithfulness" in one.get("steps", [{}])[0] for one in data["methods"]):
        found["faithfulness"] = faithfulness
    return found


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")


def _kept(data: Mapping[str, Any], method: Mapping[str, Any], size: int) -> tuple[list[int], float]:
    if "steps" in method:
        step = min(method["steps"], key=lambda step: (abs(len(step["ids"]) - size), len(step["ids"])))
        return step["ids"], step.get("faithfulness", float("nan"))
    scores = method["scores"]
    ids = method.get("ids") or sorted(range(len(scores)), key=lambda edge: -abs(scores[edge]))
    return ids[:size], _at(method.get("curve"), size, data["edges"])


def _at(curve, size: int, n_edges: int) -> float:
    """The curve at a size, on a straight line between its points; 0 without edges and 1 with all hold by definition."""
    if curve is None:
        return float("nan")
    points = dict(zip(*curve, strict=True))
    points = {0: 0, n_edges: 1} | points
    sizes = sorted(points)
    return float(np.interp(size, sizes, [points[k] for k in sizes]))


# Text --------------------------------------------------------------------------------------------


def _plain(value: float) -> str:
    if isinstance(value, float) and math.isnan(value):
        return "–"
    return str(int(value)) if value == int(value) and not isinstance(value, float) else f"{value:.2f}"


def _json(value) -> str:
    """JSON that can stand in a script element: nothing in it ends the element or opens a comment."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


@functools.cache
def _script() -> str:
    """The script with its style in it, without comments and indentation."""
    return _read("explorer.js").replace('"STYLE"', json.dumps(_read("explorer.css")))


@functools.cache
def _read(name: str) -> str:
    lines = (Path(__file__).parent / name).read_text("utf8").splitlines()
    lines = [line.strip() for line in lines]
    return "\n".join(line for line in lines if line and not line.startswith(("//", "/*")))


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>:root {{ color-scheme: light dark; }} body {{ margin: 0 auto; max-width: 80rem; padding: 1rem; font-family: system-ui, sans-serif; }} h1 {{ font-size: 1.4rem; }}</style>
</head>
<body>
<main>
<h1>{title}</h1>
{view}
</main>
</body>
</html>
"""
