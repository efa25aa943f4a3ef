"""What a method says about every edge: a number, positive where cutting the edge lowers the metric."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from jaxtyping import Float
from torch import Tensor

from ..graph import Circuit, Edge, Graph, is_whole


@dataclass(frozen=True)
class Cost:
    """What a method took.

    Args:
        forwards: forward passes, the reference run included; a pass over all prompts counts once, however it is split,
            and one that starts halfway counts like a whole one.
        backwards: backward passes.
        seconds: time on the clock.
    """

    forwards: int
    backwards: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, eq=False)
class EdgeScores:
    """A score for each edge of a graph.

    Args:
        graph: the graph.
        values: ``[receiver, sender]``, or ``[receiver, sender, position]`` for a graph with positions, in units of the
            metric; 0 where there is no edge.
        method, metric: what was computed.
        task, ablation, direction: what it is a claim about.
        cost: what it took.

    Raises:
        ValueError: values of another shape, or NaN or infinity among them.
    """

    graph: Graph
    values: Float[Tensor, "receiver sender"]
    method: str = ""
    metric: str = ""
    task: str | None = None
    ablation: str | None = None
    direction: str = "noising"
    cost: Cost = Cost(0)

    def __post_init__(self):
        shape = list(self.graph.edge_mask.shape)
        if list(self.values.shape) != shape:
            raise ValueError(f"values: expected shape {shape} for {self.graph!r}, got {list(self.values.shape)}")
        if not bool(self.values.isfinite().all()):
            where = tuple((~self.values.isfinite()).nonzero()[0].tolist())
            edge = f"{self.graph.senders[where[1]]}→{self.graph.receivers[where[0]]}"
            raise ValueError(f"values: expected finite numbers, got {float(self.values[where])} for {edge}")

    def __len__(self) -> int:
        return self.graph.n_edges

    def __getitem__(self, edge: Edge | str) -> float:
        return float(self.values[self.graph.index(self.graph.edge(edge))])

    def __iter__(self) -> Iterator[Edge]:
        return iter(self.graph.edges)

    def items(self) -> Iterator[tuple[Edge, float]]:
        """Every edge with its score, in canonical order."""
        return zip(self.graph.edges, self.flat.tolist(), strict=True)

    @cached_property
    def flat(self) -> Float[Tensor, "edge"]:
        """The scores of ``graph.edges``, in that order."""
        return self.values[self.graph.edge_mask]

    def ranked(self, signed: bool = False) -> list[Edge]:
        """All edges, the largest |score| first (with ``signed``, the largest score); ties in canonical order."""
        key = self.flat if signed else self.flat.abs()
        return [self.graph.edges[i] for i in key.sort(descending=True, stable=True).indices.tolist()]

    def top(self, k: int, signed: bool = False) -> Circuit:
        """The circuit of the first ``k`` edges of ``ranked``."""
        if not is_whole(k) or not 0 <= k <= self.graph.n_edges:
            raise ValueError(
                f"k: expected an integer from 0 to {self.graph.n_edges}, the edges of the graph, got {k!r}"
            )
        return self._circuit(self.ranked(signed)[:k])

    def above(self, threshold: float, signed: bool = False) -> Circuit:
        """The circuit of the edges with |score| (with ``signed``, score) of at least ``threshold``."""
        if not threshold >= 0:
            raise ValueError(f"threshold: expected a number from 0, got {threshold!r}")
        key = self.flat if signed else self.flat.abs()
        return self._circuit(self.graph.edges[i] for i in (key >= threshold).nonzero()[:, 0].tolist())

    def nodes(self) -> NodeScores:
        """The sum of the scores of the edges out of each node.

        For EAP this is attribution patching of the node: ∂metric/∂(what it writes) · (clean − reference), exactly.
        """
        sums = self.values.flatten(2).sum((0, 2)) if self.graph.per_position else self.values.sum(0)
        return NodeScores(
            dict(zip(self.graph.senders, sums.tolist(), strict=True)), self.method, self.metric, self.cost
        )

    def to_pandas(self):
        """A table of all edges, the largest |score| first: sender, receiver, (position,) score."""
        import pandas as pd

        rows = [(str(edge), edge.sender, edge.receiver, edge.position, self[edge]) for edge in self.ranked()]
        table = pd.DataFrame(rows, columns=["edge", "sender", "receiver", "position", "score"]).set_index("edge")
        return table if self.graph.per_position else table.drop(columns="position")

    def _circuit(self, edges) -> Circuit:
        return Circuit(self.graph, edges, self.task, self.ablation)

    def __repr__(self) -> str:
        claim = f"{self.method} of {self.task}, metric {self.metric}, {self.ablation} ablation, {self.direction}"
        return f"EdgeScores({claim}, {len(self):,} edges)"


@dataclass(frozen=True, eq=False)
class NodeScores:
    """A score for each sender: positive where taking all that it writes away lowers the metric."""

    values: dict[str, float]
    method: str = ""
    metric: str = ""
    cost: Cost = Cost(0)

    def __getitem__(self, node: str) -> float:
        if node not in self.values:
            raise ValueError(f"node {node!r} does not exist; expected one of {', '.join(list(self.values)[:4])}, …")
        return self.values[node]

    def __len__(self) -> int:
        return len(self.values)

    def items(self) -> Iterator[tuple[str, float]]:
        """Every node with its score, in the order in which the model computes."""
        return iter(self.values.items())

    def ranked(self, signed: bool = False) -> list[str]:
        """All nodes, the largest |score| first (with ``signed``, the largest score)."""
        return sorted(self.values, key=lambda node: -(self.values[node] if signed else abs(self.values[node])))

    def top(self, k: int, signed: bool = False) -> list[str]:
        """The first ``k`` nodes of ``ranked``."""
        if not is_whole(k) or not 0 <= k <= len(self):
            raise ValueError(f"k: expected an integer from 0 to {len(self)}, the nodes of the graph, got {k!r}")
        return self.ranked(signed)[:k]

    def to_pandas(self):
        """A table of all nodes, the largest |score| first."""
        import pandas as pd

        rows = [(node, self.values[node]) for node in self.ranked()]
        return pd.DataFrame(rows, columns=["node", "score"]).set_index("node")


def metric_name(metric) -> str:
    """What a metric is called in tables: "task", "kl", or the name of the function."""
    return "task" if metric is None else metric if isinstance(metric, str) else getattr(metric, "__name__", "custom")
