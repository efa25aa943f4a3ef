"""ACDC, automatic circuit discovery: a greedy search for a circuit, from the logits down.

ACDC (Conmy et al. 2023, arXiv 2304.14997, section 3 and algorithm 1) visits the receivers from the logits down. It cuts each incoming
edge that is still there, and looks at how far the metric falls: M_current − M_new. If that is less than the threshold τ the edge
stays cut and M_new becomes M_current; else the edge is restored. So an edge is judged in the circuit that the search has left
so far, not in the whole model.

The search is one decision after another, and each needs a run of the model. Here the next decisions are guessed, the
runs that they lead to are one batch, and the guesses count up to the first wrong one. What comes out is what the loop, one run
at a time, gives: the same circuit by the same decisions.
"""

from __future__ import annotations

import math
import numbers
import random
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Bool
from torch import Tensor

from ..engine import Engine, Metric, check_engine
from ..graph import Circuit, Edge, Graph, node_of
from .eap import eap
from .longwork import Checkpoint, bar, identity
from .scores import Cost, metric_name

ORDERS = ("reverse", "ascending", "forward")
LOOKAHEAD = 64
STARTING = 4
TIE = 4e-6  # differences this close to the threshold, relative to the largest logit, are decided by runs one at a time


@dataclass(frozen=True)
class Decision:
    """What ACDC decided about one edge.

    Args:
        edge: the edge.
        before, after: the metric with the edge and without it, in the circuit left so far.
        removed: whether it stays cut.
        tested: False for an edge into a node that nothing reads any more: it goes without a run.
    """

    edge: Edge
    before: float
    after: float
    removed: bool
    tested: bool = True


class AcdcCircuit(Circuit):
    """What ACDC left, and how.

    Attributes:
        trace: the decisions, in order.
        threshold: τ, in units of the metric.
        metric_name: "task", "kl" or the name of a function.
        order: in which the edges were visited.
        cost: a run of one circuit counts as one forward pass, runs of wrong guesses too.
        batches: in how many batches these runs were made.
    """

    trace: tuple[Decision, ...]
    threshold: float
    metric_name: str
    order: str | int
    cost: Cost
    batches: int


def acdc(
    engine: Engine,
    *,
    threshold: float,
    metric: str | Metric | None = None,
    order: str | int = "reverse",
    lookahead: int = LOOKAHEAD,
    start: Circuit | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = False,
) -> AcdcCircuit:
    """The circuit that ACDC finds.

    Receivers come from the logits down, an MLP before the heads of its layer, and of a layer's heads all values, then all keys,
    then all queries. A receiver whose node nothing reads any more is skipped and loses its inputs.

    Args:
        threshold: τ, in units of the metric, from 0. An edge stays cut if cutting it lowers the metric by less.
        metric: None for the task's, "kl" for −KL(model on clean ‖ circuit), or a callable from logits ``[n, k, d_vocab]`` to
            ``[n]``. Under denoising, cutting an edge gives it its clean value, and it stays cut if that raises the metric by less.
        order: of the edges into a receiver, by sender. "reverse": the last in the model first, heads of a layer from the last to the
            first (the order that the paper states; "normal" in its code). "ascending": likewise, but heads of a layer from the first
            to the last ("reverse" in its code). "forward": the first in the model first. A number: shuffled, with this seed.
            Heads of a layer are visited in the same direction.
        lookahead: how many decisions at most are guessed at a time; 0 for the plain loop, one run after the other. It changes
            the time that the search takes, and the metric's last digits in the trace, but no decision.
        start: the circuit to search in, such as ``eap(engine).top(300)``; None for all edges. One with positions is searched
            edge by edge and position by position.
        checkpoint: a file that keeps the decisions. If it exists the search goes on from there.
        progress: show a bar on stderr.

    Raises:
        ValueError: a bad argument, or a checkpoint of another run; one line. A metric that is a function is told apart by its name.
    """
    return _acdc(engine, threshold, metric, order, lookahead, start, checkpoint, progress)


def acdc_sweep(
    engine: Engine,
    thresholds: Sequence[float],
    *,
    metric: str | Metric | None = None,
    order: str | int = "reverse",
    lookahead: int = LOOKAHEAD,
    start: Circuit | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = False,
) -> list[AcdcCircuit]:
    """``acdc`` at each of several thresholds, in the order given. One search's trace makes the guesses of the next.

    Args:
        checkpoint: ``sweep.json`` keeps the search at τ = 0.05 in ``sweep-0.05.json``, and so on.

    Raises:
        ValueError: as ``acdc``; and no threshold at all.
    """
    if not isinstance(thresholds, Iterable) or isinstance(thresholds, str) or not (thresholds := tuple(thresholds)):
        raise ValueError(f"thresholds: expected at least one number from 0, got {thresholds!r}")
    circuits, expected = [], None
    for threshold in thresholds:
        path = checkpoint if checkpoint is None else _with_threshold(Path(checkpoint), threshold)
        circuits.append(_acdc(engine, threshold, metric, order, lookahead, start, path, progress, expected))
        changes = {d.edge: engine.sign * (d.before - d.after) for d in circuits[-1].trace if d.tested}
        expected = {**(expected or {}), **changes}
    return circuits


def _with_threshold(path: Path, threshold: float) -> Path:
    shown = float(threshold) if isinstance(threshold, numbers.Real) else threshold  # NumPy's numbers have another repr
    return path.with_name(f"{path.stem}-{shown!r}{path.suffix}")


def _acdc(engine, threshold, metric, order, lookahead, start, checkpoint, progress, expected=None) -> AcdcCircuit:
    began = time.perf_counter()
    check_engine(engine)
    start = engine.all if start is None else start
    _check(engine, threshold, order, lookahead, start)
    search = _Search(engine, start, float(threshold), metric, order, lookahead)
    file = None
    if checkpoint is not None:
        settings = {"method": "acdc", "threshold": float(threshold), "order": order}
        file = Checkpoint(checkpoint, {**settings, **identity(engine, start, metric)})
        search.resume(file)
        if not search.recorded:
            file.save(search.state())  # a place that can't be written to is known before the search, not after
    began -= search.seconds
    if lookahead:
        search.expect(expected)
    with bar(progress, len(start), f"acdc τ={threshold:g}", "edges") as shown:
        try:
            for _ in search.steps():
                shown.update(len(search.trace) - shown.n)
                search.seconds = time.perf_counter() - began
                if file is not None:
                    file.save(search.state(), now=False)
        finally:
            if file is not None and not search.recorded:
                file.save(search.state())
    search.seconds = time.perf_counter() - began
    return search.circuit()


def _check(engine: Engine, threshold, order, lookahead, start) -> None:
    real = isinstance(threshold, numbers.Real) and not isinstance(threshold, bool)
    if not real or not 0 <= threshold < math.inf:
        raise ValueError(f"threshold: expected a number from 0, in units of the metric, got {threshold!r}")
    if type(order) is not int and order not in ORDERS:
        raise ValueError(f"order: expected one of {', '.join(ORDERS)}, or a number as a seed, got {order!r}")
    if type(lookahead) is not int or lookahead < 0:
        raise ValueError(f"lookahead: expected an integer from 0, got {lookahead!r}")
    if not isinstance(start, Circuit):
        raise ValueError(f"start: expected a Circuit to search in, or None, got {type(start).__name__}")
    engine.masks(start)  # an error if it is of another graph


# The search --------------------------------------------------------------------------------------


class _Search:
    """ACDC's state: the edges that are left, the metric that they give, and the decisions so far."""

    def __init__(self, engine: Engine, start: Circuit, threshold: float, metric, order, lookahead: int):
        self.engine, self.graph = engine, start.graph
        self.threshold, self.metric, self.order, self.lookahead = threshold, metric, order, lookahead
        self.measure = engine.measure(metric)
        self.run = engine.cache(start)
        logits = torch.cat(list(engine.logits_from(self.run, "logits", self.run.keep[-1:])))
        self.current = float(self.measure(logits).cpu().double().mean())
        self.tie = TIE * max(1.0, float(logits.abs().max()))  # a metric is made of logits, and rounds as they do
        self.trace: list[Decision] = []
        self.recorded: deque[Decision] = deque()  # of a checkpoint, still to be gone through
        self.source: Path | None = None
        self.expected: dict[Edge, float] = {}  # how far the metric is guessed to fall
        self.wrong = 0.1  # how often a guess is wrong, of late
        self.forwards, self.backwards, self.batches, self.seconds = 2, 0, 1, 0.0  # the reference, and the run of start

    def expect(self, expected: dict[Edge, float] | None) -> None:
        """Where the guesses come from: EAP of the task's metric, whatever ACDC's own metric is, as that may have no gradient."""
        if expected is None:
            try:
                scores = eap(self.engine, per_position=self.graph.per_position)
            except ValueError:  # no gradient: guess that nothing matters, and learn from what is measured
                return
            self.forwards, self.backwards = self.forwards + scores.cost.forwards - 1, self.backwards + 1
            expected = dict(scores.items())
            if self.metric is not None:  # another metric falls in other units, most often whatever the sign
                expected = {edge: abs(score) for edge, score in expected.items()}
        self.expected.update(expected)

    def steps(self) -> Iterator[None]:
        """Decide about every edge; stops after each batch."""
        for receiver in _receivers(self.graph, self.order):
            edges = _parents(self.graph, self.run.keep, receiver, self.order)
            if not edges:
                continue
            if self._unread(receiver):
                self._drop(receiver, edges)
            else:
                yield from self._decide(receiver, edges)
            yield
        if self.recorded:
            raise ValueError(f"checkpoint: {self.source} is damaged: it holds more decisions than there are edges")

    def _unread(self, receiver: str) -> bool:
        """Whether nothing reads the node of ``receiver`` any more."""
        return receiver != "logits" and not bool(self.run.keep[:, self.graph.sender_index[node_of(receiver)]].any())

    def _drop(self, receiver: str, edges: list[Edge]) -> None:
        for edge in edges:
            if self.recorded:
                self._replay(edge, tested=False)
            else:
                self.trace.append(Decision(edge, self.current, self.current, removed=True, tested=False))
        self.run.keep[self.graph.receiver_index[receiver]] = False  # what its node writes, nobody reads

    def _decide(self, receiver: str, edges: list[Edge]) -> Iterator[None]:
        """Decide about the edges into one receiver."""
        before = self.run.keep[self.graph.receiver_index[receiver]].clone()
        row, done = before.clone(), 0
        while done < len(edges):
            if self.recorded:
                self._accept(row, self._replay(edges[done], tested=True))
                done += 1
                continue
            ahead = edges[done : done + self._ahead()]
            guesses = [self.expected.get(edge, 0.0) < self.threshold for edge in ahead]
            done += self._batch(receiver, row, ahead, guesses)
            yield
        if not torch.equal(row, before):
            self.engine.update(self.run, receiver, row)

    def _batch(self, receiver: str, row: Tensor, edges: list[Edge], guesses: list[bool]) -> int:
        """Run the states that the guesses lead to; decide up to the first guess that is wrong. How many were decided."""
        states = self._states(row, edges, guesses)
        values = self._values(receiver, states)
        self._learn(edges, guesses, values)
        for i, (edge, state, value) in enumerate(zip(edges, states, values, strict=True)):
            before = self.current
            if abs(self._fall(before, value) - self.threshold) <= self.tie:
                before, value = (self._values(receiver, alone[None])[0] for alone in (row, state))
            removed = self._fall(before, value) < self.threshold
            self.trace.append(Decision(edge, before, value, removed))
            self._accept(row, self.trace[-1])
            wrong = removed != guesses[i]
            self.wrong += 0.05 * (wrong - self.wrong)
            if wrong:
                return i + 1
        return len(edges)

    def _ahead(self) -> int:
        """How many decisions to guess. A batch costs as much as ``STARTING`` more runs; what follows a wrong guess is lost."""
        return max(1, min(self.lookahead, round(math.sqrt(2 * STARTING / max(self.wrong, 1e-6)))))

    def _states(self, row: Tensor, edges: list[Edge], guesses: list[bool]) -> Bool[Tensor, "state sender"]:
        """What the receiver keeps when each edge is cut in turn, those before it having gone as guessed."""
        states, row = [], row.clone()
        for edge, cut in zip(edges, guesses, strict=True):
            states.append(_cut(self.graph, row, edge))
            row = states[-1] if cut else row
        return torch.stack(states)

    def _values(self, receiver: str, states: Tensor) -> list[float]:
        """The metric of each state."""
        self.forwards, self.batches = self.forwards + len(states), self.batches + 1
        parts = [self.measure(logits) for logits in self.engine.logits_from(self.run, receiver, states)]
        return torch.cat(parts).cpu().double().mean(-1).tolist()

    def _learn(self, edges: list[Edge], guesses: list[bool], values: list[float]) -> None:
        """What an edge was worth in a state that a wrong guess led to is a better guess than the gradient's."""
        before = self.current
        for edge, cut, value in zip(edges, guesses, values, strict=True):
            self.expected[edge] = self._fall(before, value)
            before = value if cut else before

    def _fall(self, before: float, after: float) -> float:
        return self.engine.sign * (before - after)

    def _accept(self, row: Tensor, decision: Decision) -> None:
        if decision.removed:
            row.copy_(_cut(self.graph, row, decision.edge))
            self.current = decision.after

    # Going on from a checkpoint ------------------------------------------------------------------

    def state(self) -> dict:
        # With those of the checkpoint that are still to be gone through: else it would be shorter after a stop in between.
        rows = [[str(d.edge), d.before, d.after, d.removed, d.tested] for d in (*self.trace, *self.recorded)]
        return {
            "decisions": rows,
            "forwards": self.forwards,
            "backwards": self.backwards,
            "batches": self.batches,
            "seconds": self.seconds,
        }

    def resume(self, file: Checkpoint) -> None:
        """Take over what ``file`` holds. The edges are gone through again as recorded, so that what they leave is the same."""
        state, self.source = file.load(), file.path
        if state is None:
            return
        try:
            self.recorded = deque(_decision(self.graph, row) for row in state["decisions"])
            counts = [state[name] for name in ("forwards", "backwards", "batches", "seconds")]
            if any(type(count) not in (int, float) or not 0 <= count < 2**53 for count in counts):
                raise ValueError
            self.forwards, self.backwards, self.batches, self.seconds = counts
        except (KeyError, TypeError, ValueError, OverflowError):
            raise ValueError(f"checkpoint: {file.path} is damaged: its decisions can't be read") from None

    def _replay(self, edge: Edge, tested: bool) -> Decision:
        decision = self.recorded[0]
        if decision.edge != edge or decision.tested != tested:
            raise ValueError(
                f"checkpoint: {self.source} is damaged: decision {len(self.trace) + 1} is about {decision.edge}, expected {edge}"
            )
        self.trace.append(self.recorded.popleft())
        return decision

    def circuit(self) -> AcdcCircuit:
        kept = Circuit.from_mask(self.graph, self.run.keep.cpu())
        found = AcdcCircuit(self.graph, (), self.engine.task, self.engine.ablation)
        found.edges, found.trace, found.order = kept.edges, tuple(self.trace), self.order
        found.threshold, found.metric_name, found.batches = self.threshold, metric_name(self.metric), self.batches
        found.cost = Cost(self.forwards, self.backwards, self.seconds)
        return found


def _decision(graph: Graph, row: list) -> Decision:
    edge, before, after, removed, tested = row
    if not (math.isfinite(before) and math.isfinite(after)) or type(removed) is not bool or type(tested) is not bool:
        raise ValueError
    return Decision(graph.edge(edge), float(before), float(after), removed, tested)


def _cut(graph: Graph, row: Bool[Tensor, "sender"], edge: Edge) -> Bool[Tensor, "sender"]:
    row = row.clone()
    row[graph.index(edge)[1:]] = False
    return row


# Orders ------------------------------------------------------------------------------------------


def _receivers(graph: Graph, order: str | int) -> Iterator[str]:
    """From the logits down; of a layer's heads all values, then all keys, then all queries."""
    for slot in reversed(graph.slots):
        receivers = graph.receivers[slot.rows]
        if slot.kind != "attn":
            yield from receivers
            continue
        for part in "vkq":
            of_part = [receiver for receiver in receivers if receiver.endswith(part)]
            yield from _ordered(of_part, order, lambda name: 0, graph.receiver_index.get, f"{slot.layer}{part}")


def _parents(graph: Graph, keep: Bool[Tensor, "receiver sender"], receiver: str, order: str | int) -> list[Edge]:
    """The edges into a receiver that are left, in the order in which they are tried."""
    layer = {
        graph.senders[i]: n for n, slot in enumerate(graph.slots) for i in range(slot.writes.start, slot.writes.stop)
    }
    where = keep[graph.receiver_index[receiver]].cpu().nonzero().tolist()
    edges = [Edge(graph.senders[sender], receiver, *position) for sender, *position in where]
    return _ordered(edges, order, lambda edge: layer.get(edge.sender, -1), lambda edge: graph.index(edge)[1:], receiver)


def _ordered(things: list, order: str | int, place, number, name: str) -> list:
    """``place``: a later one comes first, but for "forward". ``number``: the place in the graph."""
    if type(order) is int:
        things = sorted(things, key=number)
        random.Random(f"{order} {name}").shuffle(things)  # seeded by text: the same in every process
        return things
    if order == "ascending":
        return sorted(things, key=lambda thing: (-place(thing), number(thing)))
    return sorted(things, key=number, reverse=order == "reverse")
