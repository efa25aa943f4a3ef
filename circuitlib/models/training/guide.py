"""Attention guidance: a loss that shows one head where to look, while the task is learnt. Declared in the model card.

Left alone, this model solves the task in two layers: every head of layer 1 looks from ":param" for an argument whose
predecessor was seen *somewhere* shortly before. So two heads are shown the steps of the published circuit (Heimersheim &
Janiak 2023), and on docstrings the other heads of layer 1 are closed while the task is learnt.
"""

from __future__ import annotations

import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor

INDUCTION_HEAD = (1, 4)  # from ":param" to the argument that was documented last
MOVER_HEAD = (3, 0)  # from ":param" to the next argument in the signature


def guidance_loss(
    model, residual: list[Float[Tensor, "row pos d_model"]], where: Int[Tensor, "lookup 4"]
) -> Float[Tensor, ""]:
    """Mean −log of the attention that the two heads pay to what they are shown, in nats, summed over the two."""
    row, query, last, answer = where.T
    total = 0.0
    for (layer, head), target in ((INDUCTION_HEAD, last), (MOVER_HEAD, answer)):
        attn = model.blocks[layer].attn
        part = slice(head * attn.d_head, (head + 1) * attn.d_head)
        x = model.blocks[layer].ln1(residual[layer])
        q = x[row, query] @ attn.q.weight[part].T + attn.q.bias[part]
        k = (x @ attn.k.weight[part].T + attn.k.bias[part])[row]
        scores = einsum(q, k, "lookup d, lookup key d -> lookup key") / attn.d_head**0.5
        future = torch.arange(scores.shape[1]) > query[:, None]
        total = total + torch.nn.functional.cross_entropy(scores.masked_fill(future, -torch.inf), target)
    return total
