"""Indirect object identification: two people are named, one of them gives something away; to whom?

Wang et al., "Interpretability in the wild: a circuit for indirect object identification in GPT-2 small" (2023), section 2.
The structure of the prompts and the two corruptions are theirs, the sentences are our own.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from ..models.words import PEOPLE, PLACES, THINGS
from .base import Task
from .tokens import check_count, known_words, one_token, same_length

# {1} and {2} are the two people in the order in which they are named, {S} is the one of them who gives.
TEMPLATES = (
    "When {1} and {2} came to the {place}, {S} handed a {thing} to",
    "After {1} and {2} had left the {place}, {S} brought a {thing} to",
    "While {1} and {2} waited at the {place}, {S} offered a {thing} to",
    "Last week {1} and {2} met in the {place}, and {S} lent a {thing} to",
    "Then {1} and {2} sat down in the {place}. Soon {S} passed a {thing} to",
    "One morning {1} saw {2} at the {place}. Later {S} sold a {thing} to",
    "Because {1} and {2} were both in the {place}, {S} showed a {thing} to",
    "Since {1} had found {2} near the {place}, {S} threw a {thing} to",
    "In the {place}, {1} and {2} looked for a {thing}, and then {S} gave it to",
    "With a {thing} in the bag, {1} and {2} reached the {place}, where {S} gave it to",
)

CORRUPTIONS = {
    "abc": "three other names, all different: nobody is named twice, so nothing tells who receives",
    "name_swap": "the other person gives: S2 becomes the name IO, and the right answer becomes S",
}

ORDERS = {
    "mixed": "half of the prompts each way; the two places are then called N1 and N2, since IO and S1 change places",
    "ABBA": "the receiver is named first: IO, S1, S2",
    "BABA": "the giver is named first: S1, IO, S2",
}

# Wang et al. 2023, figure 2: how a head of each class attends.
ROLES = {
    "duplicate_token": (("S2", "S1"),),
    "previous_token": (("S1+1", "S1"),),
    "induction": (("S2", "S1+1"),),
    "s_inhibition": (("end", "S2"),),
    "name_mover": (("end", "IO"),),
}
# The same where IO and S1 change places: to one name or the other.
MIXED_ROLES = {
    "duplicate_token": (("S2", "N1"), ("S2", "N2")),
    "previous_token": (("N1+1", "N1"), ("N2+1", "N2")),
    "induction": (("S2", "N1+1"), ("S2", "N2+1")),
    "s_inhibition": (("end", "S2"),),
    "name_mover": (("end", "N1"), ("end", "N2")),
}


@dataclass(frozen=True)
class Story:
    """The words of one pair of prompts: receiver, giver, place, thing; and three people who are not in the clean prompt."""

    io: str
    s: str
    place: str
    thing: str
    others: tuple[str, str, str]
    receiver_first: bool


def ioi(
    model,
    n: int = 50,
    corruption: str = "abc",
    order: str = "mixed",
    template: int = 0,
    seed: int = 0,
    names: tuple[str, ...] | None = None,
    accept: Callable[[Story], bool] | None = None,
) -> Task:
    """Prompts like "When Mary and John came to the bank, John handed a book to"; the answer is Mary.

    Args:
        model: its tokenizer decides what the words become.
        corruption: a key of ``CORRUPTIONS``.
        order: a key of ``ORDERS``: which of the two people is named first. In prompts of one order, a circuit that copies the first
            name (or the second) looks as if it did the task; only "mixed" tells them apart. The other two have more named positions.
        template: which of ``TEMPLATES``; one for all prompts, so that they are token-aligned.
        seed: same seed, same clean prompts, whatever the corruption.
        names: people to draw from (at least 5); default: the book's list.
        accept: draw the words of a prompt again until this is true of them, to ask for special combinations.

    Metric: logit of the receiver (IO) minus logit of the giver (S) at the last position.
    """
    if corruption not in CORRUPTIONS:
        raise ValueError(f"corruption: {corruption!r} is unknown; choose one of: {', '.join(CORRUPTIONS)}")
    if order not in ORDERS:
        raise ValueError(f"order: {order!r} is unknown; choose one of: {', '.join(ORDERS)}")
    if template not in range(len(TEMPLATES)):
        raise ValueError(f"template: expected 0 to {len(TEMPLATES) - 1}, got {template!r}")
    check_count(n)
    names = known_words(model, PEOPLE if names is None else names, prefix=" ", at_least=5)
    places = known_words(model, PLACES, prefix=" ", at_least=1)
    things = known_words(model, THINGS, prefix=" ", at_least=1)
    rng, stories = random.Random(seed), []
    for i in range(n):
        receiver_first = order == "ABBA" or (order == "mixed" and i % 2 == 0)
        story = draw(rng, names, places, things, receiver_first)
        while accept is not None and not accept(story):
            story = draw(rng, names, places, things, receiver_first)
        stories.append(story)
    clean = same_length(model, [prompt(template, story) for story in stories])
    positions = named_positions(model, clean[0].tolist(), stories[0], order)
    return Task(
        name="ioi",
        clean=clean,
        corrupted=same_length(model, [prompt(template, story, corruption) for story in stories]),
        answers=one_token(model, [f" {story.io}" for story in stories]),
        distractors=one_token(model, [[f" {story.s}"] for story in stories]),
        positions=positions,
        read_positions=(positions["end"],),
        roles=MIXED_ROLES if order == "mixed" else ROLES,
        labels=position_labels(model, clean[0].tolist(), positions),
        meta={"corruption": corruption, "order": order, "template": template, "seed": seed},
    )


def draw(rng: random.Random, names, places, things, receiver_first: bool) -> Story:
    """Five different people, a place and a thing."""
    io, s, *others = rng.sample(names, 5)
    return Story(io, s, rng.choice(places), rng.choice(things), tuple(others), receiver_first)


def prompt(template: int, story: Story, corruption: str | None = None) -> str:
    """The text of a clean prompt, or of a corrupted one."""
    pair = (story.io, story.s) if story.receiver_first else (story.s, story.io)
    first, second, giver = {
        None: (*pair, story.s),
        "abc": story.others,
        "name_swap": (*pair, story.io),
    }[corruption]
    return TEMPLATES[template].format(None, first, second, S=giver, place=story.place, thing=story.thing)


def named_positions(model, row: list[int], story: Story, order: str) -> dict[str, int]:
    """Where the parts of a prompt stand: found in the first prompt, the same in all of them."""
    io, s = (one_token(model, f" {word}").item() for word in (story.io, story.s))
    s1, at_io = row.index(s), row.index(io)
    s2 = row.index(s, s1 + 1)
    fixed = {"S2": s2, "S2+1": s2 + 1, "end": len(row) - 1}
    if order == "mixed":
        n1, n2 = sorted((s1, at_io))
        return {"N1": n1, "N1+1": n1 + 1, "N2": n2, "N2+1": n2 + 1} | fixed
    return {"IO": at_io, "S1": s1, "S1+1": s1 + 1} | fixed


def position_labels(model, row: list[int], positions: dict[str, int]) -> tuple[str, ...]:
    """Axis labels: the role of a position where it has one, else its token in the first prompt."""
    labels = [model.tokenizer.decode([token]) for token in row]
    for name, position in positions.items():
        labels[position] = name
    return tuple(labels)
