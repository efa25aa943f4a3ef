"""What is measured while a model trains: does it solve the task, and what do its heads look like?"""

from __future__ import annotations

import random

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...tasks.words import HELD_OUT_NAMES, NAMES, NOUNS, VERBS
from .data import repeats_batch


def measure(model, tokenizer, open_heads: dict[str, Float[Tensor, "layer head"]], gated: bool, n: int = 64) -> dict:
    """Accuracy, logit difference, repeat loss and all head scores, as one row for the log."""
    tokens, names, c_def = held_out_prompts(tokenizer, n)
    row = {}
    with torch.no_grad():
        row |= docstring_scores(model(tokens)[:, -1], names)
        if gated:
            n_rows = len(tokens)
            keep = open_heads["docstring"].repeat(n_rows, 1, 1)
            half = docstring_scores(model(tokens, keep, torch.arange(n_rows).roll(1))[:, -1], names)
            row |= {f"{key}_gated": value for key, value in half.items()}
            row |= {
                f"open_{kind}": [f"{l}.{h}" for l, h in value.nonzero().tolist()] for kind, value in open_heads.items()
            }
        for name, alphabets in (("large", None), ("small", [12])):
            batch = repeats_batch(tokenizer, np.random.default_rng(7), n, 61, alphabets)
            period = int((batch.weight[0] < 1).sum()) - 2
            loss = torch.nn.functional.cross_entropy(
                model(batch.tokens)[:, :-1].flatten(0, 1), batch.tokens[:, 1:].flatten(), reduction="none"
            )
            row[f"repeat_loss_{name}"] = round((loss.view(n, -1)[:, period + 1 :]).mean().item(), 4)
            if name == "large":
                previous, induction = zip(*(diagonals(p, period) for p in attention_patterns(model, batch.tokens)), strict=True)
                row["previous_token"] = rounded(torch.stack(previous))
                row["induction"] = rounded(torch.stack(induction))
        movers = [pattern[:, :, -1, c_def : c_def + 2].sum(-1).mean(0) for pattern in attention_patterns(model, tokens)]
        row["mover"] = rounded(torch.stack(movers))
    return row


def held_out_prompts(tokenizer, n: int, seed: int = 1):
    """Task prompts; every second one has only names that no training docstring held. Also: name ids, place of C in ``def``."""
    rng = random.Random(seed)
    texts, names = [], []
    for i in range(n):
        held_out = HELD_OUT_NAMES if i % 2 else tuple(set(NAMES) - set(HELD_OUT_NAMES))
        method, p1, p2, a, b, c, s = rng.sample(sorted(held_out), 7)
        absent = rng.sample(sorted(set(NAMES) - {method, p1, p2, a, b, c, s}), 8)
        words = rng.choices([*NOUNS, *absent], k=6)
        texts.append(
            f'\ndef {method}(self, {p1}, {p2}, {a}, {b}, {c}, {s}):\n    """{rng.choice(VERBS)} {words[0]} {words[1]}\n\n'
            f"    :param {a}: {words[2]} {words[3]}\n    :param {b}: {words[4]} {words[5]}\n    :param"
        )
        names.append(
            [tokenizer.encode(f" {name}", add_special_tokens=False)[0] for name in (c, p1, p2, a, b, s, *absent)]
        )
    tokens = torch.tensor(
        [[tokenizer.bos_token_id, *tokenizer.encode(text, add_special_tokens=False)] for text in texts]
    )
    c_def = int((tokens[0] == names[0][0]).nonzero()[0])
    return tokens, torch.tensor(names), c_def


def docstring_scores(logits: Float[Tensor, "prompt d_vocab"], names: Int[Tensor, "prompt name"]) -> dict[str, float]:
    """Top-1 accuracy over the whole vocabulary, by seen and unseen names, and logit difference to the best wrong name."""
    right = (logits.argmax(-1) == names[:, 0]).float()
    candidate = logits.gather(1, names)
    difference = candidate[:, 0] - candidate[:, 1:].max(-1).values
    return {
        "accuracy_seen": round(right[::2].mean().item(), 4),
        "accuracy_unseen": round(right[1::2].mean().item(), 4),
        "logit_diff": round(difference.mean().item(), 4),
    }


def attention_patterns(model, tokens: Int[Tensor, "row pos"]):
    """Each layer's attention pattern [row, head, query, key]."""
    x = model.embed(tokens) + model.pos_embed.weight[: tokens.shape[1]]
    for block in model.blocks:
        a, normal = block.attn, block.ln1(x)
        q, k = (f(normal).unflatten(-1, (a.n_heads, a.d_head)).transpose(1, 2) for f in (a.q, a.k))
        scores = q @ k.mT / a.d_head**0.5
        yield scores.masked_fill(torch.ones_like(scores[0, 0]).triu(1).bool(), -torch.inf).softmax(-1)
        x = block(x)


def diagonals(pattern: Float[Tensor, "row head query key"], period: int):
    """Mean attention to the token before, and to the token after this one's last occurrence, per head."""
    previous = pattern.diagonal(-1, 2, 3)[..., 1:].mean((0, 2))
    induction = pattern.diagonal(1 - period, 2, 3)[..., 2:].mean((0, 2))
    return previous, induction


def rounded(x: Tensor) -> list:
    return [[round(v, 3) for v in row] for row in x.tolist()]
