"""The checks of chapter 12: each wrong answer is turned down with a line that points at the mistake."""

from __future__ import annotations

import pytest
import torch
from printed import exercises

from circuitlib.exercises import check

differing, overlap, smallest_size, p_value = (exercises()[f"12.{i}"][1] for i in range(1, 5))


def first_crossing(sizes, values, bar):
    return next(size for size, value in zip(sizes, values, strict=True) if value >= bar)


def above_the_bar(sizes, values, bar):
    best = sizes[-1]
    for size, value in list(zip(sizes, values, strict=True))[::-1]:
        if value <= bar:
            break
        best = size
    return best


def share_of_the_first(found_on, judged_on):
    return overlap(judged_on, found_on)


def row_by_row(found_on, judged_on):
    n = min(len(found_on), len(judged_on))
    return (found_on[:n] == judged_on[:n]).all(-1).float().mean()


def each_prompt_once(found_on, judged_on):
    found, judged = ({tuple(row) for row in rows.tolist()} for rows in (found_on, judged_on))
    return len(found & judged) / len(judged)


def tokens_in_common(found_on, judged_on):
    seen = set(found_on.flatten().tolist())
    return sum(token in seen for token in judged_on.flatten().tolist()) / judged_on.numel()


WRONG = [
    ("12.1", lambda a, b: (a != b).all(0).nonzero().flatten().tolist(), "two pairs that differ at position 1 and at"),
    ("12.1", lambda a, b: (a[0] != b[0]).nonzero().flatten().tolist(), "two pairs that differ at position 1 and at"),
    ("12.1", lambda a, b: (a != b).any(1).nonzero().flatten().tolist(), "expected shape [2], got shape [1]"),
    ("12.1", lambda a, b: (a != b).any(0), "expected shape [2], got shape [4]"),
    (
        "12.1",
        lambda a, b: [i + 1 for i in differing(a, b)],
        "for [[5, 6, 7, 8]] and [[5, 9, 7, 1]], expected 1 at [0], got 2",
    ),
    ("12.1", lambda a, b: (a == b).all(0).nonzero().flatten().tolist(), "expected 1 at [0], got 0"),
    ("12.2", share_of_the_first, "for 1 prompt and 4 prompts, one in both, expected 0.25, got 1"),
    ("12.2", row_by_row, "[[1, 2, 4], [5, 2, 3]], expected 0.5, got 0"),
    ("12.2", tokens_in_common, "[[1, 2, 4], [5, 2, 3]], expected 0.5, got 0.8333"),
    ("12.2", lambda a, b: overlap(a, b) * len(b), "expected 0.5, got 1"),
    ("12.2", lambda a, b: 1 - overlap(a, b), "for sets that share no prompt, expected 0, got 1"),
    ("12.2", each_prompt_once, "a set that holds it twice, expected 0.6667, got 0.5"),
    ("12.3", first_crossing, "for values that rise, fall and rise again, expected 40, got 20"),
    ("12.3", above_the_bar, "where a value is exactly at the bar, expected 30, got 40"),
    ("12.3", lambda sizes, values, bar: sizes.index(smallest_size(sizes, values, bar)), "expected 30, got 2"),
    ("12.3", lambda sizes, values, bar: sizes[-1], "for values that only rise, expected 30, got 40"),
    (
        "12.3",
        lambda sizes, values, bar: max(s for s, v in zip(sizes, values, strict=True) if v < bar),
        "expected 30, got 20",
    ),
    ("12.4", lambda found, random: float((random >= found).float().mean()), "expected 0.2, got 0"),
    (
        "12.4",
        lambda found, random: (sum(random > found) + 1) / (len(random) + 1),
        "0.5, 0.25 and 0, expected 0.75, got 0.5",
    ),
    ("12.4", lambda found, random: 1 - p_value(found, random), "expected 0.2, got 0.8"),
    ("12.4", lambda found, random: (sum(random >= found) + 1) / len(random), "expected 0.2, got 0.25"),
    (
        "12.4",
        lambda found, random: p_value(abs(found), random.abs()),
        "for -0.1 against 0.5 and -0.5, expected 0.6667, got 1",
    ),
]


@pytest.mark.parametrize(("number", "answer", "message"), WRONG)
def test_a_typical_wrong_answer_gets_a_useful_line(number, answer, message):
    result = check(number, answer)
    assert not result
    assert message in result.message


def test_other_ways_to_write_a_right_answer_pass():
    assert check("12.1", lambda a, b: [i for i in range(a.shape[1]) if not torch.equal(a[:, i], b[:, i])])
    assert check("12.1", lambda a, b: (a - b).abs().sum(0).nonzero()[:, 0])
    assert check("12.2", lambda a, b: (a[None] == b[:, None]).all(-1).any(-1).float().mean())
    assert check("12.3", lambda sizes, values, bar: next(s for i, s in enumerate(sizes) if min(values[i:]) >= bar))
    assert check("12.4", lambda found, random: torch.cat([torch.tensor([found]), random]).ge(found).float().mean())
