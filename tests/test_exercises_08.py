"""The checks of chapter 08: each wrong answer is turned down with a line that points at the mistake."""

from __future__ import annotations

import re

import pytest
from printed import exercises

from circuitlib.exercises import check

decide, greedy, how_many_count = (exercises()[f"08.{i}"][1] for i in range(1, 4))


def forgets_to_move_on(n_edges, value, threshold):
    kept = [True] * n_edges
    current = value(kept)
    for i in range(n_edges):
        tried = kept.copy()
        tried[i] = False
        if current - value(tried) < threshold:
            kept = tried
    return kept


def each_alone(n_edges, value, threshold):
    every = [True] * n_edges
    alone = [every[:i] + [False] + every[i + 1 :] for i in range(n_edges)]
    return [value(every) - value(without) >= threshold for without in alone]


def with_absolute_value(n_edges, value, threshold):
    kept = [True] * n_edges
    for i in range(n_edges):
        tried = kept.copy()
        tried[i] = False
        if abs(value(kept) - value(tried)) < threshold:
            kept = tried
    return kept


def backwards(n_edges, value, threshold):
    return greedy(n_edges, lambda kept: value(kept[::-1]), threshold)[::-1]


def forever(n_edges, value, threshold):
    while True:
        value([True] * n_edges)


WRONG = [
    ("08.1", lambda current, new, tau: (abs(current - new) < tau, new if abs(current - new) < tau else current), r"\(a rise\), expected 1 at \[0\], got 0"),
    ("08.1", lambda current, new, tau: (new - current < tau, new if new - current < tau else current), r"\(a large fall\), expected 0 at \[0\], got 1"),
    ("08.1", lambda current, new, tau: (current - new < tau, new), r"\(a large fall\), expected 5 at \[1\], got 2"),
    ("08.1", lambda current, new, tau: (current - new < tau, current), r"\(a small fall\), expected 4.9 at \[1\], got 5"),
    ("08.1", lambda current, new, tau: (current - new <= tau, new if current - new <= tau else current), r"exactly the threshold\), expected 0 at \[0\], got 1"),
    ("08.1", lambda current, new, tau: (not decide(current, new, tau)[0], decide(current, new, tau)[1]), r"\(a small fall\), expected 1 at \[0\], got 0"),
    ("08.1", lambda current, new, tau: decide(current, new, tau)[0], r"expected shape \[2\], got shape \[\]"),
    ("08.2", each_alone, r"a OR b and threshold 0.5, expected True at \[1\], got False"),
    ("08.2", backwards, r"a OR b and threshold 0.5, expected False at \[0\], got True"),
    ("08.2", with_absolute_value, r"3a − 2b \+ c and threshold 0.5, expected False at \[1\], got True"),
    ("08.2", forgets_to_move_on, r"3a − 2b \+ c and threshold 0.5, expected True at \[2\], got False"),
    ("08.2", lambda n, value, tau: [not kept for kept in greedy(n, value, tau)], r"a OR b and threshold 0.5, expected False at \[0\], got True"),
    ("08.2", lambda n, value, tau: sum(greedy(n, value, tau)), r"expected shape \[2\], got shape \[\]"),
    ("08.2", forever, "asks for the metric without end"),
    ("08.3", lambda g, o: next((i for i, (a, b) in enumerate(zip(g, o, strict=True)) if a != b), len(g)), "guesses cut/cut/cut/cut and outcomes cut/keep/cut/cut, expected 2, got 1"),
    ("08.3", lambda g, o: sum(a == b for a, b in zip(g, o, strict=True)), "cut/keep/cut/cut, expected 2, got 3"),
    ("08.3", lambda g, o: len(g), "expected 2, got 4"),
    ("08.3", lambda g, o: min(len(g), how_many_count(g, o) + 1), "expected 2, got 3"),
    ("08.3", lambda g, o: how_many_count([True] * len(g), o), "guesses cut/keep/cut/keep and outcomes cut/keep/cut/cut, expected 4, got 2"),
]  # fmt: skip


@pytest.mark.parametrize(("number", "answer", "message"), WRONG)
def test_a_wrong_answer_is_told_what_is_wrong(number, answer, message):
    result = check(number, answer)
    assert not result
    assert re.search(message, result.message), result.message
