"""How the shipped models were trained: ``python -m circuitlib.models.training docstring-4l`` does it again."""

from __future__ import annotations


def training_recipe(name: str):
    """The recipe of a shipped model: its ``stages``, each with ``name``, ``steps``, ``lr``, ``length`` and what its text holds.

    Raises:
        ValueError: a name without a recipe; the message lists the names.
    """
    from .recipes import RECIPES

    if name not in RECIPES:
        raise ValueError(f"name: no recipe for {name!r}; choose one of: {', '.join(RECIPES)}")
    return RECIPES[name]
