"""The checks of chapter 08, ACDC."""

from __future__ import annotations

import random
from collections.abc import Callable

from .checking import exercise
from .compare import NotYet, compare


@exercise("08.1", hint="what counts is how far the metric falls; and what it is afterwards depends on the decision.")
def _decide(answer: Callable) -> str:
    """``decide(current, new, threshold) -> (stays_cut, current)``."""

    def expected(current, new, threshold):
        return (0, current) if current - new >= threshold else (1, new)

    cases = [
        (5.0, 4.9, 0.5, "a small fall"),
        (5.0, 2.0, 0.5, "a large fall"),
        (5.0, 7.0, 0.5, "a rise"),
        (5.0, 4.5, 0.5, "a fall by exactly the threshold"),
        (-3.0, -3.25, 0.5, "a small fall below zero"),
    ]
    for current, new, threshold, what in cases:
        where = f"for current {current:g}, new {new:g} and threshold {threshold:g} ({what})"
        compare(answer, (current, new, threshold), expected, where)
    return "an edge stays cut if the metric falls by less than the threshold, and then the metric moves on."


@exercise("08.2", hint="one edge at a time, always from what is kept by now; and M_current changes when an edge goes.")
def _greedy(answer: Callable) -> str:
    """``greedy(n_edges, value, threshold) -> [n_edges]``; ``value`` takes a list of True and False, an entry for each edge."""

    def by_turns(n_edges, value, threshold):
        kept = (True,) * n_edges
        for i in range(n_edges):
            without = (*kept[:i], False, *kept[i + 1 :])
            if value(list(kept)) - value(list(without)) < threshold:
                kept = without
        return kept

    def either(kept):
        return float(kept[0] or kept[1])

    def both(kept):
        return float(kept[0] and kept[1])

    def harmful(kept):
        return 3.0 * kept[0] - 2.0 * kept[1] + kept[2]

    def slope(kept):
        return sum(kept) / 4

    cases = [
        (2, either, 0.5, "for a OR b and threshold 0.5"),
        (2, both, 0.5, "for a AND b and threshold 0.5"),
        (3, harmful, 0.5, "for 3a − 2b + c and threshold 0.5"),
        (4, slope, 0.3, "for (a + b + c + d) / 4 and threshold 0.3"),
    ]
    draw = random.Random(82)
    for n in (5, 6):
        pairs = {(i, j): draw.gauss(0, 1) for i in range(n) for j in range(i + 1)}

        def tangled(kept, pairs=pairs):
            return sum(weight for (i, j), weight in pairs.items() if kept[i] and kept[j])

        cases.append((n, tangled, 0.4, f"for {n} edges that depend on each other and threshold 0.4"))
    for n_edges, value, threshold, where in cases:

        def expected(n_edges, threshold, value=value):
            return by_turns(n_edges, value, threshold)

        def answers(n_edges, threshold, value=value, where=where):
            asked = 0

            def counted(kept):
                nonlocal asked
                asked += 1
                if asked > 10 * n_edges + 10:
                    raise NotYet(f"{where}, your function asks for the metric without end.")
                return value([bool(flag) for flag in kept])

            return answer(n_edges, counted, threshold)

        compare(answers, (n_edges, threshold), expected, where)
    return "the greedy search, on gates and on edges that depend on each other."


@exercise(
    "08.3", hint="a run is of use if all guesses before it were right; whether its own guess was right doesn't matter."
)
def _how_many_count(answer: Callable) -> str:
    """``how_many_count(guesses, outcomes) -> int``."""

    def expected(guesses, outcomes):
        right_before = 0
        for i in range(len(guesses)):
            right_before += all(guesses[j] == outcomes[j] for j in range(i))
        return right_before

    cases = [
        ([True, True, True], [True, True, True]),
        ([True, True, True, True], [True, False, True, True]),
        ([True, False], [False, False]),
        ([False], [True]),
        ([True, False, True, False], [True, False, True, True]),
        ([False, False, True, True, False], [False, False, False, False, True]),
    ]
    for guesses, outcomes in cases:
        compare(answer, (guesses, outcomes), expected, f"for guesses {_bits(guesses)} and outcomes {_bits(outcomes)}")
    return "the guesses up to the first wrong one, and the run that showed it."


def _bits(flags: list[bool]) -> str:
    return "/".join("cut" if flag else "keep" for flag in flags)
