"""Which edges matter: exact single-edge effects, and the methods that estimate them or search for a circuit."""

from .eap import eap, eap_ig
from .exact import exact
from .scores import Cost, EdgeScores, NodeScores

__all__ = ["Cost", "EdgeScores", "NodeScores", "eap", "eap_ig", "exact"]
