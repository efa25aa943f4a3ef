"""How good a circuit is: what it carries, what it misses, what in it is not needed."""

from .faithfulness import Curve, faithfulness, faithfulness_curve, random_baseline

__all__ = ["Curve", "faithfulness", "faithfulness_curve", "random_baseline"]
