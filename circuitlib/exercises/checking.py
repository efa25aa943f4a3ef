"""``cl.check("02.1", my_function)``: is a learner's answer right? It says so, or why not, and never raises.

An answer is compared with an independent implementation on a small case that can be read, then on random ones with a
fixed seed. To add a check, decorate a function that takes the answer and raises ``NotYet`` at the first thing that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .compare import NotYet, Unanswered, error_text, say


@dataclass(frozen=True)
class Result:
    """What ``check`` returns; shown as one line.

    Args:
        passed: whether the answer is right.
        message: what was compared, or the first thing that is wrong.
        hint: where to look next; empty after a pass, and for a stub, which shows no mistake to help with.
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
                say(exercise, 40), False, f"there is no such exercise; the exercises are {', '.join(sorted(CHECKS))}."
            )
        if not callable(answer):
            return Result(
                exercise, False, f"expected your function itself, without calling it, got {say(answer)}.", found.hint
            )
        try:
            return Result(exercise, True, found.run(answer))
        except NotYet as problem:
            return Result(exercise, False, str(problem), "" if isinstance(problem, Unanswered) else found.hint)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # such as a result whose comparison raises, or a SystemExit
        return Result(say(exercise, 40), False, f"your result can't be compared: {error_text(error)}.")


def exercise(number: str, *, hint: str) -> Callable:
    """Register a check under its number. The decorated function returns what was compared, for the line of a pass."""

    def register(function: Callable[[Callable], str]) -> Callable[[Callable], str]:
        if number in CHECKS:
            raise ValueError(f"number: expected one that is not taken, got {number!r}")
        CHECKS[number] = Check(number, hint, function)
        return function

    return register
