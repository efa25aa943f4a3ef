"""The circuit explorer: a view of scores and circuits that needs no kernel and no network."""

from .view import Explorer, explore

__all__ = ["Explorer", "explore"]
