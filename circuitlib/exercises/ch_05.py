"""The checks of chapter 05, a circuit found by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .checking import exercise
from .compare import compare


@exercise(
    "05.1",
    hint="a share is of what the whole input is worth; and an input that is worth too little has no writers at all.",
)
def _writers(answer: Callable) -> str:
    """``writers(worth, alone [sender], spared [sender], least_worth, least_share) -> [sender]``, true or false."""
    import torch

    def expected(worth, alone, spared, least_worth, least_share):
        rows = zip(alone.tolist(), spared.tolist(), strict=True)
        return [float(worth >= least_worth and (a + s) / (2 * worth) >= least_share) for a, s in rows]

    readable = [
        (1.0, [1.0, 1.0], [0.0, 0.0], "where two senders are both needed, and sparing one does nothing"),
        (1.0, [0.0, 0.0], [1.0, 1.0], "where two senders can stand in for each other, and patching one does nothing"),
        (1.0, [0.12, 0.7], [0.04, 0.9], "where the two effects of a sender add up to 0.16, with a least share of 0.1"),
        (0.2, [0.03, 0.15], [0.03, 0.19], "where the input is worth 0.2 and a sender 0.03 of that"),
        (0.5, [-0.4, 0.4], [-0.4, 0.8], "where a sender works against the answer"),
        (0.03, [0.03, 0.0], [0.03, 0.0], "where the input is worth 0.03, with a least worth of 0.04"),
    ]
    for worth, alone, spared, where in readable:
        compare(answer, (worth, torch.tensor(alone), torch.tensor(spared), 0.04, 0.1), expected, where)
    generator = torch.Generator().manual_seed(51)
    for n, worth, least in ((5, 0.6, 0.3), (9, 0.3, 0.6)):
        alone, spared = (torch.rand(n, generator=generator) * worth for _ in range(2))
        compare(answer, (worth, alone, spared, 0.04, least), expected, f"for {n} random senders")
    return "both effects, their mean, its share, and the least worth."


@exercise("05.2", hint="take the means over prompts first; both differences start from the metric with every edge cut.")
def _faithfulness(answer: Callable) -> str:
    """``faithfulness(circuit [n], everything [n], nothing [n]) -> a number``."""
    import torch

    def expected(circuit, everything, nothing):
        n = len(circuit)
        of, full, empty = (sum(values.tolist()) / n for values in (circuit, everything, nothing))
        return (of - empty) / (full - empty)

    readable = [
        ([6.0], [10.0], [-10.0], "for one prompt with 6 in the circuit, 10 with all edges and -10 with none"),
        ([10.0], [10.0], [-10.0], "where the circuit does what the model does"),
        ([-10.0], [10.0], [-10.0], "where the circuit does what no circuit does"),
        ([9.0, 1.0], [9.0, 2.0], [-11.0, 1.0], "where one prompt of two has hardly a distance to divide by"),
    ]
    for *values, where in readable:
        compare(answer, tuple(torch.tensor(value) for value in values), expected, where)
    generator = torch.Generator().manual_seed(52)
    for n in (3, 8):
        nothing, everything = -10 + torch.randn(n, generator=generator), 9 + torch.randn(n, generator=generator)
        compare(answer, (torch.randn(n, generator=generator), everything, nothing), expected, f"for {n} random prompts")
    return "a ratio of means, from nothing to everything."


@exercise(
    "05.3", hint="the best candidate of each prompt is the one to beat; tokens that are no candidates don't count."
)
def _success_rate(answer: Callable) -> str:
    """``success_rate(logits [n, d_vocab], answers [n], candidates [n, n_wrong]) -> a number``."""
    import torch

    def expected(logits, answers, candidates):
        rows = zip(logits.tolist(), answers.tolist(), candidates.tolist(), strict=True)
        won = [all(row[right] > row[other] for other in others) for row, right, others in rows]
        return sum(won) / len(won)

    def case(logits, answers, candidates, where):
        return torch.tensor(logits), torch.tensor(answers), torch.tensor(candidates), where

    readable = [
        case([[1.0, 3.0, 2.0, 0.0]], [1], [[0, 2]], "where the answer is above both candidates"),
        case([[1.0, 3.0, 2.0, 9.0]], [1], [[0, 2]], "where a token that is no candidate has the largest logit"),
        case([[1.0, 3.0, 5.0, 0.0]], [1], [[0, 2]], "where the answer is above one candidate of two"),
        case(
            [[-9.0, 3.0, 5.0, 0.0]],
            [1],
            [[0, 2]],
            "where the answer is above the mean of the candidates, not above all",
        ),
        case([[1.0, 3.0, 2.0], [1.0, 0.0, 2.0]], [1, 1], [[0, 2], [0, 2]], "where the answer wins one prompt of two"),
        case([[1.0, 3.0, 2.0], [5.0, 0.0, 2.0]], [1, 0], [[0, 2], [1, 2]], "where two prompts have different answers"),
    ]
    for *inputs, where in readable:
        compare(answer, tuple(inputs), expected, where)
    generator = torch.Generator().manual_seed(53)
    for n, n_wrong in ((6, 2), (9, 3)):
        tokens = torch.stack([torch.randperm(12, generator=generator)[: 1 + n_wrong] for _ in range(n)])
        inputs = (torch.randn(n, 12, generator=generator), tokens[:, 0], tokens[:, 1:])
        compare(answer, inputs, expected, f"for {n} random prompts with {n_wrong} candidates each")
    return "above every candidate, as a share of the prompts."


@exercise(
    "05.4",
    hint="the edge is taken out of the circuit, not out of the model; the unit is the distance from no edge to all edges.",
)
def _needed(answer: Callable) -> str:
    """``needed(metric, circuit, everything) -> one number for each edge of the circuit``; ``metric`` takes a list of edges."""

    def stand_in(edges):
        return 1 + 4 * ("a" in edges) + 3 * ("b" in edges or "c" in edges)

    def chain(edges):
        return -5 + 8 * ({"a", "b"} <= set(edges)) + 2 * ("c" in edges)

    random = np.random.default_rng(54)
    worth, pairs = dict(zip("abcdef", random.normal(size=6), strict=True)), random.normal(size=(6, 6))

    def tangled(edges):
        kept = sorted(set(edges))
        at = ["abcdef".index(edge) for edge in kept]
        return sum(worth[edge] for edge in kept) + sum(pairs[i, j] for i in at for j in at if i < j) - 2

    cases = [
        (chain, "ab", "abc", "for a chain of two edges, of which each is needed"),
        (stand_in, "ab", "abc", "where an edge outside the circuit does what edge b does"),
        (stand_in, "abc", "abc", "where two edges of the circuit can stand in for each other"),
        (tangled, "dab", "abcdef", "for random effects of three edges, not in alphabetical order"),
    ]
    for metric, circuit, everything, where in cases:

        def expected(n, metric=metric, circuit=circuit, everything=everything):
            of = metric(list(circuit))
            unit = metric(list(everything)) - metric([])
            return [(of - metric([*circuit[:i], *circuit[i + 1 :]])) / unit for i in range(n)]

        def answers(n, metric=metric, circuit=circuit, everything=everything):
            return answer(lambda edges: metric(list(edges)), list(circuit), list(everything))

        compare(answers, (len(circuit),), expected, where)
    return "each edge out of the circuit, in units of the whole distance."
