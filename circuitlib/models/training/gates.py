"""Hard-concrete gates on heads: which heads does a kind of text need?

Louizos, Welling & Kingma, "Learning sparse neural networks through L0 regularization", ICLR 2018, section 2.2.
A closed gate does not zero a head: it takes the head's output from another row with the same layout, so a closed
head can still say *where* it is but not *which* tokens it saw.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

TEMPERATURE, LOW, HIGH = 2 / 3, -0.1, 1.1
_SHIFT = TEMPERATURE * math.log(-LOW / HIGH)


def sample(
    log_alpha: Float[Tensor, "layer head"], rows: int, generator: torch.Generator
) -> Float[Tensor, "row layer head"]:
    """One draw of every gate for every row, in [0, 1], differentiable in ``log_alpha``."""
    u = torch.rand(rows, *log_alpha.shape, generator=generator).clamp(1e-6, 1 - 1e-6)
    concrete = torch.sigmoid((u.log() - (1 - u).log() + log_alpha) / TEMPERATURE)
    return (concrete * (HIGH - LOW) + LOW).clamp(0, 1)


def expected_open(log_alpha: Float[Tensor, "layer head"]) -> Float[Tensor, ""]:
    """Expected number of gates that are not exactly 0."""
    return torch.sigmoid(log_alpha - _SHIFT).sum()


def is_open(log_alpha: Float[Tensor, "layer head"], most: int | None = None) -> Float[Tensor, "layer head"]:
    """The gates when they are frozen: 1 where the noiseless gate is above one half, for at most ``most`` heads, else 0."""
    least = -torch.inf if most is None else log_alpha.flatten().topk(most).values[-1]
    return ((torch.sigmoid(log_alpha) * (HIGH - LOW) + LOW > 0.5) & (log_alpha >= least)).float()
