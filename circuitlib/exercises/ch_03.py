"""The checks of chapter 03, induction heads."""

from __future__ import annotations

import math
from collections.abc import Callable

from .checking import exercise
from .compare import compare


@exercise("03.1", hint="query i looks back at key i − 1; the first query has no token before it, so it does not count.")
def _previous_token_score(answer: Callable) -> str:
    """``previous_token_score(pattern [query, key]) -> number``."""
    import torch

    def expected(pattern):
        rows = pattern.tolist()
        return sum(row[i] for i, row in enumerate(rows[1:])) / (len(rows) - 1)

    back = torch.tensor([[1.0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]])
    compare(answer, (back,), expected, "for a head that looks at nothing but the token before (4 positions)")
    compare(answer, (torch.eye(4),), expected, "for a head that looks at its own position alone")
    two = torch.tensor([[1.0, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0]])
    compare(answer, (two,), expected, "for a head that looks two tokens back where it can")
    for seed, n_pos in ((31, 5), (32, 9)):
        compare(answer, (_pattern(n_pos, seed),), expected, f"for a random pattern of {n_pos} positions")
    return "the mean attention to the token before, over the queries that have one."


@exercise(
    "03.2",
    hint="write down which token stands where, for period 3: BOS x y z x y z. Which key should the second x look at?",
)
def _induction_score(answer: Callable) -> str:
    """``induction_score(pattern [query, key], period) -> number``; the prompt is BOS and the same tokens twice."""
    import torch

    def expected(pattern, period):
        rows, second = pattern.tolist(), range(period + 1, 2 * period + 1)
        return sum(rows[query][query - period + 1] for query in second) / period

    def looking(offset: int, period: int = 3):
        """In the second copy, a head that looks ``offset`` tokens on from the earlier copy of its own; before, at BOS."""
        pattern = torch.zeros(2 * period + 1, 2 * period + 1)
        pattern[: period + 1, 0] = 1
        for query in range(period + 1, 2 * period + 1):
            pattern[query, query - period + offset] = 1
        return pattern

    compare(answer, (looking(1), 3), expected, "for a perfect induction head (BOS and 3 tokens, twice)")
    compare(answer, (looking(0), 3), expected, "for a head that looks at the earlier copy of its own token")
    compare(answer, (looking(2), 3), expected, "for a head that looks two tokens on from the earlier copy")
    for seed, period in ((33, 4), (34, 7)):
        case = (_pattern(2 * period + 1, seed), period)
        compare(answer, case, expected, f"for a random pattern and period {period}")
    return "the mean attention to the token after the earlier copy, over the second copy."


@exercise(
    "03.3",
    hint="first multiply out what the early head does to a vector, W_V W_O. What reads this vector is the key of the late head.",
)
def _k_composition(answer: Callable) -> str:
    """``k_composition(W_V [d, d_head], W_O [d_head, d], W_Q [d, d_head], W_K [d, d_head]) -> number``."""
    import torch

    def norm(rows):
        return math.sqrt(sum(x * x for row in rows for x in row))

    def product(a, b):
        return [[sum(x * y for x, y in zip(row, column, strict=True)) for column in zip(*b, strict=True)] for row in a]

    def expected(W_V, W_O, W_Q, W_K):
        W_V, W_O, W_K, W_Q_T = W_V.tolist(), W_O.tolist(), W_K.tolist(), W_Q.T.tolist()
        writes, reads = product(W_V, W_O), product(W_K, W_Q_T)
        return norm(product(writes, reads)) / (norm(writes) * norm(reads))

    first, last = (
        torch.eye(4)[:, :2],
        torch.eye(4)[:, 2:],
    )  # in and out of the first two, and of the last two, dimensions
    # The early head copies dimensions 0 and 1 into 2 and 3.
    compare(answer, (first, last.T, first, last), expected, "for a key that reads just what the early head writes")
    compare(answer, (first, last.T, last, first), expected, "where the query, not the key, reads what is written")
    compare(
        answer,
        (first, 5 * last.T, first, 3 * last),
        expected,
        "for the same two heads with weights 5 and 3 times as large",
    )
    for seed, d_model, d_head in ((35, 6, 2), (36, 9, 4)):
        generator = torch.Generator().manual_seed(seed)
        W_V, W_Q, W_K = (torch.randn(d_model, d_head, generator=generator) for _ in range(3))
        case = (W_V, torch.randn(d_head, d_model, generator=generator), W_Q, W_K)
        compare(answer, case, expected, f"for random weights, d_model {d_model} and d_head {d_head}")
    return "how much of what the early head writes the late head's key can read, whatever the size of the weights."


@exercise(
    "03.4",
    hint="the logits at position i are about the token at position i + 1. So which logits have no token to meet?",
)
def _loss_by_position(answer: Callable) -> str:
    """``loss_by_position(logits [n, pos, d_vocab], tokens [n, pos]) -> [pos − 1]``, in nats."""
    import torch

    def expected(logits, tokens):
        losses = [
            [_surprise(row, t) for row, t in zip(*of_prompt, strict=True)] for of_prompt in _shifted(logits, tokens)
        ]
        return [sum(column) / len(column) for column in zip(*losses, strict=True)]

    tokens = torch.tensor([[0, 2, 1, 1]])
    knows = torch.full((1, 4, 3), -8.0)
    knows[0, range(3), tokens[0, 1:]] = 8.0
    compare(answer, (knows, tokens), expected, "for a model that is sure of each next token, and right")
    compare(answer, (torch.zeros(1, 4, 3), tokens), expected, "for a model that thinks 3 tokens equally likely")
    for seed, n, n_pos, d_vocab in ((37, 2, 4, 5), (38, 5, 7, 11)):
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(d_vocab, (n, n_pos), generator=generator)
        case = (torch.randn(n, n_pos, d_vocab, generator=generator), tokens)
        compare(answer, case, expected, f"for random logits {[n, n_pos, d_vocab]}")
    return "the mean surprise at each token from the second on."


def _pattern(n_pos: int, seed: int):
    """A random attention pattern: nobody looks ahead, and each row adds up to 1."""
    import torch

    scores = torch.randn(n_pos, n_pos, generator=torch.Generator().manual_seed(seed))
    return scores.masked_fill(torch.ones(n_pos, n_pos).triu(1).bool(), -torch.inf).softmax(-1)


def _shifted(logits, tokens):
    """For each prompt: the logits that are about a token of the prompt, and these tokens."""
    return [(rows[:-1], of_prompt[1:]) for rows, of_prompt in zip(logits.tolist(), tokens.tolist(), strict=True)]


def _surprise(logits: list[float], token: int) -> float:
    return math.log(sum(math.exp(x) for x in logits)) - logits[token]
