"""Words and prompts to tokens, with errors that say which word and what was expected."""

from __future__ import annotations

import logging
import numbers
from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

log = logging.getLogger(__name__)


def encode(model, text: str) -> list[int]:
    """Token ids of ``text`` without BOS."""
    return model.tokenizer.encode(text, add_special_tokens=False)


def device_of(model) -> str:
    """Where a task's tensors belong: beside the model's weights. "cpu" for what is no model but has a tokenizer."""
    return getattr(getattr(model, "cfg", None), "device", None) or "cpu"


def check_count(n: int) -> None:
    """How many prompts a task is asked for: an error unless it is an integer from 1."""
    if not isinstance(n, numbers.Integral) or isinstance(n, bool) or n < 1:
        raise ValueError(f"n: expected an integer from 1, got {n!r}")


def known_words(model, words: Sequence[str], prefix: str, at_least: int) -> tuple[str, ...]:
    """The words that are one token after ``prefix``.

    A model of the book was trained on the book's words, so a word that is not one token is an error there; for other
    models such words are left out and counted in the log.
    """
    known = tuple(word for word in words if len(encode(model, prefix + word)) == 1)
    unknown = [word for word in words if word not in known]
    if unknown and _is_shipped(model):
        others = f" (nor are {len(unknown) - 1} others)" if len(unknown) > 1 else ""
        raise ValueError(f"words: {unknown[0]!r} is not a single token of this model{others}")
    if unknown:
        log.warning("left out %d of %d words that are not single tokens of this model", len(unknown), len(words))
    if len(known) < at_least:
        raise ValueError(
            f"words: this task needs at least {at_least} words that are single tokens of the model, got {len(known)}"
        )
    return known


def one_token(model, words) -> Int[Tensor, "..."]:
    """Token ids of words that must be single tokens, in the nesting of ``words``."""
    return torch.tensor(_ids(model, words), device=device_of(model))


def _ids(model, words) -> int | list:
    if not isinstance(words, str):
        return [_ids(model, word) for word in words]
    ids = encode(model, words)
    if len(ids) != 1:
        raise ValueError(f"words: {words!r} is {len(ids)} tokens of this model, expected a single one")
    return ids[0]


def same_length(model, prompts: Sequence[str]) -> Int[Tensor, "n pos"]:
    """Token ids of all prompts, BOS in front; they must have the same number of tokens."""
    rows = [[model.tokenizer.bos_token_id, *encode(model, prompt)] for prompt in prompts]
    lengths = {len(row) for row in rows}
    if len(lengths) > 1:
        odd = next(i for i, row in enumerate(rows) if len(row) != len(rows[0]))
        raise ValueError(
            f"prompts: expected the same number of tokens in each, got {len(rows[0])} in the first and {len(rows[odd])} in number {odd}"
        )
    return torch.tensor(rows, device=device_of(model))


def ends_at(model, text: str, stops: Sequence[int]) -> list[int]:
    """For each number of characters, the position of the token in which the text before it ends, counted with BOS."""
    pieces = encode(model, text)
    # Decoding ever longer beginnings tells where each token ends, with any tokenizer that leaves nothing out.
    beginnings = (pieces[: i + 1] for i in range(len(pieces)))
    decoded = [model.tokenizer.decode(part, clean_up_tokenization_spaces=False) for part in beginnings]
    if decoded[-1:] != [text]:
        raise ValueError(
            f"text: this model's tokenizer makes {decoded[-1][:60] if decoded else ''!r} of {text[:60]!r}, so words can't be found by their place"
        )
    return [1 + next(i for i, beginning in enumerate(decoded) if len(beginning) >= stop) for stop in stops]


def _is_shipped(model) -> bool:
    name = getattr(model, "circuitlib_name", None)
    if name is None:
        return False
    from ..models import info

    return info(name).family == "shipped"
