"""The checks of chapter 9: each wrong answer is turned down with a line that points at the mistake."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from printed import exercises

import circuitlib as cl
from circuitlib.evaluation import Curve
from circuitlib.exercises import check

rates, step_area, distance = (exercises()[f"09.{i}"][1] for i in range(1, 4))


def stairs(points):
    return sum((right - left) * low for (left, low), (right, _) in pairwise(points))


def last_point(fpr, tpr):
    """Without the envelope: the rate of the last point, even if a better one came before."""
    return stairs(sorted([(0, 0), (1, 1), *zip(fpr, tpr, strict=True)]))


def lines(fpr, tpr):
    return cl.auc(list(zip(fpr, tpr, strict=True)), "trapezoid")


def optimistic(fpr, tpr):
    points = sorted([(0, 0), (1, 1), *zip(fpr, tpr, strict=True)])
    return sum((right - left) * high for (left, _), (right, high) in pairwise(points))


def as_given(fpr, tpr):
    return stairs([(0, 0), *zip(fpr, tpr, strict=True), (1, 1)])


def without_ends(sizes, values, n_edges):
    points = list(zip(sizes, values, strict=True))
    return sum((k2 - k1) * (abs(1 - f1) + abs(1 - f2)) / 2 for (k1, f1), (k2, f2) in pairwise(points)) / n_edges


def curve(sizes, values, n_edges):
    return Curve(tuple(sizes), tuple(values), n_edges)


WRONG = [
    ("09.1", lambda f, t: ((f & t).sum() / t.sum(), (f & ~t).sum() / f.sum()), "found .*expected 0.4 at .1., got 0.6667"),
    ("09.1", lambda f, t: ((f & t).sum() / f.sum(), (f & ~t).sum() / (~t).sum()), r"expected 0.5 at \[0\], got 0.3333"),
    ("09.1", lambda f, t: ((f & t).sum() / t.sum(), (f & ~t).sum() / len(t)), r"expected 0.4 at \[1\], got 0.2857"),
    ("09.1", lambda f, t: rates(f, t)[::-1], r"expected 0.5 at \[0\], got 0.4"),
    ("09.1", lambda f, t: ((f & t).sum(), (f & ~t).sum()), r"expected 0.5 at \[0\], got 1"),
    ("09.1", lambda f, t: rates(t, f), r"expected 0.5 at \[0\], got 0.3333"),
    ("09.2", lines, "the one point .0.5, 0.8.*expected 0.4, got 0.65"),
    ("09.2", optimistic, "expected 0.4, got 0.9"),
    ("09.2", as_given, r"in that order, expected 0.6, got"),
    ("09.2", last_point, r"a worse point \(0.6, 0.4\) to its right, expected 0.56, got 0.44"),
    ("09.2", lambda fpr, tpr: step_area(tpr, fpr), "expected 0.4, got 0.1"),
    ("09.3", lambda *given: cl.cpr(curve(*given)), "at 5 of 10 edges, expected 0.25, got 0.75"),
    ("09.3", lambda *given: 1 - cl.cpr(curve(*given)), "1.4 at 5 of 10 edges, expected .*, got"),
    ("09.3", without_ends, "at 5 of 10 edges, expected 0.25, got 0"),
    ("09.3", lambda s, v, n: distance(s, v, n) * n, "expected 0.25, got 2.5"),
]  # fmt: skip


@pytest.mark.parametrize(("number", "answer", "message"), WRONG)
def test_a_wrong_answer_is_told_what_is_wrong(number, answer, message):
    result = check(number, answer)
    assert not result
    assert re.search(message, result.message), result.message


def test_the_solutions_agree_with_the_library():
    assert step_area([0.1, 0.3, 0.2], [0.5, 0.6, 0.2]) == pytest.approx(cl.auc([(0.1, 0.5), (0.3, 0.6), (0.2, 0.2)]))
    assert distance([3, 40], [0.4, 1.2], 100) == pytest.approx(cl.cmd(curve([3, 40], [0.4, 1.2], 100)))
