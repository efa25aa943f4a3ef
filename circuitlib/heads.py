"""What a head does: how it attends, what it copies, which role it plays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .engine import Engine
from .graph import Edge, Graph
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


def attention_between(model, task: Task) -> Callable[[str, str], Float[Tensor, "layer head"]]:
    """A function of two position names: each head's mean attention from the first to the second, on the clean prompts."""
    patterns = torch.stack(attention_patterns(model, task.clean)).mean(1)  # [layer, head, query, key]
    return lambda query, key: patterns[:, :, task.position(query), task.position(key)]


def head_effects(engine: Engine) -> Float[Tensor, "layer head"]:
    """What each head is worth alone: M(all) − M(all without the head's out-edges), divided by M(all) − M(nothing)."""
    graph = engine.graph
    cut = [engine.all - out_edges(graph, f"a{layer}.{head}") for layer, head in graph_heads(graph)]
    full, empty = engine.metric(engine.all), engine.metric(engine.none)
    return ((full - engine.metric(cut)) / (full - empty)).view(graph.n_layers, graph.n_heads)


def roles(model, task: Task, at_most: int = 3, attention: float = 0.25, effect: float = 0.02) -> dict[str, list[str]]:
    """Which heads play the roles that the task names, strongest first.

    A head plays a role if it attends as the role says (mean attention of at least ``attention``, summed over
    neighbouring keys) *and* matters: ablating it alone costs at least ``effect`` of the metric's range. Attention alone
    would also list heads that look and do nothing. Ranked by the product of the two.
    """
    between, effects = attention_between(model, task), head_effects(Engine(model, task))
    found = {}
    for role, pairs in task.roles.items():
        by_query: dict[str, Tensor] = {}
        for query, key in pairs:
            by_query[query] = by_query.get(query, 0) + between(query, key)
        score = torch.stack(list(by_query.values())).max(0).values
        rank = torch.where((score >= attention) & (effects >= effect), score * effects, 0.0)
        best = [divmod(i, rank.shape[1]) for i in rank.flatten().argsort(descending=True).tolist()]
        found[role] = [f"a{layer}.{head}" for layer, head in best if rank[layer, head] > 0][:at_most]
    return found


def out_edges(graph: Graph, sender: str) -> list[Edge]:
    """All edges that leave ``sender``."""
    return [edge for edge in graph.edges if edge.sender == sender]


def graph_heads(graph: Graph) -> list[tuple[int, int]]:
    """All (layer, head) in order."""
    return [(layer, head) for layer in range(graph.n_layers) for head in range(graph.n_heads)]


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
