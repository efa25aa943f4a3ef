"""What is measured while a model trains: does it solve the task, and what do its heads look like?"""

from __future__ import annotations

import random

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from ...tasks.docstring import Names, corrupt, prompt
from ..words import HELD_OUT_NAMES, NAMES, NOUNS, VERBS
from .data import repeats_batch


def measure(model, tokenizer, open_heads: Float[Tensor, "1 layer head"] | None, n: int = 64) -> dict:
    """Accuracy, logit difference, repeat loss and all head scores, as one row for the log.

    With ``open_heads`` also what is left when all other heads carry what they carry on corrupted prompts.
    """
    clean, corrupted, names, c_def = held_out_prompts(tokenizer, n)
    with torch.no_grad():
        row = docstring_scores(model(clean)[:, -1], names)
        if open_heads is not None:
            other = model.run(corrupted)[1]
            closed = docstring_scores(model(clean, open_heads.repeat(n, 1, 1), torch.arange(n), other)[:, -1], names)
            row |= {f"{key}_gated": value for key, value in closed.items()} | {"open": head_names(open_heads[0])}
        row |= repeat_scores(model, tokenizer, n)
        patterns = attention_patterns(model, clean)
        row["mover"] = rounded([pattern[:, :, -1, c_def : c_def + 2].sum(-1).mean(0) for pattern in patterns])
    return row


def repeat_scores(model, tokenizer, n: int) -> dict:
    """Loss in nats on the second copy, for large and small alphabets; previous-token and induction scores of all heads."""
    row = {}
    for name, alphabets in (("small", [12]), ("large", None)):
        batch = repeats_batch(tokenizer, np.random.default_rng(7), n, 61, alphabets)
        period = int((batch.weight[0] < 1).sum()) - 2
        targets = batch.tokens[:, period + 2 :]
        logits = model(batch.tokens)[:, period + 1 : -1]
        row[f"repeat_loss_{name}"] = round(cross_entropy(logits.flatten(0, 1), targets.flatten()).item(), 4)
    scores = [diagonals(pattern, period) for pattern in attention_patterns(model, batch.tokens)]
    previous, induction = zip(*scores, strict=True)
    return row | {"previous_token": rounded(previous), "induction": rounded(induction)}


def held_out_prompts(tokenizer, n: int, seed: int = 1):
    """Clean and corrupted task prompts; every second one has only names that no training docstring held.

    Also: ids of the answer and the wrong names, and the place of the answer in ``def``.
    """
    rng = random.Random(seed)
    clean, corrupted, names = [], [], []
    for i in range(n):
        pool = HELD_OUT_NAMES if i % 2 else sorted(set(NAMES) - set(HELD_OUT_NAMES))
        method, p1, p2, a, b, c, s = rng.sample(pool, 7)
        absent = rng.sample(sorted(set(NAMES) - {method, p1, p2, a, b, c, s}), 8)
        drawn = Names(
            method, (p1, p2), a, b, c, s, absent[0], tuple(absent[1:4]), tuple(absent[4:6]), tuple(absent[6:])
        )
        words = rng.choices([*NOUNS, *absent], k=6)
        summary = f"{rng.choice(VERBS)} {words[0]} {words[1]}"
        clean.append(prompt(drawn, summary, words[2:], (a, b, c), (a, b)))
        corrupted.append(prompt(drawn, summary, words[2:], *corrupt(drawn, "random_random")))
        names.append([tokenizer.encode(f" {name}", add_special_tokens=False)[0] for name in drawn.all()[1:]])

    def rows(texts: list[str]) -> Int[Tensor, "prompt pos"]:
        return torch.tensor([[tokenizer.bos_token_id, *tokenizer.encode(t, add_special_tokens=False)] for t in texts])

    tokens = rows(clean)
    return tokens, rows(corrupted), torch.tensor(names), tokens[0].tolist().index(names[0][0])


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
    residual, _ = model.run(tokens)
    for block, x in zip(model.blocks, residual[:-1], strict=True):
        a, normal = block.attn, block.ln1(x)
        q, k = (f(normal).unflatten(-1, (a.n_heads, a.d_head)).transpose(1, 2) for f in (a.q, a.k))
        scores = q @ k.mT / a.d_head**0.5
        yield scores.masked_fill(torch.ones_like(scores[0, 0]).triu(1).bool(), -torch.inf).softmax(-1)


def diagonals(pattern: Float[Tensor, "row head query key"], period: int):
    """Mean attention to the token before, and to the token after this one's last occurrence, per head."""
    previous = pattern.diagonal(-1, 2, 3)[..., 1:].mean((0, 2))
    induction = pattern.diagonal(1 - period, 2, 3)[..., 2:].mean((0, 2))
    return previous, induction


def rounded(by_layer) -> list:
    return [[round(value, 3) for value in layer.tolist()] for layer in by_layer]


def head_names(is_open: Float[Tensor, "layer head"]) -> list[str]:
    return [f"a{layer}.{head}" for layer, head in is_open.nonzero().tolist()]
