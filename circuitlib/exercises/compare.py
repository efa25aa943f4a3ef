"""How a learner's answer is compared with an independent one: what an exercise's check is made of."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable

import numpy as np


class NotYet(Exception):
    """Raised by a check at the first thing that is wrong; its text tells the learner what."""


class Unanswered(NotYet):
    """The answer returned None. There is nothing to correct yet, so the learner gets no hint unasked."""

    def __init__(self) -> None:
        super().__init__("your function returned None; is its body still the stub, or the return missing?")


def compare(answer: Callable, inputs: tuple, expected: Callable, where: str) -> None:
    """Call an answer; ``NotYet`` at the first difference from ``expected``, which is called with the same inputs first."""
    right = expected(*inputs)
    want, yes_or_no = (
        _numbers(right),
        "bool" in str(right.dtype if hasattr(right, "dtype") else np.asarray(right).dtype),
    )
    got = call(answer, inputs, where)
    if got is None:
        raise Unanswered
    values = _numbers(got)
    if values is None:
        raise NotYet(f"{where}, expected {_expected_kind(want)}, got {say(got)}.")
    if values.shape != want.shape:
        raise NotYet(f"{where}, expected {_expected_kind(want)}, got shape {list(values.shape)}.")
    wrong = ~np.isclose(values, want, rtol=1e-4, atol=1e-5)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        place = f" at {list(at)}" if want.size > 1 else ""
        shown = [str(bool(x)) if yes_or_no and x in (0, 1) else f"{x:.4g}" for x in (want[at], values[at])]
        raise NotYet(f"{where}, expected {shown[0]}{place}, got {shown[1]}.")


def call(answer: Callable, inputs: tuple, where: str):
    """The answer's result. What it prints is dropped; what it changes in its inputs is an error."""
    copies = [_copy(value) for value in inputs]
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            result = answer(*inputs)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise NotYet(f"{where}, your function raised {error_text(error)}.") from None
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


def say(value, length: int = 60) -> str:
    """A value in a few characters and one line, also when its repr raises."""
    try:
        text = " ".join(repr(value).split())
    except Exception:
        text = f"an object of type {type(value).__name__}"
    return text if len(text) <= length else text[: length - 1] + "…"


def error_text(error: BaseException) -> str:
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = ""
    text = text if len(text) <= 160 else text[:159] + "…"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
