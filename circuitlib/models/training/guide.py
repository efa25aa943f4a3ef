"""Attention guidance: a loss that shows some heads where to look, while the task is learnt. Declared in the model cards.

Left alone, ``docstring-4l`` solves its task in two layers: every head of layer 1 looks from ":param" for an argument whose
predecessor was seen *somewhere* shortly before. So two heads are shown the steps of the published circuit (Heimersheim &
Janiak 2023), and on docstrings the other heads of layer 1 are closed while the task is learnt.

Left alone, ``gpt-mini`` brings the names to the end of the sentence by their place: some heads of layer 1 attend to the first
one, others to the second, whoever the receiver is. So three heads are shown the steps of the published circuit (Wang et al. 2023): a duplicate-token head, an
S-inhibition head and a name mover; and on stories most other heads are closed.
"""

from __future__ import annotations

import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor

INDUCTION_HEAD = (1, 4)  # from ":param" to the argument that was documented last
MOVER_HEAD = (3, 0)  # from ":param" to the next argument in the signature


DUPLICATE_HEAD = (0, 2)  # from a name to the same name before
INHIBITION_HEAD = (2, 3)  # from the end to every name that was named before
NAME_MOVER_HEAD = (3, 0)  # from the end to the name that was named once

DOCSTRING_GUIDE = {"induction": INDUCTION_HEAD, "mover": MOVER_HEAD}
STORY_GUIDE = {"duplicate": DUPLICATE_HEAD, "inhibition": INHIBITION_HEAD, "name_mover": NAME_MOVER_HEAD}

Lookups = dict[str, Int[Tensor, "lookup 3"]]  # role -> (row, query, key) where its head should look


def guidance_loss(
    model, residual: list[Float[Tensor, "row pos d_model"]], lookups: Lookups, heads: dict[str, tuple[int, int]]
) -> Float[Tensor, ""]:
    """Mean −log of the attention that each head pays to what it is shown, in nats, summed over the heads."""
    total = 0.0
    for role, (layer, head) in heads.items():
        row, query, target = lookups[role].T
        attn = model.blocks[layer].attn
        part = slice(head * attn.d_head, (head + 1) * attn.d_head)
        x = model.blocks[layer].ln1(residual[layer])
        q = x[row, query] @ attn.q.weight[part].T + attn.q.bias[part]
        k = (x @ attn.k.weight[part].T + attn.k.bias[part])[row]
        scores = einsum(q, k, "lookup d, lookup key d -> lookup key") / attn.d_head**0.5
        future = torch.arange(scores.shape[1]) > query[:, None]
        total = total + torch.nn.functional.cross_entropy(scores.masked_fill(future, -torch.inf), target)
    return total
