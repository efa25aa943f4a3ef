"""The checks of appendix a1, how the shipped models were trained."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from .checking import exercise
from .compare import compare


@exercise("a1.1", hint="find the stage first; then count the step from the start of that stage, not of the whole run.")
def _learning_rate(answer: Callable) -> str:
    """``learning_rate(step, stages) -> number``; ``stages`` is a list of (steps, first rate, last rate)."""

    def expected(step, stages):
        rates = [first + (last - first) * i / steps for steps, first, last in stages for i in range(int(steps))]
        return rates[step]

    small = ((4, 8.0, 4.0), (2, 6.0, 0.0))
    where = "for stages (4 steps, 8 → 4) and (2 steps, 6 → 0)"
    for step in (0, 1, 3, 4, 5):
        compare(answer, (step, small), expected, f"{where}, at step {step}")
    random = np.random.default_rng(41)
    for n in (1, 3):
        stages = tuple((int(random.integers(3, 9)), *random.random(2).tolist()) for _ in range(n))
        for step in (0, sum(stage[0] for stage in stages) - 1):
            compare(answer, (step, stages), expected, f"for {n} random stage{'s' * (n > 1)}, at step {step}")
    return "each stage falls on its own line, and the next one starts anew."


@exercise(
    "a1.2",
    hint="a weight belongs to the token that is predicted. Twice the weights everywhere must not change the result.",
)
def _weighted_loss(answer: Callable) -> str:
    """``weighted_loss(logits [n, pos, d_vocab], tokens [n, pos], weights [n, pos]) -> number``, in nats."""
    import torch

    def expected(logits, tokens, weights):
        total = sum_of_weights = 0.0
        for rows, of_row, weight in zip(logits.tolist(), tokens.tolist(), weights.tolist(), strict=True):
            for i in range(1, len(of_row)):
                surprise = math.log(sum(math.exp(x) for x in rows[i - 1])) - rows[i - 1][of_row[i]]
                total, sum_of_weights = total + weight[i] * surprise, sum_of_weights + weight[i]
        return total / sum_of_weights

    even, tokens = torch.zeros(1, 4, 3), torch.tensor([[0, 2, 1, 1]])
    compare(
        answer, (even, tokens, torch.tensor([[0.0, 1, 1, 1]])), expected, "for an even guess among 3 tokens, weights 1"
    )
    compare(
        answer, (even, tokens, torch.tensor([[0.0, 2, 2, 2]])), expected, "for an even guess among 3 tokens, weights 2"
    )
    knows_one = even.clone()
    knows_one[0, 1, 1] = 20.0  # the token at position 2
    only = torch.tensor([[0.0, 0, 1, 0]])
    compare(answer, (knows_one, tokens, only), expected, "where the one token that counts is known for sure")
    for seed, n, n_pos, d_vocab in ((42, 2, 4, 5), (43, 3, 6, 7)):
        generator = torch.Generator().manual_seed(seed)
        logits = torch.randn(n, n_pos, d_vocab, generator=generator)
        case = (
            logits,
            torch.randint(d_vocab, (n, n_pos), generator=generator),
            torch.rand(n, n_pos, generator=generator),
        )
        compare(answer, case, expected, f"for random logits {[n, n_pos, d_vocab]} and weights")
    return "what can't be predicted hardly counts, and the size of the weights does not matter."


@exercise(
    "a1.3",
    hint="a score that comes and goes has not formed yet. Look at the best head of each row, and from the end backwards.",
)
def _formed_at(answer: Callable) -> str:
    """``formed_at(steps [row], scores [row, layer, head], least) -> a step, or −1``."""
    import torch

    def expected(steps, scores, least):
        formed = -1
        for step, of_row in reversed(list(zip(list(steps), scores.tolist(), strict=True))):
            if max(max(layer) for layer in of_row) < least:
                break
            formed = step
        return formed

    def one(*values):
        return torch.tensor(values).view(-1, 1, 1)

    steps = (100, 200, 300, 400)
    compare(
        answer, (steps, one(0.1, 0.2, 0.75, 0.9), 0.5), expected, "for one head with scores .1 .2 .75 .9 and least .5"
    )
    compare(
        answer, (steps, one(0.1, 0.75, 0.25, 0.9), 0.5), expected, "for one head with scores .1 .75 .25 .9 and least .5"
    )
    compare(answer, (steps, one(0.1, 0.2, 0.3, 0.4), 0.5), expected, "for one head that never reaches .5")
    compare(
        answer, (steps, one(0.1, 0.5, 0.5, 0.5), 0.5), expected, "for one head that is at .5 sharp from step 200 on"
    )
    two = torch.tensor([[0.1, 0.1], [0.8, 0.1], [0.1, 0.8], [0.1, 0.8]]).view(4, 1, 2)
    compare(answer, (steps, two, 0.5), expected, "for two heads, of which first the one and then the other has .8")
    random = np.random.default_rng(44)
    rising = torch.tensor(np.sort(random.random((6, 2, 3)), 0), dtype=torch.float32)
    compare(
        answer, (tuple(range(10, 70, 10)), rising, 0.7), expected, "for random scores of 2 layers of 3 heads that rise"
    )
    return "from that step on, the best head stays there."


@exercise(
    "a1.4",
    hint="check the two ends: for a draw close to 1 the gate must be 1 sharp, and for one close to 0 it must be 0 sharp.",
)
def _gate(answer: Callable) -> str:
    """``gate(log_alpha, u [draw]) -> [draw]``: log alpha a number, u between 0 and 1."""
    import torch

    def expected(log_alpha, u):
        values = []
        for x in u.tolist():
            open_by = 1 / (1 + math.exp(-(math.log(x) - math.log(1 - x) + log_alpha) / (2 / 3)))
            values.append(min(1.0, max(0.0, 1.2 * open_by - 0.1)))
        return values

    compare(answer, (0.0, torch.tensor([0.5])), expected, "for log alpha 0 and u = 0.5")
    compare(answer, (2.0, torch.tensor([0.5])), expected, "for log alpha 2 and u = 0.5")
    compare(answer, (0.0, torch.tensor([0.6])), expected, "for log alpha 0 and u = 0.6")
    compare(answer, (0.0, torch.tensor([0.999])), expected, "for log alpha 0 and u = 0.999, a gate that is wide open")
    compare(answer, (0.0, torch.tensor([0.001])), expected, "for log alpha 0 and u = 0.001, a gate that is closed")
    generator = torch.Generator().manual_seed(45)
    for log_alpha in (-1.0, 1.0):
        compare(
            answer,
            (log_alpha, torch.rand(9, generator=generator)),
            expected,
            f"for log alpha {log_alpha:g} and 9 random u",
        )
    return "open, closed, or in between."
