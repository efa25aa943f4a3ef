"""``cl.check("02.1", my_function)``: is a learner's answer right? It says so, or why not, and never raises.

An answer is compared with an independent implementation on a small case that can be read, then on random ones with a
fixed seed. To add a check, decorate a function that takes the answer and raises ``NotYet`` at the first thing that is wrong.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Result:
    """What ``check`` returns; shown as one line.

    Args:
        passed: whether the answer is right.
        message: what was compared, or the first thing that is wrong.
        hint: where to look next; empty after a pass.
    """

    exercise: str
    passed: bool
    message: str
    hint: str = ""

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        if self.passed:
            return f"✓ {self.exercise} passed: {self.message}"
        return f"✗ {self.exercise} not yet: {self.message}" + (f" Hint: {self.hint}" if self.hint else "")


class NotYet(Exception):
    """Raised by a check at the first thing that is wrong; its text tells the learner what."""


@dataclass(frozen=True)
class Check:
    """One exercise: ``run`` takes the learner's function and raises ``NotYet``, or returns what was compared."""

    exercise: str
    hint: str
    run: Callable[[Callable], str]


CHECKS: dict[str, Check] = {}


def check(exercise: str, answer: Callable) -> Result:
    """Compare an answer to an exercise with an independent one.

    Args:
        exercise: its number, such as "02.1".
        answer: the function that the exercise asks for.

    Returns:
        a ``Result`` that is true when the answer is right. Whatever ``answer`` does, and whatever ``exercise`` is, this
        does not raise; only an interrupt passes through.
    """
    try:
        found = CHECKS.get(exercise) if type(exercise) is str else None
        if found is None:
            return Result(
                _say(exercise, 40), False, f"there is no such exercise; the exercises are {', '.join(sorted(CHECKS))}."
            )
        if not callable(answer):
            return Result(
                exercise, False, f"expected your function itself, without calling it, got {_say(answer)}.", found.hint
            )
        try:
            return Result(exercise, True, found.run(answer))
        except NotYet as problem:
            return Result(exercise, False, str(problem), found.hint)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # such as a result whose comparison raises, or a SystemExit
        return Result(_say(exercise, 40), False, f"your result can't be compared: {_error(error)}.")


def exercise(number: str, *, hint: str) -> Callable:
    """Register a check under its number. The decorated function returns what was compared, for the line of a pass."""

    def register(function: Callable[[Callable], str]) -> Callable[[Callable], str]:
        if number in CHECKS:
            raise ValueError(f"number: expected one that is not taken, got {number!r}")
        CHECKS[number] = Check(number, hint, function)
        return function

    return register


# --- chapter 01: activation patching ------------------------------------------------------------------------------


@exercise(
    "01.1",
    hint="gather the answers' logits and the distractors' logits, then take the distractors' max over their own axis.",
)
def _logit_difference(answer: Callable) -> str:
    """``logit_difference(logits [n, d_vocab], answers [n], distractors [n, n_wrong]) -> [n]``."""
    import torch

    def expected(logits, answers, distractors):
        return [
            float(row[a]) - max(float(row[d]) for d in wrong)
            for row, a, wrong in zip(logits.tolist(), answers.tolist(), distractors.tolist(), strict=True)
        ]

    small = (torch.tensor([[1.0, 5.0, 2.0, 3.0]]), torch.tensor([1]), torch.tensor([[0, 3]]))
    _compare(answer, small, expected, "for logits [[1, 5, 2, 3]], answer 1 and distractors 0 and 3")
    generator = torch.Generator().manual_seed(11)
    for n, d_vocab, n_wrong in ((4, 9, 3), (5, 20, 7)):
        order = torch.stack([torch.randperm(d_vocab, generator=generator) for _ in range(n)])
        case = (torch.randn(n, d_vocab, generator=generator), order[:, 0], order[:, 1 : 1 + n_wrong])
        _compare(answer, case, expected, f"for random logits {[n, d_vocab]} and {n_wrong} distractors")
    return "the answer's logit minus the best distractor's, prompt by prompt."


@exercise(
    "01.2", hint="0 must mean that patching did nothing, and the distance from corrupted to clean must count as 1."
)
def _normalise(answer: Callable) -> str:
    """``normalise(patched, base, clean, corrupted)``, each a number or an array."""

    def expected(patched, base, clean, corrupted):
        return np.vectorize(lambda p: (p - base) / (clean - corrupted))(np.asarray(patched))

    _compare(answer, (2.0, 4.0, 4.0, -1.0), expected, "for patched 2, base 4, clean 4, corrupted −1 (noising)")
    _compare(answer, (2.0, -1.0, 4.0, -1.0), expected, "for patched 2, base −1, clean 4, corrupted −1 (denoising)")
    random = np.random.default_rng(12)
    for shape in ((5,), (3, 4)):
        clean, corrupted = random.normal(3), random.normal(-2)
        for base in (clean, corrupted):
            _compare(
                answer,
                (random.normal(size=shape), base, clean, corrupted),
                expected,
                f"for an array of patched values {list(shape)}",
            )
    return "0 where patching did nothing, noising and denoising alike."


@exercise("01.3", hint="clone before you write: an edit in place also changes the corrupted run that you were given.")
def _patch_residual(answer: Callable) -> str:
    """``patch_residual(corrupted_resid [n, pos, d], clean_resid [n, pos, d], position) -> [n, pos, d]``."""
    import torch

    def expected(corrupted, clean, position):
        rows = [
            [b if i == position else a for i, (a, b) in enumerate(zip(*pair, strict=True))]
            for pair in zip(corrupted.tolist(), clean.tolist(), strict=True)
        ]
        return torch.tensor(rows)

    generator = torch.Generator().manual_seed(13)
    for n, n_pos, d, position in ((1, 3, 2, 1), (4, 6, 5, 0), (2, 5, 3, 4)):
        case = (torch.randn(n, n_pos, d, generator=generator), torch.randn(n, n_pos, d, generator=generator), position)
        _compare(answer, case, expected, f"for activations {[n, n_pos, d]} and position {position}")
    return "only that position is patched, and what you were given is as it was."


# --- chapter 02: path patching ------------------------------------------------------------------------------------


@exercise(
    "02.1", hint="each sender gives out where its edge is kept and ref where it is cut; then sum over the senders."
)
def _receiver_input(answer: Callable) -> str:
    """``receiver_input(out [sender, d], ref [sender, d], keep [sender], bias [d]) -> [d]``."""
    import torch

    def expected(out, ref, keep, bias):
        rows = [o if k else r for o, r, k in zip(out.tolist(), ref.tolist(), keep.tolist(), strict=True)]
        return [sum(column) + b for column, b in zip(zip(*rows, strict=True), bias.tolist(), strict=True)]

    small = (torch.tensor([[2.0], [1.0]]), torch.tensor([[0.0], [10.0]]), torch.tensor([1.0, 0.0]), torch.tensor([0.5]))
    _compare(answer, small, expected, "for out [[2], [1]], ref [[0], [10]], keep [1, 0] and bias [0.5]")
    generator = torch.Generator().manual_seed(21)
    for n, d in ((4, 3), (9, 5)):
        out, ref = (torch.randn(n, d, generator=generator) for _ in range(2))
        keep = (torch.arange(n) % 3 != 0).float()
        case = (out, ref, keep, torch.randn(d, generator=generator))
        _compare(answer, case, expected, f"for {n} senders that write {d} numbers each")
    return "kept senders, cut senders and biases, summed."


@exercise(
    "02.2", hint="heads of layer l can read the embedding and the heads of the layers below l, through q, k and v."
)
def _count_edges(answer: Callable) -> str:
    """``count_edges(n_layers, n_heads) -> int``."""

    def expected(n_layers, n_heads):
        senders = [-1] + [layer for layer in range(n_layers) for _ in range(n_heads)]
        receivers = [layer for layer in range(n_layers) for _ in range(3 * n_heads)] + [n_layers]
        return sum(sender < receiver for sender in senders for receiver in receivers)

    for n_layers, n_heads in ((1, 1), (1, 2), (2, 1), (3, 2), (2, 5), (4, 8)):
        where = f"for {n_layers} layer{'s' * (n_layers > 1)} of {n_heads} head{'s' * (n_heads > 1)}"
        _compare(answer, (n_layers, n_heads), expected, where)
    return "1,281 edges for 4 layers of 8 heads."


@exercise("02.3", hint="what the middle writes depends on which h it read: the clean one or the corrupted one.")
def _three_effects(answer: Callable) -> str:
    """``three_effects(h_clean, h_corrupted, middle, end) -> (total, direct, by_middle)``."""

    def relu(x):
        return max(0.0, x)

    def gate(h):
        return relu(h - 1)

    def half(h, m):
        return m + h / 2

    cases = [(2.0, 0.0, gate, half, "for h 2 → 0, middle relu(h − 1) and end m + h/2")]
    random = np.random.default_rng(23)
    for _ in range(3):
        a, b, c = random.normal(size=3)

        def middle(h, a=a):
            return a * h + h * h

        def end(h, m, b=b, c=c):
            return b * h + c * m + h * m

        cases.append((*random.normal(size=2).tolist(), middle, end, "for a random middle and end"))
    for clean, corrupted, middle, end, where in cases:

        def expected(clean, corrupted, middle=middle, end=end):
            reads = [(corrupted, corrupted), (corrupted, clean), (clean, corrupted)]  # by the end, by the middle
            return [end(clean, middle(clean)) - end(h, middle(by_middle)) for h, by_middle in reads]

        def answers(clean, corrupted, middle=middle, end=end):
            return answer(clean, corrupted, middle, end)

        _compare(answers, (clean, corrupted), expected, where)
    return "the whole head, its direct path, and its path by the middle."


# --- how answers are compared -------------------------------------------------------------------------------------


def _compare(answer: Callable, inputs: tuple, expected: Callable, where: str) -> None:
    """Call an answer; ``NotYet`` at the first difference from ``expected``, which is called with the same inputs first."""
    want = _numbers(expected(*inputs))
    got = _call(answer, inputs, where)
    if got is None:
        raise NotYet("your function returned None; is its body still the stub, or the return missing?")
    values = _numbers(got)
    if values is None:
        raise NotYet(f"{where}, expected {_expected_kind(want)}, got {_say(got)}.")
    if values.shape != want.shape:
        raise NotYet(f"{where}, expected {_expected_kind(want)}, got shape {list(values.shape)}.")
    wrong = ~np.isclose(values, want, rtol=1e-4, atol=1e-5)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        place = f" at {list(at)}" if want.size > 1 else ""
        raise NotYet(f"{where}, expected {want[at]:.4g}{place}, got {values[at]:.4g}.")


def _call(answer: Callable, inputs: tuple, where: str):
    """The answer's result. What it prints is dropped; what it changes in its inputs is an error."""
    copies = [_copy(value) for value in inputs]
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            result = answer(*inputs)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise NotYet(f"{where}, your function raised {_error(error)}.") from None
    for number, (value, copy) in enumerate(zip(inputs, copies, strict=True), start=1):
        before, after = _numbers(copy), _numbers(value)
        if before.shape != after.shape or not np.array_equal(before, after, equal_nan=True):
            raise NotYet(f"your function changed its argument number {number} in place; expected it to be left alone.")
    return result


def _copy(value):
    return value.clone() if hasattr(value, "clone") else np.copy(value) if isinstance(value, np.ndarray) else value


def _numbers(value) -> np.ndarray | None:
    """A number, a list, an array or a tensor as an array of floats; None for anything else."""
    try:
        if hasattr(value, "detach"):
            value = value.detach().cpu()
            value = value.numpy() if value.is_complex() else value.double().numpy()  # numpy has no bfloat16
        array = np.asarray(value)
        return array.astype(float) if array.dtype.kind in "biuf" else None
    except Exception:
        return None


def _expected_kind(want: np.ndarray) -> str:
    return f"shape {list(want.shape)}" if want.shape else "a number"


def _say(value, length: int = 60) -> str:
    """A value in a few characters and one line, also when its repr raises."""
    try:
        text = " ".join(repr(value).split())
    except Exception:
        text = f"an object of type {type(value).__name__}"
    return text if len(text) <= length else text[: length - 1] + "…"


def _error(error: BaseException) -> str:
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = ""
    text = text if len(text) <= 160 else text[:159] + "…"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
