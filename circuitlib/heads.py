"""What a head does: how it attends, what it copies, which role it plays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .engine import Engine, Reference, Weights, embed, norm, unembed, write_all, write_heads
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


def graph_heads(of: Graph | Float[Tensor, "layer head"]) -> list[tuple[int, int]]:
    """All (layer, head) of a graph or of a matrix, in order."""
    n_layers, n_heads = (of.n_layers, of.n_heads) if isinstance(of, Graph) else of.shape
    return [(layer, head) for layer in range(n_layers) for head in range(n_heads)]


@dataclass(frozen=True)
class Attribution:
    """The logit difference as a sum of what each part writes, a mean over prompts.

    Args:
        heads: ``[layer, head]``. mlps: ``[layer]``, empty without MLPs. tokens, positions: the two embeddings.
        biases: everything that no part writes: output biases, the bias of the last LayerNorm, ``b_U``.
        total: the model's mean logit difference; the parts sum to it.
    """

    heads: Float[Tensor, "layer head"]
    mlps: Float[Tensor, "layer"]
    tokens: float
    positions: float
    biases: float
    total: float

    def parts_sum(self) -> float:
        return float(self.heads.sum() + self.mlps.sum()) + self.tokens + self.positions + self.biases


def direct_logit_attribution(model, task: Task) -> Attribution:
    """What each part adds *directly* to the logit of the answer minus that of the best distractor.

    The last LayerNorm divides by a scale that depends on everything; that scale is taken from the run and held fixed, so
    the rest is linear and splits into parts. Elhage et al., "A mathematical framework for transformer circuits" (2021).
    A task with several read positions is averaged over them.
    """
    weights, read = Weights.of(model), list(task.read_positions)
    with torch.no_grad():
        written = write_all(weights, embed(weights, task.clean))
        residual = Reference.of(weights, written).residual[-1][:, read]
        direction, constant = _answer_direction(weights, task, unembed(weights, residual))
        if weights.eps is not None:
            scale = (residual.var(-1, unbiased=False, keepdim=True) + weights.eps).sqrt()
            direction = (direction - direction.mean(-1, keepdim=True)) / scale  # centring x is centring the direction

        def worth(x: Float[Tensor, "*part n k d_model"]) -> Float[Tensor, "*part"]:
            return (x * direction).sum(-1).mean((-1, -2))

        layers = zip(weights.layers, written.z, strict=True)
        heads = torch.stack([worth(write_heads(layer.W_O, z[:, :, read])) for layer, z in layers])
        mlps = torch.stack([worth(out[:, read]) for out in written.mlp]) if written.mlp else torch.zeros(0)
        biases = worth(sum(layer.b_O for layer in weights.layers).expand_as(residual)) + constant
        return Attribution(
            heads,
            mlps,
            tokens=float(worth(weights.W_E[task.clean[:, read]])),
            positions=float(worth(weights.W_pos[read].expand_as(residual))),
            biases=float(biases),
            total=float(task.metric(unembed(weights, residual)).mean()),
        )


def _answer_direction(weights: Weights, task: Task, logits) -> tuple[Float[Tensor, "n k d_model"], Float[Tensor, ""]]:
    """The direction that the last LayerNorm's output is read along for the logit difference, and what is added to it."""
    n, k = logits.shape[:2]
    answers, wrong = task.answers.view(n, k, 1), task.distractors.view(n, k, -1)
    best = wrong.gather(-1, logits.gather(-1, wrong).argmax(-1, keepdim=True))
    direction = (weights.W_U.T[answers] - weights.W_U.T[best]).squeeze(-2)
    constant = (weights.b_U[answers] - weights.b_U[best]).mean()
    if weights.ln_final is not None:
        weight, bias = weights.ln_final
        constant = constant + (direction @ bias).mean()
        direction = direction * weight
    return direction, constant


def ov_copying(model, tokens: Int[Tensor, "token"] | None = None) -> Float[Tensor, "layer head"]:
    """How often a head that attends to a token would raise that token's own logit more than any other's. From 0 to 1.

    ``tokens``: the tokens to try (ids); default all. The token's embedding goes through the first LayerNorm of the
    head's layer, W_V, W_O, the last LayerNorm's weight and the unembedding: a head with 1 copies whatever it looks at.
    """
    weights = Weights.of(model)
    tokens = torch.arange(weights.W_E.shape[0]) if tokens is None else tokens
    scores = torch.zeros(len(weights.layers), weights.n_heads)
    with torch.no_grad():
        for layer, head in graph_heads(scores):
            W = weights.layers[layer]
            value = norm(weights, weights.W_E[tokens], W.ln1) @ W.W_QKV[head, 2]
            written = value @ W.W_O[head]
            if weights.ln_final is not None:
                written = (written - written.mean(-1, keepdim=True)) * weights.ln_final[0]
            scores[layer, head] = ((written @ weights.W_U).argmax(-1) == tokens).float().mean()
    return scores


def composition(model, kind: str) -> Float[Tensor, "layer head layer head"]:
    """How strongly a later head reads what an earlier head writes, by weights alone: ``[l1, h1, l2, h2]``, zero unless l1 < l2.

    ``kind``: "Q", "K" or "V", the input through which it is read. ‖W_OV W‖ / (‖W_OV‖ ‖W‖) with Frobenius norms, where W
    is the later head's QK matrix (its transpose for "K") or OV matrix, LayerNorm weights folded in. Elhage et al. (2021),
    "Composition scores". TransformerLens's ``all_composition_scores`` gives the same after folding; on raw weights it
    leaves the LayerNorm weights out.
    """
    if kind not in ("Q", "K", "V"):
        raise ValueError(f"kind: expected 'Q', 'K' or 'V', got {kind!r}")
    weights = Weights.of(model)
    n_layers, n_heads = len(weights.layers), weights.n_heads
    reads, writes = [], []
    for layer in weights.layers:
        W_Q, W_K, W_V = (_folded(weights, layer, part) for part in range(3))  # [head, d_model, d_head]
        reads.append({"Q": W_Q @ W_K.mT, "K": W_K @ W_Q.mT, "V": W_V @ layer.W_O}[kind])
        writes.append(W_V @ layer.W_O)
    scores = torch.zeros(n_layers, n_heads, n_layers, n_heads)
    for early in range(n_layers):
        for late in range(early + 1, n_layers):
            product = (writes[early][:, None] @ reads[late][None]).norm(dim=(-2, -1))
            scores[early, :, late] = product / (
                writes[early].norm(dim=(-2, -1))[:, None] * reads[late].norm(dim=(-2, -1))
            )
    return scores


def _folded(weights: Weights, layer, part: int) -> Float[Tensor, "head d_model d_head"]:
    """W_Q, W_K or W_V as it acts on the centred residual stream: times the LayerNorm's weight, and centred."""
    W = layer.W_QKV[:, part]
    if layer.ln1 is not None:
        W = W * layer.ln1[0][:, None]
    return W if weights.eps is None else W - W.mean(1, keepdim=True)


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
