"""The checks of chapter 07, integrated gradients."""

from __future__ import annotations

from collections.abc import Callable

from .checking import exercise
from .compare import compare


@exercise("07.1", hint="m slopes: the first at 0, the last one step before 1.")
def _mean_slope(answer: Callable) -> str:
    """``mean_slope(slope, m) -> float``; ``slope`` is a function of a share."""

    def square(share):
        return 3 * share**2  # the slope of share³, whose change from 0 to 1 is 1

    def step(share):
        return 2.0 if share < 0.5 else 0.0

    cases = [
        (square, "for slope 3·share²"),
        (step, "for a slope of 2 below ½ and 0 above"),
        (lambda s: 1 - s, "for slope 1 − share"),
    ]
    for slope, where in cases:
        for m in (1, 2, 5, 8):

            def expected(m, slope=slope):
                total, share = 0.0, 0
                while share < m:
                    total, share = total + slope(share / m), share + 1
                return total / m

            compare(lambda m, slope=slope: answer(slope, m), (m,), expected, f"{where} and m = {m}")
    return "the mean of m slopes, from 0 up to and without 1."


@exercise(
    "07.2", hint="the first is the corrupted embedding, and each next one is 1/m of the way nearer to the clean one."
)
def _starts(answer: Callable) -> str:
    """``starts(clean [n, pos, d], corrupted [n, pos, d], m) -> [m, n, pos, d]``."""
    import torch

    def expected(clean, corrupted, m):
        return torch.stack([((m - k) * corrupted + k * clean) / m for k in range(m)])

    small = (torch.tensor([[[10.0]]]), torch.tensor([[[0.0]]]), 5)
    compare(answer, small, expected, "for clean 10, corrupted 0 and m = 5")
    generator = torch.Generator().manual_seed(72)
    for shape, m in (((2, 3, 4), 1), ((1, 2, 3), 4)):
        case = (*(torch.randn(shape, generator=generator) for _ in range(2)), m)
        compare(answer, case, expected, f"for random embeddings {list(shape)} and m = {m}")
    return "m embeddings from the corrupted one towards the clean one."


@exercise("07.3", hint="sum the scores of sender 0 over all receivers, and compare with the change of the metric.")
def _incompleteness(answer: Callable) -> str:
    """``incompleteness(scores [receiver, sender], m_clean, m_corrupted) -> float``."""
    import torch

    def expected(scores, m_clean, m_corrupted):
        change = m_clean - m_corrupted
        return abs((sum(row[0] for row in scores.tolist()) - change) / change)

    small = (torch.tensor([[1.0, 7.0], [2.0, 7.0]]), 5.0, 1.0)
    compare(answer, small, expected, "for scores [[1, 7], [2, 7]], clean 5 and corrupted 1")
    generator = torch.Generator().manual_seed(73)
    for shape, clean, corrupted in (((4, 3), 2.0, -1.0), ((3, 5), -2.0, 1.5), ((6, 2), 9.0, 0.5)):
        case = (torch.randn(shape, generator=generator), clean, corrupted)
        compare(answer, case, expected, f"for random scores {list(shape)}, clean {clean:g} and corrupted {corrupted:g}")
    return "0 where the scores out of the embedding account for the whole change."
