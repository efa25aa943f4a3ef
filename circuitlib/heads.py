"""What a head does: how it attends, what it copies, which role it plays."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .engine import Engine, Reference, Weights, Written, check_engine, embed, norm, unembed, write_all, write_heads
from .graph import Circuit, Edge, Graph
from .patching import ROUNDING, _names
from .tasks import Task
from .tasks.tokens import check_count, device_of

AT_ONCE = 1024  # tokens of a vocabulary that are sent through a head together


def head_scores(model, n: int = 50, period: int = 25, seed: int = 0) -> dict[str, Float[Tensor, "layer head"]]:
    """How much each head looks like a known type, on random tokens repeated twice. Mean attention, from 0 to 1.

    ``previous_token``: to the token before. ``induction``: to the token after this one's last occurrence.
    ``duplicate_token``: to this one's last occurrence. ``first_token``: to BOS, where a head rests that has nothing to do.

    Olsson et al., "In-context learning and induction heads" (2022), "Head activation evaluators".
    """
    check_count(n)
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
    graph = check_engine(engine).graph
    cut = [engine.all - out_edges(graph, f"a{layer}.{head}") for layer, head in graph_heads(graph)]
    full, empty = engine.metric(engine.all), engine.metric(engine.none)
    if (full - empty).abs() < ROUNDING * max(1.0, float(full.abs())):
        raise ValueError(
            f"task: the metric is {float(full):.3g} with all edges and with none, expected a difference to divide by"
        )
    return ((full - engine.metric(cut)) / (full - empty)).view(graph.n_layers, graph.n_heads)


def roles(model, task: Task, at_most: int = 3, attention: float = 0.25, effect: float = 0.02) -> dict[str, list[str]]:
    """Which heads play the roles that the task names, strongest first.

    A head plays a role if it attends as the role says *and* matters: ablating it alone costs at least ``effect`` of the
    metric's range. Attention alone would also list heads that look and do nothing. Ranked by the product of the two.

    Attention is the mean over prompts, of at least ``attention``. If a role names several keys for one query, theirs is
    added up; if it names several queries, the one with the most counts.

    Raises:
        ValueError: the metric is the same with all edges and with none.
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
    A task with several read positions is averaged over them. A ValueError for a task whose metric is no difference of logits.
    """
    weights, read = Weights.of(model), list(task.read_positions)
    with torch.no_grad():
        written = write_all(weights, embed(weights, task.clean))
        residual = Reference.of(weights, written).residual[-1][:, read]
        reader = _Reader.of(weights, task, residual)
        worth = reader.on(residual)
        layers = zip(weights.layers, written.z, strict=True)
        heads = torch.stack([worth(write_heads(layer.W_O, z[:, :, read])) for layer, z in layers])
        mlps = torch.stack([worth(out[:, read]) for out in written.mlp]) if written.mlp else heads.new_zeros(0)
        biases = worth(sum(layer.b_O for layer in weights.layers).expand_as(residual)) + reader.constant
        return Attribution(
            heads,
            mlps,
            tokens=float(worth(weights.W_E[task.clean[:, read]])),
            positions=float(worth(weights.W_pos[read].expand_as(residual))),
            biases=float(biases),
            total=float(task.metric(unembed(weights, residual)).mean()),
        )


@dataclass(frozen=True)
class HeadAttribution:
    """The direct logit attribution of one head, split by where its values come from.

    Args:
        senders: who wrote what the head reads: "embed", "a0.0", …
        values: ``[sender, pos]``, what the head takes from what this sender wrote at this position; a mean over prompts.
        biases: what no sender writes: output biases below the head, LayerNorm's bias, the head's value bias.
        total: the head's entry in ``Attribution.heads``; values and biases sum to it.
    """

    senders: tuple[str, ...]
    values: Float[Tensor, "sender pos"]
    biases: float
    total: float


def head_attribution(model, task: Task, head: str) -> HeadAttribution:
    """From where a head takes what it adds to the logit difference, and who had written it there.

    A head's output is a sum over the positions that it attends to, and what stands at a position is a sum over senders.
    The attention pattern and both LayerNorms' scales are taken from the clean run and held fixed; then the head's
    direct logit attribution splits into these parts. Elhage et al. (2021), "Path expansion".

    Raises:
        ValueError: a head that does not exist.
    """
    weights, read = Weights.of(model), list(task.read_positions)
    at_layer, at_head = _parse_head(weights, "head", head)
    layer, graph = weights.layers[at_layer], Graph(model)
    pattern = attention_patterns(model, task.clean)[at_layer][:, at_head, read]
    with torch.no_grad():
        written = write_all(weights, embed(weights, task.clean))
        residuals = Reference.of(weights, written).residual
        x, last = residuals[at_layer * (2 if written.mlp else 1)], residuals[-1][:, read]
        reader = _Reader.of(weights, task, last)
        # What one unit of each dimension is worth: of the head's value, of what its LayerNorm gives, of what that reads.
        per_value = reader.direction / reader.scale(last) @ layer.W_O[at_head].T
        per_normed = per_value @ layer.W_QKV[at_head, 2].T
        per_input = per_normed if layer.ln1 is None else per_normed * layer.ln1[0]
        per_input = per_input if weights.eps is None else per_input - per_input.mean(-1, keepdim=True)

        def worth(out: Float[Tensor, "n pos d_model"]) -> Float[Tensor, "pos"]:
            return (torch.einsum("npd,nkd->nkp", out / _scale(weights, x), per_input) * pattern).mean((0, 1))

        senders = graph.senders[: graph.slot_of(f"{head}.v").n_upstream]
        values = torch.stack([worth(out) for out in _outputs(weights, written)[: len(senders)]])
        below = sum((lower.b_O for lower in weights.layers[:at_layer]), torch.zeros_like(x[0, 0]))
        biases = worth(below.expand_as(x)).sum() + (per_value @ layer.b_QKV[at_head, 2]).mean()
        if layer.ln1 is not None:
            biases = biases + (per_normed @ layer.ln1[1]).mean()
        total = reader.on(last)(written.z[at_layer][at_head][:, read] @ layer.W_O[at_head])
    return HeadAttribution(senders, values, float(biases), float(total))


@dataclass(frozen=True)
class SelfRepair:
    """Where the metric goes when senders are ablated: ``total`` is the sum of the other parts.

    Each part is positive where it lowers the metric, as an effect is; a negative one repairs.

    Args:
        own: what the ablated senders added directly, minus what stands in for it.
        heads: ``[layer, head]``, how much less each *other* head adds directly; 0 for ablated ones. mlps: ``[layer]``.
        scale: what the last LayerNorm does by dividing by another number.
        rival: what it costs that another wrong answer is now the best one; never negative.
        total: M(all) − M(ablated).
    """

    own: float
    heads: Float[Tensor, "layer head"]
    mlps: Float[Tensor, "layer"]
    scale: float
    rival: float
    total: float


def self_repair(engine: Engine, senders: Sequence[str]) -> SelfRepair:
    """Ablate senders, all their out-edges together, and account for the change of the logit difference part by part.

    The parts are taken in order: first everything that is written, read along the direction and with the LayerNorm
    scale of the run as it was (``own``, ``heads``, ``mlps``), then the new scale, then the new best wrong answer.
    In another order each would get another share; the sum is exact in any. After Rushing & Nanda, "Explorations of
    self-repair in language models" (2024), who compare the direct effect of a head with what ablating it does.

    Raises:
        ValueError: no sender, or one that does not exist, a denoising engine, or a metric that is no logit difference.
    """
    if check_engine(engine).direction != "noising":
        raise ValueError(f"engine: expected one that is noising, got {engine.direction!r}")
    graph, weights, task, senders = engine.graph, engine.weights, engine.task, _names("senders", senders)
    for name in senders:
        if name not in graph.sender_index:
            raise ValueError(f"senders: {name!r} does not exist in {graph!r}; expected one like 'a0.5'")
    without = engine.all - [edge for name in senders for edge in out_edges(graph, name)]
    with torch.no_grad():
        before, after = _read_by_logits(engine, engine.all), _read_by_logits(engine, without)
        old, new = (parts.sum(0) for parts in (before, after))
        reader = _Reader.of(weights, task, old)
        lost = reader.on(old)((before - after)[:-1])
        ablated = torch.tensor([graph.sender_index[name] for name in senders], dtype=torch.long)
        own = float(lost[ablated].sum())
        lost[ablated] = 0
        rescaled = float(reader.on(new)(new)) + reader.constant
        m_old, m_new = (float(task.metric(unembed(weights, x)).mean()) for x in (old, new))
    effects = {name: lost[i] for name, i in graph.sender_index.items()}
    heads = torch.stack([effects[f"a{layer}.{head}"] for layer, head in graph_heads(graph)])
    mlps = torch.stack([effects[f"m{layer}"] for layer in range(graph.n_layers)]) if graph.mlps else heads.new_zeros(0)
    linear = m_old - own - float(lost.sum())
    return SelfRepair(
        own, heads.view(graph.n_layers, graph.n_heads), mlps, linear - rescaled, rescaled - m_new, m_old - m_new
    )


def _read_by_logits(engine: Engine, circuit: Circuit) -> Float[Tensor, "sender+1 n k d_model"]:
    """What the logits read from each sender in a run of ``circuit``, and, last, the biases that no sender writes."""
    weights, run = engine.weights, engine.cache(circuit)
    reference = engine.reference.of_prompts(slice(None), len(engine.task))
    keep = run.keep[engine.graph.receiver_index["logits"]].view(-1, 1, 1, 1)
    replaced = torch.stack([out[:, engine.read] for out in _outputs(weights, reference)])
    biases = sum(layer.b_O for layer in weights.layers).expand_as(replaced[:1])
    return torch.cat([replaced + keep * run.stack.read[0], biases])


def _outputs(weights: Weights, written: Written) -> list[Float[Tensor, "n pos d_model"]]:
    """What each sender writes, in the order of ``Graph.senders``."""
    outputs = [written.embed]
    for i, layer in enumerate(weights.layers):
        outputs += write_heads(layer.W_O, written.z[i]).unbind()
        outputs += [written.mlp[i]] if written.mlp else []
    return outputs


@dataclass(frozen=True)
class _Reader:
    """How the logit difference reads the last residual stream: along ``direction``, over the LayerNorm's scale.

    ``direction`` ``[n, k, d_model]`` has the LayerNorm's weight folded in and is centred: centring x is centring it.
    ``constant`` is what is added whatever is written.
    """

    weights: Weights
    direction: Float[Tensor, "n k d_model"]
    constant: float

    @classmethod
    def of(cls, weights: Weights, task: Task, residual: Float[Tensor, "n k d_model"]) -> _Reader:
        if task.metric_name != "logit_diff":
            raise ValueError(f"task: expected one whose metric is a logit difference, got {task.metric_name!r}")
        direction, constant = _answer_direction(weights, task, unembed(weights, residual))
        if weights.eps is not None:
            direction = direction - direction.mean(-1, keepdim=True)
        return cls(weights, direction, float(constant))

    def scale(self, residual: Float[Tensor, "n k d_model"]) -> Float[Tensor, "n k 1"]:
        return _scale(self.weights, residual)

    def on(self, residual: Float[Tensor, "n k d_model"]) -> Callable[[Tensor], Float[Tensor, "*part"]]:
        """What vectors ``[*part, n, k, d_model]`` add to the metric, if the scale is that of ``residual``."""
        direction = self.direction / self.scale(residual)
        return lambda x: (x * direction).sum(-1).mean((-1, -2))


def _scale(weights: Weights, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... 1"]:
    """What LayerNorm divides by; 1 in a model without."""
    return (
        torch.ones_like(x[..., :1])
        if weights.eps is None
        else (x.var(-1, unbiased=False, keepdim=True) + weights.eps).sqrt()
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


def ov_circuit(
    model, path: Sequence[str | Sequence[str]], tokens: Int[Tensor, "token"] | None = None
) -> Float[Tensor, "token d_vocab"]:
    """What a token adds to every logit when it travels along ``path``, from weights alone. Row: the token at the start.

    The token's embedding goes through the first LayerNorm of the first head's layer, W_V and W_O of each head in turn, the
    LayerNorm weights between, the last LayerNorm's weight and the unembedding: the OV circuit for one head, a virtual
    attention head for several. Elhage et al. (2021), "OV circuit", "Virtual attention heads".

    Args:
        path: heads from the first to the last, such as ``["a0.5", "a3.6"]``; a list among them stands for heads of one layer
            side by side, whose outputs are added.
        tokens: the tokens to try (ids); default all.

    Returns:
        logits up to a factor: what the LayerNorms after the first head divide by depends on the prompt and is left out
        (taken as 1). It is the same for all logits of a prompt, so their order is right.

    Raises:
        ValueError: no heads, a head that does not exist, or one that does not come after the one before.
    """
    return _ov_circuit(Weights.of(model), path, tokens)


def _ov_circuit(weights: Weights, path, tokens: Int[Tensor, "token"] | None) -> Float[Tensor, "token d_vocab"]:
    steps = [[step] if isinstance(step, str) else list(step) for step in path]
    steps = [[_parse_head(weights, "path", name) for name in step] for step in steps]
    if not steps or any(len({layer for layer, _ in step}) != 1 for step in steps):
        raise ValueError(f"path: expected heads, side by side only within one layer, got {path!r}")
    if any(early[0][0] >= late[0][0] for early, late in itertools.pairwise(steps)):
        raise ValueError(f"path: expected each head in a later layer than the one before, got {path!r}")
    tokens = torch.arange(len(weights.W_E)) if tokens is None else tokens
    tokens = tokens.to(weights.W_E.device)
    with torch.no_grad():
        x = weights.W_E[tokens]
        for i, step in enumerate(steps):
            layer = weights.layers[step[0][0]]
            h = norm(weights, x, layer.ln1) if i == 0 else _linear_norm(weights, x, layer.ln1)
            x = sum(h @ layer.W_QKV[head, 2] @ layer.W_O[head] for _, head in step)
        return _linear_norm(weights, x, weights.ln_final) @ weights.W_U


def ov_copying(
    model, tokens: Int[Tensor, "token"] | None = None, after: Sequence[str] = ()
) -> Float[Tensor, "layer head"]:
    """How often a head that attends to a token would raise that token's own logit more than any other's. From 0 to 1.

    A head with 1 copies whatever it looks at. See ``ov_circuit`` for what is computed.

    Args:
        tokens: the tokens to try (ids); default all.
        after: heads of one layer that first move the token to where the head looks, as previous-token heads do. Heads that
            are not in a later layer get NaN. Without: the head reads the token's embedding.
    """
    weights, after = Weights.of(model), list(after)
    tokens = torch.arange(len(weights.W_E)) if tokens is None else tokens
    tokens = tokens.to(weights.W_E.device)
    first = max((_parse_head(weights, "after", name)[0] + 1 for name in after), default=0)
    scores = weights.W_E.new_full((len(weights.layers), weights.n_heads), torch.nan)
    for layer, head in graph_heads(scores):
        if layer >= first:
            path = [after, f"a{layer}.{head}"] if after else [f"a{layer}.{head}"]
            parts = tokens.split(AT_ONCE)  # else 10 GB for each head of GPT-2
            hits = [(_ov_circuit(weights, path, part).argmax(-1) == part).float() for part in parts]
            scores[layer, head] = torch.cat(hits).mean()
    return scores


def _linear_norm(weights: Weights, x: Float[Tensor, "... d_model"], affine) -> Float[Tensor, "... d_model"]:
    """What of LayerNorm is linear: centring and the weight."""
    x = x if weights.eps is None else x - x.mean(-1, keepdim=True)
    return x if affine is None else x * affine[0]


def _parse_head(weights: Weights, argument: str, name: str) -> tuple[int, int]:
    """ "a1.4" → (1, 4); a ValueError if there is no such head."""
    found = re.fullmatch(r"a(\d+)\.(\d+)", name) if isinstance(name, str) else None
    layer, head = (int(found[1]), int(found[2])) if found else (-1, -1)
    if not (0 <= layer < len(weights.layers) and head < weights.n_heads):
        raise ValueError(
            f"{argument}: expected a head from a0.0 to a{len(weights.layers) - 1}.{weights.n_heads - 1}, got {name!r}"
        )
    return layer, head


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
    scores = weights.W_E.new_zeros(n_layers, n_heads, n_layers, n_heads)
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
    return torch.cat([torch.full((n, 1), model.tokenizer.bos_token_id), once, once], 1).to(device_of(model))


def attention_patterns(model, tokens: Int[Tensor, "n pos"]) -> list[Float[Tensor, "n head query key"]]:
    """Each layer's attention pattern; each row over keys sums to 1."""
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens, names_filter=lambda name: name.endswith("attn.hook_pattern"))
    return [cache["pattern", layer] for layer in range(model.cfg.n_layers)]
