"""The checks of chapter 9, the comparison."""

from __future__ import annotations

from collections.abc import Callable

from .checking import exercise
from .compare import compare


@exercise(
    "09.1",
    hint="the true ones that were found, over all true ones; the false ones that were found, over all false ones.",
)
def _rates(answer: Callable) -> str:
    """``rates(found [edge], truth [edge]) -> (tpr, fpr)``; both are booleans."""
    import torch

    def expected(found, truth):
        pairs = list(zip(found.tolist(), truth.tolist(), strict=True))
        return [sum(f for f, t in pairs if t is kind) / sum(t is kind for _, t in pairs) for kind in (True, False)]

    small = [torch.tensor(row, dtype=torch.bool) for row in ([1, 1, 1, 0, 0, 0, 0], [1, 0, 0, 1, 0, 0, 0])]
    compare(answer, tuple(small), expected, "for found [1, 1, 1, 0, 0, 0, 0] and truth [1, 0, 0, 1, 0, 0, 0]")
    generator = torch.Generator().manual_seed(901)
    for n, share in ((40, 0.2), (300, 0.05)):
        found, truth = (torch.rand(n, generator=generator) < s for s in (0.4, share))
        compare(answer, (found, truth), expected, f"for {n} random edges")
    return "found among the true, and found among the false."


@exercise("09.2", hint="walk along the points from left to right, and remember the highest true positive rate so far.")
def _step_area(answer: Callable) -> str:
    """``step_area(fpr, tpr) -> float``; two lists of the same length, in any order."""
    import random

    def expected(fpr, tpr):
        points = [(0.0, 0.0), (1.0, 1.0), *zip(fpr, tpr, strict=True)]
        places = sorted({x for x, _ in points})
        heights = [max(y for x, y in points if x <= place) for place in places]
        widths = [right - left for left, right in zip(places, places[1:], strict=False)]
        return sum(width * height for width, height in zip(widths, heights, strict=False))

    compare(answer, ([0.5], [0.8]), expected, "for the one point (0.5, 0.8)")
    compare(answer, ([0.2, 0.6], [0.7, 0.8]), expected, "for the points (0.2, 0.7) and (0.6, 0.8)")
    compare(answer, ([0.6, 0.2], [0.8, 0.7]), expected, "for the points (0.6, 0.8) and (0.2, 0.7), in that order")
    compare(answer, ([0.2, 0.6], [0.7, 0.4]), expected, "for (0.2, 0.7) and a worse point (0.6, 0.4) to its right")
    draw = random.Random(902)
    for n in (5, 30):
        points = [[draw.random() for _ in range(n)] for _ in range(2)]
        compare(answer, tuple(points), expected, f"for {n} random points")
    return "stairs under the best points."


@exercise(
    "09.3", hint="how far faithfulness is from 1, whichever way, under straight lines from (0, 0) to (n_edges, 1)."
)
def _distance(answer: Callable) -> str:
    """``distance(sizes, values, n_edges) -> float``; sizes ascending, neither 0 nor ``n_edges`` among them."""
    import numpy as np

    def expected(sizes, values, n_edges):
        k, f = np.array([0, *sizes, n_edges]) / n_edges, np.array([0, *values, 1.0])
        off = np.abs(1 - f)
        return float(np.sum(np.diff(k) * (off[1:] + off[:-1]) / 2))

    compare(answer, ([5], [1.0], 10), expected, "for faithfulness 1 at 5 of 10 edges")
    compare(answer, ([2, 5], [0.5, 1.4], 10), expected, "for faithfulness 0.5 at 2 and 1.4 at 5 of 10 edges")
    generator = np.random.default_rng(903)
    for n in (4, 9):
        sizes = sorted(generator.choice(np.arange(1, 100), n, replace=False).tolist())
        compare(answer, (sizes, generator.normal(0.8, 0.5, n).tolist(), 100), expected, f"for {n} random sizes")
    return "the area between the curve and 1."
