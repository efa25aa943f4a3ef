"""Greater-than: a span of years began in 1732; in which year of the same century can it have ended?

Hanna, Liu & Variengien, "How does GPT-2 compute greater-than?" (2023), section 3. The structure of the prompts, the
corruption and the metric are theirs, the sentences are our own.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..models.words import EVENTS
from .base import Task
from .ioi import position_labels
from .tokens import check_count, encode, known_words, one_token, same_length

TEMPLATES = (
    "The {event} went on from the year {century}{year} to the year {century}",
    "The {event} began in the year {century}{year} and ended in the year {century}",
    "They say that the {event} of the year {century}{year} was over by the year {century}",
)

CENTURIES = tuple(range(11, 18))
YEARS = tuple(range(2, 99))  # so that there are later years, and earlier ones besides "01"

CORRUPTIONS = {
    "01": "the span begins in the year 01 of the century: nearly every year is later, the start tells nothing"
}

# How a head of each role attends: from the century at the end to the year that must be exceeded (Hanna et al. 2023, section 4).
ROLES = {
    "year_mover": (("end", "YY"),),
    "previous_token": (("YY", "XX1"),),
}


@dataclass(frozen=True)
class Span:
    """The words of one prompt: what lasted, the century (its first two digits) and the year it began in (the last two)."""

    event: str
    century: int
    year: int


def greater_than(
    model,
    n: int = 50,
    corruption: str = "01",
    template: int = 0,
    seed: int = 0,
    accept: Callable[[Span], bool] | None = None,
) -> Task:
    """Prompts like "The war went on from the year 1732 to the year 17"; any of 33 to 99 is right.

    Args:
        model: its tokenizer decides what the words become; it must write a year as two tokens, " 17" and "32". On models
            that were not trained for this book, years that are one token are never drawn.
        corruption: a key of ``CORRUPTIONS``.
        template: which of ``TEMPLATES``; one for all prompts, so that they are token-aligned.
        seed: same seed, same clean prompts, whatever the corruption.
        accept: draw the words of a prompt again until this is true of them, to ask for special combinations.

    Metric: probability difference at the last position, the sum over years later than the start minus the sum over the start
    year and all earlier ones. From −1 to 1.
    """
    if corruption not in CORRUPTIONS:
        raise ValueError(f"corruption: {corruption!r} is unknown; choose one of: {', '.join(CORRUPTIONS)}")
    if template not in range(len(TEMPLATES)):
        raise ValueError(f"template: expected 0 to {len(TEMPLATES) - 1}, got {template!r}")
    check_count(n)
    events = known_words(model, EVENTS, prefix=" ", at_least=1)
    known_words(model, [f"{year:02d}" for year in range(100)], prefix="", at_least=100)
    possible = [(c, y) for c in CENTURIES if is_two_tokens(model, c, 1) for y in YEARS if is_two_tokens(model, c, y)]
    if not possible:
        raise ValueError('model: expected one that writes some year as two tokens, such as " 17" and "32"')
    rng, spans = random.Random(seed), []
    for _ in range(n):
        span = draw(rng, events, possible)
        while accept is not None and not accept(span):
            span = draw(rng, events, possible)
        spans.append(span)
    years = one_token(model, [f"{year:02d}" for year in range(100)])
    clean = same_length(model, [prompt(template, span) for span in spans])
    positions = named_positions(model, clean[0].tolist(), spans[0])
    return Task(
        name="greater_than",
        clean=clean,
        corrupted=same_length(model, [prompt(template, span, corruption) for span in spans]),
        answers=padded([years[span.year + 1 :] for span in spans]),
        distractors=padded([years[: span.year + 1] for span in spans]),
        positions=positions,
        read_positions=(positions["end"],),
        metric_name="prob_diff",
        roles=ROLES,
        labels=position_labels(model, clean[0].tolist(), positions),
        meta={"corruption": corruption, "template": template, "seed": seed},
    )


def is_two_tokens(model, century: int, year: int) -> bool:
    """Whether the model writes this year as a token for the century and one for the year."""
    pair = [*encode(model, f" {century}"), *encode(model, f"{year:02d}")]
    return len(pair) == 2 and encode(model, f" {century}{year:02d}") == pair


def draw(rng: random.Random, events, possible) -> Span:
    """An event and a year."""
    return Span(rng.choice(events), *rng.choice(possible))


def prompt(template: int, span: Span, corruption: str | None = None) -> str:
    """The text of a clean prompt, or of a corrupted one."""
    year = span.year if corruption is None else int(corruption)
    return TEMPLATES[template].format(event=span.event, century=span.century, year=f"{year:02d}")


def named_positions(model, row: list[int], span: Span) -> dict[str, int]:
    """Where the parts of a prompt stand: found in the first prompt, the same in all of them."""
    event, century, year = (
        one_token(model, text).item() for text in (f" {span.event}", f" {span.century}", f"{span.year:02d}")
    )
    xx1 = row.index(century)
    return {"noun": row.index(event), "XX1": xx1, "YY": row.index(year, xx1), "end": len(row) - 1}


def padded(rows):
    """Rows of different length as one tensor, filled up with −1."""
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=-1)
