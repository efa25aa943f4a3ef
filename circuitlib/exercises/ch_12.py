"""The checks of chapter 12, your own task."""

from __future__ import annotations

from collections.abc import Callable

from .checking import exercise
from .compare import compare


@exercise(
    "12.1",
    hint="a position counts if the two prompts differ there in at least one pair; return positions, not yes and no.",
)
def _differing(answer: Callable) -> str:
    """``differing(clean [n, pos], corrupted [n, pos]) -> list of positions``."""
    import torch

    def expected(clean, corrupted):
        pairs = list(zip(clean.tolist(), corrupted.tolist(), strict=True))
        return [i for i in range(len(pairs[0][0])) if any(a[i] != b[i] for a, b in pairs)]

    def pair(clean, corrupted):
        return torch.tensor(clean), torch.tensor(corrupted)

    compare(answer, pair([[5, 6, 7, 8]], [[5, 9, 7, 1]]), expected, "for [[5, 6, 7, 8]] and [[5, 9, 7, 1]]")
    two = pair([[5, 6, 7], [5, 6, 7]], [[5, 9, 7], [5, 6, 1]])
    compare(answer, two, expected, "for two pairs that differ at position 1 and at position 2")
    generator = torch.Generator().manual_seed(121)
    for n, n_pos in ((3, 8), (6, 12)):
        clean = torch.randint(9, (n, n_pos), generator=generator)
        corrupted = torch.where(torch.rand(n, n_pos, generator=generator) < 0.1, clean + 10, clean)
        compare(answer, (clean, corrupted), expected, f"for {n} random pairs of {n_pos} tokens")
    return "every position at which some pair differs."


@exercise("12.2", hint="a prompt is a whole row; it may stand in another row of the other set.")
def _overlap(answer: Callable) -> str:
    """``overlap(found_on [n, pos], judged_on [m, pos]) -> number``."""
    import torch

    def expected(found_on, judged_on):
        seen = {tuple(row) for row in found_on.tolist()}
        rows = judged_on.tolist()
        return sum(tuple(row) in seen for row in rows) / len(rows)

    a, b, c, d = [1, 2, 3], [1, 2, 4], [5, 2, 3], [9, 8, 7]
    small = torch.tensor([a, b]), torch.tensor([b, c])
    compare(answer, small, expected, "for [[1, 2, 3], [1, 2, 4]] and [[1, 2, 4], [5, 2, 3]]")
    compare(answer, (torch.tensor([a, b, c]), torch.tensor([d])), expected, "for sets that share no prompt")
    compare(
        answer, (torch.tensor([a]), torch.tensor([a, b, c, d])), expected, "for 1 prompt and 4 prompts, one in both"
    )
    compare(
        answer, (torch.tensor([a]), torch.tensor([a, a, b])), expected, "for [[1, 2, 3]] and a set that holds it twice"
    )
    generator = torch.Generator().manual_seed(122)
    for n, m in ((6, 9), (12, 5)):
        sets = (torch.randint(2, (size, 4), generator=generator) for size in (n, m))
        compare(answer, tuple(sets), expected, f"for {n} and {m} random prompts")
    return "the share of prompts to judge on that were also searched on."


@exercise("12.3", hint="the first size that reaches the bar is not enough if a larger one falls below it again.")
def _smallest_size(answer: Callable) -> str:
    """``smallest_size(sizes, values, bar) -> size``; sizes ascending, the last value reaches the bar."""
    import random

    def expected(sizes, values, bar):
        best = sizes[-1]
        for size, value in reversed(list(zip(sizes, values, strict=True))):
            if value < bar:
                break
            best = size
        return best

    sizes = [10, 20, 30, 40]
    compare(answer, (sizes, [0.1, 0.5, 0.95, 1.0], 0.9), expected, "for values that only rise")
    compare(answer, (sizes, [0.1, 0.5, 0.9, 1.0], 0.9), expected, "where a value is exactly at the bar")
    compare(answer, (sizes, [0.2, 0.95, 0.7, 0.97], 0.9), expected, "for values that rise, fall and rise again")
    draw = random.Random(123)
    for n in (6, 15):
        values = [draw.random() for _ in range(n - 1)] + [1.0]
        compare(answer, ([3 * i for i in range(n)], values, 0.4), expected, f"for {n} random values")
    return "the smallest size from which on every circuit reaches the bar."


@exercise("12.4", hint="count the random ones that do at least as well, then count your own circuit as one of all.")
def _p_value(answer: Callable) -> str:
    """``p_value(found, random [n]) -> number`` (Phipson & Smyth 2010, who say why it is never zero)."""
    import torch

    def expected(found, random):
        return sum(value >= found for value in [found, *random.tolist()]) / (len(random) + 1)

    compare(answer, (0.9, torch.tensor([0.1, 0.0, -0.2, 0.3])), expected, "for 0.9 against 0.1, 0, -0.2 and 0.3")
    compare(answer, (0.25, torch.tensor([0.5, 0.25, 0.0])), expected, "for 0.25 against 0.5, 0.25 and 0")
    compare(answer, (-0.1, torch.tensor([0.5, -0.5])), expected, "for -0.1 against 0.5 and -0.5")
    generator = torch.Generator().manual_seed(124)
    for n in (9, 40):
        compare(answer, (0.5, torch.rand(n, generator=generator)), expected, f"for 0.5 against {n} random numbers")
    return "your own circuit counted among them."
