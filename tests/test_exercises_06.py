"""The checks of chapter 06: each wrong answer is turned down with a line that points at the mistake."""

from __future__ import annotations

import re

import pytest
import torch
from printed import exercises

from circuitlib.exercises import check

edge_score, edge_scores, overlap = (exercises()[f"06.{i}"][1] for i in range(1, 4))


def first(scores, k):
    return set(scores.topk(k).indices.tolist())


WRONG = [
    ("06.1", lambda g, clean, corrupted: edge_score(g, corrupted, clean), "gradient 2, clean 5 and corrupted 4 .* expected 2, got -2"),
    ("06.1", lambda g, clean, corrupted: -edge_score(g, clean, corrupted), "expected 2, got -2"),
    ("06.1", lambda g, clean, corrupted: (g * clean).sum((1, 2)), "expected 2, got 10"),
    ("06.1", lambda g, clean, corrupted: (g * (clean - corrupted)).sum(-1), r"expected shape \[1\], got shape \[1, 1\]"),
    ("06.1", lambda g, clean, corrupted: (g * (clean - corrupted)).sum(), r"expected shape \[1\], got shape \[\]"),
    ("06.1", lambda g, clean, corrupted: (g * (clean - corrupted)).mean((1, 2)), r"random activations \[2, 3, 4\]"),
    ("06.1", lambda g, clean, corrupted: edge_score(g, clean, corrupted).abs(), "random activations"),
    ("06.2", lambda g, d, up: edge_scores(g, d, torch.ones_like(up)), r"expected 0 at \[0, 1\]"),
    ("06.2", lambda g, d, up: edge_scores(g, d, up) * g.shape[1], "for 4 receivers, 3 senders, 2 prompts"),
    ("06.2", lambda g, d, up: edge_scores(g, d, up) / g.shape[2], "for 4 receivers, 3 senders, 2 prompts, 3 positions"),
    ("06.2", lambda g, d, up: edge_scores(d, g, up.T), r"expected shape \[2, 3\], got shape \[3, 2\]"),
    ("06.2", lambda g, d, up: -edge_scores(g, d, up), "for 2 receivers, 3 senders"),
    ("06.3", lambda t, e, k: len(first(t, k) & first(e, k)) / k, r"truth \[3, −5, 1, 0\].* expected 0.5, got 1"),
    ("06.3", lambda t, e, k: overlap(t, e, k) * k, "expected 0.5, got 1"),
    ("06.3", lambda t, e, k: overlap(t, e, k) * k / len(t), "expected 0.5, got 0.25"),
    ("06.3", lambda t, e, k: 1 - overlap(t, e, k), "for 10 random scores and k = 3"),
]  # fmt: skip


@pytest.mark.parametrize(("number", "answer", "message"), WRONG)
def test_a_wrong_answer_is_told_what_is_wrong(number, answer, message):
    result = check(number, answer)
    assert not result
    assert re.search(message, result.message), result.message
