"""The checks of chapter 10: each wrong answer is turned down with a line that points at the mistake."""

from __future__ import annotations

import re

import pytest
from printed import exercises

from circuitlib.exercises import check

stands_in, which_matter, honest_best = (exercises()[f"10.{i}"][1] for i in range(1, 4))


def from_all(metric, k):
    whole = metric([1] * k)
    return [abs(whole - metric([int(j != i) for j in range(k)])) > 0.001 for i in range(k)]


def from_none(metric, k):
    nothing = metric([0] * k)
    return [abs(nothing - metric([int(j == i) for j in range(k)])) > 0.001 for i in range(k)]


def means_over(*axes):
    def answer(written, ablation):
        return (
            written.mean(axes, keepdim=True).expand_as(written) if ablation == "mean" else stands_in(written, ablation)
        )

    return answer


def one_for_all_prompts(written, ablation):
    return written.mean(0) if ablation == "mean" else stands_in(written, ablation)


WRONG = [
    ("10.1", means_over(0, 1), "for 2 prompts of 2 positions, .* under mean, expected 2 at .*, got 4.5"),
    ("10.1", means_over(1), "under mean, expected 2 at .*, got 3"),
    ("10.1", lambda written, ablation: written * 0, "under corrupted, expected 1 at .*, got 0"),
    ("10.1", lambda written, ablation: written - stands_in(written, ablation), "under corrupted, expected 1 at .*, got 0"),
    ("10.1", one_for_all_prompts, r"under mean, expected shape \[2, 2, 1\], got shape \[2, 1\]"),
    ("10.2", from_all, "for an OR of two inputs, expected True at .*, got False"),
    ("10.2", from_none, "for an AND of two inputs, expected True at .*, got False"),
    ("10.2", lambda metric, k: [True] * k, "for three inputs, the first OR the third, expected False at .*1.*, got True"),
    ("10.2", lambda metric, k: [not m for m in which_matter(metric, k)], "for an AND of two inputs, expected True"),
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
