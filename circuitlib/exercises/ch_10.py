"""The checks of chapter 10, pitfalls."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from .checking import exercise
from .compare import compare


@exercise("10.1", hint="average before you divide; and 0 must stand for the empty circuit, 1 for the full model.")
def _ratio_of_means(answer: Callable) -> str:
    """``ratio_of_means(circuit [n], full [n], empty [n]) -> float``."""
    import torch

    def expected(circuit, full, empty):
        sums = [sum(values.tolist()) for values in (circuit, full, empty)]
        return (sums[0] - sums[2]) / (sums[1] - sums[2])

    small = (torch.tensor([3.0, 1.0]), torch.tensor([4.0, 2.0]), torch.tensor([0.0, 1.0]))
    compare(answer, small, expected, "for circuit [3, 1], full [4, 2] and empty [0, 1]")
    generator = torch.Generator().manual_seed(101)
    for n in (5, 12):
        full = 4 + torch.randn(n, generator=generator)
        case = (full - torch.rand(n, generator=generator), full, torch.randn(n, generator=generator) - 1)
        compare(answer, case, expected, f"for {n} random prompts")
    return "means first, then the ratio."


@exercise("10.2", hint="try every state of the other inputs, not only the one where all are kept.")
def _which_matter(answer: Callable) -> str:
    """``which_matter(metric, k) -> [bool] * k``; ``metric`` is a function of a list of k zeros and ones."""
    cases = [
        (lambda x: float(x[0] and x[1]), 2, "for an AND of two inputs"),
        (lambda x: float(x[0] or x[1]), 2, "for an OR of two inputs"),
        (lambda x: float(x[0] or x[2]), 3, "for three inputs, the first OR the third"),
        (lambda x: x[0] + 0.5 * (x[1] and not x[3]), 4, "for four inputs, the third of which does nothing"),
    ]
    for metric, k, where in cases:

        def expected(k, metric=metric):
            values = {state: metric(list(state)) for state in product((0, 1), repeat=k)}
            return [
                any(abs(values[s] - values[(*s[:i], 0, *s[i + 1 :])]) > 0.001 for s in values if s[i]) for i in range(k)
            ]

        compare(lambda k, metric=metric: answer(metric, k), (k,), expected, where)
    return "an input matters if cutting it changes something in some state of the others."


@exercise("10.3", hint="one part of the prompts chooses, the other part judges.")
def _honest_best(answer: Callable) -> str:
    """``honest_best(scores [candidate, n], n_choose) -> float``."""
    import torch

    def expected(scores, n_choose):
        rows = scores.tolist()
        best = max(range(len(rows)), key=lambda i: sum(rows[i][:n_choose]))
        rest = rows[best][n_choose:]
        return sum(rest) / len(rest)

    small = (torch.tensor([[9.0, 1.0, 2.0], [4.0, 8.0, 7.0]]), 1)
    compare(answer, small, expected, "for scores [[9, 1, 2], [4, 8, 7]], where the first prompt chooses")
    generator = torch.Generator().manual_seed(103)
    for shape, n_choose in (((5, 12), 4), ((30, 20), 5)):
        compare(
            answer, (torch.randn(shape, generator=generator), n_choose), expected, f"for random scores {list(shape)}"
        )
    return "chosen on some prompts, judged on others."
