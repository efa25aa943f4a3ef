"""The checks of chapter 07: each wrong answer is turned down with a line that points at the mistake."""

from __future__ import annotations

import re

import pytest
import torch
from printed import exercises

from circuitlib.exercises import check

mean_slope, starts, incompleteness = (exercises()[f"07.{i}"][1] for i in range(1, 4))

WRONG = [
    ("07.1", lambda slope, m: sum(slope(k / m) for k in range(1, m + 1)) / m, "for slope 3·share² and m = 1, expected 0, got 3"),
    ("07.1", lambda slope, m: sum(slope(k / m) for k in range(m + 1)) / (m + 1), "and m = 1, expected 0, got 1.5"),
    ("07.1", lambda slope, m: sum(slope((k + 0.5) / m) for k in range(m)) / m, "and m = 1, expected 0, got 0.75"),
    ("07.1", lambda slope, m: sum(slope(k / m) for k in range(m)), "and m = 2, expected 0.375, got 0.75"),
    ("07.1", lambda slope, m: slope(1.0), "and m = 1, expected 0, got 3"),
    ("07.2", lambda clean, corrupted, m: starts(corrupted, clean, m), "for clean 10, corrupted 0 and m = 5, expected 0"),
    ("07.2", lambda clean, corrupted, m: torch.stack([corrupted + k / m * (clean - corrupted) for k in range(1, m + 1)]), "expected 0 at .*, got 2"),
    ("07.2", lambda clean, corrupted, m: torch.stack([corrupted + k / max(1, m - 1) * (clean - corrupted) for k in range(m)]), "expected 2 at .*, got 2.5"),
    ("07.2", lambda clean, corrupted, m: torch.stack([k / m * (clean - corrupted) for k in range(m)]), r"for random embeddings \[2, 3, 4\]"),
    ("07.2", lambda clean, corrupted, m: starts(clean, corrupted, m).mean(0), "expected shape .*, got shape"),
    ("07.3", lambda s, clean, corrupted: abs(s.sum() - (clean - corrupted)) / (clean - corrupted), "expected 0.25, got 3.25"),
    ("07.3", lambda s, clean, corrupted: abs(s[0].sum() - (clean - corrupted)) / (clean - corrupted), "expected 0.25, got 1"),
    ("07.3", lambda s, clean, corrupted: abs(s[:, 0].sum() - (clean - corrupted)), "expected 0.25, got 1"),
    ("07.3", lambda s, clean, corrupted: abs(s[:, 0].sum() - clean) / clean, "expected 0.25, got 0.4"),
    ("07.3", lambda s, clean, corrupted: incompleteness(s, corrupted, clean), "expected 0.25, got 1.75"),
    ("07.3", lambda s, clean, corrupted: (s[:, 0].sum() - (clean - corrupted)) / abs(clean - corrupted), "expected 0.25, got -0.25"),
]  # fmt: skip


@pytest.mark.parametrize(("number", "answer", "message"), WRONG)
def test_a_wrong_answer_is_told_what_is_wrong(number, answer, message):
    result = check(number, answer)
    assert not result
    assert re.search(message, result.message), result.message
