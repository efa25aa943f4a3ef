"""The checks of appendix a1: typical wrong answers are turned away, and told where to look."""

from __future__ import annotations

import pytest
import torch
from printed import exercises

import circuitlib as cl
from circuitlib.exercises import CHECKS, check

learning_rate, weighted_loss, formed_at, gate = (exercises()[f"a1.{i}"][1] for i in range(1, 5))


def one_line(step, stages):
    """From the first stage's first rate to the last one's last, over all steps."""
    return stages[0][1] + (stages[-1][2] - stages[0][1]) * step / sum(stage[0] for stage in stages)


def reaches_the_end(step, stages):
    for steps, first, last in stages:
        if step < steps:
            return first + (last - first) * step / (steps - 1)
        step -= steps


def step_not_from_the_stage(step, stages):
    end = 0
    for steps, first, last in stages:
        end += steps
        if step < end:
            return first + (last - first) * step / steps


def stage_too_long(step, stages):
    for steps, first, last in stages:
        if step <= steps:
            return first + (last - first) * step / steps
        step -= steps


def surprise(logits, tokens):
    return -logits[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]


def first_time(steps, scores, least):
    high = [step for step, row in zip(steps, scores, strict=True) if row.max() >= least]
    return high[0] if high else -1


def row_number(steps, scores, least):
    step = formed_at(steps, scores, least)
    return -1 if step == -1 else list(steps).index(step)


def of_one_head(steps, scores, least):
    """The head that is best at the end must have been it all along."""
    last = int(scores[-1].flatten().argmax())
    return formed_at(steps, scores.flatten(1)[:, last, None, None], least)


def unnatural(log_alpha, u):
    return (1.2 * torch.sigmoid((u - (1 - u) + log_alpha) / (2 / 3)) - 0.1).clamp(0, 1)


def draw(log_alpha, u, temperature=2 / 3):
    return torch.sigmoid((u.log() - (1 - u).log() + log_alpha) / temperature)


def cut(s):
    return (1.2 * s - 0.1).clamp(0, 1)


WRONG = [
    ("a1.1", one_line, "at step 1, expected 7, got 6.667"),
    ("a1.1", reaches_the_end, "at step 1, expected 7, got 6.667"),
    ("a1.1", step_not_from_the_stage, "(2 steps, 6 → 0), at step 4, expected 6, got -6"),
    ("a1.1", stage_too_long, "at step 4, expected 6, got 4"),
    ("a1.1", lambda step, stages: learning_rate(step + 1, stages), "at step 0, expected 8, got 7"),
    ("a1.1", lambda step, stages: stages[0][1], "at step 1, expected 7, got 8"),
    ("a1.1", lambda step, stages: learning_rate(step, [(n, last, first) for n, first, last in stages]), "got 4"),
    # A mean over all tokens, whatever they weigh; or a sum.
    ("a1.2", lambda x, t, w: (surprise(x, t) * w[:, 1:]).mean(), "weights 2, expected 1.099, got 2.197"),
    ("a1.2", lambda x, t, w: (surprise(x, t) * w[:, 1:]).sum(), "weights 1, expected 1.099, got 3.296"),
    ("a1.2", lambda x, t, w: surprise(x, t).mean(), "where the one token that counts is known for sure"),
    # The weight of the token that predicts, not of the one that is predicted.
    (
        "a1.2",
        lambda x, t, w: (surprise(x, t) * w[:, :-1]).sum() / w[:, :-1].sum(),
        "where the one token that counts is known for sure",
    ),
    # The first weight counted below the line.
    ("a1.2", lambda x, t, w: (surprise(x, t) * w[:, 1:]).sum() / w.sum(), "for random logits [2, 4, 5] and weights"),
    # Each row by itself, then a mean of rows.
    (
        "a1.2",
        lambda x, t, w: ((surprise(x, t) * w[:, 1:]).sum(1) / w[:, 1:].sum(1)).mean(),
        "for random logits [2, 4, 5] and weights",
    ),
    ("a1.2", lambda x, t, w: -weighted_loss(x, t, w), "expected 1.099, got -1.099"),
    ("a1.2", lambda x, t, w: (surprise(x, t) * w[:, 1:]).sum(1) / w[:, 1:].sum(1), "expected a number, got shape [1]"),
    ("a1.3", first_time, "scores .1 .75 .25 .9 and least .5, expected 400, got 200"),
    ("a1.3", row_number, "expected 300, got 2"),
    ("a1.3", of_one_head, "first the one and then the other has .8, expected 200, got 300"),
    ("a1.3", lambda n, s, least: formed_at(n, s.mean((1, 2), keepdim=True), least), "for two heads, of which"),
    ("a1.3", lambda n, s, least: formed_at(n, s, least + 1e-6), "at .5 sharp from step 200 on, expected 200, got -1"),
    ("a1.3", lambda n, s, least: max(formed_at(n, s, least), n[0]), "never reaches .5, expected -1, got 100"),
    ("a1.4", lambda a, u: draw(a, u), "for log alpha 2 and u = 0.5, expected 1, got 0.9526"),
    ("a1.4", lambda a, u: 1.2 * draw(a, u) - 0.1, "for log alpha 2 and u = 0.5, expected 1, got 1.043"),
    ("a1.4", lambda a, u: cut(draw(a, u, 1)), "for log alpha 2 and u = 0.5, expected 1, got 0.957"),
    ("a1.4", lambda a, u: cut(draw(a, u, 3 / 2)), "for log alpha 2"),
    ("a1.4", lambda a, u: cut(draw(-a, u)), "for log alpha 2 and u = 0.5, expected 1, got 0."),
    ("a1.4", lambda a, u: cut(draw(a, 1 - u)), "for log alpha 0 and u = 0.6"),
    ("a1.4", unnatural, "for log alpha 0 and u = 0.6"),
    ("a1.4", lambda a, u: 1.2 * draw(a, u).clamp(0, 1) - 0.1, "expected 1, got 1.043"),
    ("a1.4", lambda a, u: (cut(draw(a, u)) > 0.5).float(), "for log alpha 0 and u = 0.5, expected 0.5, got 0"),
]


@pytest.mark.parametrize(("number", "answer", "message"), WRONG)
def test_a_typical_wrong_answer_gets_a_useful_line(number, answer, message):
    result = check(number, answer)
    assert not result
    assert message in result.message
    assert result.hint == CHECKS[number].hint
    assert "\n" not in repr(result)


@pytest.mark.parametrize("number", ["a1.1", "a1.2", "a1.3", "a1.4"])
def test_stub_and_printed_solution(number):
    stub, solution = exercises()[number]
    assert "returned None" in check(number, stub).message
    assert check(number, solution)


def test_the_solutions_say_what_the_training_did():
    """Learning rates as the log has them, gates and loss as the training code computes them."""
    from circuitlib.models.training import gates

    recipe, log = cl.training_recipe("docstring-4l"), cl.training_log("docstring-4l")
    stages = [(stage.steps, *stage.lr) for stage in recipe.stages]
    for row in log:
        assert learning_rate(row["step"] - 1, stages) == pytest.approx(row["lr"])
    log_alpha = torch.tensor([[-1.0, 0.5]])
    drawn = gates.sample(log_alpha, 3, torch.Generator().manual_seed(7))
    u = torch.rand(3, 1, 2, generator=torch.Generator().manual_seed(7)).clamp(1e-6, 1 - 1e-6)
    for head in (0, 1):
        mine = gate(float(log_alpha[0, head]), u[:, 0, head])
        assert torch.allclose(drawn[:, 0, head], mine, atol=1e-6)
