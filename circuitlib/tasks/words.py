"""The words that prompts are made of: those that the book's models know."""

from __future__ import annotations

from ..models.words import HELD_OUT_NAMES, NAMES, NOUNS, VERBS

__all__ = ["HELD_OUT_NAMES", "NAMES", "NOUNS", "VERBS"]
