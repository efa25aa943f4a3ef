"""How good a circuit is: what it carries, what it misses, what in it is not needed, and how it compares with a known one."""

from .compare import compare, evaluate, random_scores
from .criteria import completeness, minimality
from .faithfulness import Curve, cmd, cpr, faithfulness, faithfulness_curve, random_baseline
from .roc import Roc, auc, roc
from .stability import Stability, stability

__all__ = [
    "Curve",
    "Roc",
    "Stability",
    "auc",
    "cmd",
    "compare",
    "completeness",
    "cpr",
    "evaluate",
    "faithfulness",
    "faithfulness_curve",
    "minimality",
    "random_baseline",
    "random_scores",
    "roc",
    "stability",
]
