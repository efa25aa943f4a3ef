"""The checks of chapter 10: each wrong answer is turned down with a line that points at the mistake."""

from __future__ import annotations

import re

import pytest
from printed import exercises

from circuitlib.exercises import check

ratio_of_means, which_matter, honest_best = (exercises()[f"10.{i}"][1] for i in range(1, 4))


def from_all(metric, k):
    whole = metric([1] * k)
    return [abs(whole - metric([int(j != i) for j in range(k)])) > 0.001 for i in range(k)]


def from_none(metric, k):
    nothing = metric([0] * k)
    return [abs(nothing - metric([int(j == i) for j in range(k)])) > 0.001 for i in range(k)]


WRONG = [
    ("10.1", lambda c, f, e: ((c - e) / (f - e)).mean(), r"circuit \[3, 1\], full \[4, 2\].*expected 0.6, got 0.375"),
    ("10.1", lambda c, f, e: ratio_of_means(f, c, e), "expected 0.6, got 1.667"),
    ("10.1", lambda c, f, e: c.mean() / f.mean(), "expected 0.6, got 0.6667"),
    ("10.1", lambda c, f, e: 1 - ratio_of_means(c, f, e), "expected 0.6, got 0.4"),
    ("10.1", lambda c, f, e: (c - e) / (f - e), r"expected a number, got shape \[2\]"),
    ("10.2", from_all, "for an OR of two inputs, expected 1 at .*, got 0"),
    ("10.2", from_none, "for an AND of two inputs, expected 1 at .*, got 0"),
    ("10.2", lambda metric, k: [True] * k, "for three inputs, the first OR the third, expected 0 at .*1.*, got 1"),
    ("10.2", lambda metric, k: [not m for m in which_matter(metric, k)], "for an AND of two inputs, expected 1"),
    ("10.3", lambda s, k: s[:, :k].mean(1).max(), "expected 1.5, got 9"),
    ("10.3", lambda s, k: s[:, k:].mean(1).max(), "expected 1.5, got 7.5"),
    ("10.3", lambda s, k: s[s[:, :k].mean(1).argmax()].mean(), "expected 1.5, got 4"),
    ("10.3", lambda s, k: honest_best(-s, k), "expected 1.5, got -7.5"),
]  # fmt: skip


@pytest.mark.parametrize(("number", "answer", "message"), WRONG)
def test_a_wrong_answer_is_told_what_is_wrong(number, answer, message):
    result = check(number, answer)
    assert not result
    assert re.search(message, result.message), result.message
