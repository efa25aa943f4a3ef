"""The checks of chapter 02, path patching."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .checking import exercise
from .compare import compare


@exercise(
    "02.1", hint="each sender gives out where its edge is kept and ref where it is cut; then sum over the senders."
)
def _receiver_input(answer: Callable) -> str:
    """``receiver_input(out [sender, d], ref [sender, d], keep [sender], bias [d]) -> [d]``."""
    import torch

    def expected(out, ref, keep, bias):
        rows = [o if k else r for o, r, k in zip(out.tolist(), ref.tolist(), keep.tolist(), strict=True)]
        return [sum(column) + b for column, b in zip(zip(*rows, strict=True), bias.tolist(), strict=True)]

    small = (torch.tensor([[2.0], [1.0]]), torch.tensor([[0.0], [10.0]]), torch.tensor([1.0, 0.0]), torch.tensor([0.5]))
    compare(answer, small, expected, "for out [[2], [1]], ref [[0], [10]], keep [1, 0] and bias [0.5]")
    generator = torch.Generator().manual_seed(21)
    for n, d in ((4, 3), (9, 5)):
        out, ref = (torch.randn(n, d, generator=generator) for _ in range(2))
        keep = (torch.arange(n) % 3 != 0).float()
        case = (out, ref, keep, torch.randn(d, generator=generator))
        compare(answer, case, expected, f"for {n} senders that write {d} numbers each")
    return "kept senders, cut senders and biases, summed."


@exercise(
    "02.2", hint="heads of layer l can read the embedding and the heads of the layers below l, through q, k and v."
)
def _count_edges(answer: Callable) -> str:
    """``count_edges(n_layers, n_heads) -> int``."""

    def expected(n_layers, n_heads):
        senders = [-1] + [layer for layer in range(n_layers) for _ in range(n_heads)]
        receivers = [layer for layer in range(n_layers) for _ in range(3 * n_heads)] + [n_layers]
        return sum(sender < receiver for sender in senders for receiver in receivers)

    for n_layers, n_heads in ((1, 1), (1, 2), (2, 1), (3, 2), (2, 5), (4, 8)):
        where = f"for {n_layers} layer{'s' * (n_layers > 1)} of {n_heads} head{'s' * (n_heads > 1)}"
        compare(answer, (n_layers, n_heads), expected, where)
    return "1,281 edges for 4 layers of 8 heads."


@exercise("02.3", hint="what the middle writes depends on which h it read: the clean one or the corrupted one.")
def _three_effects(answer: Callable) -> str:
    """``three_effects(h_clean, h_corrupted, middle, end) -> (total, direct, by_middle)``."""

    def relu(x):
        return max(0.0, x)

    def gate(h):
        return relu(h - 1)

    def half(h, m):
        return m + h / 2

    cases = [(2.0, 0.0, gate, half, "for h 2 → 0, middle relu(h − 1) and end m + h/2")]
    random = np.random.default_rng(23)
    for _ in range(3):
        a, b, c = random.normal(size=3)

        def middle(h, a=a):
            return a * h + h * h

        def end(h, m, b=b, c=c):
            return b * h + c * m + h * m

        cases.append((*random.normal(size=2).tolist(), middle, end, "for a random middle and end"))
    for clean, corrupted, middle, end, where in cases:

        def expected(clean, corrupted, middle=middle, end=end):
            reads = [(corrupted, corrupted), (corrupted, clean), (clean, corrupted)]  # by the end, by the middle
            return [end(clean, middle(clean)) - end(h, middle(by_middle)) for h, by_middle in reads]

        def answers(clean, corrupted, middle=middle, end=end):
            return answer(clean, corrupted, middle, end)

        compare(answers, (clean, corrupted), expected, where)
    return "the whole head, its direct path, and its path by the middle."
