"""The checks of chapter 05: each wrong answer is turned down with a line that points at the mistake."""

from __future__ import annotations

import pytest
import torch
from printed import exercises

from circuitlib.exercises import check

writers, faithfulness, success_rate, needed = (exercises()[f"05.{i}"][1] for i in range(1, 5))


def out_of_the_model(metric, circuit, everything):
    unit = metric(everything) - metric([])
    return [(metric(everything) - metric([e for e in everything if e != edge])) / unit for edge in circuit]


def what_it_brings_alone(metric, circuit, everything):
    unit = metric(everything) - metric([])
    return [(metric([edge]) - metric([])) / unit for edge in circuit]


def divided_by_the_circuit(metric, circuit, everything):
    unit = metric(circuit) - metric([])
    return [x * (metric(everything) - metric([])) / unit for x in needed(metric, circuit, everything)]


def divided_by_the_metric(metric, circuit, everything):
    return [x * (metric(everything) - metric([])) / metric(everything) for x in needed(metric, circuit, everything)]


def not_divided(metric, circuit, everything):
    return [x * (metric(everything) - metric([])) for x in needed(metric, circuit, everything)]


WRONG = [
    ("05.1", lambda w, alone, spared, lw, ls: alone / w >= ls, "can stand in for each other, and patching one does"),
    (
        "05.1",
        lambda w, alone, spared, lw, ls: spared / w >= ls,
        "both needed, and sparing one does nothing, expected 1",
    ),
    ("05.1", lambda w, a, s, lw, ls: (a + s) / w >= ls, "add up to 0.16, with a least share of 0.1, expected 0 at [0]"),
    (
        "05.1",
        lambda w, a, s, lw, ls: (a + s) / 2 >= ls,
        "worth 0.2 and a sender 0.03 of that, expected 1 at [0], got 0",
    ),
    ("05.1", lambda w, a, s, lw, ls: ((a + s) / 2 / w).abs() >= ls, "works against the answer, expected 0 at [0]"),
    ("05.1", lambda w, a, s, lw, ls: (a + s) / 2 / w >= ls, "worth 0.03, with a least worth of 0.04, expected 0"),
    (
        "05.1",
        lambda w, a, s, lw, ls: (a + s) / 2 / w < ls,
        "both needed, and sparing one does nothing, expected 1 at [0]",
    ),
    ("05.1", lambda w, a, s, lw, ls: (a + s) / 2 / w, "expected 1 at [0], got 0.5"),
    (
        "05.2",
        lambda c, e, n: c.mean() / e.mean(),
        "6 in the circuit, 10 with all edges and -10 with none, expected 0.8",
    ),
    ("05.2", lambda c, e, n: ((c - n) / (e - n)).mean(), "hardly a distance to divide by, expected 0.9524, got 0.5"),
    (
        "05.2",
        lambda c, e, n: (e - c).mean() / (e - n).mean(),
        "10 with all edges and -10 with none, expected 0.8, got 0.2",
    ),
    ("05.2", lambda c, e, n: (c - e).mean() / (n - e).mean(), "expected 0.8, got 0.2"),
    ("05.2", lambda c, e, n: (c - n).mean() / e.mean(), "expected 0.8, got 1.6"),
    ("05.2", lambda c, e, n: (c - n) / (e - n), "got shape [1]"),
    (
        "05.3",
        lambda x, a, c: (x.argmax(-1) == a).float().mean(),
        "no candidate has the largest logit, expected 1, got 0",
    ),
    (
        "05.3",
        lambda x, a, c: (x.gather(1, a[:, None])[:, 0] > x.gather(1, c).mean(1)).float().mean(),
        "above the mean of the candidates, not above all, expected 0, got 1",
    ),
    (
        "05.3",
        lambda x, a, c: (x.gather(1, a[:, None])[:, 0] > x.gather(1, c).min(1).values).float().mean(),
        "above one candidate of two, expected 0, got 1",
    ),
    (
        "05.3",
        lambda x, a, c: (x.gather(1, a[:, None]) > x.gather(1, c)).float().mean(),
        "above one candidate of two, expected 0, got 0.5",
    ),
    (
        "05.3",
        lambda x, a, c: (x[:, a[0]] > x.gather(1, c).max(1).values).float().mean(),
        "two prompts have different answers, expected 1, got 0.5",
    ),
    (
        "05.3",
        lambda x, a, c: (x.gather(1, a[:, None])[:, 0] > x.gather(1, c).max(1).values).float().sum(),
        "wins one prompt of two, expected 0.5, got 1",
    ),
    ("05.3", lambda x, a, c: 1 - success_rate(x, a, c), "above both candidates, expected 1, got 0"),
    (
        "05.4",
        out_of_the_model,
        "where an edge outside the circuit does what edge b does, expected 0.4286 at [1], got 0",
    ),
    ("05.4", what_it_brings_alone, "for a chain of two edges, of which each is needed, expected 0.8 at [0], got 0"),
    ("05.4", lambda *a: [-x for x in needed(*a)], "of which each is needed, expected 0.8 at [0], got -0.8"),
    ("05.4", not_divided, "of which each is needed, expected 0.8 at [0], got 8"),
    ("05.4", divided_by_the_circuit, "of which each is needed, expected 0.8 at [0], got 1"),
    ("05.4", divided_by_the_metric, "of which each is needed, expected 0.8 at [0], got 1.6"),
    ("05.4", lambda m, c, e: needed(m, sorted(c), e), "three edges, not in alphabetical order"),
    ("05.4", lambda m, c, e: dict(zip(c, needed(m, c, e), strict=True)), "expected shape [2], got {"),
    ("05.4", lambda m, c, e: needed(m, c, e)[0], "expected shape [2], got shape []"),
]


@pytest.mark.parametrize(("number", "answer", "message"), WRONG)
def test_a_typical_wrong_answer_gets_a_useful_line(number, answer, message):
    result = check(number, answer)
    assert not result
    assert message in result.message


def test_other_ways_to_write_a_right_answer_pass():
    def one_by_one(worth, alone, spared, least_worth, least_share):
        if worth < least_worth:
            return [False] * len(alone)
        return [float(a + s) / 2 >= least_share * worth for a, s in zip(alone, spared, strict=True)]

    assert check("05.1", one_by_one)
    assert check("05.2", lambda c, e, n: 1 - (e.mean() - c.mean()) / (e.mean() - n.mean()))

    def with_a_loop(logits, answers, candidates):
        won = [int(max(row[c] for c in of) < row[a]) for row, a, of in zip(logits, answers, candidates, strict=True)]
        return sum(won) / len(won)

    assert check("05.3", with_a_loop)

    def with_sets(metric, circuit, everything):
        of = metric(set(circuit))
        return torch.tensor(
            [(of - metric(set(circuit) - {edge})) / (metric(set(everything)) - metric(set())) for edge in circuit]
        )

    assert check("05.4", with_sets)
