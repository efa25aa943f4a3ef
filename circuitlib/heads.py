"""What a head does: how it attends, what it copies, which role it plays."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .tasks import Task


def head_scores(model, n: int = 50, period: int = 25, seed: int = 0) -> dict[str, Float[Tensor, "layer head"]]:
    """How much each head looks like a known type, on random tokens repeated twice. Mean attention, from 0 to 1.

    ``previous_token``: to the token before. ``induction``: to the token after this one's last occurrence.
    ``duplicate_token``: to this one's last occurrence. ``first_token``: to BOS, where a head rests that has nothing to do.

    Olsson et al., "In-context learning and induction heads" (2022), "Head activation evaluators".
    """
    tokens = repeated_tokens(model, n, period, seed)
    second = slice(period + 1, None)  # the queries for which the last occurrence exists
    by_layer = []
    for pattern in attention_patterns(model, tokens):
        offset = {"previous_token": -1, "induction": 1 - period, "duplicate_token": -period}
        scores = {name: pattern.diagonal(o, 2, 3)[..., second.start + o :].mean((0, 2)) for name, o in offset.items()}
        by_layer.append(scores | {"first_token": pattern[:, :, second, 0].mean((0, 2))})
    return {name: torch.stack([scores[name] for scores in by_layer]) for name in by_layer[0]}


def attention_to(model, task: Task, query: str, key: str | tuple[str, ...]) -> Float[Tensor, "layer head"]:
    """Mean attention of each head between named positions of the clean prompts (summed over several keys)."""
    keys = [task.position(name) for name in ((key,) if isinstance(key, str) else key)]
    q = task.position(query)
    return torch.stack([p[:, :, q, keys].sum(-1).mean(0) for p in attention_patterns(model, task.clean)])


def repeated_tokens(model, n: int, period: int, seed: int) -> Int[Tensor, "n pos"]:
    """BOS, ``period`` different random tokens, and the same once more."""
    special = set(model.tokenizer.all_special_ids)
    ordinary = [i for i in range(len(model.tokenizer)) if i not in special]
    longest = min(len(ordinary), (model.cfg.n_ctx - 1) // 2)
    if not 2 <= period <= longest:
        raise ValueError(f"period: expected 2 to {longest} for this model, got {period}")
    rng = np.random.default_rng(seed)
    once = torch.from_numpy(np.stack([rng.choice(ordinary, period, replace=False) for _ in range(n)]))
    return torch.cat([torch.full((n, 1), model.tokenizer.bos_token_id), once, once], 1)


def attention_patterns(model, tokens: Int[Tensor, "n pos"]) -> list[Float[Tensor, "n head query key"]]:
    """Each layer's attention pattern; each row over keys sums to 1."""
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens, names_filter=lambda name: name.endswith("attn.hook_pattern"))
    return [cache["pattern", layer] for layer in range(model.cfg.n_layers)]
