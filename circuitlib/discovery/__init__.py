"""Which edges matter: exact single-edge effects, and the methods that estimate them or search for a circuit."""

from .acdc import AcdcCircuit, Decision, acdc, acdc_sweep
from .eap import eap, eap_ig
from .exact import exact
from .scores import Cost, EdgeScores, NodeScores

__all__ = [
    "AcdcCircuit",
    "Cost",
    "Decision",
    "EdgeScores",
    "NodeScores",
    "acdc",
    "acdc_sweep",
    "eap",
    "eap_ig",
    "exact",
]
