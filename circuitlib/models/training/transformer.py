"""The transformer that is trained: pre-LayerNorm, with or without MLPs, on one screen.

Parameter names are those of a native ``TransformerBridge``, so ``state_dict()`` of an attention-only model moves
between the two unchanged (tested); with MLPs it is a GPT-2 (``export.py`` renames). What this class adds are gates: while
training, the output of a head can be replaced by the output of the same head on another row of the batch.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


class Attention(nn.Module):
    def __init__(self, d_model: int, n_heads: int, d_head: int):
        super().__init__()
        self.n_heads, self.d_head = n_heads, d_head
        self.q, self.k, self.v = (nn.Linear(d_model, n_heads * d_head) for _ in range(3))
        self.o = nn.Linear(n_heads * d_head, d_model)

    def heads(self, x: Float[Tensor, "row pos d_model"]) -> Float[Tensor, "row head pos d_head"]:
        """The output of each head before the output matrix: z."""
        q, k, v = (f(x).unflatten(-1, (self.n_heads, self.d_head)).transpose(1, 2) for f in (self.q, self.k, self.v))
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    def write(self, z: Float[Tensor, "row head pos d_head"]) -> Float[Tensor, "row pos d_model"]:
        return self.o(z.transpose(1, 2).flatten(-2))


class MLP(nn.Sequential):
    def __init__(self, d_model: int, d_mlp: int):
        super().__init__()
        self.add_module("in", nn.Linear(d_model, d_mlp))
        self.add_module("act", nn.GELU(approximate="tanh"))  # GPT-2's
        self.add_module("out", nn.Linear(d_mlp, d_model))


class Block(nn.Module):
    def __init__(self, d_model: int, n_heads: int, d_head: int, d_mlp: int = 0):
        super().__init__()
        self.ln1 = nn.LayerNorm(d_model)
        self.attn = Attention(d_model, n_heads, d_head)
        if d_mlp:
            self.ln2 = nn.LayerNorm(d_model)
            self.mlp = MLP(d_model, d_mlp)


class Transformer(nn.Module):
    """Token and position embedding, ``n_layers`` of attention (and an MLP each, unless ``d_mlp`` is 0), LayerNorm, unembedding.

    ``tied``: the unembedding is the embedding, and has no bias, as in GPT-2.
    """

    def __init__(
        self,
        n_layers: int,
        n_heads: int,
        d_model: int,
        d_head: int,
        d_vocab: int,
        n_ctx: int,
        d_mlp: int = 0,
        tied: bool = False,
    ):
        super().__init__()
        self.embed = nn.Embedding(d_vocab, d_model)
        self.pos_embed = nn.Embedding(n_ctx, d_model)
        self.blocks = nn.ModuleList(Block(d_model, n_heads, d_head, d_mlp) for _ in range(n_layers))
        self.ln_final = nn.LayerNorm(d_model)
        self.unembed = None if tied else nn.Linear(d_model, d_vocab)
        for name, p in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(p)
            elif p.dim() == 2:
                nn.init.normal_(
                    p, std=d_model**-0.5 / 2 / (math.sqrt(2 * n_layers) if ".o." in name or ".out." in name else 1)
                )
        nn.init.normal_(self.embed.weight, std=0.1)
        with torch.no_grad():
            # Copying a token is then a matter of direction, not of learning a second dictionary …
            if self.unembed is not None:
                self.unembed.weight.copy_(self.embed.weight)
            # … and "one before" is one linear map for all positions. Both are starting points: everything is trained.
            self.pos_embed.weight.copy_(0.14 * sinusoids(n_ctx, d_model))

    def forward(self, tokens: Int[Tensor, "row pos"], *gated) -> Float[Tensor, "row pos d_vocab"]:
        """Logits; ``gated`` as in ``run``."""
        return self.logits(self.run(tokens, *gated)[0][-1])

    def logits(self, residual: Float[Tensor, "row pos d_model"]) -> Float[Tensor, "row pos d_vocab"]:
        """What the last residual stream says about the next token."""
        normal = self.ln_final(residual)
        return nn.functional.linear(normal, self.embed.weight) if self.unembed is None else self.unembed(normal)

    def run(
        self,
        tokens: Int[Tensor, "row pos"],
        keep: Float[Tensor, "row layer head"] | None = None,
        partner: Int[Tensor, "row"] | None = None,
        other: list[Float[Tensor, "row head pos d_head"]] | None = None,
    ) -> tuple[list[Float[Tensor, "row pos d_model"]], list[Float[Tensor, "row head pos d_head"]]]:
        """The residual stream on entry to each layer and after the last, and what each layer's heads computed (z).

        Where ``keep`` is 0, a head's z is replaced by that of row ``partner[row]``, in this run or in the run ``other``.
        """
        residual, computed = [self.embed(tokens) + self.pos_embed.weight[: tokens.shape[1]]], []
        for layer, block in enumerate(self.blocks):
            z = block.attn.heads(block.ln1(residual[-1]))
            computed.append(z)
            if keep is not None:
                gate = keep[:, layer, :, None, None]
                z = gate * z + (1 - gate) * (z if other is None else other[layer])[partner]
            x = residual[-1] + block.attn.write(z)
            residual.append(x + block.mlp(block.ln2(x)) if hasattr(block, "mlp") else x)
        return residual, computed


def sinusoids(n_pos: int, d_model: int) -> Float[Tensor, "pos d_model"]:
    """Sines and cosines of many wavelengths (Vaswani et al., "Attention is all you need", 2017, section 3.5)."""
    angles = torch.arange(n_pos)[:, None] / 10_000 ** (torch.arange(0, d_model, 2) / d_model)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
