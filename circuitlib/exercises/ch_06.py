"""The checks of chapter 06, edge attribution patching."""

from __future__ import annotations

from collections.abc import Callable

from .checking import exercise
from .compare import compare


@exercise(
    "06.1", hint="the gradient times (clean minus corrupted), summed over positions and features, prompt by prompt."
)
def _edge_score(answer: Callable) -> str:
    """``edge_score(g [n, pos, d], clean [n, pos, d], corrupted [n, pos, d]) -> [n]``."""
    import torch

    def expected(g, clean, corrupted):
        return [
            sum(
                g[i][p][d] * (clean[i][p][d] - corrupted[i][p][d])
                for p in range(len(g[i]))
                for d in range(len(g[i][p]))
            )
            for i in range(len(g))
        ]

    def lists(g, clean, corrupted):
        return expected(g.tolist(), clean.tolist(), corrupted.tolist())

    small = (torch.tensor([[[2.0]]]), torch.tensor([[[5.0]]]), torch.tensor([[[4.0]]]))
    compare(answer, small, lists, "for gradient 2, clean 5 and corrupted 4 (one prompt, position and feature)")
    generator = torch.Generator().manual_seed(61)
    for shape in ((2, 3, 4), (3, 1, 5)):
        case = tuple(torch.randn(shape, generator=generator) for _ in range(3))
        compare(answer, case, lists, f"for random activations {list(shape)}")
    return "gradient at the receiver times what the sender would change, prompt by prompt."


@exercise(
    "06.2", hint="every receiver with every sender, averaged over prompts but summed over positions and features."
)
def _edge_scores(answer: Callable) -> str:
    """``edge_scores(g [receiver, n, pos, d], difference [sender, n, pos, d], upstream [receiver, sender]) -> [receiver, sender]``."""
    import torch

    def expected(g, difference, upstream):
        scores = torch.zeros(upstream.shape)
        for r in range(len(g)):
            for s in range(len(difference)):
                if upstream[r, s]:
                    scores[r, s] = sum(float((a * b).sum()) for a, b in zip(g[r], difference[s], strict=True)) / len(
                        g[r]
                    )
        return scores

    generator = torch.Generator().manual_seed(62)
    for receivers, senders, n, pos, d in ((2, 3, 1, 1, 1), (4, 3, 2, 3, 2), (5, 2, 4, 2, 3)):
        g, difference = (torch.randn(k, n, pos, d, generator=generator) for k in (receivers, senders))
        upstream = (torch.arange(senders) <= torch.arange(receivers)[:, None]).float()
        where = f"for {receivers} receivers, {senders} senders, {n} prompts, {pos} positions and {d} features"
        compare(answer, (g, difference, upstream), expected, where)
    return "one product for all edges, and 0 where there is none."


@exercise("06.3", hint="rank by size, whatever the sign; then count how many places are in both lists.")
def _overlap(answer: Callable) -> str:
    """``overlap(truth [n_edges], estimate [n_edges], k) -> float``."""
    import torch

    def expected(truth, estimate, k):
        best = [sorted(range(len(scores)), key=lambda i: -abs(float(scores[i])))[:k] for scores in (truth, estimate)]
        return len(set(best[0]) & set(best[1])) / k

    small = (torch.tensor([3.0, -5.0, 1.0, 0.0]), torch.tensor([1.0, -4.0, 2.0, 0.0]), 2)
    compare(answer, small, expected, "for truth [3, −5, 1, 0], estimate [1, −4, 2, 0] and k = 2")
    generator = torch.Generator().manual_seed(63)
    for n, k in ((10, 3), (40, 20), (30, 30)):
        case = (torch.randn(n, generator=generator), torch.randn(n, generator=generator), k)
        compare(answer, case, expected, f"for {n} random scores and k = {k}")
    return "the share of the largest that the estimate also puts first."
