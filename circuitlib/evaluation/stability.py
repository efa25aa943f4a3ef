"""Stability: how much a circuit owes to the prompts that it was found on (Méloux, Portet & Peyrard 2025, arXiv 2510.00845)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import combinations
from statistics import mean, stdev

from torch import Tensor

from ..discovery.longwork import bar
from ..discovery.scores import EdgeScores
from ..engine import Engine, Metric, check_engine
from ..graph import Circuit, jaccard
from ..tasks.base import Task


@dataclass(frozen=True)
class Stability:
    """Circuits that one method found on resampled prompts.

    Args:
        circuits: one for each resample.
        whole: the circuit found on all prompts, each once.
    """

    circuits: tuple[Circuit, ...] = field(repr=False)
    whole: Circuit

    @property
    def mean(self) -> float:
        """The mean Jaccard index of the edges of two resamples."""
        return mean(self._between(jaccard))

    @property
    def spread(self) -> float:
        """The standard deviation of the Jaccard index over all pairs of resamples. Pairs share circuits, so it is no error bar."""
        return stdev(self._between(jaccard)) if len(self.circuits) > 2 else 0.0

    def to_pandas(self):
        """A table of Jaccard indices, of edges and of heads: between two resamples, and between a resample and all prompts."""
        import pandas as pd

        rows = []
        for kind, index in (("edges", jaccard), ("heads", _jaccard_of_heads)):
            with_whole = [index(circuit, self.whole) for circuit in self.circuits]
            for between, values in (
                ("two resamples", self._between(index)),
                ("a resample and all prompts", with_whole),
            ):
                spread = stdev(values) if len(values) > 1 else 0.0
                rows.append((kind, between, len(values), mean(values), spread, min(values), max(values)))
        return pd.DataFrame(rows, columns=["of", "between", "n", "mean", "spread", "min", "max"])

    def frequency(self):
        """A table of all edges that were found: in which share of the resamples, and whether on all prompts."""
        import pandas as pd

        counts = Counter(edge for circuit in self.circuits for edge in circuit)
        found = sorted({*counts, *self.whole}, key=lambda edge: (-counts[edge], edge))
        rows = [(str(edge), counts[edge] / len(self.circuits), edge in self.whole) for edge in found]
        return pd.DataFrame(rows, columns=["edge", "share", "on all prompts"]).set_index("edge")

    def _between(self, index: Callable[[Circuit, Circuit], float]) -> list[float]:
        return [index(first, second) for first, second in combinations(self.circuits, 2)]


def stability(
    engine: Engine,
    method: Callable,
    *,
    n: int = 20,
    k: int | None = None,
    metric: str | Metric | None = None,
    seed: int = 0,
    progress: bool = False,
) -> Stability:
    """Find the circuit again on prompts drawn anew from the engine's own, and compare what comes out (a bootstrap).

    Each resample draws as many prompts as there are, with replacement; the reference run of the ablation is made of the
    same prompts. A prompt pair stays together.

    Args:
        method: as in ``cl.compare``: called as ``method(engine, metric=metric)``, it returns scores or a circuit.
        n: how many resamples, at least 2.
        k: how many edges of the scores make the circuit; None for a method that returns a circuit.
        metric: None for the task's, "kl", or a callable from logits ``[n, k, d_vocab]`` to ``[n]``. A callable that holds
            answers of its own does not know which prompts were drawn: let the task hold them.
        progress: show a bar on stderr.

    Raises:
        ValueError: fewer than 2 resamples; a method that is no function; ``k`` missing, or given for a method that returns a circuit.
    """
    if type(n) is not int or n < 2:
        raise ValueError(f"n: expected an integer from 2, got {n!r}")
    if not callable(method):
        raise ValueError(f"method: expected a function such as cl.eap, got {method!r}")
    check_engine(engine)
    whole = _circuit(method(engine, metric=metric), k)
    draw, n_prompts, circuits = random.Random(seed), len(engine.task), []
    with bar(progress, n, "stability", "resamples") as shown:
        for _ in range(n):
            task = of_prompts(engine.task, draw.choices(range(n_prompts), k=n_prompts))
            again = Engine(engine.model, task, engine.ablation, engine.direction, engine.memory_mb)
            circuits.append(_circuit(method(again, metric=metric), k))
            shown.update()
    return Stability(tuple(circuits), whole)


def of_prompts(task: Task, prompts: Sequence[int]) -> Task:
    """The task on these of its prompts, in this order; a prompt may come several times."""
    of_each_prompt = {f.name: getattr(task, f.name) for f in fields(task) if isinstance(getattr(task, f.name), Tensor)}
    return replace(task, **{name: tensor[list(prompts)] for name, tensor in of_each_prompt.items()})


def _circuit(found, k: int | None) -> Circuit:
    if isinstance(found, Circuit):
        if k is not None:
            raise ValueError(f"k: expected None for a method that returns a circuit, got {k!r}")
        return found
    if not isinstance(found, EdgeScores):
        raise ValueError(f"method: expected one that returns scores of edges or a circuit, got {type(found).__name__}")
    if k is None:
        raise ValueError("k: expected how many edges of the scores make the circuit, got None")
    return found.top(k)


def _jaccard_of_heads(c1: Circuit, c2: Circuit) -> float:
    both, either = set(c1.heads()) & set(c2.heads()), set(c1.heads()) | set(c2.heads())
    return len(both) / len(either) if either else 1.0
