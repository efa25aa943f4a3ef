"""How good a circuit is: what it carries, what it misses, what in it is not needed, and how it compares with a known one."""

from .criteria import completeness, minimality
from .faithfulness import Curve, cmd, cpr, faithfulness, faithfulness_curve, random_baseline
from .roc import Roc, auc, roc

__all__ = [
    "Curve",
    "Roc",
    "auc",
    "cmd",
    "completeness",
    "cpr",
    "faithfulness",
    "faithfulness_curve",
    "minimality",
    "random_baseline",
    "roc",
]
