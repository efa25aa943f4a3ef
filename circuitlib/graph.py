"""Senders, receivers, edges and circuits: the vocabulary of every method.

A *sender* writes to the residual stream: ``embed`` (token and position), ``a2.0`` (a head), ``m3`` (an MLP).
A *receiver* reads it, before its LayerNorm: ``a2.0.q``, ``a2.0.k``, ``a2.0.v``, ``m3``, ``logits``.
An *edge* joins a sender to a receiver downstream of it; a *circuit* is a set of edges of one graph.
"""

from __future__ import annotations

import json
import numbers
import random
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache, total_ordering
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from .files import write_text

ARROW = "→"


@total_ordering
@dataclass(frozen=True)
class Edge:
    """An edge from ``sender`` to ``receiver``; with ``position``, only where the receiver reads that position.

    That is the query's position for ``q`` and the attended position for ``k`` and ``v``. Edges sort in canonical
    order: by receiver, then sender, then position, each in the order in which the model computes.

    Raises:
        ValueError: a name that is no sender or receiver, or a sender that is not strictly upstream of the receiver.
    """

    sender: str
    receiver: str
    position: int | None = None

    def __post_init__(self):
        sender, receiver = _sender_key(self.sender), _receiver_key(self.receiver)
        if not _upstream(sender, receiver):
            raise ValueError(
                f"edge {str(self)!r} points upstream: {self.sender} is computed after {self.receiver} reads, expected before"
            )
        if self.position is not None and (type(self.position) is not int or self.position < 0):
            raise ValueError(f"edge {str(self)!r}: position must be an int from 0, or None, got {self.position!r}")

    @classmethod
    def parse(cls, text: str) -> Edge:
        """The edge that ``text`` names: ``a0.5→a1.4.v``, ``a0.5->a1.4.v`` or, with a position, ``a0.5→a1.4.v@12``."""
        if not isinstance(text, str):
            raise ValueError(f"edge: expected text like 'a0.5→a1.4.v', got {type(text).__name__}")
        match = _EDGE.fullmatch(text)
        if match is None:
            raise ValueError(
                f"edge {text[:60]!r}: expected text like 'a0.5→a1.4.v', 'a0.5->a1.4.v' or 'a0.5→a1.4.v@12'"
            )
        sender, receiver, position = match.groups()
        return cls(sender, receiver, None if position is None else int(position))

    def __str__(self) -> str:
        return f"{self.sender}{ARROW}{self.receiver}" + ("" if self.position is None else f"@{self.position}")

    def __repr__(self) -> str:
        return f"Edge({str(self)!r})"

    def __lt__(self, other: Edge) -> bool:
        return self._order < other._order if isinstance(other, Edge) else NotImplemented

    @property
    def _order(self) -> tuple:
        position = -1 if self.position is None else self.position
        return _receiver_key(self.receiver), _sender_key(self.sender), position


@dataclass(frozen=True)
class Slot:
    """A point of the forward pass at which receivers read: a layer's attention, its MLP, or the logits.

    Args:
        kind: "attn", "mlp" or "logits".
        layer: the layer; ``n_layers`` for the logits.
        rows: the receivers that read here, as a slice of ``Graph.receivers``.
        n_upstream: senders upstream of it; they are always the first ``n_upstream`` of ``Graph.senders``.
        writes: the senders that write here, as a slice of ``Graph.senders`` (empty for the logits).
    """

    kind: str
    layer: int
    rows: slice
    n_upstream: int
    writes: slice


class Graph:
    """All senders, receivers and edges of a model.

    Args:
        model: a ``TransformerBridge``.
        per_position: give every edge a position.
        n_pos: how many positions a prompt has; needed with ``per_position``, e.g. ``task.clean.shape[1]``.

    An attention-only model of 4 layers of 8 heads has 1,281 edges, GPT-2 small 32,491.
    """

    def __init__(self, model, per_position: bool = False, n_pos: int | None = None):
        config = model.cfg
        if per_position and n_pos is None:
            raise ValueError(
                "n_pos: a graph with per_position=True needs the number of positions, e.g. task.clean.shape[1]"
            )
        self._set_shape(
            config.n_layers, config.n_heads, not config.attn_only, n_pos if per_position else None, config.d_model
        )

    @classmethod
    def from_shape(
        cls, n_layers: int, n_heads: int, mlps: bool, n_pos: int | None = None, d_model: int | None = None
    ) -> Graph:
        """The graph of a model of this shape, without the model; with ``n_pos``, one edge for each position."""
        graph = cls.__new__(cls)
        graph._set_shape(n_layers, n_heads, mlps, n_pos, d_model)
        return graph

    def _set_shape(self, n_layers, n_heads, mlps, n_pos, d_model):
        for name, value in (("n_layers", n_layers), ("n_heads", n_heads), ("n_pos", n_pos)):
            if not (value is None and name == "n_pos") and (type(value) is not int or value < 1):
                raise ValueError(f"{name}: expected a positive integer, got {value!r}")
        self.n_layers, self.n_heads, self.mlps, self.n_pos, self.d_model = n_layers, n_heads, bool(mlps), n_pos, d_model

    @property
    def per_position(self) -> bool:
        return self.n_pos is not None

    @cached_property
    def senders(self) -> tuple[str, ...]:
        """``embed``, then layer by layer the heads and the MLP."""
        names = ["embed"]
        for layer in range(self.n_layers):
            names += [f"a{layer}.{head}" for head in range(self.n_heads)] + ([f"m{layer}"] if self.mlps else [])
        return tuple(names)

    @cached_property
    def receivers(self) -> tuple[str, ...]:
        """Layer by layer the q, k and v inputs of every head and the MLP; then ``logits``."""
        names = []
        for layer in range(self.n_layers):
            names += [f"a{layer}.{head}.{part}" for head in range(self.n_heads) for part in "qkv"]
            names += [f"m{layer}"] if self.mlps else []
        return (*names, "logits")

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """The points at which receivers read, in the order in which the model computes."""
        slots, row, sender = [], 0, 1
        for layer in range(self.n_layers):
            slots.append(
                Slot("attn", layer, slice(row, row + 3 * self.n_heads), sender, slice(sender, sender + self.n_heads))
            )
            row, sender = row + 3 * self.n_heads, sender + self.n_heads
            if self.mlps:
                slots.append(Slot("mlp", layer, slice(row, row + 1), sender, slice(sender, sender + 1)))
                row, sender = row + 1, sender + 1
        return (*slots, Slot("logits", self.n_layers, slice(row, row + 1), sender, slice(sender, sender)))

    @cached_property
    def sender_index(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.senders)}

    @cached_property
    def receiver_index(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.receivers)}

    def slot_of(self, receiver: str) -> Slot:
        """The slot at which ``receiver`` reads."""
        row = self.receiver_index.get(receiver)
        if row is None:
            raise ValueError(f"receiver {receiver!r} does not exist in {self!r}")
        return next(slot for slot in self.slots if row < slot.rows.stop)

    @property
    def n_edges(self) -> int:
        """How many edges there are, by formula: Σ over slots of receivers × senders upstream (× positions)."""
        pairs = sum((slot.rows.stop - slot.rows.start) * slot.n_upstream for slot in self.slots)
        return pairs * (self.n_pos or 1)

    def edge_count(self, convention: str = "circuitlib") -> int:
        """``n_edges``, or the count of the ACDC papers: one "direct" edge more for each q, k and v input.

        Conmy et al. 2023, Table 2: 1,377 for the attention-only model, 32,923 for GPT-2 small.
        """
        if convention not in ("circuitlib", "acdc"):
            raise ValueError(f"convention: expected 'circuitlib' or 'acdc', got {convention!r}")
        direct = 3 * self.n_heads * self.n_layers * (self.n_pos or 1)
        return self.n_edges + (direct if convention == "acdc" else 0)

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """Every edge, in canonical order."""
        positions = range(self.n_pos) if self.per_position else (None,)
        return tuple(
            Edge(sender, receiver, position)
            for slot in self.slots
            for receiver in self.receivers[slot.rows]
            for sender in self.senders[: slot.n_upstream]
            for position in positions
        )

    @cached_property
    def edge_mask(self) -> Bool[Tensor, "receiver sender"]:
        """True where there is an edge; ``[receiver, sender, position]`` for a graph with positions."""
        mask = torch.zeros(len(self.receivers), len(self.senders), dtype=torch.bool)
        for slot in self.slots:
            mask[slot.rows, : slot.n_upstream] = True
        return mask[..., None].repeat(1, 1, self.n_pos) if self.per_position else mask

    def edge(self, edge: Edge | str) -> Edge:
        """``edge`` (or the edge that it names) if it is one of this graph; else a ValueError that says what is wrong."""
        edge = Edge.parse(edge) if isinstance(edge, str) else edge
        if not isinstance(edge, Edge):
            raise ValueError(f"edge: expected an Edge or text like 'a0.5→a1.4.v', got {type(edge).__name__}")
        for name in (edge.sender, edge.receiver):
            self._check_node(name, edge)
        if self.per_position != (edge.position is not None):
            expected = (
                "an edge with a position, like 'a0.5→a1.4.v@12'" if self.per_position else "an edge without a position"
            )
            raise ValueError(f"edge {str(edge)!r}: expected {expected}, for {self!r}")
        if self.per_position and edge.position >= self.n_pos:
            raise ValueError(
                f"edge {str(edge)!r}: position {edge.position} does not exist, expected 0 to {self.n_pos - 1}"
            )
        return edge

    def _check_node(self, name: str, edge: Edge) -> None:
        kind, layer, head = _parts(name)
        exists = (
            kind in ("embed", "logits") or layer < self.n_layers and (self.mlps if kind == "m" else head < self.n_heads)
        )
        if not exists:
            raise ValueError(f"edge {str(edge)!r}: {name!r} does not exist in {self!r}")

    def index(self, edge: Edge) -> tuple[int, ...]:
        """Where the edge stands in a mask: ``(receiver, sender)`` or ``(receiver, sender, position)``."""
        where = self.receiver_index[edge.receiver], self.sender_index[edge.sender]
        return where if edge.position is None else (*where, edge.position)

    def mask(self, edges: Iterable[Edge | str]) -> Bool[Tensor, "receiver sender"]:
        """A mask that is True at ``edges``, with the shape of ``edge_mask``."""
        mask = torch.zeros_like(self.edge_mask)
        where = [self.index(self.edge(edge)) for edge in edges]
        if where:
            mask[tuple(torch.tensor(where).T)] = True
        return mask

    def edges_of(self, mask: Bool[Tensor, "receiver sender"]) -> tuple[Edge, ...]:
        """The edges at which ``mask`` is True, in canonical order."""
        if mask.shape != self.edge_mask.shape:
            raise ValueError(f"mask: expected shape {list(self.edge_mask.shape)}, got {list(mask.shape)}")
        if bool((mask.bool() & ~self.edge_mask).any()):
            raise ValueError("mask: True at a place where the graph has no edge")
        where = mask.nonzero().tolist()
        return tuple(Edge(self.senders[s], self.receivers[r], *position) for r, s, *position in where)

    def _shape(self) -> tuple:
        return self.n_layers, self.n_heads, self.mlps, self.n_pos

    def __eq__(self, other) -> bool:
        return isinstance(other, Graph) and self._shape() == other._shape()

    def __hash__(self) -> int:
        return hash(self._shape())

    def __contains__(self, edge: Edge | str) -> bool:
        try:
            self.edge(edge)
        except ValueError:
            return False
        return True

    def __repr__(self) -> str:
        mlps = "with MLPs" if self.mlps else "attention-only"
        positions = f", {self.n_pos} positions" if self.per_position else ""
        return f"Graph({self.n_layers} layers × {self.n_heads} heads, {mlps}{positions}, {self.n_edges:,} edges)"


class Circuit:
    """A set of edges of one graph, with the task and the ablation that it is a claim about.

    Args:
        graph: the graph.
        edges: any iterable of edges, or of text like ``a0.5→a1.4.v``; repeats count once.
        task: the task, or its name.
        ablation: "corrupted", "zero" or "mean".

    Attributes:
        conditions: what else the claim rests on, such as the corruption, the direction and the prompts: name → text. Kept in the
            circuit's file; circuits that differ in nothing else are equal.
    """

    def __init__(self, graph: Graph, edges: Iterable[Edge | str], task=None, ablation: str | None = None):
        if not isinstance(graph, Graph):
            raise ValueError(f"graph: expected a Graph, got {type(graph).__name__}")
        if isinstance(edges, str):
            raise ValueError(f"edges: expected a list of edges, got the single text {edges!r}")
        if ablation not in (None, *ABLATIONS):
            raise ValueError(f"ablation: expected one of {', '.join(ABLATIONS)} or None, got {ablation!r}")
        self.graph = graph
        self.edges: tuple[Edge, ...] = tuple(sorted({graph.edge(edge) for edge in edges}, key=lambda edge: edge._order))
        self.task: str | None = getattr(task, "name", task)
        self.ablation = ablation
        self.conditions: dict[str, str] = {}

    @classmethod
    def from_mask(
        cls, graph: Graph, mask: Bool[Tensor, "receiver sender"], task=None, ablation: str | None = None
    ) -> Circuit:
        """The circuit of the edges at which ``mask`` is True."""
        return cls(graph, (), task, ablation)._with(graph.edges_of(mask))

    @cached_property
    def mask(self) -> Bool[Tensor, "receiver sender"]:
        """True at the circuit's edges: what the engine takes."""
        return self.graph.mask(self.edges)

    @cached_property
    def _set(self) -> frozenset[Edge]:
        return frozenset(self.edges)

    def __len__(self) -> int:
        return len(self.edges)

    def __iter__(self) -> Iterator[Edge]:
        return iter(self.edges)

    def __contains__(self, edge: Edge | str) -> bool:
        return (Edge.parse(edge) if isinstance(edge, str) else edge) in self._set

    def __eq__(self, other) -> bool:
        return isinstance(other, Circuit) and self.graph == other.graph and self.edges == other.edges

    def __hash__(self) -> int:
        return hash((self.graph, self._set))

    def __or__(self, other: Circuit | Iterable[Edge | str]) -> Circuit:
        return self._with(sorted(self._set | _edge_set(self.graph, other), key=lambda edge: edge._order))

    def __and__(self, other: Circuit | Iterable[Edge | str]) -> Circuit:
        others = _edge_set(self.graph, other)
        return self._with(edge for edge in self.edges if edge in others)

    def __sub__(self, other: Circuit | Iterable[Edge | str]) -> Circuit:
        others = _edge_set(self.graph, other)
        return self._with(edge for edge in self.edges if edge not in others)

    def _with(self, edges: Iterable[Edge]) -> Circuit:
        """The same claim about other edges of the graph, in canonical order."""
        circuit = Circuit(self.graph, (), self.task, self.ablation)
        circuit.edges = tuple(edges)
        return circuit

    def __repr__(self) -> str:
        claim = "".join(
            f", {name} {value!r}" for name, value in (("task", self.task), ("ablation", self.ablation)) if value
        )
        return f"Circuit({len(self)} of {self.graph.n_edges:,} edges{claim})"

    def heads(self) -> list[str]:
        """The heads that some edge touches, as ``a1.4``, in order."""
        return [node for node in self.nodes() if node.startswith("a")]

    def nodes(self) -> list[str]:
        """The nodes that some edge touches (``embed``, heads, MLPs, ``logits``), in order."""
        names = {edge.sender for edge in self.edges} | {node_of(edge.receiver) for edge in self.edges}
        return [name for name in (*self.graph.senders, "logits") if name in names]

    def prune(self) -> Circuit:
        """Only the edges that lie on a path from ``embed`` to ``logits``.

        What is dropped changes nothing under corrupted ablation and under denoising. Under zero and mean ablation it may: there
        a node that nothing reaches still writes something other than what stands in for it.

        A head passes on what reaches any of its q, k and v inputs. With positions, what its k or v input reads at p
        reaches what the head writes at p and after; its q input and all else stay at their position.
        """
        mask = self.mask if self.graph.per_position else self.mask[..., None]
        on_path = _reached(self.graph, mask)[None] & _useful(self.graph, mask)[:, None] & mask
        return Circuit.from_mask(
            self.graph, on_path if self.graph.per_position else on_path[..., 0], self.task, self.ablation
        )

    def save(self, path: str | Path) -> None:
        """Write the circuit as JSON (format version 1)."""
        _write(path, self.to_json())

    def to_json(self) -> str:
        """The text of the file that ``save`` writes."""
        graph = {
            "n_layers": self.graph.n_layers,
            "n_heads": self.graph.n_heads,
            "mlps": self.graph.mlps,
            "n_pos": self.graph.n_pos,
        }
        content = {"format": FORMAT, "version": 1, "graph": graph, "task": self.task, "ablation": self.ablation}
        if self.conditions:
            content["conditions"] = self.conditions
        return json.dumps({**content, "edges": [str(edge) for edge in self.edges]}, ensure_ascii=False, indent=1)

    @classmethod
    def load(cls, path: str | Path) -> Circuit:
        """Read a circuit that ``save`` wrote.

        Raises:
            ValueError: the file is not such a circuit; one line that names the file and what is wrong with it.
        """
        content = _read_json(path)
        try:
            return _circuit_from(content)
        except ValueError as error:
            raise ValueError(f"{path}: not a circuit file: {error}") from None

    def to_networkx(self):
        """A ``networkx.MultiDiGraph`` of nodes (a head is one node); edges carry ``input`` (q, k, v or none) and ``position``."""
        import networkx

        graph = networkx.MultiDiGraph(task=self.task or "", ablation=self.ablation or "")
        for name in self.nodes():
            kind, layer, head = _parts(name)
            known = {"layer": layer, "head": head}
            graph.add_node(
                name, kind=_KINDS.get(kind, kind), **{key: value for key, value in known.items() if value is not None}
            )
        for edge in self.edges:
            part = edge.receiver.rpartition(".")[2] if edge.receiver.startswith("a") else ""
            position = {} if edge.position is None else {"position": edge.position}
            graph.add_edge(edge.sender, node_of(edge.receiver), key=str(edge), input=part, label=str(edge), **position)
        return graph

    def to_graphml(self, path: str | Path) -> None:
        """Write ``to_networkx()`` as GraphML."""
        _write(path, graphml(self.to_networkx()))

    def to_eap_ig(
        self, path: str | Path, scores: Mapping | None = None, d_model: int | None = None, *, loss: bool = True
    ) -> None:
        """Write the circuit as the graph JSON of the EAP-IG repository (Hanna et al. 2024; ``Graph.from_json`` reads it).

        Args:
            scores: edge (or its text) → score, positive where cutting lowers the metric. Edges without a score get 0.
            d_model: width of the model, if the graph was made without one.
            loss: a score there is how much cutting raises what ``attribute`` was given. In the repository's notebooks that is
                a loss, the metric's negative (``loss=True``): then the sign is ours. False: as if it was given the metric itself;
                the sign is flipped.

        Their input node is the token embedding alone; ours includes the position.

        Raises:
            ValueError: an attention-only graph or one with positions: the format can't represent them.
        """
        graph = self.graph
        _refuse_for_eap_ig(graph.mlps, graph.per_position)
        d_model = d_model or graph.d_model
        if d_model is None:
            raise ValueError(
                "d_model: the EAP-IG format records it, and this graph was made without a model; pass d_model="
            )
        scores = {graph.edge(edge): float(score) for edge, score in (scores or {}).items()}
        touched, sign = {*self.nodes(), "logits"}, 1 if loss else -1
        content = {
            "cfg": {
                "n_layers": graph.n_layers,
                "n_heads": graph.n_heads,
                "parallel_attn_mlp": False,
                "d_model": d_model,
            },
            "nodes": {_to_eap_ig(name): {"in_graph": name in touched} for name in (*graph.senders, "logits")},
            # 0.0 + …, so that an edge without a score is written 0.0 and not -0.0
            "edges": {
                _edge_to_eap_ig(edge): {"score": 0.0 + sign * scores.get(edge, 0.0), "in_graph": edge in self._set}
                for edge in graph.edges
            },
        }
        _write(path, json.dumps(content))

    @classmethod
    def from_eap_ig(cls, path: str | Path, *, loss: bool = True) -> tuple[Circuit, dict[Edge, float]]:
        """Read a graph JSON of the EAP-IG repository: the circuit, and the scores with our sign (positive = cutting lowers the metric).

        Args:
            loss: whether the scores are those of a loss, the metric's negative, as in the repository's notebooks; else they are
                taken to be of the metric, and their sign is flipped.

        Raises:
            ValueError: the file is not such a graph; one line that names the file and what is wrong with it.
        """
        content = _read_json(path)
        try:
            return _circuit_from_eap_ig(content, 1 if loss else -1)
        except ValueError as error:
            raise ValueError(f"{path}: not an EAP-IG graph: {error}") from None


ABLATIONS = ("corrupted", "zero", "mean")


def random_circuit(graph: Graph, k: int, seed: int = 0) -> Circuit:
    """``k`` edges of the graph, drawn uniformly without replacement."""
    if not is_whole(k) or not 0 <= k <= graph.n_edges:
        raise ValueError(f"k: expected an integer from 0 to {graph.n_edges}, got {k!r}")
    return Circuit(graph, (graph.edges[i] for i in random.Random(seed).sample(range(graph.n_edges), k)))


def graphml(graph) -> str:
    """A networkx graph as GraphML. A character that no XML may hold becomes U+FFFD."""
    import networkx

    lines = ["<?xml version='1.0' encoding='utf-8'?>", *networkx.generate_graphml(graph)]
    return re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", "\n".join(lines))


def jaccard(c1: Circuit, c2: Circuit) -> float:
    """Edges in both over edges in either: 1 for equal circuits (two empty ones too), 0 for disjoint ones."""
    if c1.graph != c2.graph:
        raise ValueError(f"c2: expected a circuit of {c1.graph!r}, got one of {c2.graph!r}")
    union = c1._set | c2._set
    return len(c1._set & c2._set) / len(union) if union else 1.0


def is_whole(value) -> bool:
    """Whether it is an integer, Python's or NumPy's, and no truth value."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def node_of(receiver: str) -> str:
    """The node that a receiver belongs to: ``a1.4`` for ``a1.4.v``; MLPs and ``logits`` are their own."""
    return receiver.rpartition(".")[0] if receiver.startswith("a") else receiver


# Names -------------------------------------------------------------------------------------------

_NUMBER = r"(?:0|[1-9][0-9]{0,5})"  # no leading zeros: one name for one thing
_EDGE = re.compile(rf"([a-z0-9.]+)(?:{ARROW}|->)([a-z0-9.]+)(?:@({_NUMBER}))?")
_NODE = re.compile(rf"embed|logits|m({_NUMBER})|a({_NUMBER})\.({_NUMBER})(?:\.([qkv]))?")
_KINDS = {"a": "head", "m": "mlp"}


@lru_cache(maxsize=65536)
def _match(name: str) -> tuple[str, int | None, int | None, str | None] | None:
    """``(kind, layer, head, part)`` of a node or receiver, or None."""
    match = _NODE.fullmatch(name)
    if match is None:
        return None
    mlp, layer, head, part = match.groups()
    if mlp is not None:
        return "m", int(mlp), None, None
    if layer is not None:
        return "a", int(layer), int(head), part
    return name, None, None, None


def _parts(name: str) -> tuple[str, int | None, int | None]:
    return _match(name)[:3]


def _sender_key(name: str) -> tuple:
    """Sorts senders in the order in which the model computes them."""
    found = _match(name) if isinstance(name, str) else None
    if found is None or found[0] == "logits" or found[3] is not None:
        raise ValueError(f"sender {name!r} does not exist; expected 'embed', a head like 'a2.0' or an MLP like 'm3'")
    kind, layer, head, _ = found
    return (-1, 0, 0) if kind == "embed" else (layer, int(kind == "m"), head or 0)


def _receiver_key(name: str) -> tuple:
    found = _match(name) if isinstance(name, str) else None
    if found is None or found[0] == "embed" or (found[0] == "a" and found[3] is None):
        raise ValueError(
            f"receiver {name!r} does not exist; expected one like 'a2.0.q', 'a2.0.k', 'a2.0.v', 'm3' or 'logits'"
        )
    kind, layer, head, part = found
    return (10**9, 0, 0, 0) if kind == "logits" else (layer, int(kind == "m"), head or 0, "qkv".find(part or "q"))


def _upstream(sender: tuple, receiver: tuple) -> bool:
    """Heads of a layer read before any of them writes; its MLP reads after all of them wrote."""
    return sender[:2] < receiver[:2]


def _edge_set(graph: Graph, edges: Circuit | Iterable[Edge | str]) -> frozenset[Edge]:
    if isinstance(edges, Circuit):
        if edges.graph != graph:
            raise ValueError(f"circuit: expected one of {graph!r}, got one of {edges.graph!r}")
        return edges._set
    return frozenset(graph.edge(edge) for edge in edges)


# Paths -------------------------------------------------------------------------------------------


def _reached(graph: Graph, mask: Bool[Tensor, "receiver sender pos"]) -> Bool[Tensor, "sender pos"]:
    """Where something that comes from ``embed`` is written."""
    reached = torch.zeros(mask.shape[1:], dtype=torch.bool)
    reached[0] = True
    for slot in graph.slots[:-1]:
        read = (mask[slot.rows] & reached).any(1)  # [receiver, pos]
        reached[slot.writes] = _through_heads(read) if slot.kind == "attn" else read
    return reached


def _through_heads(read: Bool[Tensor, "head3 pos"]) -> Bool[Tensor, "head pos"]:
    q, k, v = read.view(-1, 3, read.shape[1]).unbind(1)
    return q | ((k | v).cummax(-1).values if read.shape[1] > 1 else k | v)


def _useful(graph: Graph, mask: Bool[Tensor, "receiver sender pos"]) -> Bool[Tensor, "receiver pos"]:
    """Where something that is read gets to ``logits``."""
    n_receivers, n_senders, n_pos = mask.shape
    useful = torch.zeros(n_receivers, n_pos, dtype=torch.bool)
    useful[-1] = True
    for slot in reversed(graph.slots[:-1]):
        written = (mask[:, slot.writes] & useful[:, None]).any(0)  # [sender, pos]
        useful[slot.rows] = _back_through_heads(written) if slot.kind == "attn" else written
    return useful


def _back_through_heads(written: Bool[Tensor, "head pos"]) -> Bool[Tensor, "head3 pos"]:
    later = written.flip(-1).cummax(-1).values.flip(-1)
    return torch.stack([written, later, later], 1).flatten(0, 1)


# Files -------------------------------------------------------------------------------------------

FORMAT = "circuitlib circuit"
MAX_FILE_BYTES = 64 * 2**20
_MAX_SHAPE = {"n_layers": 512, "n_heads": 512, "n_pos": 65536}
_MAX_PLACES = 2**28  # senders × receivers × positions of a graph in a file: a few bytes could ask for terabytes
_MAX_LISTED = 2**21  # edges of a graph that lists all of them: more don't fit into a file
_MAX_CONDITIONS = 32
_MAX_NAME = 1000


def _write(path: str | Path, text: str) -> None:
    write_text(path, text + "\n")


def _read_json(path: str | Path) -> Any:
    path = Path(path)
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # a pipe or a device may never end
            raise ValueError(f"{path}: can't be read (not an ordinary file)")
        if found.st_size > MAX_FILE_BYTES:
            raise ValueError(f"{path}: {found.st_size} bytes, expected at most {MAX_FILE_BYTES}")
        text = path.read_text("utf8")
    except OSError as error:
        raise ValueError(f"{path}: can't be read ({error.strerror or type(error).__name__})") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not UTF-8 text") from None
    try:
        return json.loads(text, object_pairs_hook=_no_repeats, parse_constant=_no_constants)
    except RecursionError:
        raise ValueError(f"{path}: not valid JSON (nested too deep)") from None
    except ValueError as error:
        raise ValueError(f"{path}: not valid JSON ({error})") from None


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a key is repeated")
    return content


def _no_constants(text: str):
    raise ValueError(f"{text} is not a JSON number")


def _keys(content: Any, name: str, required: set[str]) -> None:
    if not isinstance(content, dict):
        raise ValueError(f"{name}: expected an object, got {type(content).__name__}")
    if missing := sorted(required - content.keys()):
        raise ValueError(f"{name}: {missing[0]!r} is missing")


def _graph_from(content: Any) -> Graph:
    required = {"n_layers", "n_heads", "mlps", "n_pos"}
    _keys(content, "graph", required)
    if unknown := sorted(content.keys() - required):
        raise ValueError(f"graph: unknown key {unknown[0][:60]!r}")
    _check_shape(content)
    if not isinstance(content["mlps"], bool):
        raise ValueError(f"graph: mlps must be true or false, got {str(content['mlps'])[:60]!r}")
    graph = Graph.from_shape(content["n_layers"], content["n_heads"], content["mlps"], content["n_pos"])
    _check_places(graph)
    return graph


def _check_places(graph: Graph) -> None:
    senders = 1 + graph.n_layers * (graph.n_heads + graph.mlps)
    receivers = 1 + graph.n_layers * (3 * graph.n_heads + graph.mlps)
    if (places := senders * receivers * (graph.n_pos or 1)) > _MAX_PLACES:
        raise ValueError(f"graph: {places} places for edges, expected at most {_MAX_PLACES}")


def _check_text(name: str, value: Any) -> None:
    """A name in a file: short, and text that can be written again (half a surrogate pair can't be)."""
    if value is None:
        return
    if not isinstance(value, str):
        raise ValueError(f"{name}: expected text or null, got {type(value).__name__}")
    if len(value) > _MAX_NAME or any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"{name}: expected text of at most {_MAX_NAME} characters, got {value[:60]!r}")


def _check_shape(content: dict) -> None:
    for name, most in _MAX_SHAPE.items():
        value = content.get(name)
        if value is None and name == "n_pos":
            continue
        if type(value) is not int or not 1 <= value <= most:
            raise ValueError(f"{name}: expected an integer from 1 to {most}, got {str(value)[:60]!r}")


def _circuit_from(content: Any) -> Circuit:
    required = {"format", "version", "graph", "task", "ablation", "edges"}
    _keys(content, "file", required)
    if content["format"] != FORMAT:
        raise ValueError(f"format: expected {FORMAT!r}, got {str(content['format'])[:60]!r}")
    if type(content["version"]) is not int or content["version"] != 1:
        raise ValueError(f"version: expected 1, got {str(content['version'])[:60]!r}")
    if unknown := sorted(content.keys() - required - {"conditions"}):
        raise ValueError(f"file: unknown key {unknown[0][:60]!r}")
    _check_text("task", content["task"])
    _check_text("ablation", content["ablation"])
    conditions = content.get("conditions", {})
    if not isinstance(conditions, dict) or len(conditions) > _MAX_CONDITIONS:
        raise ValueError(f"conditions: expected an object of at most {_MAX_CONDITIONS} names with texts")
    for name, text in conditions.items():
        _check_text("conditions", name)
        if not isinstance(text, str):
            raise ValueError(f"conditions: {name[:60]!r} must be text, got {type(text).__name__}")
        _check_text(f"conditions: {name[:60]!r}", text)
    if not isinstance(content["edges"], list):
        raise ValueError(f"edges: expected a list, got {type(content['edges']).__name__}")
    circuit = Circuit(
        _graph_from(content["graph"]), map(Edge.parse, content["edges"]), content["task"], content["ablation"]
    )
    if len(circuit) != len(content["edges"]):
        raise ValueError("edges: an edge is repeated")
    circuit.conditions = conditions
    return circuit


# EAP-IG ------------------------------------------------------------------------------------------


def _refuse_for_eap_ig(mlps: bool, per_position: bool) -> None:
    if not mlps:
        raise ValueError(
            "graph: the EAP-IG format can't represent an attention-only model: there every layer has an MLP"
        )
    if per_position:
        raise ValueError("graph: the EAP-IG graph JSON has no positions; use a graph with per_position=False")


def _to_eap_ig(node: str) -> str:
    kind, layer, head = _parts(node)
    return f"a{layer}.h{head}" if kind == "a" else {"embed": "input"}.get(node, node)


def _edge_to_eap_ig(edge: Edge) -> str:
    part = f"<{edge.receiver[-1]}>" if edge.receiver.startswith("a") else ""
    return f"{_to_eap_ig(edge.sender)}->{_to_eap_ig(node_of(edge.receiver))}{part}"


def _circuit_from_eap_ig(content: Any, sign: int) -> tuple[Circuit, dict[Edge, float]]:
    _keys(content, "file", {"cfg", "nodes", "edges"})
    _keys(content["cfg"], "cfg", {"n_layers", "n_heads"})
    _keys(content["edges"], "edges", set())
    _check_shape({**content["cfg"], "n_pos": None})
    if content["cfg"].get("parallel_attn_mlp"):
        raise ValueError(
            "cfg: parallel_attn_mlp is set; blocks in which attention and MLP run in parallel are not supported"
        )
    d_model = content["cfg"].get("d_model")
    graph = Graph.from_shape(
        content["cfg"]["n_layers"], content["cfg"]["n_heads"], True, d_model=d_model if type(d_model) is int else None
    )
    _check_places(graph)
    if graph.n_edges > _MAX_LISTED:
        raise ValueError(f"cfg: a graph of {graph.n_edges} edges, expected at most {_MAX_LISTED}")
    if len(content["edges"]) > graph.n_edges:
        raise ValueError(f"edges: expected at most {graph.n_edges}, got {len(content['edges'])}")
    names = {_edge_to_eap_ig(edge): edge for edge in graph.edges}
    kept, scores = [], {}
    for name, entry in content["edges"].items():
        if name not in names:
            raise ValueError(f"edges: {name[:60]!r} does not exist in {graph!r}")
        _keys(entry, f"edge {name!r}", {"score", "in_graph"})
        if not isinstance(entry["in_graph"], bool):
            raise ValueError(f"edge {name!r}: in_graph must be true or false, got {str(entry['in_graph'])[:60]!r}")
        if entry["score"] is not None and type(entry["score"]) not in (int, float):
            raise ValueError(f"edge {name!r}: score must be a number or null, got {type(entry['score']).__name__}")
        if entry["in_graph"]:
            kept.append(names[name])
        if entry["score"] is not None:
            scores[names[name]] = 0.0 + sign * _finite(name, entry["score"])
    return Circuit(graph, kept), scores


def _finite(name: str, score: float) -> float:
    """A score of a file as a float: JSON has integers and exponents that no float holds."""
    try:
        value = float(score)
    except OverflowError:
        value = float("inf")
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"edge {name!r}: score must be a finite number")
    return value
