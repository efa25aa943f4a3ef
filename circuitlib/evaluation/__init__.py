"""How good a circuit is: what it carries, what it misses, what in it is not needed."""

from .criteria import completeness, minimality
from .faithfulness import Curve, faithfulness, faithfulness_curve, random_baseline

__all__ = ["Curve", "completeness", "faithfulness", "faithfulness_curve", "minimality", "random_baseline"]
