"""Activation patching: put one activation of one run into another run and see what the metric does.

Path patching does the same to a path: only what travels along it changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from unittest import mock

import torch
from jaxtyping import Float
from torch import Tensor

from .engine import Engine, Metric, attend, check_engine, mlp, project, unembed, write_heads
from .graph import Edge, Graph, node_of
from .tasks import Task

# Site → (TransformerLens's sweep over whole sequences, its sweep position by position).
SWEEPS = {
    "resid_pre": (None, "get_act_patch_resid_pre"),
    "attn_out": (None, "get_act_patch_attn_out"),
    "mlp_out": (None, "get_act_patch_mlp_out"),
    "z": ("get_act_patch_attn_head_out_all_pos", "get_act_patch_attn_head_out_by_pos"),
    "q": ("get_act_patch_attn_head_q_all_pos", "get_act_patch_attn_head_q_by_pos"),
    "k": ("get_act_patch_attn_head_k_all_pos", "get_act_patch_attn_head_k_by_pos"),
    "v": ("get_act_patch_attn_head_v_all_pos", "get_act_patch_attn_head_v_by_pos"),
    "pattern": ("get_act_patch_attn_head_pattern_all_pos", "get_act_patch_attn_head_pattern_by_pos"),
}

ROUNDING = 1e-6  # of the metric, or of 1 if that is more: less is what float32 makes of nothing


def activation_patching(
    model,
    task: Task,
    site: str = "resid_pre",
    mode: str = "noising",
    by_position: bool | None = None,
    normalize: bool = True,
    metric: Callable[[Tensor], Tensor] | None = None,
    progress: bool = False,
) -> Float[Tensor, "layer pos"] | Float[Tensor, "layer head"] | Float[Tensor, "layer pos head"]:
    """Patch one activation at a time and measure the metric, with TransformerLens's own sweeps.

    Args:
        site: what is patched. ``resid_pre``, ``attn_out``, ``mlp_out``: one layer at one position → ``[layer, pos]``.
            ``z`` (the head's output), ``q``, ``k``, ``v``, ``pattern``: one head → ``[layer, head]``, or with
            ``by_position=True`` one head at one position → ``[layer, pos, head]`` (``pattern``: the query's position).
        mode: "noising" puts corrupted values into the clean run (is the activation necessary?), "denoising" clean values
            into the corrupted run (is it sufficient?).
        by_position: default: True for sites that are not heads.
        normalize: divide ``M(patched) − M(base)`` by ``M(clean) − M(corrupted)``: −1 in noising and +1 in denoising mean that
            patching this one place does as much as changing the whole prompt. ``False``: the raw metric.
        metric: logits at all positions, ``[n, pos, d_vocab]`` → ``[n]``; default the task's. (Elsewhere a metric gets the logits
            at the read positions alone: here TransformerLens runs the model.)
        progress: show a progress bar.

    Heimersheim & Nanda, "How to use and interpret activation patching" (2024), section 2.
    """
    whole, positional = _sweeps(model, site, by_position)
    if mode not in ("noising", "denoising"):
        raise ValueError(f"mode: expected 'noising' or 'denoising', got {mode!r}")
    if metric is not None and not callable(metric):
        raise ValueError(f"metric: expected a function from logits [n, pos, d_vocab] to [n], got {metric!r}")
    if not isinstance(task, Task):
        raise ValueError(f"task: expected a Task, got {type(task).__name__}")
    score = task.metric if metric is None else metric
    base, source = (task.clean, task.corrupted) if mode == "noising" else (task.corrupted, task.clean)

    with torch.no_grad(), _progress(progress):
        _, cache = model.run_with_cache(source, names_filter=_names_filter(site))
        patched = (whole or positional)(model, base, cache, lambda logits: _checked(score(logits), len(task)).mean())
        if site == "pattern" and positional is not None:
            patched = patched.transpose(1, 2)  # TransformerLens puts the head before the position here
        if not normalize:
            return patched
        m_clean, m_corrupted = (
            _checked(score(model(tokens)), len(task)).mean() for tokens in (task.clean, task.corrupted)
        )
    gap = m_clean - m_corrupted
    if gap.abs() < ROUNDING * max(1.0, float(m_clean.abs())):
        raise ValueError(
            "task: clean and corrupted prompts have the same mean metric, so nothing can be normalised (normalize=False)"
        )
    return (patched - (m_clean if mode == "noising" else m_corrupted)) / gap


def path_patching(
    engine: Engine,
    senders: Sequence[str],
    receivers: Sequence[str],
    through_mlps: bool = False,
    via: Sequence[str | Sequence[str]] = (),
    *,
    metric: str | Metric | None = None,
    normalize: bool = True,
) -> Float[Tensor, ""]:
    """What the paths from ``senders`` to ``receivers`` carry, all of them patched together.

    The receivers read the run as it is, except that what comes along these paths is what the engine's cut edges carry
    (corrupted values for a noising engine, clean ones for a denoising engine). All other readers of the senders see no
    change. Receivers, and all after them, are computed anew, so a receiver above another one also reads what that one
    now writes.

    Args:
        engine: its task, ablation and direction.
        senders: names such as "embed", "a1.4", "m3".
        receivers: names such as "a3.0.q", "m3", "logits"; "a3.0" stands for all three inputs of the head. With "@12", or
            the name of one of the task's positions, "@comma_B": only where this position is read, as of an edge. That is
            the query's position for q, and the attended position for k and v.
        through_mlps: paths may also pass through MLPs on their way; all heads stay frozen (Wang et al., "Interpretability
            in the wild", 2023, appendix B). False: only the direct path, senders → receivers.
        via: the stations of a longer path, in order: senders → via[0] → via[1] → … → receivers. A station is a receiver
            ("a2.0.k": the path enters there), a head (by all three inputs) or an MLP, each with a position or without;
            or a list of these, which are passed side by side.
        metric: as for ``Engine.values``; default the task's.
        normalize: divide by M(clean) − M(corrupted). ``False``: in units of the metric.

    Returns:
        the effect; positive where the clean value on these paths raises the metric. (As a share of a *negative* difference,
        where the model does worse on the clean prompts, it is the other way round.)

    Raises:
        ValueError: a name that does not exist, a path that would run upstream, a bad metric, or nothing to normalise by.
    """
    path = _Path.of(engine, receivers, through_mlps, via)
    senders = path.check_senders(senders)
    return _effects(engine, _patched(engine, [senders], path, metric), metric, normalize)[0]


def path_patching_by_position(
    engine: Engine,
    senders: Sequence[str],
    receivers: Sequence[str],
    through_mlps: bool = False,
    via: Sequence[str | Sequence[str]] = (),
    *,
    metric: str | Metric | None = None,
    normalize: bool = True,
) -> Float[Tensor, "pos"]:
    """``path_patching`` at one position of the prompts at a time: only where the receivers read this position."""
    path = _Path.of(engine, receivers, through_mlps, via)
    if any(positions is not None for positions in path.steps[-1].values()):
        raise ValueError("receivers: expected names without positions, since every position is tried")
    senders = path.check_senders(senders)
    paths = [replace(path, steps=(*path.steps[:-1], dict.fromkeys(path.receivers, (p,)))) for p in range(path.n_pos)]
    patched = torch.cat([_patched(engine, [senders], at_one, metric) for at_one in paths])
    return _effects(engine, patched, metric, normalize)


def path_patching_sweep(
    engine: Engine,
    receivers: Sequence[str],
    through_mlps: bool = False,
    via: Sequence[str | Sequence[str]] = (),
    *,
    metric: str | Metric | None = None,
    normalize: bool = True,
) -> SenderEffects:
    """``path_patching`` from every sender of the model, one at a time, to the same receivers."""
    path = _Path.of(engine, receivers, through_mlps, via)
    senders = [name for name in engine.graph.senders if path.starts_from(name)]
    values = _effects(engine, _patched(engine, [[name] for name in senders], path, metric), metric, normalize)
    return SenderEffects.of(engine.graph, dict(zip(senders, values, strict=True)))


def input_effects(
    engine: Engine, receiver: str, *, metric: str | Metric | None = None, normalize: bool = True
) -> InputEffects:
    """Who brings ``receiver`` what it needs: each sender patched alone, and each spared while all others are patched.

    A sender that others can stand in for does nothing when it alone is patched. It shows when the others are patched and it
    is not. Of two senders that are both needed it is the other way round: as with the AND and OR gates of Heimersheim &
    Nanda, "How to use and interpret activation patching" (2024).

    Args:
        receiver: one name, such as "a3.0.q", "m3", "logits".
        metric, normalize: as for ``path_patching``.

    Raises:
        ValueError: a receiver that does not exist, a bad metric, or nothing to normalise by.
    """
    graph = check_engine(engine).graph
    if receiver not in graph.receivers:
        raise ValueError(
            f"receiver: {receiver!r} does not exist in {graph!r}; expected one like 'a3.0.q', 'm3', 'logits'"
        )
    n = graph.slot_of(receiver).n_upstream
    run, measure = engine.cache(engine.all), engine.measure(metric)
    rows = run.keep[graph.receiver_index[receiver]].repeat(2 * n + 1, 1)
    rows[:n, :n] = ~torch.eye(n, dtype=torch.bool, device=rows.device)
    rows[n:-1, :n] = torch.eye(n, dtype=torch.bool, device=rows.device)
    rows[-1] = False
    patched = torch.cat([measure(logits) for logits in engine.logits_from(run, receiver, rows)])
    effects = _effects(engine, patched, metric, normalize).tolist()
    alone, worth = effects[:n], effects[-1]
    senders, spared = graph.senders[:n], [worth - effect for effect in effects[n:-1]]
    return InputEffects(
        receiver, worth, dict(zip(senders, alone, strict=True)), dict(zip(senders, spared, strict=True))
    )


@dataclass(frozen=True)
class InputEffects:
    """What one receiver's input is worth, and who brings it. Effects as of ``path_patching``.

    Args:
        worth: the effect of patching all senders into this receiver.
        alone: sender → the effect of patching it alone.
        spared: sender → what it is worth to leave it clean while all other senders are patched.
    """

    receiver: str
    worth: float
    alone: dict[str, float]
    spared: dict[str, float]

    @property
    def shares(self) -> dict[str, float]:
        """Sender → the mean of ``alone`` and ``spared``, as a share of ``worth``; NaN where that is no more than rounding."""
        worth = self.worth if abs(self.worth) > ROUNDING else math.nan
        return {sender: (self.alone[sender] + self.spared[sender]) / 2 / worth for sender in self.alone}

    def writers(self, share: float = 0.1) -> list[str]:
        """The senders with at least this share, the largest first."""
        shares = self.shares
        return sorted((s for s, value in shares.items() if value >= share), key=lambda s: -shares[s])


@dataclass(frozen=True)
class SenderEffects:
    """What each sender is worth to some receivers; NaN for a sender that no path leads from.

    Args:
        heads: ``[layer, head]``.
        mlps: ``[layer]``, empty without MLPs.
        embed: the embedding.
    """

    heads: Float[Tensor, "layer head"]
    mlps: Float[Tensor, "layer"]
    embed: Float[Tensor, ""]

    @classmethod
    def of(cls, graph: Graph, effects: dict[str, Tensor]) -> SenderEffects:
        nothing = torch.full_like(next(iter(effects.values())), torch.nan)
        value = {name: effects.get(name, nothing) for name in graph.senders}
        heads = torch.stack([value[name] for name in graph.senders if name.startswith("a")])
        mlps = [value[name] for name in graph.senders if name.startswith("m")]
        return cls(heads.view(graph.n_layers, graph.n_heads), torch.stack(mlps) if mlps else heads[:0], value["embed"])

    def items(self) -> list[tuple[str, float]]:
        """(sender, effect) of all senders that a path leads from, in order."""
        named = [("embed", self.embed)]
        for layer, heads in enumerate(self.heads):
            named += [(f"a{layer}.{head}", value) for head, value in enumerate(heads)]
            named += [(f"m{layer}", self.mlps[layer])] if len(self.mlps) else []
        return [(name, float(value)) for name, value in named if not value.isnan()]

    def __getitem__(self, sender: str) -> float:
        for name, value in self.items():
            if name == sender:
                return value
        raise ValueError(f"sender: no path leads from {sender!r} to these receivers")

    def top(self, k: int = 5) -> list[tuple[str, float]]:
        """The ``k`` senders with the largest absolute effects, largest first."""
        return sorted(self.items(), key=lambda item: -abs(item[1]))[:k]


def composition_graph(
    engine: Engine, threshold: float = 0.05, *, metric: str | Metric | None = None, normalize: bool = True
) -> dict[Edge, float]:
    """Which part reads which, found by path patching backwards from the logits, as Wang et al. (2023) worked.

    Every sender is patched into the logits alone. Where the effect is at least ``threshold`` in absolute value, the arrow
    stays, and the same question is asked of each input of its sender; and so on down to the embedding.

    Returns:
        edge → effect, in canonical order: that of ``path_patching`` for this one edge.
    """
    if not threshold > 0:
        raise ValueError(f"threshold: expected a positive number, got {threshold!r}")
    graph, reached, found = check_engine(engine).graph, {"logits"}, {}
    for node in ("logits", *reversed(graph.senders)):
        edges = [edge for edge in graph.edges if node in reached and node_of(edge.receiver) == node]
        if not edges:
            continue
        effects = _effects(engine, engine.values_without(engine.all, edges, metric), metric, normalize)
        strong = {edge: float(effect) for edge, effect in zip(edges, effects, strict=True) if abs(effect) >= threshold}
        found |= strong
        reached |= {edge.sender for edge in strong}
    return dict(sorted(found.items()))


# Path patching -----------------------------------------------------------------------------------


def _effects(
    engine: Engine, patched: Float[Tensor, "c n"], metric: str | Metric | None, normalize: bool
) -> Float[Tensor, "c"]:
    """From the metric of patched runs to effects, positive where the clean value raises the metric."""
    measure = engine.measure(metric)
    with torch.no_grad():
        runs = torch.stack([engine.all_logits, engine.clean_logits, engine.corrupted_logits])
        kept, clean, corrupted = measure(runs).mean(-1)
    effects = engine.sign * (kept - patched.mean(-1))
    if not normalize:
        return effects
    if (clean - corrupted).abs() < ROUNDING * max(1.0, float(clean.abs())):
        raise ValueError(
            "task: clean and corrupted prompts have the same mean metric, so nothing can be normalised (normalize=False)"
        )
    return effects / (clean - corrupted)


def _patched(engine: Engine, sets: list[list[str]], path: _Path, metric) -> Float[Tensor, "c n"]:
    """The metric on each prompt, for each set of senders.

    A direct path is an edge, and the engine cuts edges in bulk. A longer one is followed stream by stream.
    """
    if path.is_direct:
        cut = [[Edge(s, r) for s in senders for r in path.receivers if path.upstream(s, r)] for senders in sets]
        if all(len(edges) == 1 for edges in cut):
            return engine.values_without(engine.all, [edges[0] for edges in cut], metric)
        return engine.values([engine.all - edges for edges in cut], metric)
    measure = engine.measure(metric)
    with torch.no_grad():
        return torch.cat([measure(_follow(engine, senders, path)[None]) for senders in sets])


# Receivers, in order, each with the positions at which it reads; None for all of them.
_Inputs = dict[str, tuple[int, ...] | None]


@dataclass(frozen=True)
class _Path:
    """The way of a patched value, without its senders.

    Args:
        n_pos: how many positions the prompts have.
        steps: the inputs of each station and, last, the receivers, with the positions that the path is read at.
        through_mlps: whether it may pass through MLPs besides.
    """

    graph: Graph
    n_pos: int
    steps: tuple[_Inputs, ...]
    through_mlps: bool

    @classmethod
    def of(cls, engine: Engine, receivers, through_mlps: bool, via) -> _Path:
        graph = check_engine(engine).graph
        if isinstance(via, str):
            raise ValueError(f"via: expected a list of stations, got the single text {via!r}")
        steps = [_inputs(engine, "via", [step] if isinstance(step, str) else step) for step in via]
        steps.append(_inputs(engine, "receivers", receivers))
        if any("logits" in step for step in steps[:-1]):
            raise ValueError("via: 'logits' writes nothing, expected heads or MLPs")
        path = cls(graph, engine.task.clean.shape[1], tuple(steps), bool(through_mlps))
        for before, step in zip(steps, steps[1:], strict=False):
            path._check_step("via", {node_of(name) for name in before}, step)
        return path

    @property
    def receivers(self) -> tuple[str, ...]:
        return tuple(self.steps[-1])

    @property
    def is_direct(self) -> bool:
        """Whether it is a set of edges, at all positions."""
        everywhere = all(positions is None for positions in self.steps[-1].values())
        return len(self.steps) == 1 and everywhere and not (self.through_mlps and self.graph.mlps)

    def upstream(self, sender: str, receiver: str) -> bool:
        return self.graph.sender_index[sender] < self.graph.slot_of(receiver).n_upstream

    def stream_read(self, receiver: str, written: int) -> int | tuple[int, ...]:
        """The residual stream (see ``_follow``) that ``receiver`` reads to make what its node adds to stream ``written``.

        One number, or one for each position where they differ.
        """
        by_position = any(step.get(receiver) is not None for step in self.steps)
        streams = [self._stream_at(receiver, written, at) for at in range(self.n_pos if by_position else 1)]
        return streams[0] if len(set(streams)) == 1 else tuple(streams)

    def live_streams(self) -> list[list[int]]:
        """For each slot but the logits', the streams that are still read after it."""
        live, after = [], self._read_from("logits", 0)
        for slot in reversed(self.graph.slots[:-1]):
            live.append(sorted(after))
            after = after.union(*(self._read_from(name, j) for name in self.graph.receivers[slot.rows] for j in after))
        return live[::-1]

    def _read_from(self, receiver: str, written: int) -> set[int]:
        streams = self.stream_read(receiver, written)
        return {streams} if isinstance(streams, int) else {*streams}

    def _stream_at(self, receiver: str, written: int, position: int) -> int:
        if written >= 2 and self._reads(self.steps[written - 2], receiver, position):
            return written - 1
        if written >= 1 and self.through_mlps and receiver.startswith("m"):
            return written
        return len(self.steps) if self._reads(self.steps[-1], receiver, position) else 0

    @staticmethod
    def _reads(step: _Inputs, receiver: str, position: int) -> bool:
        return receiver in step and (step[receiver] is None or position in step[receiver])

    def starts_from(self, sender: str) -> bool:
        return any(self.upstream(sender, receiver) for receiver in self.steps[0])

    def check_senders(self, senders) -> list[str]:
        senders = _names("senders", senders)
        for name in senders:
            if name not in self.graph.sender_index:
                if isinstance(name, str) and "@" in name:
                    raise ValueError(
                        f"senders: {name!r} has a position, expected positions on the receivers, which read there"
                    )
                raise ValueError(
                    f"senders: {name!r} does not exist in {self.graph!r}; expected one like 'embed', 'a0.5', 'm3'"
                )
        self._check_step("senders", senders, self.steps[0])
        return senders

    def _check_step(self, argument: str, before, step: Sequence[str]) -> None:
        for name in before:
            if not any(self.upstream(name, receiver) for receiver in step):
                raise ValueError(f"{argument}: {name!r} is not upstream of {' or '.join(step)}, so no path leads there")
        for receiver in step:
            if not any(self.upstream(name, receiver) for name in before):
                raise ValueError(
                    f"{argument}: nothing in {', '.join(sorted(before))} is upstream of {receiver!r}, so no path leads there"
                )


def _follow(engine: Engine, senders: Sequence[str], path: _Path) -> Float[Tensor, "n k d_vocab"]:
    """Logits of the run in which the paths are patched, at the read positions.

    The run has one residual stream more than the model for each step of the path. Stream 0 is the run itself. In stream 1
    the senders write what a cut edge carries. In stream j + 1 the j-th station writes what it makes of stream j. The
    receivers read the last stream. All else is as in the run; with ``through_mlps``, MLPs are computed in each stream.
    """
    weights, graph, as_it_is = engine.weights, engine.graph, engine.written
    reference = engine.reference.of_prompts(slice(None), len(engine.start))
    streams = [engine.start] * (len(path.steps) + 1)
    if "embed" in senders:
        streams[1] = reference.embed.expand_as(engine.start)
    intact = True  # whether stream 0 still is the run as it is
    for slot, live in zip(graph.slots[:-1], path.live_streams(), strict=True):
        layer, names, written = weights.layers[slot.layer], graph.receivers[slot.rows], {}
        patched = [i for i, name in enumerate(graph.senders[slot.writes]) if name in senders]
        for stream in live:
            read = [path.stream_read(name, stream) for name in names]
            known = intact and not any(read)
            if slot.kind == "attn":
                z = as_it_is.z[slot.layer] if known else _attention(weights, layer, streams, read)
                if stream == 1 and patched:
                    z = z.clone()
                    z[patched] = reference.z[slot.layer][patched]
                written[stream] = write_heads(layer.W_O, z, [0] * len(z))[0] + layer.b_O
            elif stream == 1 and patched:
                written[stream] = reference.mlp[slot.layer]
            else:
                written[stream] = as_it_is.mlp[slot.layer] if known else mlp(weights, layer, _pick(streams, read[0]))
        intact = intact and not any(path.stream_read(name, 0) for name in names)
        streams = [x + written[stream] if stream in live else x for stream, x in enumerate(streams)]
    return unembed(weights, _pick(streams, path.stream_read("logits", 0))[:, engine.read])


def _attention(weights, layer, streams: list[Tensor], read: list) -> Float[Tensor, "head n pos d_head"]:
    """``z`` of a layer whose receivers read these streams."""
    used = list(dict.fromkeys(read))
    x = torch.stack([_pick(streams, i) for i in used])
    return attend(layer, *project(weights, layer, "qkv", x[None], [used.index(i) for i in read]))[0]


def _pick(streams: list[Tensor], which: int | tuple[int, ...]) -> Float[Tensor, "n pos d_model"]:
    """One stream, or from each position that of its own."""
    if isinstance(which, int):
        return streams[which]
    return torch.stack([streams[stream][:, position] for position, stream in enumerate(which)], 1)


def _names(argument: str, names) -> list[str]:
    if isinstance(names, str):
        raise ValueError(f"{argument}: expected a list of names, got the single text {names!r}")
    names = list(dict.fromkeys(names))
    if not names:
        raise ValueError(f"{argument}: expected at least one name, got none")
    return names


def _inputs(engine: Engine, argument: str, names) -> _Inputs:
    """Receivers, and at which positions they read; a head's name stands for its three inputs."""
    graph, found = engine.graph, {}
    for name in _names(argument, names):
        node, _, at = name.partition("@") if isinstance(name, str) else (name, "", "")
        parts = (
            [f"{node}.{part}" for part in "qkv"]
            if isinstance(node, str) and node.startswith("a") and node in graph.sender_index
            else [node]
        )
        for part in parts:
            if part not in graph.receiver_index:
                raise ValueError(
                    f"{argument}: {name!r} does not exist in {graph!r}; expected one like 'a3.0.q', 'a3.0', 'm3', 'logits'"
                )
            before = found.get(part, ())
            here = (_position(engine, argument, name, at),) if "@" in name else None
            found[part] = None if before is None or here is None else before + here
    return found


def _position(engine: Engine, argument: str, name: str, at: str) -> int:
    """The position after the "@" of ``name``: a number, or a name that the task gives to one."""
    n_pos = engine.task.clean.shape[1]
    if at in engine.task.positions:
        return engine.task.positions[at]
    if not (at.isdecimal() and at.isascii() and int(at) < n_pos):
        raise ValueError(
            f"{argument}: {name!r} has no such position; expected 0 to {n_pos - 1} or one of the task's: "
            f"{', '.join(engine.task.positions) or 'it names none'}"
        )
    return int(at)


# Activation patching -----------------------------------------------------------------------------


def _sweeps(model, site: str, by_position: bool | None):
    """The TransformerLens sweep to run, as (over whole sequences, by position) with one of them None."""
    from transformer_lens import patching

    if site not in SWEEPS:
        raise ValueError(f"site: {site!r} is unknown; choose one of: {', '.join(SWEEPS)}")
    if site == "mlp_out" and model.cfg.attn_only:
        raise ValueError("site: 'mlp_out' does not exist in an attention-only model")
    whole, positional = SWEEPS[site]
    if whole is None and by_position is False:
        raise ValueError(f"by_position: {site!r} is patched position by position only")
    use_positions = whole is None if by_position is None else by_position
    return (None, getattr(patching, positional)) if use_positions else (getattr(patching, whole), None)


def _names_filter(site: str) -> Callable[[str], bool]:
    suffix = {"resid_pre": "hook_resid_pre", "attn_out": "hook_attn_out", "mlp_out": "hook_mlp_out"}.get(
        site, f"attn.hook_{site}"
    )
    return lambda name: name.endswith(suffix)


def _checked(values: Tensor, n: int) -> Tensor:
    if not isinstance(values, Tensor) or values.shape != (n,):
        got = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(f"metric: expected one number for each of {n} prompts, a tensor [{n}], got {got}")
    if values.isnan().any():
        raise ValueError("metric: returned NaN")
    return values


@contextmanager
def _progress(show: bool):
    """TransformerLens's sweeps always draw a bar; hide it unless it was asked for."""
    from transformer_lens import patching

    with mock.patch.object(patching, "tqdm", patching.tqdm if show else lambda rows: rows):
        yield
