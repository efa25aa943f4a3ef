"""The checks of chapter 10, pitfalls."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from .checking import exercise
from .compare import compare


@exercise("10.1", hint="each position has a mean of its own, over the prompts; every prompt is then given the same.")
def _stands_in(answer: Callable) -> str:
    """``stands_in(written [n, pos, d_model], ablation) -> [n, pos, d_model]``."""
    import torch

    def expected(written, ablation):
        rows = written.tolist()
        over = [
            [sum(row[p][d] for row in rows) / len(rows) for d in range(len(rows[0][0]))] for p in range(len(rows[0]))
        ]
        zero = [[0.0] * len(rows[0][0])] * len(rows[0])
        return torch.tensor({"corrupted": rows, "zero": [zero] * len(rows), "mean": [over] * len(rows)}[ablation])

    small = torch.tensor([[[1.0], [5.0]], [[3.0], [9.0]]])
    generator = torch.Generator().manual_seed(101)
    drawn = torch.randn(3, 4, 2, generator=generator)
    for ablation in ("corrupted", "zero", "mean"):

        def with_this(written, ablation=ablation):
            return answer(written, ablation)

        def right(written, ablation=ablation):
            return expected(written, ablation)

        compare(
            with_this, (small,), right, f"for 2 prompts of 2 positions, which write 1, 5 and 3, 9, under {ablation}"
        )
        compare(with_this, (drawn,), right, f"for random values [3, 4, 2], under {ablation}")
    return "under all three ablations."


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
