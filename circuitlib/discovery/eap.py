"""Edge attribution patching: an estimate of every edge's effect at once, from gradients.

EAP (Syed, Rager & Conmy 2023, arXiv 2310.10348, section 2): follow the tangent of the metric at the clean run,

    score(s→r) = Σ_{pos, d} g_r · (out[s] − ref[s]),   g_r = ∂metric/∂x_r,

with x_r what receiver r reads before its LayerNorm. Two forward passes and one backward pass give all edges. EAP-IG
(Hanna, Pezzelle & Belinkov 2024, arXiv 2403.17806, section 3) averages g_r over several points between the corrupted and the clean run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..engine import (
    Engine,
    LayerWeights,
    Metric,
    Reference,
    Weights,
    Written,
    attend,
    check_engine,
    mlp,
    project,
    unembed,
    write_all,
    write_heads,
)
from ..graph import Slot, is_whole
from .scores import Cost, EdgeScores, metric_name

VARIANTS = ("inputs", "activations", "clean-corrupted")
VANISHED = 1e-6  # below this, a gradient at the logits is rounding


@dataclass(frozen=True)
class Point:
    """A run at which gradients are taken: one part of it stands between its reference value (0) and its own value (1).

    Args:
        share: how far it stands from the reference.
        slot: the sublayer whose output it is; None for the embedding.
    """

    share: float
    slot: Slot | None = None


CLEAN = Point(1.0)


def eap(engine: Engine, *, metric: str | Metric | None = None, per_position: bool = False) -> EdgeScores:
    """Edge attribution patching: two forward passes (one made the engine's reference) and one backward pass.

    Args:
        metric: None for the task's, "kl", or a callable from logits ``[n, k, d_vocab]`` to ``[n]`` that treats each
            prompt by itself.
        per_position: one score for each edge and position.

    Returns:
        Scores in units of the metric, averaged over prompts; positive where cutting the edge is estimated to lower it.

    Raises:
        ValueError: the metric's gradient vanishes at this run, as that of KL does at the clean one.
    """
    return _attribute(check_engine(engine), "eap", [CLEAN], metric, per_position)


def eap_ig(
    engine: Engine,
    *,
    steps: int | None = None,
    variant: str = "inputs",
    metric: str | Metric | None = None,
    per_position: bool = False,
) -> EdgeScores:
    """EAP with integrated gradients: g_r is averaged over points between the corrupted and the clean run.

    Args:
        steps: m, how many points (5 if None, the paper's); not for "clean-corrupted", which has two.
        variant: "inputs": the embedding is corrupted + (k/m)(clean − corrupted), k = 0 … m−1. With more steps the scores of
            the edges out of ``embed`` add up to M(clean) − M(corrupted).
            "activations": one sublayer at a time (the embedding, a layer's heads, an MLP) has its output moved in the same way,
            k = 1 … m, the embedding of the prompt left clean; averaged over sublayers as well. (2L+1)·m passes, without MLPs (L+1)·m.
            "clean-corrupted": the mean of the two end points.
        metric, per_position: as for ``eap``.

    Raises:
        ValueError: another variant, bad ``steps``, or a path that is not defined: under zero ablation, "inputs" and
            "clean-corrupted" start from an embedding of zeros. There a LayerNorm is steeper by orders of magnitude, 1/√ε, than
            at any prompt. (Under zero ablation and denoising ``eap`` and "activations" take their gradients there too, since
            that is the run in which edges are set to clean values: trust them little.)
    """
    check_engine(engine)
    if variant not in VARIANTS:
        raise ValueError(f"variant: expected one of {', '.join(VARIANTS)}, got {variant!r}")
    if variant == "clean-corrupted" and steps is not None:
        raise ValueError(f"steps: expected None with variant 'clean-corrupted', which has two points, got {steps!r}")
    steps = 5 if steps is None else steps
    if not is_whole(steps) or steps < 1:
        raise ValueError(f"steps: expected a positive integer, got {steps!r}")
    if variant != "activations" and engine.ablation == "zero" and engine.weights.eps is not None:
        raise ValueError(
            f"variant: {variant!r} starts from what a cut embedding carries; under zero ablation that is the zero vector, "
            "where LayerNorm is steeper by orders of magnitude than at any prompt; expected 'activations', or ablation 'corrupted' or 'mean'"
        )
    points = {
        "inputs": [Point(k / steps) for k in range(steps)],
        "activations": [Point(k / steps, slot) for slot in _sublayers(engine) for k in range(1, steps + 1)],
        "clean-corrupted": [CLEAN, Point(0.0)],
    }[variant]
    return _attribute(engine, f"eap-ig-{variant}", points, metric, per_position)


def _sublayers(engine: Engine) -> list[Slot | None]:
    return [None, *(slot for slot in engine.graph.slots if slot.kind != "logits")]


# From runs to scores -----------------------------------------------------------------------------


def _attribute(engine: Engine, method: str, points: list[Point], metric, per_position: bool) -> EdgeScores:
    """Scores with g_r averaged over ``points``, prompts in parts that stay under the engine's memory limit."""
    began = time.perf_counter()
    graph = engine.graph_with_positions if per_position else engine.graph
    scores = torch.zeros(graph.edge_mask.shape, device=engine.start.device, dtype=engine.start.dtype)
    steepest = 0.0
    for prompts in _parts(engine):
        start = engine.start[prompts]
        reference = engine.reference.of_prompts(prompts, len(start))
        written = None if points[0] == CLEAN else write_all(engine.weights, start)
        differences = None if written is None else _differences(engine.weights, written, reference)
        for point in points:
            tape = record(engine, start, reference, point, written)
            if differences is None:  # the first point is the run itself
                written, differences = tape.written, _differences(engine.weights, tape.written, reference)
            slope, gradients = tape.gradients(engine, metric, prompts)
            steepest = max(steepest, slope)
            for slot, g in gradients:
                scores[slot.rows, : slot.n_upstream] += _contract(g, differences[: slot.n_upstream], per_position)
    if steepest <= VANISHED:
        raise ValueError(
            f"metric: the gradient of {metric_name(metric)!r} vanishes at the run that {method} looks at, so it tells no edge from "
            "another (KL has its optimum at the clean run); expected the task's metric, or eap_ig(…) with variant 'inputs'"
        )
    scores *= engine.sign / (len(engine.task) * len(points))
    forwards = 1 + len(points) + (points[0] != CLEAN)  # the engine's reference, the points, the run itself
    cost = Cost(forwards, len(points), time.perf_counter() - began)
    claim = (engine.task.name, engine.ablation, engine.direction)
    return EdgeScores(graph, scores.cpu(), method, metric_name(metric), *claim, cost)


def _contract(g: Float[Tensor, "r n pos d"], differences: Float[Tensor, "s n pos d"], per_position: bool) -> Tensor:
    """Σ over prompts and features (and, without positions, over positions) of g_r · (out[s] − ref[s])."""
    if per_position:
        return torch.einsum("rnpd,snpd->rsp", g, differences)
    return g.flatten(1) @ differences.flatten(1).T


def _differences(weights: Weights, written: Written, reference: Reference) -> Float[Tensor, "sender n pos d_model"]:
    """out[s] − ref[s] for every sender."""
    with torch.no_grad():
        parts = [(written.embed - reference.embed)[None]]
        for i, layer in enumerate(weights.layers):
            parts.append(write_heads(layer.W_O, written.z[i] - reference.z[i]))
            if layer.W_in is not None:
                parts.append((written.mlp[i] - reference.mlp[i])[None])
        return torch.cat(parts)


def _parts(engine: Engine) -> Iterator[slice]:
    """Prompts that fit under the memory limit together."""
    graph, weights = engine.graph, engine.weights
    vectors = len(graph.senders) + 3 * 3 * graph.n_heads + 12 * graph.n_layers  # differences, gradients, tape
    floats = engine.start.shape[1] * (vectors * weights.d_model + graph.n_layers * 3 * weights.d_mlp)
    fit = max(1, int(engine.memory_mb * 2**20 / (floats * engine.start.element_size())))
    return (slice(i, i + fit) for i in range(0, len(engine.task), fit))


# A run with autograd's tape ----------------------------------------------------------------------


@dataclass(frozen=True)
class Tape:
    """A run that can be differentiated.

    Args:
        residual: for each slot, the residual stream that its receivers read.
        taps: for each slot, where the gradient is taken: the queries, keys and values of a layer's heads
            ``[3, head, n, pos, d_head]``; the residual stream for an MLP and the logits.
        written: what every sender wrote.
        logits: at the read positions.
    """

    residual: list[Float[Tensor, "n pos d_model"]]
    taps: list[Tensor]
    written: Written
    logits: Float[Tensor, "n k d_vocab"]

    def gradients(self, engine: Engine, metric, prompts: slice) -> tuple[float, Iterator[tuple[Slot, Tensor]]]:
        """One backward pass: the largest |∂metric/∂logits|, and for each slot the gradients at its receivers."""
        with torch.enable_grad():
            total = _total(engine, self.logits, metric, prompts)
        if not total.requires_grad:
            raise ValueError(
                f"metric: {metric_name(metric)!r} has no gradient; expected one that is a smooth function of the logits"
            )
        (g,) = torch.autograd.grad(total, self.logits)
        taps = torch.autograd.grad(self.logits, self.taps, g, allow_unused=True, materialize_grads=True)
        return float(g.abs().max()), self._receivers(engine, taps)

    def _receivers(self, engine: Engine, taps: tuple[Tensor, ...]) -> Iterator[tuple[Slot, Tensor]]:
        """Slot by slot, ``[receiver, n, pos, d_model]``, so that only one layer's gradients are held at a time."""
        for slot, x, tap in zip(engine.graph.slots, self.residual, taps, strict=True):
            if slot.kind == "attn":
                layer = engine.weights.layers[slot.layer]
                yield slot, before_projection(engine.weights, layer, x.detach(), tap)
            else:
                yield slot, tap[None]


def record(
    engine: Engine, start: Float[Tensor, "n pos d_model"], reference: Reference, point: Point, written: Written | None
) -> Tape:
    """Run the model from ``start``, moved to ``point``, so that gradients at all receivers can be asked for.

    The forward pass is the model's own: nothing is forked for each head. ``written`` is what the run itself wrote; only a
    sublayer that is moved needs it.
    """
    weights, residual, taps, all_z, all_mlp = engine.weights, [], [], [], []
    x = start if point.slot is not None else torch.lerp(reference.embed.expand_as(start), start, point.share)

    def write(kind: str, i: int, new: Tensor) -> Tensor:
        if point.slot is None or (point.slot.kind, point.slot.layer) != (kind, i):
            return new
        return _moved(weights, point, written, reference)

    with torch.enable_grad():
        for i, layer in enumerate(weights.layers):
            residual.append(x)
            qkv = torch.stack(project(weights, layer, "qkv", x[None, None], [0] * 3 * weights.n_heads))[:, 0]
            taps.append(_tap(qkv))
            z = attend(layer, *taps[-1][:, None])[0]
            all_z.append(z.detach())
            x = x + write("attn", i, write_heads(layer.W_O, z, [0] * weights.n_heads)[0]) + layer.b_O
            if layer.W_in is not None:
                residual.append(x)
                taps.append(_tap(x))
                new = mlp(weights, layer, taps[-1])
                all_mlp.append(new.detach())
                x = x + write("mlp", i, new)
        residual.append(x)
        taps.append(_tap(x))
        logits = unembed(weights, taps[-1][:, engine.read])
    return Tape(residual, taps, Written(start, tuple(all_z), tuple(all_mlp)), logits)


def _tap(x: Tensor) -> Tensor:
    """``x`` as a tensor of its own, so that the gradient there does not include what else is made of ``x``."""
    return x.view_as(x) if x.requires_grad else x.detach().requires_grad_()


def _moved(weights: Weights, point: Point, written: Written, reference: Reference) -> Float[Tensor, "n pos d_model"]:
    """What a sublayer writes when it stands at ``point``, its heads together."""
    i = point.slot.layer
    if point.slot.kind == "mlp":
        return torch.lerp(reference.mlp[i].expand_as(written.mlp[i]), written.mlp[i], point.share)
    z = torch.lerp(reference.z[i].expand_as(written.z[i]), written.z[i], point.share)
    return write_heads(weights.layers[i].W_O, z, [0] * weights.n_heads)[0]


def _total(engine: Engine, logits: Float[Tensor, "part k d_vocab"], metric, prompts: slice) -> Float[Tensor, ""]:
    """The sum of the metric over some prompts. A metric takes the logits of all prompts: the others get logits that don't count."""
    everyone = logits.detach()[:1].repeat(len(engine.task), 1, 1)
    everyone[prompts] = logits
    return engine.measure(metric)(everyone[None])[0, prompts].sum()


def before_projection(
    weights: Weights,
    layer: LayerWeights,
    x: Float[Tensor, "n pos d_model"],
    g: Float[Tensor, "three head n pos d_head"],
) -> Float[Tensor, "receiver n pos d_model"]:
    """Gradients at queries, keys and values, taken back through their projection and the LayerNorm, head by head.

    LayerNorm's Jacobian at x, x̂ being the normalised x and σ its scale: u ↦ (u' − mean(u') − x̂ mean(x̂ u')) / σ, u' = weight · u.
    """
    u = torch.einsum("thnpe,htde->htnpd", g, layer.W_QKV).flatten(0, 1)
    if weights.eps is None:
        return u
    centred = x - x.mean(-1, keepdim=True)
    scale = (centred.pow(2).mean(-1, keepdim=True) + weights.eps).rsqrt()
    normal = centred * scale
    u = u if layer.ln1 is None else u * layer.ln1[0]
    return (u - u.mean(-1, keepdim=True) - normal * (u * normal).mean(-1, keepdim=True)) * scale
