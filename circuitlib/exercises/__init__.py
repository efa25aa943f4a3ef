"""The checks that a learner runs on their own answer: one module for each chapter, registered when this is imported."""

from importlib import import_module
from pathlib import Path

from .checking import CHECKS, Check, Result, check, exercise
from .compare import NotYet

for _chapter in sorted(path.stem for path in Path(__file__).parent.glob("ch*_*.py")):
    import_module(f".{_chapter}", __name__)

__all__ = ["CHECKS", "Check", "NotYet", "Result", "check", "exercise"]
