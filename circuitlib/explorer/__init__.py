"""The circuit explorer: a view of scores and circuits that needs no kernel and no network."""

from .view import MOST, Explorer, explore

__all__ = ["MOST", "Explorer", "explore"]
