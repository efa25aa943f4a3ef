"""Errors that are nobody's mistake: something outside circuitlib is missing."""

from __future__ import annotations


class Missing(OSError):
    """The network, a file of a download, or memory is missing. The message is one line; from a terminal the exit code is 3."""


class NoNetwork(Missing, ConnectionError):
    """The Hugging Face Hub can't be reached."""
