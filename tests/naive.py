"""The edge-patched forward pass, written to be obviously right: one edge, one head, one sum at a time. Far too slow to use.

What senders write in a full run comes from TransformerLens's own cache; nothing here uses the engine.
"""

from __future__ import annotations

import math

import torch


def written(model, tokens) -> dict[str, torch.Tensor]:
    """What each sender writes, ``[n, pos, d_model]``, in the model's own run."""
    _, cache = model.run_with_cache(tokens)
    out = {"embed": cache["hook_embed"] + cache["hook_pos_embed"]}
    for layer in range(model.cfg.n_layers):
        for head in range(model.cfg.n_heads):
            out[f"a{layer}.{head}"] = (
                cache[f"blocks.{layer}.attn.hook_z"][:, :, head] @ model.blocks[layer].attn.W_O[head]
            )
        if not model.cfg.attn_only:
            out[f"m{layer}"] = cache[f"blocks.{layer}.hook_mlp_out"]
    return out


def ablated(model, corrupted, ablation: str) -> dict[str, torch.Tensor]:
    out = written(model, corrupted)
    if ablation == "zero":
        return {name: torch.zeros_like(value) for name, value in out.items()}
    if ablation == "mean":
        return {name: value.mean(0, keepdim=True).expand_as(value) for name, value in out.items()}
    return out


def run(
    model, embedding, reference: dict[str, torch.Tensor], kept: set[str], nudges=None, out=None, replaced=None
) -> torch.Tensor:
    """Logits ``[n, pos, d_vocab]`` of the run that starts from ``embedding`` and keeps the edges named in ``kept``.

    An edge ``s→r`` is kept at all positions, an edge ``s→r@p`` where the receiver reads position p.
    ``nudges`` are added to what receivers read, ``replaced`` is what some senders write instead, ``out`` collects what all write.
    """
    out, bias = {} if out is None else out, torch.zeros(model.cfg.d_model, dtype=embedding.dtype)

    out["embed"] = embedding

    def receive(receiver):
        x = torch.zeros_like(embedding) + bias + (0 if nudges is None else nudges[receiver])
        for sender in out:
            for position in range(x.shape[1]):
                keep = f"{sender}→{receiver}" in kept or f"{sender}→{receiver}@{position}" in kept
                added = torch.zeros_like(x)
                added[:, position] = (out if keep else reference)[sender][:, position]
                x = x + added
        return x

    for layer, block in enumerate(model.blocks):
        new = {}
        for head in range(model.cfg.n_heads):
            name = f"a{layer}.{head}"
            q, k, v = (
                _norm(model, block.ln1, receive(f"{name}.{part}")) @ getattr(block.attn, f"W_{part.upper()}")[head]
                + getattr(block.attn, f"b_{part.upper()}")[head]
                for part in "qkv"
            )
            z = {}
            for prompt in range(len(q)):
                for i in range(q.shape[1]):
                    scores = torch.stack([q[prompt, i] @ k[prompt, j] for j in range(i + 1)]) / math.sqrt(
                        model.cfg.d_head
                    )
                    weights = (scores - scores.max()).exp()
                    weights = weights / weights.sum()
                    z[prompt, i] = sum(weights[j] * v[prompt, j] for j in range(i + 1))
            z = torch.stack([torch.stack([z[prompt, i] for i in range(q.shape[1])]) for prompt in range(len(q))])
            new[name] = (replaced or {}).get(name, z @ block.attn.W_O[head])
        out |= new
        bias = bias + block.attn.b_O
        if not model.cfg.attn_only:
            h = _norm(model, block.ln2, receive(f"m{layer}")) @ block.mlp.W_in + block.mlp.b_in
            out[f"m{layer}"] = (replaced or {}).get(
                f"m{layer}", _act(model.cfg.act_fn, h) @ block.mlp.W_out + block.mlp.b_out
            )
    return _norm(model, model.ln_final, receive("logits")) @ model.W_U + model.b_U


def _norm(model, layer_norm, x):
    if model.cfg.normalization_type is None:
        return x
    x = x - x.mean(-1, keepdim=True)
    x = x / (x.pow(2).mean(-1, keepdim=True) + model.cfg.eps).sqrt()
    return x * layer_norm.weight + layer_norm.bias if model.cfg.normalization_type == "LN" else x


def _act(name, x):
    if name == "relu":
        return x.clamp(min=0)
    if name == "gelu":
        return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))
    assert name == "gelu_new"
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
