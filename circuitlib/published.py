"""Circuits that others published, edge by edge.

Their authors name classes of heads, and say which class reads which through its queries, keys or values. Conmy et al. 2023
made edges of that, so that a method could be judged by them. Here the same edges are made of the same rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

from .graph import Circuit, Edge, Graph
from .models.registry import info


class Source(NamedTuple):
    """Where something was published."""

    citation: str
    address: str

    def __str__(self) -> str:
        return f"{self.citation}, {self.address}"


class PublishedCircuit(Circuit):
    """A circuit of the literature: a ``Circuit``, with what its authors said about it.

    Attributes:
        roles: role → the heads (or MLPs) that play it.
        source: who found the circuit.
        coded_by: whose code lists its edges.
        model: the model that it is a circuit of, a name of ``cl.models()``.
        note: what a reader of its edges should know.
    """

    roles: Mapping[str, tuple[str, ...]]
    source: Source
    coded_by: Source
    model: str
    note: str

    def edge_count(self, convention: str = "circuitlib") -> int:
        """How many edges; "acdc" adds one "direct" edge for each q, k and v input that some edge reaches."""
        if convention not in ("circuitlib", "acdc"):
            raise ValueError(f"convention: expected 'circuitlib' or 'acdc', got {convention!r}")
        return acdc_edge_count(self) if convention == "acdc" else len(self)


def published_circuit(name: str, variant: str = "acdc") -> PublishedCircuit:
    """A circuit from the literature, on the graph of the model that it was found in.

    Args:
        name: "docstring" (``attn-only-4l``), "ioi" or "greater-than" (both ``gpt2``).
        variant: "acdc" for the edges in the code of Conmy et al. 2023: 24, 963 and 235, or 37, 1,041 and 262 in their own count.
            Docstring also has "heads": all 102 edges among the 8 heads that its authors name. IOI also has "auto-circuit":
            the 739 edges in the code of Miller et al. 2024, who take the same classes of heads and fewer MLPs.

    Raises:
        ValueError: another name or variant.
    """
    name = name.replace("_", "-") if isinstance(name, str) else name
    if name not in _CIRCUITS:
        raise ValueError(f"name: expected one of {', '.join(_CIRCUITS)}, got {name!r}")
    if variant not in _CIRCUITS[name]:
        raise ValueError(f"variant: expected one of {', '.join(_CIRCUITS[name])} for {name!r}, got {variant!r}")
    recipe = _CIRCUITS[name][variant]
    shape = info(recipe.model)
    graph = Graph.from_shape(shape.n_layers, shape.n_heads, shape.mlps, d_model=shape.d_model)
    edges = (edge for rule in recipe.rules for edge in edges_between(graph, *_members(recipe, rule)))
    circuit = PublishedCircuit(graph, edges, task=name.replace("-", "_"), ablation="corrupted")
    circuit.model, circuit.roles, circuit.note = recipe.model, dict(recipe.roles), recipe.note
    circuit.source, circuit.coded_by = recipe.source, recipe.coded_by
    return circuit


def acdc_edge_count(circuit: Circuit) -> int:
    """How many edges a circuit has in the count of Conmy et al. 2023: one more for each q, k and v input that an edge reaches."""
    return len(circuit) + len({edge.receiver for edge in circuit.edges if edge.receiver.startswith("a")})


def edges_between(graph: Graph, senders: Iterable[str], readers: Iterable[str], parts: str = "qkv") -> list[Edge]:
    """Every edge from ``senders`` to ``readers`` that the graph has.

    Args:
        readers: heads, MLPs and ``logits``; a head reads through ``parts``, some of "q", "k" and "v".
    """
    receivers = [r for name in readers for r in ([f"{name}.{part}" for part in parts] if name[0] == "a" else [name])]
    pairs = [(sender, receiver) for receiver in receivers for sender in senders]
    return [
        Edge(sender, receiver)
        for sender, receiver in pairs
        if graph.edge_mask[graph.receiver_index[receiver], graph.sender_index[sender]]
    ]


Rule = tuple[str, str, str]


@dataclass(frozen=True)
class _Recipe:
    """How a circuit is made.

    Args:
        roles: role → nodes.
        rules: (senders, readers, the inputs by which heads read), by role: every edge between them that points downstream.
        groups: more names of sets of nodes, for the rules.
    """

    model: str
    roles: Mapping[str, tuple[str, ...]]
    rules: tuple[Rule, ...]
    source: Source
    coded_by: Source
    note: str = ""
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def _members(recipe: _Recipe, rule: Rule) -> tuple[list[str], list[str], str]:
    """A rule with nodes in place of roles."""
    senders, readers, parts = rule
    nodes = {"embed": ("embed",), "logits": ("logits",), **recipe.roles, **recipe.groups}
    return *([node for name in names.split() for node in nodes[name]] for names in (senders, readers)), parts


# Docstring ---------------------------------------------------------------------------------------

_HEIMERSHEIM = Source(
    "Heimersheim & Janiak 2023, A circuit for Python docstrings in a 4-layer attention-only transformer",
    "https://www.alignmentforum.org/posts/u6KXXmKFbXfWzoAXn/a-circuit-for-python-docstrings-in-a-4-layer-attention-only",
)
_CONMY = Source(
    "Conmy et al. 2023, Towards automated circuit discovery for mechanistic interpretability",
    "https://github.com/ArthurConmy/Automatic-Circuit-Discovery",
)
_DOCSTRING = {
    "mover": ("a3.0", "a3.6"),
    "previous_token": ("a2.0",),  # fuzzy: at C_def it attends to the comma after B
    "previous_token_and_induction": ("a1.4",),  # two jobs: at the comma after B, and at the last param
    "duplicate_token": ("a1.2",),
    "embedding": ("a0.5",),  # a duplicate-token head that mostly transforms the embedding
}
_DOCSTRING_RULES = (
    ("embed", "embedding", "v"),
    ("embed embedding", "previous_token_and_induction", "v"),
    ("embed embedding", "duplicate_token previous_token", "qk"),
    ("previous_token_and_induction", "previous_token", "v"),
    ("previous_token_and_induction", "mover", "q"),
    ("previous_token duplicate_token", "mover", "k"),
    ("embed embedding", "mover", "v"),
    ("mover", "logits", ""),
)
# Named by the authors, who could not show them by patching.
_DOCSTRING_HEADS = {**_DOCSTRING, "early_previous_token": ("a0.2",), "position": ("a0.4",)}
_EVERY_ROLE = " ".join(_DOCSTRING_HEADS)

# IOI ---------------------------------------------------------------------------------------------

_WANG = Source(
    "Wang et al. 2023, Interpretability in the wild: a circuit for indirect object identification in GPT-2 small",
    "https://arxiv.org/abs/2211.00593",
)
_MILLER = Source(
    "Miller et al. 2024, Transformer circuit faithfulness metrics are not robust",
    "https://github.com/UFO-101/auto-circuit",
)
_IOI = {
    "previous_token": ("a2.2", "a4.11"),
    "duplicate_token": ("a0.1", "a0.10", "a3.0"),
    "induction": ("a5.5", "a5.8", "a5.9", "a6.9"),
    "s_inhibition": ("a7.3", "a7.9", "a8.6", "a8.10"),
    "name_mover": ("a9.9", "a10.0", "a9.6"),
    "backup_name_mover": ("a10.10", "a10.6", "a10.2", "a10.1", "a11.2", "a9.7", "a9.0", "a11.9"),
    "negative_name_mover": ("a10.7", "a11.10"),
}
_HEADS, _MOVERS = " ".join(_IOI), "name_mover backup_name_mover negative_name_mover"
_IOI_CLASSES: tuple[Rule, ...] = (
    ("embed", "previous_token duplicate_token", "qkv"),
    ("previous_token", "induction", "kv"),
    ("duplicate_token induction", "s_inhibition", "kv"),
    ("embed", "s_inhibition", "q"),
    ("s_inhibition", _MOVERS, "q"),
    ("embed", _MOVERS, "kv"),
    (_MOVERS, "logits", ""),
)
# The authors let what a head writes flow on through MLPs. As edges: every MLP reads all below it, and is read by all above it.
_MLPS = {"mlp": tuple(f"m{layer}" for layer in range(12))}
_IOI_RULES = (
    *_IOI_CLASSES,
    (f"embed mlp {_HEADS}", "mlp", ""),
    ("mlp", _HEADS, "qkv"),
    ("embed mlp", "logits", ""),
)


def _with_mlps_between(rules: tuple[Rule, ...]) -> tuple[tuple[Rule, ...], dict[str, tuple[str, ...]]]:
    """For each pair of classes, only the MLPs from the first layer of the one to below the last layer of the other."""
    more, groups = [], {}
    for senders, readers, parts in rules:
        for sender, reader in product(senders.split(), readers.split()):
            first = 0 if sender == "embed" else min(map(_layer, _IOI[sender]))
            last = first if reader == "logits" else max(map(_layer, _IOI[reader]))
            between = f"{sender}-{reader}"
            groups[between] = tuple(f"m{layer}" for layer in range(first, last))
            more.append((f"{sender} {between}", f"{reader} {between}", parts))
    return tuple(more), groups


def _layer(head: str) -> int:
    return int(head[1:].partition(".")[0])


# Greater-Than ------------------------------------------------------------------------------------

_HANNA = Source("Hanna et al. 2023, How does GPT-2 compute greater-than?", "https://arxiv.org/abs/2305.00586")
_GREATER_THAN = {
    "early": ("a0.3", "a0.5"),
    "early_read_by_mlps": ("a0.1",),
    "early_mlp": ("m0", "m1", "m2", "m3"),
    "mid": ("a5.5", "a6.1", "a6.9", "a7.10", "a8.11", "a9.1"),
    "late_mlp": ("m8", "m9", "m10", "m11"),
}
_BELOW = {"mlp_below_mid": tuple(f"m{layer}" for layer in range(9))}  # the last mid head is a9.1
_GREATER_THAN_RULES = (
    ("embed", "early early_read_by_mlps early_mlp", "qkv"),
    ("early_read_by_mlps", "early_mlp", ""),
    ("early early_read_by_mlps early_mlp", "mid", "qkv"),
    ("mid late_mlp", "late_mlp logits", ""),
    # The authors leave the queries of the mid heads as they are. As edges: all MLPs below, and those among themselves.
    ("mlp_below_mid", "mid", "q"),
    ("mlp_below_mid", "mlp_below_mid", ""),
)

# -------------------------------------------------------------------------------------------------

_BETWEEN, _SPANS = _with_mlps_between(_IOI_CLASSES)
_CIRCUITS: dict[str, dict[str, _Recipe]] = {
    "docstring": {
        "acdc": _Recipe(
            "attn-only-4l",
            _DOCSTRING,
            _DOCSTRING_RULES,
            _HEIMERSHEIM,
            _CONMY,
            "The authors name two heads more, a0.2 and a0.4, which these edges leave out.",
        ),
        "heads": _Recipe(
            "attn-only-4l",
            _DOCSTRING_HEADS,
            ((f"embed {_EVERY_ROLE}", f"{_EVERY_ROLE} logits", "qkv"),),
            _HEIMERSHEIM,
            _CONMY,
            "All edges among the eight heads; edges into heads that nothing reads change nothing and are left out. Conmy et al. count 464.",
        ),
    },
    "ioi": {
        "acdc": _Recipe(
            "gpt2",
            _IOI,
            _IOI_RULES,
            _WANG,
            _CONMY,
            "The authors name heads, not MLPs: every MLP is in, with all edges from what is below it and to what is above it.",
            _MLPS,
        ),
        "auto-circuit": _Recipe(
            "gpt2",
            _IOI,
            _BETWEEN,
            _WANG,
            _MILLER,
            "An MLP is in only between two classes that are joined, and none after the movers; so this is a subset of 'acdc'.",
            _SPANS,
        ),
    },
    "greater-than": {
        "acdc": _Recipe(
            "gpt2",
            _GREATER_THAN,
            _GREATER_THAN_RULES,
            _HANNA,
            _CONMY,
            "The authors leave the queries of the mid heads as they are; these edges stand for that with MLPs alone.",
            _BELOW,
        ),
    },
}
