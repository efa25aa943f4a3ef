"""Circuits that are known: by construction.

A hand-made model says edge by edge what its circuit is. Which edges matter depends on what a cut edge carries: one that
carries nothing but positions is dead where corrupted prompts stand at the same positions, and alive where it carries zeros.
"""

from __future__ import annotations

from .graph import ABLATIONS, Circuit, Edge, Graph
from .models.registry import info

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
    return Circuit(_graph(name), known_effects(name, ablation, direction), task=info(name).tasks[0], ablation=ablation)


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
