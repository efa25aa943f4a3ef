"""Faithfulness: how much of the behaviour a circuit carries, when everything else is ablated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..discovery.scores import NodeScores
from ..engine import Engine, Metric, check_engine
from ..graph import Circuit, Edge, is_whole, random_circuit

PERCENTAGES = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)  # of all edges; the sizes of MIB (Mueller et al. 2025)


def faithfulness(
    engine: Engine, circuit: Circuit | Sequence[Circuit], *, metric: str | Metric | None = None
) -> float | Float[Tensor, "c"]:
    """(M(circuit) − M(∅)) / (M(all) − M(∅)), a ratio of means; ∅ has every edge cut under the engine's ablation.

    1 for a circuit that does what the model does, 0 for one that does what no circuit does. It may lie outside [0, 1].

    Args:
        metric: None for the task's, "kl", or a callable from logits ``[n, k, d_vocab]`` to ``[n]``.

    Returns:
        A number for a circuit, ``[c]`` for a list of circuits.

    Raises:
        ValueError: M(all) − M(∅) can't be told from zero, so that there is nothing for a circuit to carry.
    """
    check_engine(engine).masks(circuit)  # an error for what is no circuit of this engine
    circuits = [circuit] if isinstance(circuit, Circuit) else list(circuit)
    values = engine.values(
        [*circuits, engine.like(circuits[0], engine.all), engine.like(circuits[0], engine.none)], metric
    )
    gap = denominator(values[-2], values[-1])
    ratios = (values[:-2].mean(-1) - values[-1].mean()) / gap
    return float(ratios[0]) if isinstance(circuit, Circuit) else ratios


def denominator(full: Float[Tensor, "n"], empty: Float[Tensor, "n"]) -> float:
    """M(all) − M(∅); a ValueError if it can't be told from zero.

    That is so if it is a millionth of the metric or less, or, with 8 prompts or more, if it lies within two standard
    errors of zero over prompts: then the sign of the ratio is chance.
    """
    gaps = full - empty
    gap, n = float(gaps.mean()), len(gaps)
    error = float(gaps.std()) / n**0.5 if n >= 8 else 0.0
    if abs(gap) <= max(2 * error, 1e-6 * max(1.0, float(full.abs().max()), float(empty.abs().max()))):
        raise ValueError(
            f"task: the metric is {float(full.mean()):.3g} with all edges and {float(empty.mean()):.3g} with none, "
            f"a difference of {gap:.2g} ± {error:.2g}; expected one that can be told from zero to divide by"
        )
    return gap


@dataclass(frozen=True)
class Curve:
    """Faithfulness against size.

    Args:
        sizes: how many edges the circuits have, ascending.
        values: their faithfulness.
        n_edges: how many edges the graph has.
    """

    sizes: tuple[int, ...]
    values: tuple[float, ...]
    n_edges: int

    def to_pandas(self):
        """A table: edges, their share of all edges, faithfulness."""
        import pandas as pd

        share = [size / self.n_edges for size in self.sizes]
        return pd.DataFrame({"edges": self.sizes, "share": share, "faithfulness": self.values})


def faithfulness_curve(
    engine: Engine,
    source: Callable[[int], Circuit] | Sequence[Edge | str] | Sequence[Circuit] | Circuit,
    sizes: Sequence[int] | None = None,
    *,
    metric: str | Metric | None = None,
) -> Curve:
    """Faithfulness of the circuits of growing size that ``source`` gives.

    Args:
        source: scores (anything with ``.top(k)``), a function from a size to a circuit, or edges in order, the best first.
            Or circuits, such as ``cl.acdc_sweep`` returns, or one: these are measured as they are, from small to large.
        sizes: how many edges; None for .1, .2, .5, 1, 2, 5, 10, 20, 50 and 100 % of all edges. Not with circuits.
    """
    if isinstance(source, NodeScores):
        raise ValueError("source: expected scores of edges, got scores of nodes")
    source = [source] if isinstance(source, Circuit) else source
    if isinstance(source, Sequence) and source and isinstance(source[0], Circuit):
        if sizes is not None:
            raise ValueError("sizes: expected None, for circuits have their own")
        return _curve(engine, sorted(dict.fromkeys(source), key=len), metric)
    if sizes is None:
        n_edges = getattr(source, "graph", engine.graph).n_edges
        sizes = sorted({max(1, round(n_edges * percent / 100)) for percent in PERCENTAGES})
    sizes = list(sizes)
    if not sizes or any(not is_whole(size) or size < 0 for size in sizes):
        raise ValueError(f"sizes: expected integers from 0, at least one, got {sizes!r}")
    return _curve(engine, [_circuit(engine, source, size) for size in sorted(sizes)], metric)


def cpr(curve: Curve) -> float:
    """Circuit performance ratio: the area under faithfulness f(k), k the share of all edges (MIB, Mueller et al. 2025).

    High if small circuits already carry the behaviour, or more than it: a method is rewarded for leaving out what works against
    the task. 1 is what a curve at f = 1 gives, ½ a straight line from nothing to everything.

    The axis is linear and the area is that of trapezoids, as in MIB's code. Two points hold by definition and are added where the
    curve lacks them: f = 0 without edges and f = 1 with all. MIB's own area starts at .1 % of the edges; that leaves out
    at most .0005 · f(.1 %). Where the curve has few sizes, the area is rough.

    Raises:
        ValueError: a curve without points.
    """
    return _area(curve, lambda f: f)


def cmd(curve: Curve) -> float:
    """Circuit-model distance: the area of |1 − f(k)|, k the share of all edges (MIB, Mueller et al. 2025).

    0 for circuits that do just what the model does, at any size; ½ for a straight line from nothing to everything. Unlike in
    ``cpr``, doing more than the model counts as badly as doing less. The axis, the trapezoids and the ends are those of ``cpr``.

    Raises:
        ValueError: a curve without points.
    """
    return _area(curve, lambda f: abs(1 - f))


def _area(curve: Curve, height: Callable[[float], float]) -> float:
    if not curve.sizes:
        raise ValueError("curve: expected at least one point, got none")
    points = list(zip(curve.sizes, curve.values, strict=True))
    points = [(0, 0.0)] * (curve.sizes[0] > 0) + points + [(curve.n_edges, 1.0)] * (curve.sizes[-1] < curve.n_edges)
    steps = zip(points, points[1:], strict=False)
    return sum((k2 - k1) * (height(f1) + height(f2)) / 2 for (k1, f1), (k2, f2) in steps) / curve.n_edges


def _curve(engine: Engine, circuits: Sequence[Circuit], metric: str | Metric | None) -> Curve:
    values = faithfulness(engine, circuits, metric=metric)
    return Curve(tuple(len(circuit) for circuit in circuits), tuple(values.tolist()), circuits[0].graph.n_edges)


def _circuit(engine: Engine, source, size: int) -> Circuit:
    if hasattr(source, "top"):
        return source.top(size)
    if callable(source):
        return source(size)
    if size > len(source):
        raise ValueError(f"sizes: {size} edges asked for, expected at most the {len(source)} of source")
    return Circuit(engine.graph, source[:size], engine.task, engine.ablation)


def random_baseline(
    engine: Engine, k: int, n: int = 20, seed: int = 0, *, metric: str | Metric | None = None
) -> Float[Tensor, "n"]:
    """Faithfulness of ``n`` random circuits of ``k`` edges: what a size alone buys."""
    circuits = [random_circuit(engine.graph, k, seed * 1_000_003 + i) for i in range(n)]
    return torch.as_tensor(faithfulness(engine, circuits, metric=metric))
