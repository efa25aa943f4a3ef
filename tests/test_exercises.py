from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from printed import exercises, solutions

from circuitlib.exercises import CHECKS, NotYet, check, checking, exercise


def logit_difference(logits, answers, distractors):
    return logits.gather(1, answers[:, None])[:, 0] - logits.gather(1, distractors).max(1).values


def normalise(patched, base, clean, corrupted):
    return (patched - base) / (clean - corrupted)


def patch_residual(corrupted_resid, clean_resid, position):
    patched = corrupted_resid.clone()
    patched[:, position] = clean_resid[:, position]
    return patched


def receiver_input(out, ref, keep, bias):
    return (keep[:, None] * out + (1 - keep[:, None]) * ref).sum(0) + bias


def count_edges(n_layers, n_heads):
    return sum(3 * n_heads * (1 + layer * n_heads) for layer in range(n_layers)) + 1 + n_layers * n_heads


def three_effects(h_clean, h_corrupted, middle, end):
    base = end(h_clean, middle(h_clean))
    total = base - end(h_corrupted, middle(h_corrupted))
    direct = base - end(h_corrupted, middle(h_clean))
    by_middle = base - end(h_clean, middle(h_corrupted))
    return total, direct, by_middle


# Those that the chapters print; for the first two chapters, written once more by hand.
SOLUTIONS = solutions() | {
    "01.1": logit_difference,
    "01.2": normalise,
    "01.3": patch_residual,
    "02.1": receiver_input,
    "02.2": count_edges,
    "02.3": three_effects,
}


def mean_difference(logits, answers, distractors):
    return logit_difference(logits, answers, distractors).mean()


def mean_of_distractors(logits, answers, distractors):
    return logits.gather(1, answers[:, None])[:, 0] - logits.gather(1, distractors).mean(1)


def best_of_all_others(logits, answers, distractors):
    others = logits.scatter(1, answers[:, None], -1e9)
    return logits.gather(1, answers[:, None])[:, 0] - others.max(1).values


def kept_dimension(logits, answers, distractors):
    return logits.gather(1, answers[:, None]) - logits.gather(1, distractors).max(1, keepdim=True).values


def wrong_sign(logits, answers, distractors):
    return -logit_difference(logits, answers, distractors)


def in_place(corrupted_resid, clean_resid, position):
    corrupted_resid[:, position] = clean_resid[:, position]
    return corrupted_resid


def other_way_round(corrupted_resid, clean_resid, position):
    return patch_residual(clean_resid, corrupted_resid, position)


def first_prompt_only(corrupted_resid, clean_resid, position):
    patched = corrupted_resid.clone()
    patched[0, position] = clean_resid[0, position]
    return patched


def everything(corrupted_resid, clean_resid, position):
    return clean_resid.clone()


def wrong_axis(corrupted_resid, clean_resid, position):
    patched = corrupted_resid.clone()
    patched[position] = clean_resid[position]
    return patched


def forgot_to_return(corrupted_resid, clean_resid, position):
    patched = corrupted_resid.clone()
    patched[:, position] = clean_resid[:, position]


WRONG = [
    ("01.1", mean_difference, "expected shape [1], got shape []"),
    ("01.1", mean_of_distractors, "expected 2, got 3"),
    ("01.1", best_of_all_others, "for random logits"),
    ("01.1", kept_dimension, "expected shape [1], got shape [1, 1]"),
    ("01.1", wrong_sign, "expected 2, got -2"),
    ("01.1", lambda logits, answers, distractors: None, "returned None"),
    ("01.1", lambda logits, answers: logits, "your function raised TypeError"),
    ("01.1", lambda logits, answers, distractors: "2", "got '2'"),
    ("01.2", lambda p, base, clean, corrupted: (p - corrupted) / (clean - corrupted), "expected -0.4, got 0.6"),
    (
        "01.2",
        lambda p, base, clean, corrupted: (p - clean) / (clean - corrupted),
        "(denoising), expected 0.6, got -0.4",
    ),
    ("01.2", lambda p, base, clean, corrupted: (base - p) / (clean - corrupted), "expected -0.4, got 0.4"),
    ("01.2", lambda p, base, clean, corrupted: p - base, "expected -0.4, got -2"),
    (
        "01.2",
        lambda p, base, clean, corrupted: float(np.mean(p) - base) / (clean - corrupted),
        "expected shape [5], got shape []",
    ),
    ("01.3", in_place, "changed its argument number 1 in place"),
    ("01.3", other_way_round, "expected"),
    ("01.3", first_prompt_only, "for activations [4, 6, 5] and position 0, expected"),
    ("01.3", everything, "at [0, 0, 0]"),
    ("01.3", wrong_axis, "raised IndexError"),
    ("01.3", forgot_to_return, "returned None"),
    ("01.3", lambda corrupted, clean, position: clean[:, position], "expected shape [1, 3, 2], got shape [1, 2]"),
    ("02.1", lambda out, ref, keep, bias: receiver_input(out, ref, keep, 0 * bias), "expected 12.5, got 12"),
    ("02.1", lambda out, ref, keep, bias: receiver_input(ref, out, keep, bias), "expected 12.5, got 1.5"),
    ("02.1", lambda out, ref, keep, bias: (keep[:, None] * out).sum(0) + bias, "expected 12.5, got 2.5"),
    (
        "02.1",
        lambda out, ref, keep, bias: keep[:, None] * out + (1 - keep[:, None]) * ref + bias,
        "expected shape [1], got shape [2, 1]",
    ),
    (
        "02.2",
        lambda n_layers, n_heads: count_edges(n_layers, n_heads) + 3 * n_heads,
        "for 1 layer of 1 head, expected 5",
    ),
    ("02.2", lambda n_layers, n_heads: 3 * n_heads * n_layers + 1 + n_layers * n_heads, "2 layers of 1 head"),
    ("02.2", lambda n_layers, n_heads: count_edges(n_layers, n_heads) - 1, "expected 5, got 4"),
    ("02.3", lambda h, other, middle, end: three_effects(h, other, middle, end)[0], "expected shape [3], got shape []"),
    (
        "02.3",
        lambda h, other, middle, end: [-effect for effect in three_effects(h, other, middle, end)],
        "expected 2 at [0], got -2",
    ),
    (
        "02.3",
        lambda h, other, middle, end: np.array(three_effects(h, other, middle, end))[[0, 2, 1]],
        "for a random middle and end, expected",
    ),
    ("02.3", lambda h, other, middle, end: middle(), "your function raised TypeError"),
]


@pytest.mark.parametrize("number", sorted(SOLUTIONS))
def test_a_right_answer_passes(number):
    result = check(number, SOLUTIONS[number])
    assert result
    assert repr(result).startswith(f"✓ {number} passed: ")
    assert result.hint == ""


def test_every_registered_check_has_its_exercise_and_every_exercise_its_check():
    assert sorted(CHECKS) == sorted(exercises()) == sorted(SOLUTIONS)


@pytest.mark.parametrize("number", sorted(SOLUTIONS))
def test_a_stub_is_told_that_it_is_one(number):
    assert "your function returned None" in check(number, exercises()[number][0]).message


@pytest.mark.parametrize("number", sorted(exercises()))
def test_the_printed_solution_passes(number):
    assert check(number, exercises()[number][1])


def test_other_ways_to_write_a_right_answer_pass():
    assert check("01.1", lambda logits, a, d: [float(r[i] - r[w].max()) for r, i, w in zip(logits, a, d, strict=True)])
    assert check("01.1", lambda logits, a, d: logit_difference(logits, a, d).numpy())
    assert check(
        "01.2",
        lambda patched, base, clean, corrupted: np.array((patched - base) / (clean - corrupted), dtype=np.float32),
    )
    mask = lambda c, p: (torch.arange(c.shape[1]) == p)[None, :, None]  # noqa: E731
    assert check("01.3", lambda c, k, p: torch.where(mask(c, p), k, c))


@pytest.mark.parametrize(("number", "answer", "message"), WRONG)
def test_a_typical_wrong_answer_gets_a_useful_line(number, answer, message):
    result = check(number, answer)
    assert not result
    assert message in result.message
    assert result.hint == ("" if message == "returned None" else CHECKS[number].hint)
    assert "\n" not in repr(result)
    assert ("Hint: " in repr(result)) == bool(result.hint) and result.hint in repr(result)


def test_the_answer_can_be_checked_again_after_it_changed_its_inputs():
    assert not check("01.3", in_place)
    assert check("01.3", patch_residual)


@pytest.mark.parametrize("number", ["99.9", "", "1.1", None, 1.1, ["01.1"], "x" * 500])
def test_an_unknown_exercise_lists_the_exercises(number):
    result = check(number, len)
    assert not result
    assert "01.1, 01.2, 01.3" in repr(result)
    assert len(repr(result)) < 200 + len(", 01.1") * len(CHECKS)


def test_what_an_answer_prints_is_dropped(capsys):
    def noisy(*arguments):
        print("out")
        print("err", file=sys.stderr)
        return normalise(*arguments)

    assert check("01.2", noisy)
    assert capsys.readouterr() == ("", "")


class Awkward:
    """Raises from everything a check could ask of it."""

    def __getattribute__(self, name):
        raise RuntimeError("no " + name)

    def __repr__(self):
        raise RuntimeError("no repr")


class BadError(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def raising(error):
    def answer(*arguments):
        raise error

    return answer


def recursion(*arguments):
    return recursion(*arguments)


@pytest.mark.parametrize("number", sorted(SOLUTIONS))
@pytest.mark.parametrize(
    "answer",
    [
        raising(ValueError("two\nlines")),
        raising(SystemExit(1)),
        raising(BadError()),
        raising(GeneratorExit()),
        recursion,
        lambda *a: float("nan"),
        lambda *a: torch.full((2, 2), torch.nan),
        lambda *a: torch.zeros(3, dtype=torch.complex64),
        lambda *a: torch.zeros(0),
        lambda *a: [[1], [1, 2]],
        lambda *a: iter(()),
        lambda *a: a,
        lambda *a: a[0].resize_(0) if hasattr(a[0], "resize_") else a[0],
        None,
        3,
        "text",
        print,
        int,
    ],
)
def test_nothing_that_an_answer_does_raises(number, answer):
    result = check(number, answer)
    assert not result
    assert "\n" not in repr(result)
    assert len(repr(result)) < 600


def test_an_object_that_raises_from_everything_does_no_harm():
    for number in SOLUTIONS:
        assert "\n" not in repr(check(number, Awkward()))
        assert "\n" not in repr(check(number, lambda *arguments: Awkward()))
    assert "there is no such exercise" in repr(check(Awkward(), len))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(SOLUTIONS)) | st.text(), values, st.lists(st.integers(0, 3), max_size=5))
def test_arbitrary_results_and_edits_never_raise(number, value, edits):
    def answer(*arguments):
        for index in edits:
            if index < len(arguments) and hasattr(arguments[index], "zero_"):
                arguments[index].zero_()
        return value

    assert "\n" not in repr(check(number, answer))


def test_an_interrupt_is_the_learners_own():
    with pytest.raises(KeyboardInterrupt):
        check("01.1", raising(KeyboardInterrupt()))


def test_checks_are_the_same_each_time():
    seen = []

    def record(logits, answers, distractors):
        seen.append(logits.clone())
        return logit_difference(logits, answers, distractors)

    check("01.1", record)
    first = list(seen)
    seen.clear()
    torch.manual_seed(99)
    check("01.1", record)
    assert len(first) == 3
    assert all(torch.equal(a, b) for a, b in zip(first, seen, strict=True))


def test_checking_does_not_touch_the_global_random_state():
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    expected = torch.rand(1), np.random.rand()  # noqa: NPY002
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    for number, solution in SOLUTIONS.items():
        check(number, solution)
    assert (torch.rand(1), np.random.rand()) == expected  # noqa: NPY002


def test_a_check_is_added_by_a_decorator(monkeypatch):
    monkeypatch.setattr(checking, "CHECKS", dict(CHECKS))

    @exercise("50.1", hint="count.")
    def _(answer):
        if answer() != 3:
            raise NotYet("expected 3.")
        return "three."

    assert repr(check("50.1", lambda: 3)) == "✓ 50.1 passed: three."
    assert repr(check("50.1", lambda: 4)) == "✗ 50.1 not yet: expected 3. Hint: count."
    with pytest.raises(ValueError, match="^number: expected one that is not taken"):
        exercise("50.1", hint="")(print)


def test_exercises_load_no_torch():
    code = "import sys, circuitlib.exercises; sys.exit('torch' in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        ).returncode
        == 0
    )
