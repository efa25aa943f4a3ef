"""Circuits that are known: by construction, or found by hand in the book.

A hand-made model says edge by edge what its circuit is. Which edges matter depends on what a cut edge carries: one that
carries nothing but positions is dead where corrupted prompts stand at the same positions, and alive where it carries zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .graph import ABLATIONS, Circuit, Edge, Graph, _read_json
from .models.registry import SHIPPED, info

DIRECTIONS = ("noising", "denoising")


def known_circuit(name: str, ablation: str = "corrupted", direction: str = "noising") -> Circuit:
    """The true circuit of a hand-made model on its default task.

    An edge is in it if and only if there is a state of the other edges, cut or not, in which cutting it changes the
    metric. So in an OR gate both inputs are in it, although cutting either alone does nothing: see ``known_effects``.

    Args:
        name: "handmade-induction", "handmade-docstring", "handmade-or" or "handmade-and".
        ablation: what a cut edge carries: "corrupted", "zero" or "mean".
        direction: "noising" or "denoising". It changes what single cuts do, not which edges matter: between the two
            runs an edge is alive or dead whichever run one starts from.

    Raises:
        ValueError: another name, ablation or direction.
    """
    effects = known_effects(name, ablation, direction)  # first: it knows the names
    return Circuit(_graph(name), effects, task=info(name).tasks[0], ablation=ablation)


def known_effects(name: str, ablation: str = "corrupted", direction: str = "noising") -> dict[Edge, float]:
    """What cutting each edge of ``known_circuit`` alone does, as a fraction of M(clean) − M(corrupted).

    Noising: how far the metric falls when the edge is cut in the clean run. Denoising: how far it rises when the
    clean value is put into the corrupted run (for zero and mean: into the run on the ablated embedding). To two
    decimals, on ``default_task(model, n=20)``; the numbers of the gates hold for every n.

    Raises:
        ValueError: as ``known_circuit``.
    """
    if name not in _EFFECTS:
        raise ValueError(f"name: no circuit is known for {name!r}; choose one of: {', '.join(_EFFECTS)}")
    if ablation not in ABLATIONS:
        raise ValueError(f"ablation: expected one of {', '.join(ABLATIONS)}, got {ablation!r}")
    if direction not in DIRECTIONS:
        raise ValueError(f"direction: expected one of {', '.join(DIRECTIONS)}, got {direction!r}")
    column = _COLUMNS.index((ablation, direction))
    effects = {Edge.parse(edge): row[column] for edge, row in _EFFECTS[name].items()}
    return {edge: effect for edge, effect in effects.items() if effect is not None}


class ReferenceCircuit(Circuit):
    """A circuit found by hand in the book: a ``Circuit``, with what each of its edges stands on.

    Attributes:
        model: the model that it is a circuit of.
        roles: role → the heads that play it, the strongest first.
        evidence: edge → what was measured for it.
        attention: head → (query position, key position, mean attention) for the places that its role is about.
        found: how it was found, in words.
        prompts: on which prompts: ``n``, ``seed``, ``corruption``.
        rule: ``worth`` and ``share``, the least that an input and an edge had to show.
    """

    model: str
    roles: Mapping[str, tuple[str, ...]]
    evidence: Mapping[Edge, Evidence]
    attention: Mapping[str, tuple[tuple[str, str, float], ...]]
    found: str
    prompts: Mapping[str, int | str]
    rule: Mapping[str, float]


@dataclass(frozen=True)
class Evidence:
    """What one edge of a reference circuit stands on: path patching under several corruptions, corruption → effect.

    Effects are shares of M(clean) − M(corrupted), rounded to four decimals; ``cl.input_effects`` measures them.

    Args:
        worth: of all edges into the receiver together.
        alone: of this edge, patched alone.
        spared: of this edge, left clean while all others into the receiver are patched.
    """

    worth: Mapping[str, float]
    alone: Mapping[str, float]
    spared: Mapping[str, float]

    def share(self, corruption: str | None = None) -> float:
        """The mean of ``alone`` and ``spared``, as a share of ``worth``; None for the corruption that decides, the first."""
        corruption = next(iter(self.worth)) if corruption is None else corruption
        return (self.alone[corruption] + self.spared[corruption]) / 2 / self.worth[corruption]


def reference_circuit(model: str, task: str) -> ReferenceCircuit:
    """The circuit of a shipped model that the book found by hand, before EAP, EAP-IG or ACDC was run on that model.

    It is this book's own, and not a published one: see ``published_circuit`` for those.

    Args:
        model, task: "docstring-4l", "docstring"; or "gpt-mini" with "ioi" or "greater_than".

    Raises:
        ValueError: a pair of model and task that has none.
    """
    known = sorted(
        path.parent.name + ", " + path.stem.removeprefix(_REFERENCE) for path in SHIPPED.glob(f"*/{_REFERENCE}*.json")
    )
    task = task.replace("-", "_") if isinstance(task, str) else task
    if f"{model}, {task}" not in known:
        raise ValueError(
            f"model, task: no circuit was found by hand for {model!r}, {task!r}; choose from: {'; '.join(known)}"
        )
    content = _read_json(SHIPPED / model / f"{_REFERENCE}{task}.json")
    circuit = ReferenceCircuit(_graph(model), content["edges"], task=task, ablation=content["ablation"])
    circuit.model, circuit.found = model, content["found"]
    circuit.prompts, circuit.rule = content["prompts"], content["rule"]
    circuit.roles = {role: tuple(heads) for role, heads in content["roles"].items()}
    circuit.attention = {head: tuple(map(tuple, rows)) for head, rows in content["attention"].items()}
    circuit.evidence = {edge: Evidence(**content["edges"][str(edge)]) for edge in circuit.edges}
    return circuit


_REFERENCE = "reference_circuit_"


def _graph(name: str) -> Graph:
    model = info(name)
    return Graph.from_shape(model.n_layers, model.n_heads, model.mlps, d_model=model.d_model)


_COLUMNS = tuple((ablation, direction) for ablation in ("corrupted", "zero", "mean") for direction in DIRECTIONS)

# One row per edge, one column per ablation and direction; _ where the edge is dead. What the edges carry is told in
# models/handmade.py. Some rows to read: an OR gate shows nothing when one input is noised and everything when one is
# denoised, an AND gate the opposite. In a chain each link is necessary, so noising finds them all; only the last one
# is sufficient, so denoising finds little else. Denoising the values of a0.0 in handmade-docstring makes things worse:
# the mover then finds the right place, where the corrupted prompt has a wrong name.
_ = None
# fmt: off
_EFFECTS: dict[str, dict[str, tuple[float | None, ...]]] = {
    #                        corrupted         zero            mean
    #                      noising denois. noising denois. noising denois.
    "handmade-induction": {
        "embed→a0.0.q":   (    _,     _,  1.01,  0.00,     _,     _),
        "embed→a0.0.k":   (    _,     _,  1.01,  0.00,     _,     _),
        "embed→a0.0.v":   ( 1.00,  0.02,  1.00,  0.00,  1.02,  0.00),
        "embed→a1.0.q":   (    _,     _,  1.00,  0.00,  1.02,  0.00),
        "a0.0→a1.0.k":    ( 1.00,  0.02,  1.00,  0.00,  1.02,  0.00),
        "embed→a1.0.v":   ( 0.98,  0.00,  0.98, -0.02,  1.04, -0.02),
        "a1.0→logits":    ( 1.00,  1.00,  0.98,  0.98,  0.98,  0.98),
    },
    "handmade-docstring": {
        "embed→a0.0.q":   (    _,     _,  0.95,  0.00,     _,     _),
        "embed→a0.0.k":   (    _,     _,  0.95,  0.00,     _,     _),
        "embed→a0.0.v":   ( 0.93, -0.85,  0.96,  0.00,  0.93, -0.03),
        "embed→a1.0.q":   (    _,     _,  0.92,  0.00,     _,     _),
        "embed→a1.0.k":   (    _,     _,  0.90,  0.00,     _,     _),
        "a0.0→a1.0.k":    (    _,     _,  0.93,  0.00,     _,     _),
        "a0.0→a1.0.v":    ( 0.93, -0.06,  0.93,  0.00,  0.94,  0.00),
        "a1.0→a2.0.q":    ( 0.93, -0.06,  0.93,  0.00,  0.94,  0.00),
        "embed→a2.0.k":   (    _,     _,  0.46,  0.00,     _,     _),
        "a0.0→a2.0.k":    ( 0.93, -0.06,  0.96,  0.00,  0.95,  0.00),
        "embed→a2.0.v":   ( 1.85,  0.07,  0.93, -0.02,  0.97,  0.01),
        "a2.0→logits":    ( 1.00,  1.00,  0.93,  0.93,  0.93,  0.94),
    },
    "handmade-or": {
        "embed→a0.0.q":   (    _,     _,  0.00,  0.00,     _,     _),
        "embed→a0.0.k":   (    _,     _,  0.00,  0.00,     _,     _),
        "embed→a0.0.v":   ( 0.00,  1.00,  0.00,  0.51,  0.00,  1.00),
        "embed→a0.1.q":   (    _,     _,  0.00,  0.00,     _,     _),
        "embed→a0.1.k":   (    _,     _,  0.00,  0.00,     _,     _),
        "embed→a0.1.v":   ( 0.00,  1.00,  0.00,  0.51,  0.00,  1.00),
        "a0.0→m0":        ( 0.00,  1.00,  0.00,  1.00,  0.00,  1.00),
        "a0.1→m0":        ( 0.00,  1.00,  0.00,  1.00,  0.00,  1.00),
        "m0→logits":      ( 1.00,  1.00,  1.00,  1.00,  1.00,  1.00),
    },
    "handmade-and": {
        "embed→a0.0.q":   (    _,     _,  0.49,  0.00,     _,     _),
        "embed→a0.0.k":   (    _,     _,  0.49,  0.00,     _,     _),
        "embed→a0.0.v":   ( 1.00,  0.00,  1.00,  0.00,  1.00,  0.00),
        "embed→a0.1.q":   (    _,     _,  0.49,  0.00,     _,     _),
        "embed→a0.1.k":   (    _,     _,  0.49,  0.00,     _,     _),
        "embed→a0.1.v":   ( 1.00,  0.00,  1.00,  0.00,  1.00,  0.00),
        "a0.0→m0":        ( 1.00,  0.00,  1.00,  0.00,  1.00,  0.00),
        "a0.1→m0":        ( 1.00,  0.00,  1.00,  0.00,  1.00,  0.00),
        "m0→logits":      ( 1.00,  1.00,  1.00,  1.00,  1.00,  1.00),
    },
}
# fmt: on
