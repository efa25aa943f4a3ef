"""The edge-patched forward pass: the one place that runs a model under an edge intervention.

Each receiver r reads x_r = B_r + Σ_s (keep[r,s]·out[s] + (1 − keep[r,s])·ref[s]) over the senders s upstream of it.
B_r is the sum of attention output biases b_O below r; ``out`` is what a sender writes in this run, ``ref`` what it
writes in the reference run. Path patching, circuit evaluation, ACDC's step and the exact effect are all this line.

The engine computes it as x_r = (B_r + Σ_s ref[s]) + Σ_s keep[r,s]·(out[s] − ref[s]). The bracket is a residual stream
that all receivers of a layer share; the sum is one matrix product for all receivers of the layer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .graph import ABLATIONS, Circuit, Edge, Graph, Slot, node_of
from .tasks.base import Task

DIRECTIONS = ("noising", "denoising")
Metric = Callable[[Tensor], Tensor]


class Engine:
    """Runs circuits of one model on one task.

    Args:
        model: a ``TransformerBridge``: pre-LN, LayerNorm with or without affine part or none, learned positions, with or
            without MLPs. Anything else is refused by name.
        task: the prompts, and the metric that is used unless another is named.
        ablation: what a cut edge carries: "corrupted" (what the sender writes on the corrupted prompt), "zero", or "mean"
            (its mean over the corrupted prompts, position by position).
        direction: "noising" runs the clean prompts, and cut edges carry the ablated value. "denoising" swaps the two: it
            runs the corrupted prompts (for zero and mean, the ablated embedding), and cut edges carry the clean value.
        memory_mb: a batch of circuits is split so that one pass holds about this much. The cached run of ``cache`` (at times
            a quarter of it twice) and the logits that ``run`` returns come on top.

    Attributes:
        sign: +1 for noising, −1 for denoising. ``sign * (M(circuit) − M(circuit without e))`` is positive where the clean
            value on edge e raises the metric.
        all, none: the circuit of all edges and the circuit of no edge.

    Raises:
        ValueError: an architecture that is not supported, a bad argument, or NaN in the weights; one line.
    """

    def __init__(
        self, model, task: Task, ablation: str = "corrupted", direction: str = "noising", memory_mb: float = 256
    ):
        if ablation not in ABLATIONS:
            raise ValueError(f"ablation: expected one of {', '.join(ABLATIONS)}, got {ablation!r}")
        if direction not in DIRECTIONS:
            raise ValueError(f"direction: expected one of {', '.join(DIRECTIONS)}, got {direction!r}")
        if not memory_mb > 0:
            raise ValueError(f"memory_mb: expected a positive number, got {memory_mb!r}")
        self.weights = Weights.of(model)
        _check_task(task, self.weights)
        self.model, self.task, self.memory_mb = model, task, memory_mb
        self.ablation, self.direction = ablation, direction
        self.sign = 1 if direction == "noising" else -1
        self.graph = Graph(model)
        self.read = torch.tensor(task.read_positions, device=self.weights.W_E.device)
        with torch.no_grad():
            _check_agreement(model, self.weights, task.clean[:1].to(self.read.device))
            self.start, self.reference = self._start_and_reference()

    def _start_and_reference(self) -> tuple[Float[Tensor, "n pos d_model"], Reference]:
        """The embedding that runs start from, and what cut edges carry."""
        weights = self.weights
        clean, corrupted = (
            embed(weights, tokens.to(self.read.device)) for tokens in (self.task.clean, self.task.corrupted)
        )
        ablated = _ablate(write_all(weights, corrupted), self.ablation)
        if self.direction == "noising":
            return clean, Reference.of(weights, ablated)
        return ablated.embed.expand_as(clean), Reference.of(weights, write_all(weights, clean))

    @cached_property
    def graph_with_positions(self) -> Graph:
        """This engine's graph with one edge for each position of the prompts."""
        return Graph(self.model, per_position=True, n_pos=self.task.clean.shape[1])

    @cached_property
    def all(self) -> Circuit:
        return Circuit(self.graph, self.graph.edges, self.task, self.ablation)

    @cached_property
    def none(self) -> Circuit:
        return Circuit(self.graph, (), self.task, self.ablation)

    @cached_property
    def written(self) -> Written:
        """What every sender writes in the run that keeps all edges."""
        with torch.no_grad():
            return write_all(self.weights, self.start)

    def like(self, circuit: Circuit, other: Circuit) -> Circuit:
        """``other`` on the graph of ``circuit``: with an edge at each position if ``circuit`` has positions."""
        graph = circuit.graph
        if graph == other.graph:
            return other
        mask = other.mask[..., None].expand(graph.edge_mask.shape) if graph.per_position else other.mask.any(-1)
        return Circuit.from_mask(graph, mask, other.task, other.ablation)

    def run(self, circuits: Circuit | Sequence[Circuit], full: bool = False) -> Float[Tensor, "n k d_vocab"]:
        """Logits at the task's read positions; with ``full`` at all positions.

        Returns:
            ``[n, k, d_vocab]`` for a circuit, ``[c, n, k, d_vocab]`` for a list of circuits.
        """
        keep = self.masks(circuits)
        with torch.no_grad():
            logits = torch.cat([self._run(keep[part], prompts, full) for part, prompts in self._parts(len(keep), full)])
        return logits[0] if isinstance(circuits, Circuit) else logits

    def metric(self, circuits: Circuit | Sequence[Circuit], metric: str | Metric | None = None) -> Float[Tensor, ""]:
        """M(·), the mean of the metric over prompts: a scalar for a circuit, ``[c]`` for a list of circuits."""
        return self.values(circuits, metric).mean(-1)

    def values(self, circuits: Circuit | Sequence[Circuit], metric: str | Metric | None = None) -> Float[Tensor, "n"]:
        """The metric on each prompt: ``[n]`` for a circuit, ``[c, n]`` for a list of circuits.

        Args:
            metric: None for the task's, "kl" for −KL(model on clean ‖ circuit) at the read positions, or a callable
                from logits ``[n, k, d_vocab]`` to ``[n]``.
        """
        keep, measure = self.masks(circuits), self.measure(metric)
        with torch.no_grad():
            values = torch.cat([measure(self._run(keep[part], prompts)) for part, prompts in self._parts(len(keep))])
        return values[0] if isinstance(circuits, Circuit) else values

    def values_without(
        self, circuit: Circuit, edges: Sequence[Edge | str], metric: str | Metric | None = None, run: Run | None = None
    ) -> Float[Tensor, "e n"]:
        """The metric on each prompt with one edge more cut: row i is ``circuit`` without ``edges[i]``.

        The same as ``values([circuit - [edge] for edge in edges])``, but only what lies after an edge's receiver is run,
        and edges into one receiver share passes.

        Args:
            run: of ``cache(circuit)``, for several calls with one circuit.
        """
        edges = [circuit.graph.edge(edge) for edge in edges]
        run, measure = run or self.cache(circuit), self.measure(metric)
        values = self.start.new_empty(len(edges), len(self.task))
        for receiver in dict.fromkeys(edge.receiver for edge in edges):
            mine = [i for i, edge in enumerate(edges) if edge.receiver == receiver]
            rows = run.keep[self.graph.receiver_index[receiver]].repeat(len(mine), *[1] * (run.keep.dim() - 1))
            for row, i in enumerate(mine):
                rows[(row, *circuit.graph.index(edges[i])[1:])] = False
            values[mine] = torch.cat([measure(logits) for logits in self.logits_from(run, receiver, rows)])
        return values

    def masks(self, circuits: Circuit | Sequence[Circuit]) -> Bool[Tensor, "c receiver sender"]:
        """The masks of the circuits, stacked; a ValueError if one is not of this engine's graph."""
        circuits = [circuits] if isinstance(circuits, Circuit) or hasattr(circuits, "top") else list(circuits)
        if not circuits:
            raise ValueError("circuits: expected at least one circuit")
        for circuit in circuits:
            if not isinstance(circuit, Circuit):
                hint = "; take its top(k) or above(threshold)" if hasattr(circuit, "top") else ""
                raise ValueError(f"circuit: expected a Circuit, got {type(circuit).__name__}{hint}")
            graph = self.graph_with_positions if circuit.graph.per_position else self.graph
            if circuit.graph != graph:
                raise ValueError(f"circuit: expected one of {graph!r}, got one of {circuit.graph!r}")
            if circuit.graph != circuits[0].graph:
                raise ValueError("circuits: some have positions and some have none; expected circuits of one graph")
        return torch.stack([circuit.mask for circuit in circuits]).to(self.read.device)

    def measure(
        self, metric: str | Metric | None = None
    ) -> Callable[[Float[Tensor, "c n k d_vocab"]], Float[Tensor, "c n"]]:
        """The metric as a function of the logits of a batch of circuits, checked for shape, NaN and infinity."""
        if metric == "kl":
            one = self._negative_kl
        elif metric is None or callable(metric):
            one = metric or self.task.metric
        else:
            raise ValueError(
                f"metric: expected None, 'kl' or a function from logits [n, k, d_vocab] to [n], got {metric!r}"
            )
        return lambda logits: torch.stack([_checked(one(of_circuit), len(self.task)) for of_circuit in logits])

    def _negative_kl(self, logits: Float[Tensor, "n k d_vocab"]) -> Float[Tensor, "n"]:
        log_p, log_q = self._clean_log_p, logits.log_softmax(-1)
        return -(log_p.exp() * (log_p - log_q)).sum(-1).mean(-1)

    @cached_property
    def clean_logits(self) -> Float[Tensor, "n k d_vocab"]:
        """The model's logits on the clean prompts, at the read positions."""
        return self._logits_of(embed(self.weights, self.task.clean.to(self.read.device)))

    @cached_property
    def corrupted_logits(self) -> Float[Tensor, "n k d_vocab"]:
        """The model's logits on the corrupted prompts, at the read positions."""
        return self._logits_of(embed(self.weights, self.task.corrupted.to(self.read.device)))

    @cached_property
    def all_logits(self) -> Float[Tensor, "n k d_vocab"]:
        """Logits of the run that keeps all edges, at the read positions."""
        return self._logits_of(self.start)

    def _logits_of(self, start: Float[Tensor, "n pos d_model"]) -> Float[Tensor, "n k d_vocab"]:
        with torch.no_grad():
            written = self.written if start is self.start else write_all(self.weights, start)
            return unembed(self.weights, Reference.of(self.weights, written).residual[-1][:, self.read])

    @cached_property
    def _clean_log_p(self) -> Float[Tensor, "n k d_vocab"]:
        return self.clean_logits.log_softmax(-1)

    # The pass ------------------------------------------------------------------------------------

    def forward(
        self,
        keep: Float[Tensor, "c receiver sender"],
        start: Float[Tensor, "n pos d_model"] | None = None,
        full: bool = False,
        prompts: slice = slice(None),
    ) -> Float[Tensor, "c n k d_vocab"]:
        """Logits under ``keep``, in one batch; differentiable in ``keep`` (any real numbers) and in ``start``.

        Args:
            keep: 1 where an edge is kept, 0 where it is cut: ``[c, receiver, sender]`` or ``[c, receiver, sender, pos]``.
            start: what ``embed`` writes, instead of the embedding that this engine's runs start from.
            prompts: the prompts to run.
        """
        start = (self.start if start is None else start)[prompts]
        reference = self.reference.of_prompts(prompts, len(start))
        stack = Stack(self._n_full, len(self.graph.senders), len(keep), start, self._positions(full))
        stack.write([0], (start - reference.embed).expand(len(keep), 1, *start.shape), everywhere=True)
        return self._after(stack, keep, reference, 0)

    def _after(
        self, stack: Stack, keep: Tensor, reference: Reference, first: int, only: Sequence[int] | None = None
    ) -> Float[Tensor, "c n k d_vocab"]:
        """A run from the ``first`` slot on; ``stack`` holds what was written before, and what senders not in ``only`` write."""
        for base, slot in list(zip(reference.residual, self.graph.slots, strict=True))[first:]:
            if slot.kind == "logits":
                return unembed(self.weights, stack.sum(base, keep, slot.rows, slot.n_upstream, at_read=True)[:, 0])
            if senders := _written_at(slot, only):
                columns, new = self._write(stack, base, keep, reference, slot, senders)
                stack.write(columns, new, self._everywhere(slot))

    def _write(
        self, stack: Stack, base: Tensor, keep: Tensor, reference: Reference, slot: Slot, senders: list[int]
    ) -> tuple[list[int], Float[Tensor, "c distinct n pos d_model"]]:
        """What these senders of a slot write, minus the reference, and under which senders it is to be held."""
        if slot.kind == "attn":
            return self._attention(stack, base, keep, reference, slot, senders)
        return senders, self._mlp(stack, base, keep, reference, slot)

    def _everywhere(self, slot: Slot) -> bool:
        """Whether what is written here is needed at all positions: what the last layer writes, only where it is read."""
        return slot.layer < self.graph.n_layers - 1

    def _attention(
        self, stack, base, keep, reference, slot, senders
    ) -> tuple[list[int], Float[Tensor, "c distinct n pos d_model"]]:
        """What heads of a layer write, minus the reference. Heads from which all receivers keep the same are written as one."""
        layer, heads = self.weights.layers[slot.layer], [sender - slot.writes.start for sender in senders]
        if self._everywhere(slot):
            q, k, v = self._project(layer, "qkv", stack, base, keep, slot, heads)
            positions = None
        else:
            (q,) = self._project(layer, "q", stack, base, keep, slot, heads, at_read=True)
            k, v = self._project(layer, "kv", stack, base, keep, slot, heads)
            positions = stack.positions
        z = attend(layer, q, k, v, positions) - _at(_pick(reference.z[slot.layer], heads), positions)
        first, which = _distinct(keep[:, slot.rows.stop :, senders].transpose(1, 2), stack.separate)
        return [senders[i] for i in first], write_heads(_pick(layer.W_O, heads), z, which)

    def _project(
        self, layer, parts, stack, base, keep, slot, heads, at_read=False
    ) -> list[Float[Tensor, "c head n pos d_head"]]:
        """Queries, keys, values. Receivers that keep the same edges read the same: what they read is made once."""
        receivers = [(head, "qkv".index(part)) for head in heads for part in parts]
        rows = [slot.rows.start + 3 * head + part for head, part in receivers]
        shared = [False] * len(rows) if stack.below is None else stack.shared(keep[0, rows])
        results = []
        for kind in sorted(set(shared)):
            mine = [i for i, of in enumerate(shared) if of == kind]
            first, which = _distinct(keep[:, [rows[i] for i in mine], : slot.n_upstream])
            x = stack.sum(base, keep, [rows[mine[i]] for i in first], slot.n_upstream, at_read, only_below=kind)
            results.append((mine, project_receivers(self.weights, layer, [receivers[i] for i in mine], x, which)))
        y = results[0][1]
        if len(results) == 2:
            y = y.new_empty(len(stack.read), len(rows), *y.shape[2:])
            for mine, of_kind in results:
                y[:, mine] = of_kind
        return [part.expand(len(stack.read), *part.shape[1:]) for part in y.unflatten(1, (len(heads), -1)).unbind(2)]

    def _mlp(self, stack, base, keep, reference, slot) -> Float[Tensor, "c one n pos d_model"]:
        """What the MLP of a layer writes, minus the reference."""
        everywhere = self._everywhere(slot)
        x = stack.sum(base, keep, slot.rows, slot.n_upstream, at_read=not everywhere)
        out = mlp(self.weights, self.weights.layers[slot.layer], x)
        return out - _at(reference.mlp[slot.layer], None if everywhere else stack.positions)

    # Runs that share their beginning -------------------------------------------------------------

    def cache(self, circuit: Circuit) -> Run:
        """Run ``circuit`` and keep what every sender writes, for ``logits_from``."""
        keep = self.masks(circuit)
        with torch.no_grad():
            whole = Stack(self._n_full, len(self.graph.senders), 1, self.start, self.read, separate=True)
            for prompts in next(self._parts(1))[1]:
                start, stack = self.start[prompts], whole.of_prompts(prompts)
                reference = self.reference.of_prompts(prompts, len(start))
                stack.write([0], (start - reference.embed)[None, None], everywhere=True)
                self._after(stack, keep, reference, 0)
        whole.columns = stack.columns
        return Run(keep[0], whole)

    def logits_from(
        self, run: Run, receiver: str, rows: Bool[Tensor, "c sender"]
    ) -> Iterator[Float[Tensor, "part n k d_vocab"]]:
        """Logits of runs that differ from ``run`` in what one receiver keeps.

        Only what this changes is computed: the receiver's node, and the nodes that hear of it and are heard at the logits.

        Args:
            run: of ``cache``.
            rows: for each of ``c`` runs, the edges into ``receiver`` that are kept: ``[c, sender]`` or ``[c, sender, pos]``.

        Yields:
            Logits at the read positions, in parts that stay under ``memory_mb``.
        """
        slot, rows = self.graph.slot_of(receiver), rows.to(self.read.device)
        changed = [] if slot.kind == "logits" else self._changed(run.keep, node_of(receiver), heard=True)
        for part, prompts in self._parts(len(rows), work=self._work(slot, run.keep, changed)):
            with torch.no_grad():
                logits = [self._logits_from(run, receiver, rows[part], slot, changed, some) for some in prompts]
            yield torch.cat(logits, 1)

    def _logits_from(
        self, run: Run, receiver: str, rows: Tensor, slot: Slot, changed: list[int], prompts: slice
    ) -> Float[Tensor, "c n k d_vocab"]:
        start, run = self.start[prompts], run.of_prompts(prompts)
        reference, at = self.reference.of_prompts(prompts, len(start)), self.graph.slots.index(slot)
        if slot.kind == "logits":
            x = run.stack.sum(reference.residual[at], rows[:, None], [0], slot.n_upstream, at_read=True)
            return unembed(self.weights, x[:, 0])
        below = Below(run.stack, _without(run.keep, changed)[None])
        n_full = bisect_left(changed, self._n_full)
        stack = Stack(n_full, len(changed), len(rows), start, self.read, below)
        stack.write(changed[:1], self._node(run, receiver, rows, reference, slot), self._everywhere(slot))
        return self._after(stack, run.keep[None], reference, at + 1, changed[1:])

    def _changed(self, keep: Bool[Tensor, "receiver sender"], node: str, heard: bool = False) -> list[int]:
        """``node``, and the senders whose output changes when its does; if ``heard``, only those that reach the logits."""
        keep, which = (keep if keep.dim() == 2 else keep.any(-1)).cpu().numpy(), self.graph.sender_index[node]
        changed, reached = (np.zeros(len(self.graph.senders), dtype=bool) for _ in range(2))
        changed[which] = True
        for slot in self.graph.slots[:-1]:
            changed[slot.writes] |= _by_node(keep[slot.rows], slot)[:, changed].any(1)
        if heard:
            for slot in reversed(self.graph.slots):
                reads = _by_node(keep[slot.rows], slot)
                reached |= (reads if slot.kind == "logits" else reads[reached[slot.writes]]).any(0)
            reached[which] = True
            changed &= reached
        return changed.nonzero()[0].tolist()

    def _node(
        self, run: Run, receiver: str, rows: Tensor, reference: Reference, slot: Slot
    ) -> Float[Tensor, "c one n pos d_model"]:
        """What the node of ``receiver`` writes, minus the reference, if ``receiver`` keeps ``rows``."""
        base = reference.residual[self.graph.slots.index(slot)]
        if slot.kind == "mlp":
            keep = run.keep.expand(len(rows), *run.keep.shape).clone()
            keep[:, slot.rows] = rows[:, None]
            return self._mlp(run.stack, base, keep, reference, slot)
        layer, head = self.weights.layers[slot.layer], self.graph.sender_index[node_of(receiver)] - slot.writes.start
        positions = None if self._everywhere(slot) else run.stack.positions
        qkv = []
        for i, part in enumerate("qkv"):
            row, at_read = slot.rows.start + 3 * head + i, part == "q" and positions is not None
            x = self._read(run, row, base, slot, at_read, rows if part == receiver[-1] else None)
            (y,) = project(self.weights, layer, part, x, [0], [head])
            qkv.append(y.expand(len(rows), *y.shape[1:]))
        z = attend(layer, *qkv, positions) - _at(reference.z[slot.layer][head, None], positions)
        return write_heads(layer.W_O[head, None], z)

    def _read(
        self, run: Run, row: int, base: Tensor, slot: Slot, at_read: bool, rows: Tensor | None
    ) -> Float[Tensor, "c one n pos d_model"]:
        """What the receiver ``row`` reads in ``run``; with ``rows``, what it reads if it keeps these.

        Many receivers of a run read the same, and what differs by a few edges is reached from there.
        """
        kept = run.keep[row]
        if rows is not None:
            change = rows.to(base.dtype) - kept.to(base.dtype)
            if bool(change.any(0).sum() >= rows.any(0).sum()):  # less to add up from the start
                return run.stack.sum(base, rows[:, None], [0], slot.n_upstream, at_read)
        key = slot.rows.start, at_read, kept.cpu().numpy().tobytes()
        if key not in run.reads:
            run.remember(key, run.stack.sum(base, run.keep[None], [row], slot.n_upstream, at_read))
        x = run.reads[key]
        return x if rows is None else run.stack._add(x, change[:, None], slot.n_upstream, at_read)

    def update(self, run: Run, receiver: str, row: Bool[Tensor, "sender"]) -> None:
        """Change in place what ``receiver`` keeps in ``run``, and what its node and all who hear of it write."""
        row, at, index = row.to(self.read.device), self.graph.slot_of(receiver), self.graph.receiver_index[receiver]
        if at.kind == "logits":
            run.keep[index] = row
            return
        keep = run.keep.clone()
        keep[index] = row
        changed = self._changed(keep, node_of(receiver))
        with torch.no_grad():
            for prompts in next(self._parts(1))[1]:
                some, reference = run.of_prompts(prompts), self.reference.of_prompts(prompts, len(self.start[prompts]))
                new = self._node(some, receiver, row[None], reference, at)
                some.stack.overwrite(changed[:1], new, self._everywhere(at))
                for base, slot in zip(reference.residual, self.graph.slots, strict=True):
                    if senders := _written_at(slot, changed[1:]):
                        _, new = self._write(some.stack, base, keep[None], reference, slot, senders)
                        some.stack.overwrite(senders, new, self._everywhere(slot))
        run.keep = keep
        run.forget(at)

    # Memory --------------------------------------------------------------------------------------

    @property
    def _n_full(self) -> int:
        """How many senders lie below the last layer: what they write is needed at all positions."""
        return next(slot.writes.start for slot in self.graph.slots if not self._everywhere(slot))

    def _positions(self, full: bool) -> Int[Tensor, "k"]:
        return torch.arange(self.task.clean.shape[1], device=self.read.device) if full else self.read

    def _run(self, keep: Tensor, prompts: list[slice], full: bool = False) -> Float[Tensor, "c n k d_vocab"]:
        return torch.cat([self.forward(keep, full=full, prompts=some) for some in prompts], 1)

    def _parts(self, n_circuits: int, full: bool = False, work: tuple = ()) -> Iterator[tuple[slice, list[slice]]]:
        """Circuits that fit in a pass with all prompts; where not even one does, some prompts at a time."""
        fit, n = self.memory_mb * 2**20 / self._bytes(full, *work), len(self.task)
        circuits, prompts = max(1, int(fit / n)), min(n, max(1, int(fit)))
        for i in range(0, n_circuits, circuits):
            yield slice(i, i + circuits), [slice(j, j + prompts) for j in range(0, n, prompts)]

    def _bytes(
        self,
        full: bool = False,
        changed: Sequence[int] | None = None,
        n_heads: int | None = None,
        n_distinct: int | None = None,
    ) -> int:
        """What one prompt of one circuit takes at most.

        Args:
            changed: senders that the circuits do not have in common; None for all.
            n_heads: heads that a layer has to compute.
            n_distinct: inputs of these heads that differ.
        """
        weights, n_pos, k = self.weights, self.task.clean.shape[1], len(self._positions(full))
        n_heads = self.graph.n_heads if n_heads is None else n_heads
        n_distinct = 3 * n_heads if n_distinct is None else n_distinct
        new = range(len(self.graph.senders)) if changed is None else changed
        stack = bisect_left(new, self._n_full) * n_pos + len(new) * k
        # What is read, before and after LayerNorm (and, once more, what all circuits have in common); what heads write.
        width = ((2 + (changed is not None)) * n_distinct + n_heads) * weights.d_model
        heads = 8 * n_heads * weights.d_head
        floats = stack * weights.d_model + n_pos * (width + heads + 2 * weights.d_mlp) + 3 * k * weights.d_vocab
        return floats * self.start.element_size()

    def _work(
        self, slot: Slot, keep: Bool[Tensor, "receiver sender"], changed: list[int]
    ) -> tuple[list[int], int, int]:
        """The arguments of ``_bytes`` for runs that differ in a receiver of ``slot``, and so in what ``changed`` write."""
        n_heads, n_distinct = 1, 1
        for other in self.graph.slots:
            heads = _written_at(other, changed[1:]) if other.kind == "attn" else []
            rows = [other.rows.start + 3 * (head - other.writes.start) + i for head in heads for i in range(3)]
            n_heads = max(n_heads, len(heads))
            n_distinct = max(n_distinct, len(_distinct(keep[None, rows, : other.n_upstream])[0]) if rows else 1)
        return changed, n_heads, n_distinct


# What senders write ------------------------------------------------------------------------------


@dataclass
class Run:
    """A run that ``Engine.cache`` kept: the edges that it keeps, and what every sender writes, minus the reference.

    ``reads`` remembers what some receivers read, by slot, positions and the edges that they keep.
    """

    keep: Bool[Tensor, "receiver sender"]
    stack: Stack
    reads: dict[tuple, Float[Tensor, "one one n pos d_model"]] = field(default_factory=dict)

    def of_prompts(self, prompts: slice) -> Run:
        """The same for some prompts: a view."""
        whole = len(range(*prompts.indices(self.stack.read.shape[2]))) == self.stack.read.shape[2]
        return Run(self.keep, self.stack.of_prompts(prompts), self.reads if whole else {})

    def remember(self, key: tuple, read: Tensor) -> None:
        """Keep what a receiver reads; the few that came last are kept."""
        self.reads[key] = read
        if len(self.reads) > 4:
            del self.reads[next(iter(self.reads))]

    def forget(self, slot: Slot) -> None:
        """What is read after ``slot`` has changed."""
        for key in [key for key in self.reads if key[0] > slot.rows.start]:
            del self.reads[key]


@dataclass(frozen=True)
class Below:
    """What a batch of runs has in common: ``stack``, and the edges that are kept from senders that write the same in all."""

    stack: Stack
    keep: Bool[Tensor, "1 receiver sender"]


class Stack:
    """What senders write, minus their reference: at all positions below the last layer, at the read positions for all.

    Args:
        n_full: room for this many senders at all positions.
        n_read: room for this many at the read positions.
        n: how many circuits.
        like: a tensor ``[n_prompts, pos, d_model]``, for shape and type.
        positions: the read positions.
        below: what the circuits have in common.
        separate: hold every sender by itself, even if all receivers keep the same from some of them.
    """

    def __init__(
        self,
        n_full: int,
        n_read: int,
        n: int,
        like: Tensor,
        positions: Int[Tensor, "k"],
        below: Below | None = None,
        separate=False,
    ):
        self.positions, self.below, self.separate = positions, below, separate
        self.columns: list[int] = []  # the senders, in the order of ``read``; those of ``full`` come first
        self.used = {"full": 0, "read": 0}
        # With gradients nothing may be overwritten: start empty and grow.
        n_full, n_read = (0, 0) if torch.is_grad_enabled() else (n_full, n_read)
        self.full = like.new_empty(n, n_full, *like.shape)
        self.read = like.new_empty(n, n_read, len(like), len(positions), like.shape[-1])

    def write(self, senders: list[int], new: Float[Tensor, "c sender n pos d_model"], everywhere: bool) -> None:
        """Append what the next senders write: at all positions, or only at the read positions."""
        self.columns += senders
        if everywhere:
            self._append("full", new)
            new = new[..., self.positions, :]
        self._append("read", new)

    def _append(self, name: str, new: Tensor) -> None:
        start = self.used[name]
        self.used[name] += new.shape[1]
        if torch.is_grad_enabled():
            setattr(self, name, torch.cat([getattr(self, name), new], 1))
        else:
            getattr(self, name)[:, start : self.used[name]] = new

    def of_prompts(self, prompts: slice) -> Stack:
        """The same for some prompts: a view, so what is written to it is written here."""
        view = copy(self)
        view.columns, view.used = list(self.columns), dict(self.used)
        view.full, view.read = self.full[:, :, prompts], self.read[:, :, prompts]
        return view

    def overwrite(self, senders: list[int], new: Float[Tensor, "1 sender n pos d_model"], everywhere: bool) -> None:
        """Replace what these senders write, in a stack that holds every sender."""
        if everywhere:
            self.full[:, senders] = new
            new = new[..., self.positions, :]
        self.read[:, senders] = new

    def sum(
        self,
        base: Float[Tensor, "n pos d_model"],
        keep: Tensor,
        rows: slice | Sequence[int],
        n_upstream: int,
        at_read: bool = False,
        only_below: bool = False,
    ) -> Float[Tensor, "c receiver n pos d_model"]:
        """What the receivers ``rows`` read: ``base`` plus the kept differences of the senders before ``n_upstream``.

        ``keep`` is ``[c, receiver, sender]`` or ``[c, receiver, sender, pos]``; with one circuit it counts for all. With
        ``only_below`` the receivers are ones that read the same in all circuits, and the result has one circuit.
        """
        base = (base[..., self.positions, :] if at_read else base)[None, None]
        if self.below is not None:
            base = self.below.stack._add(base, self.below.keep[:, rows], n_upstream, at_read)
        return base if only_below else self._add(base, keep[:, rows], n_upstream, at_read)

    def shared(self, keep: Bool[Tensor, "receiver sender"]) -> list[bool]:
        """Whether receivers read the same in all circuits: nothing from the senders that the circuits don't have in common."""
        return (~keep[:, self.columns].flatten(1).any(1)).tolist()

    def _add(
        self, base: Tensor, keep: Tensor, n_upstream: int, at_read: bool
    ) -> Float[Tensor, "c receiver n pos d_model"]:
        n = bisect_left(self.columns, n_upstream)
        written, keep = (self.read if at_read else self.full)[:, :n], keep[:, :, self.columns[:n]]
        if len(written) == 1 and not keep.requires_grad and 4 * len(kept := _kept(keep)) < n:
            written, keep = written[:, kept], keep[:, :, kept]  # a sum of a few: leave out the others
        keep = keep.to(written.dtype)
        if keep.dim() == 4:
            keep = keep[..., self.positions] if at_read else keep
            return base + torch.einsum("crsp,csnpd->crnpd", keep, written)
        n_circuits, n_rows = max(len(keep), len(written)), keep.shape[1]
        # What all circuits have in common: one product for all.
        keep = keep.flatten(0, 1)[None] if len(written) == 1 else keep.expand(n_circuits, -1, -1)
        base = base.expand(n_circuits, n_rows, *written.shape[2:]).reshape(*keep.shape[:2], -1)
        return torch.baddbmm(base, keep, written.flatten(2)).view(n_circuits, n_rows, *written.shape[2:])


@dataclass(frozen=True)
class Written:
    """What all senders write in a run, at all positions. Heads by ``z``, the head's output before ``W_O``."""

    embed: Float[Tensor, "n pos d_model"]
    z: tuple[Float[Tensor, "head n pos d_head"], ...]
    mlp: tuple[Float[Tensor, "n pos d_model"], ...]


@dataclass(frozen=True)
class Reference(Written):
    """What cut edges carry, and for each slot the residual stream of a run in which every edge is cut."""

    residual: tuple[Float[Tensor, "n pos d_model"], ...] = ()

    @classmethod
    def of(cls, weights: Weights, written: Written) -> Reference:
        x, residual = written.embed, []
        for i, layer in enumerate(weights.layers):
            residual.append(x)
            x = x + write_heads(layer.W_O, written.z[i], [0] * weights.n_heads)[0] + layer.b_O
            if layer.W_in is not None:
                residual.append(x)
                x = x + written.mlp[i]
        return cls(written.embed, written.z, written.mlp, (*residual, x))

    def of_prompts(self, prompts: slice, n: int) -> Reference:
        """The same for some prompts; a mean over prompts is the same for each of them."""

        def pick(x: Tensor, dim: int = 0) -> Tensor:
            return (
                x.expand(*x.shape[:dim], n, *x.shape[dim + 1 :])
                if x.shape[dim] == 1
                else x[(slice(None),) * dim + (prompts,)]
            )

        z = tuple(pick(z, 1) for z in self.z)
        return Reference(pick(self.embed), z, tuple(map(pick, self.mlp)), tuple(map(pick, self.residual)))


def write_all(weights: Weights, start: Float[Tensor, "n pos d_model"]) -> Written:
    """What every sender writes when the model runs from the embedding ``start``."""
    x, all_z, all_mlp = start, [], []
    for layer in weights.layers:
        z = attend(layer, *project(weights, layer, "qkv", x[None, None], [0] * 3 * weights.n_heads))[0]
        x = x + write_heads(layer.W_O, z, [0] * weights.n_heads)[0] + layer.b_O
        all_z.append(z)
        if layer.W_in is not None:
            all_mlp.append(mlp(weights, layer, x))
            x = x + all_mlp[-1]
    return Written(start, tuple(all_z), tuple(all_mlp))


def _ablate(written: Written, ablation: str) -> Written:
    if ablation == "corrupted":
        return written
    change = torch.zeros_like if ablation == "zero" else torch.clone

    def over_prompts(x: Tensor, dim: int) -> Tensor:
        return change(x.mean(dim, keepdim=True))

    mlps = tuple(over_prompts(x, 0) for x in written.mlp)
    return Written(over_prompts(written.embed, 0), tuple(over_prompts(z, 1) for z in written.z), mlps)


# The model's parts -------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerWeights:
    """One layer. ``ln1`` and ``ln2`` are pairs of weight and bias, or None; MLP weights are None in an attention-only model."""

    W_QKV: Float[Tensor, "head three d_model d_head"]
    b_QKV: Float[Tensor, "head three d_head"]
    W_O: Float[Tensor, "head d_head d_model"]
    b_O: Float[Tensor, "d_model"]
    scale: float
    ln1: tuple[Tensor, Tensor] | None
    ln2: tuple[Tensor, Tensor] | None = None
    W_in: Float[Tensor, "d_model d_mlp"] | None = None
    b_in: Float[Tensor, "d_mlp"] | None = None
    W_out: Float[Tensor, "d_mlp d_model"] | None = None
    b_out: Float[Tensor, "d_model"] | None = None


@dataclass(frozen=True)
class Weights:
    """The weights of a model, read once. ``eps`` is None for a model without LayerNorm."""

    W_E: Float[Tensor, "d_vocab d_model"]
    W_pos: Float[Tensor, "n_ctx d_model"]
    layers: tuple[LayerWeights, ...]
    ln_final: tuple[Tensor, Tensor] | None
    W_U: Float[Tensor, "d_model d_vocab"]
    b_U: Float[Tensor, "d_vocab"]
    eps: float | None
    act: Callable[[Tensor], Tensor] | None

    @classmethod
    def of(cls, model) -> Weights:
        """Read the weights of a ``TransformerBridge``; a ValueError that names what is not supported."""
        config = _supported(model)
        layers = tuple(_layer_weights(block, config) for block in model.blocks)
        eps = None if config.normalization_type is None else config.eps
        ends = (model.W_E, model.W_pos, layers, _affine(model.ln_final, config), model.W_U, model.b_U)
        weights = cls(*map(_detached, ends), eps, None if config.attn_only else ACTIVATIONS[config.act_fn])
        _check_finite(weights)
        return weights

    @property
    def n_heads(self) -> int:
        return len(self.layers[0].W_O)

    @property
    def d_head(self) -> int:
        return self.layers[0].W_O.shape[1]

    @property
    def d_model(self) -> int:
        return self.W_E.shape[1]

    @property
    def d_mlp(self) -> int:
        return 0 if self.layers[0].W_in is None else self.layers[0].W_in.shape[1]

    @property
    def d_vocab(self) -> int:
        return self.W_U.shape[1]


def _gelu_new(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_new": _gelu_new,
    "gelu_pytorch_tanh": _gelu_new,
    "relu": F.relu,
    "silu": F.silu,
    "swish": F.silu,
}


def embed(weights: Weights, tokens: Int[Tensor, "n pos"]) -> Float[Tensor, "n pos d_model"]:
    """Token plus position embedding."""
    return weights.W_E[tokens] + weights.W_pos[: tokens.shape[1]]


def norm(
    weights: Weights, x: Float[Tensor, "... d_model"], affine: tuple[Tensor, Tensor] | None
) -> Float[Tensor, "... d_model"]:
    """LayerNorm, with weight and bias if there are any; nothing in a model without LayerNorm."""
    return x if weights.eps is None else F.layer_norm(x, x.shape[-1:], *(affine or (None, None)), weights.eps)


def project(
    weights: Weights,
    layer: LayerWeights,
    parts: str,
    x: Float[Tensor, "c distinct n pos d_model"],
    which: Sequence[int],
    heads=None,
) -> list[Float[Tensor, "c head n pos d_head"]]:
    """Queries, keys, values (those of ``parts``) of heads. Receiver i, in the order head by head, reads ``x[:, which[i]]``."""
    heads = list(range(weights.n_heads)) if heads is None else heads
    receivers = [(head, "qkv".index(part)) for head in heads for part in parts]
    y = project_receivers(weights, layer, receivers, x, which)
    return list(y.unflatten(1, (len(heads), len(parts))).unbind(2))


def project_receivers(
    weights: Weights,
    layer: LayerWeights,
    receivers: Sequence[tuple[int, int]],
    x: Float[Tensor, "c distinct n pos d_model"],
    which: Sequence[int],
) -> Float[Tensor, "c receiver n pos d_head"]:
    """What the receivers, pairs of a head and 0, 1 or 2 for q, k or v, make of what they read: of ``x[:, which[i]]``."""
    index = tuple(zip(*receivers, strict=True))
    W, b = layer.W_QKV[index], layer.b_QKV[index]
    h = norm(weights, x, layer.ln1)
    if h.shape[1] == 1:  # all read the same: one product
        return _one_input(h[:, 0], W, b)
    if list(which) == list(range(len(receivers))):
        return (h.flatten(2, 3) @ W + b[:, None]).unflatten(2, x.shape[2:4])
    y = h.new_empty(len(h), len(receivers), *x.shape[2:4], W.shape[-1])
    for i in range(h.shape[1]):
        mine = [receiver for receiver, of in enumerate(which) if of == i]
        y[:, mine] = _one_input(h[:, i], W[mine], b[mine])
    return y


def _one_input(x: Float[Tensor, "c n pos d_model"], W: Float[Tensor, "receiver d_model d_head"], b: Tensor) -> Tensor:
    """The projections of receivers that all read the same, ``[c, receiver, n, pos, d_head]``."""
    return F.linear(x, W.movedim(0, 1).flatten(1).T, b.flatten()).unflatten(-1, b.shape).movedim(-2, 1)


def attend(
    layer: LayerWeights,
    q: Float[Tensor, "c head n query d_head"],
    k: Float[Tensor, "c head n pos d_head"],
    v: Float[Tensor, "c head n pos d_head"],
    positions: Int[Tensor, "query"] | None = None,
) -> Float[Tensor, "c head n query d_head"]:
    """Causal attention, for queries at ``positions`` (None = all): ``z``, the head's output before ``W_O``."""
    shape, seen = (len(q), q.shape[2]), None
    if positions is not None:
        seen = torch.arange(k.shape[-2], device=k.device) <= positions[:, None]
    # As [c·n, head, pos, d_head]: what projections of one input, laid out as they are, give without a copy.
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))
    z = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=positions is None, scale=1 / layer.scale)
    return z.unflatten(0, shape).transpose(1, 2)


def write_heads(
    W_O: Float[Tensor, "head d_head d_model"],
    z: Float[Tensor, "*c head n pos d_head"],
    which: Sequence[int] | None = None,
) -> Float[Tensor, "*c distinct n pos d_model"]:
    """What heads write to the residual stream, ``z @ W_O``, each by itself or summed over those with the same ``which``.

    The bias b_O belongs to no head.
    """
    if which is None or len(set(which)) == len(which):
        return (z.flatten(-3, -2) @ W_O).unflatten(-2, z.shape[-3:-1])
    sums = []
    for kind in dict.fromkeys(which):
        mine = [head for head, of in enumerate(which) if of == kind]
        of_kind = z if len(mine) == len(which) else z[..., mine, :, :, :]
        sums.append(of_kind.movedim(-4, -2).flatten(-2) @ W_O[mine].flatten(0, 1))
    return sums[0].unsqueeze(-4) if len(sums) == 1 else torch.stack(sums, -4)


def mlp(weights: Weights, layer: LayerWeights, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
    """What the MLP writes, with its bias."""
    return weights.act(norm(weights, x, layer.ln2) @ layer.W_in + layer.b_in) @ layer.W_out + layer.b_out


def unembed(weights: Weights, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_vocab"]:
    """Final LayerNorm and unembedding."""
    return norm(weights, x, weights.ln_final) @ weights.W_U + weights.b_U


# Reading a model ---------------------------------------------------------------------------------

ARCHITECTURES = ("TransformerLensNative", "GPT2LMHeadModel")


def _supported(model):
    """The model's configuration; a ValueError that names the first thing that the engine can't run."""
    config = getattr(model, "cfg", None)
    if config is None or not hasattr(model, "blocks"):
        raise ValueError(f"model: expected a TransformerBridge, got {type(model).__name__}")
    for refused, what in _refusals(config):
        if refused:
            raise ValueError(
                f"model: {what} not supported; expected pre-LN, LayerNorm or none, learned positions, as in GPT-2"
            )
    return config


def _refusals(config) -> Iterator[tuple[bool, str]]:
    get = lambda name, default=None: getattr(config, name, default)  # noqa: E731
    yield get("positional_embedding_type") != "standard", f"{get('positional_embedding_type')} positions are"
    yield config.normalization_type not in ("LN", "LNPre", None), f"{config.normalization_type} normalization is"
    yield bool(get("uses_rms_norm")) or bool(get("final_rms")), "RMSNorm is"
    yield bool(get("parallel_attn_mlp")), "blocks with attention and MLP in parallel are"
    yield get("n_key_value_heads") not in (None, config.n_heads), "grouped queries (n_key_value_heads) are"
    yield bool(get("gated_mlp")), "gated MLPs are"
    yield get("num_experts") is not None, "mixtures of experts are"
    yield (get("attn_scores_soft_cap") or 0) > 0, "a soft cap on attention scores is"
    yield (get("output_logits_soft_cap") or 0) > 0, "a soft cap on logits is"
    yield bool(get("use_normalization_before_and_after")), "normalization after a layer is"
    yield bool(get("post_embedding_ln")), "LayerNorm after the embedding is"
    yield bool(get("use_qk_norm")), "normalization of queries and keys is"
    yield bool(get("use_local_attn")), "local attention is"
    yield get("attention_dir") != "causal", f"{get('attention_dir')} attention is"
    yield bool(get("scale_attn_by_inverse_layer_idx")), "attention scaled by layer is"
    yield not config.attn_only and config.act_fn not in ACTIVATIONS, f"activation {config.act_fn!r} is"
    yield get("architecture") not in ARCHITECTURES, f"architecture {get('architecture')!r} is"


def _layer_weights(block, config) -> LayerWeights:
    attn = block.attn
    W_QKV = torch.stack([attn.W_Q, attn.W_K, attn.W_V], 1)
    b_QKV = torch.stack([attn.b_Q, attn.b_K, attn.b_V], 1)
    scale = config.attn_scale if config.use_attn_scale and config.attn_scale > 0 else config.d_head**0.5
    attention = (W_QKV, b_QKV, attn.W_O, attn.b_O, scale, _affine(block.ln1, config))
    if config.attn_only:
        return LayerWeights(*map(_detached, attention))
    dense = (block.mlp.W_in, block.mlp.b_in, block.mlp.W_out, block.mlp.b_out)
    return LayerWeights(*map(_detached, (*attention, _affine(block.ln2, config), *dense)))


def _affine(layer_norm, config) -> tuple[Tensor, Tensor] | None:
    return (layer_norm.weight, layer_norm.bias) if config.normalization_type == "LN" else None


def _detached(value):
    if isinstance(value, Tensor):
        return value.detach().contiguous()
    return tuple(map(_detached, value)) if isinstance(value, tuple) else value


def _tensors(value) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, LayerWeights | Weights):
        yield from _tensors(tuple(vars(value).values()))


def _check_finite(weights: Weights) -> None:
    for layer, value in [*enumerate(weights.layers), ("embedding or unembedding", replace(weights, layers=()))]:
        if not all(bool(tensor.isfinite().all()) for tensor in _tensors(value)):
            where = f"layer {layer}" if isinstance(layer, int) else layer
            raise ValueError(f"model: expected finite weights, found NaN or infinity in the {where}")


def check_engine(engine) -> Engine:
    """``engine``; a ValueError if it is something else, such as a model."""
    if not isinstance(engine, Engine):
        raise ValueError(f"engine: expected an Engine, such as cl.Engine(model, task), got {type(engine).__name__}")
    return engine


def _check_task(task: Task, weights: Weights) -> None:
    if not isinstance(task, Task):
        raise ValueError(f"task: expected a Task, got {type(task).__name__}")
    for name, tokens in (("clean", task.clean), ("corrupted", task.corrupted)):
        odd = None if tokens.is_floating_point() else ((tokens < 0) | (tokens >= len(weights.W_E))).nonzero()
        if odd is None or len(odd):
            got = tokens.dtype if odd is None else f"{int(tokens[tuple(odd[0])])} in prompt {int(odd[0, 0])}"
            raise ValueError(f"task.{name}: expected token ids from 0 to {len(weights.W_E) - 1}, got {got}")
    for name, ids in (("answers", task.answers), ("distractors", task.distractors)):
        if ids.numel() and int(ids.max()) >= len(weights.W_E):
            raise ValueError(f"task.{name}: expected token ids from 0 to {len(weights.W_E) - 1}, got {int(ids.max())}")
    if task.clean.shape[1] > len(weights.W_pos):
        raise ValueError(
            f"task: prompts have {task.clean.shape[1]} tokens, expected at most the model's {len(weights.W_pos)}"
        )


def _check_agreement(model, weights: Weights, tokens: Int[Tensor, "1 pos"]) -> None:
    """Run one prompt both ways: weights that were read wrongly would make every later number wrong in silence."""
    if weights.W_E.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"model: expected weights in float32 or float64, got {weights.W_E.dtype}; make it model.float()"
        )
    theirs = model(tokens)
    ours = unembed(weights, Reference.of(weights, write_all(weights, embed(weights, tokens))).residual[-1])
    difference = float((theirs - ours).abs().max())
    if not difference <= 1e-3 * max(1.0, float(theirs.abs().max())):
        raise ValueError(
            f"model: the engine's logits differ from the model's by {difference:.2g}, expected less than 0.001 of the largest; "
            "is the model in eval mode and free of hooks?"
        )


# Small things ------------------------------------------------------------------------------------


def _checked(values: Tensor, n: int) -> Float[Tensor, "n"]:
    if not isinstance(values, Tensor) or values.shape != (n,):
        found = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(f"metric: expected one number for each of {n} prompts, shape [{n}], got {found}")
    if not values.is_floating_point():
        values = values.float()  # such as True where the answer is right
    if not bool(values.isfinite().all()):
        i = int((~values.isfinite()).nonzero()[0])
        raise ValueError(f"metric: expected finite numbers, got {float(values[i])} for prompt {i}")
    return values


def _at(x: Float[Tensor, "*rest pos d"], positions: Int[Tensor, "k"] | None) -> Float[Tensor, "*rest k d"]:
    return x if positions is None else x[..., positions, :]


def _distinct(keep: Float[Tensor, "c this that"], separate: bool = False) -> tuple[list[int], list[int]]:
    """The first of each kind along the dimension ``this``, and of which kind each is. Same ``keep``, same kind.

    With many kinds, or gradients, everyone counts as its own kind.
    """
    everyone = list(range(keep.shape[1]))
    if separate or keep.requires_grad:
        return everyone, everyone
    rows = keep.movedim(1, 0).flatten(1).cpu().numpy()
    kinds: dict[bytes, int] = {}
    which = [kinds.setdefault(row.tobytes(), len(kinds)) for row in rows]
    if len(kinds) > keep.shape[1] // 2:
        return everyone, everyone
    return [which.index(kind) for kind in range(len(kinds))], which


def _kept(keep: Bool[Tensor, "c receiver sender"]) -> list[int]:
    """The senders from which anything is kept."""
    return keep.movedim(2, 0).flatten(1).any(1).nonzero()[:, 0].tolist()


def _without(keep: Bool[Tensor, "receiver sender"], senders: list[int]) -> Bool[Tensor, "receiver sender"]:
    keep = keep.clone()
    keep[:, senders] = False
    return keep


def _written_at(slot: Slot, senders: Sequence[int] | None) -> list[int]:
    """Those of ``senders`` (ascending; None = all) that write at ``slot``."""
    if senders is None:
        return list(range(slot.writes.start, slot.writes.stop))
    return list(senders[bisect_left(senders, slot.writes.start) : bisect_left(senders, slot.writes.stop)])


def _by_node(keep: np.ndarray, slot: Slot) -> np.ndarray:
    """What the nodes of a slot keep, ``[node, sender]``: a head keeps what its q, k or v does."""
    return keep.reshape(max(1, slot.writes.stop - slot.writes.start), -1, keep.shape[-1]).any(1)


def _pick(x: Float[Tensor, "head *rest"], heads: list[int]) -> Float[Tensor, "some *rest"]:
    """These heads, without a copy if they stand together."""
    first, last = heads[0], heads[-1]
    return x[first : last + 1] if last - first + 1 == len(heads) else x[heads]
