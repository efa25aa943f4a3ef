"""What ``gpt-mini`` reads besides repeats and code: stories in which somebody gives something away, and spans of years.

A story names two or three people, in any order, and all but one of them again; a thing is then given to the one who was
named once. Neither the order, nor the sentence, nor the number of words between says who that is, so a head has to find out
who was named twice. That is harder than the task ``ioi``, whose sentences are a part of this text.
"""

from __future__ import annotations

import random
import re

import torch

from ...tasks.greater_than import CENTURIES, YEARS
from ...tasks.greater_than import TEMPLATES as YEAR_TEMPLATES
from ...tasks.ioi import TEMPLATES as IOI_TEMPLATES
from ..words import EVENTS, NAMES, NOUNS, PEOPLE, PLACES, THINGS, VERBS
from .data import FILLER, Batch, Spread, byte_level_bpe, encode_pieces, padded, standard_library
from .guide import Lookups

# Held out -----------------------------------------------------------------------------------------


def is_held_out_couple(first: str, second: str) -> bool:
    """Whether these two people are in no training story together (a tenth of all couples)."""
    a, b = sorted((PEOPLE.index(first), PEOPLE.index(second)))
    return (a * 31 + b * 17) % 10 == 0


def is_held_out_scene(place: str, thing: str) -> bool:
    """Whether this thing is given away at this place in no training story (a tenth of all combinations)."""
    return (PLACES.index(place) * 7 + THINGS.index(thing) * 3) % 10 == 0


def is_held_out_span(event: str, century: int, year: int) -> bool:
    """Whether no training span is of this event, century and year (a tenth of all combinations)."""
    return (EVENTS.index(event) * 13 + century * 7 + year * 3) % 10 == 0


# Stories ------------------------------------------------------------------------------------------

OPENINGS = ("When", "After", "While", "Once", "As", "Because", "Since", "Before", "The day that")
CAME = ("came to", "went to", "walked to", "got to", "drove to", "met at", "were in", "stood near", "had left", "liked")
BUSY = (
    "was tired",
    "was happy",
    "said nothing",
    "sat down",
    "smiled",
    "felt cold",
    "looked around",
    "had no time",
    "laughed",
)
SAW = ("saw", "met", "called", "found", "noticed", "knew", "heard", "waited for", "thought of")
THEN = ("Then", "Soon", "Later", "So", "Finally", "After that", "In the end", "At noon", "A little later")
GAVE = ("gave", "handed", "brought", "offered", "lent", "passed", "sold", "showed", "threw", "sent", "returned")
NOTES = (
    "The weather was cold.", "It was late.", "Nobody else was there.", "The door was open.", "It rained all day.",
    "There was a lot of noise.", "The sun was out.", "It was a long way home.", "Dinner was over.",
)  # fmt: skip
LEADS = ("One day", "Last week", "In the morning", "In the winter", "Years ago", "On the way home", "That night")


def story_template(rng: random.Random) -> tuple[str, str]:
    """A sentence with people {A}, {B}, {C}, a {place} and a {thing}, and which of the people the thing is given to."""
    kind = rng.random()
    one, two, three = rng.sample("ABC", 3)
    if kind < 0.4:  # the sentences of the task, as they are or with a sentence before
        giver, receiver = rng.sample([one, two], 2)
        text = rng.choice(IOI_TEMPLATES).replace("{1}", f"{{{one}}}").replace("{2}", f"{{{two}}}")
        text = text.replace("{S}", f"{{{giver}}}")
        return (text if rng.random() < 0.5 else f"{rng.choice(NOTES)} {text}"), receiver
    opening = rng.choice(OPENINGS)
    if rng.random() < 0.3:
        opening = f"{rng.choice(LEADS)}, {opening[0].lower()}{opening[1:]}"
    gave, middle = f"{rng.choice(GAVE)} a {{thing}} to", (f" {rng.choice(NOTES)}" if rng.random() < 0.3 else "")
    busy, saw, place = rng.choice(BUSY), rng.choice(SAW), f"{rng.choice(CAME)} the {{place}}"
    if kind < 0.6:  # two people
        giver, receiver = rng.sample([one, two], 2)
        again = rng.choice(["", "", f" {{{giver}}} {busy}.", f" It was {{{giver}}} who came first."])
        first = f"{opening} {{{one}}} and {{{two}}} {place}"
        link = (
            ", "
            if not again and not middle and rng.random() < 0.5
            else f", nobody spoke.{again}{middle} {rng.choice(THEN)} "
        )
        return f"{first}{link}{{{giver}}} {gave}", receiver
    people = [one, two, three]
    if kind < 0.8:  # three people, named together
        receiver = rng.choice(people)
        busy_one, giver = rng.sample([p for p in people if p != receiver], 2)
        return (
            f"{opening} {{{one}}}, {{{two}}} and {{{three}}} {place}, {{{busy_one}}} {busy}.{middle} {rng.choice(THEN)} {{{giver}}} {gave}",
            receiver,
        )
    # a third one comes later
    first, second = rng.sample([one, two], 2)
    came = rng.choice(
        [f"{{{first}}} {saw} {{{three}}}", f"{{{first}}} {busy}. {rng.choice(THEN)} {{{three}}} came too"]
    )
    return f"{opening} {{{one}}} and {{{two}}} {place}, {came}.{middle} {rng.choice(THEN)} {{{second}}} {gave}", three


def story_pieces(template: str, receiver: str, rng: random.Random, corrupted: bool = False) -> list[tuple[str, float]]:
    """A story as (text, weight) pieces. ``corrupted``: everybody is named once, so that nothing tells who receives."""
    names = _couples(rng, template.count("{") if corrupted else 3)
    place, thing = rng.choice(PLACES), rng.choice(THINGS)
    while is_held_out_scene(place, thing):
        place, thing = rng.choice(PLACES), rng.choice(THINGS)
    people, pieces = dict(zip("ABC", names, strict=False)), []
    for part in re.split(r"( ?\{\w+\})", template):
        slot = part.strip(" {}")
        if "{" not in part:
            pieces.append((part, 0.1))
        elif slot in "ABC":
            pieces.append((f" {names.pop() if corrupted else people[slot]}", FILLER))
        else:
            pieces.append((f" {dict(place=place, thing=thing)[slot]}", FILLER))
    return [piece for piece in pieces if piece[0]] + [(f" {people[receiver]}", 1.0)]


def _couples(rng: random.Random, n: int) -> list[str]:
    """People of whom no two are a held-out couple (if more than three, that does not matter: nothing is learnt from them)."""
    while True:
        people = rng.sample(PEOPLE, n)
        if n > 3 or not any(is_held_out_couple(a, b) for a in people for b in people if a < b):
            return people


def story_batch(tokenizer, rng: random.Random, templates: int, rows_each: int) -> Batch:
    """``rows_each`` stories of each of as many random templates."""
    drawn = [story_template(rng) for _ in range(templates)]

    def make(corrupted: bool):
        return zip(
            *(
                encode_pieces(tokenizer, story_pieces(*template, rng, corrupted))
                for template in drawn
                for _ in range(rows_each)
            ),
            strict=True,
        )

    tokens, weights = make(corrupted=False)
    corrupted, _ = make(corrupted=True)
    tokens, corrupted = (padded(rows, tokenizer.eos_token_id) for rows in (tokens, corrupted))
    group = torch.arange(templates).repeat_interleave(rows_each)
    return Batch(tokens, padded(weights, 0.0), group, story_lookups(tokenizer, tokens), corrupted)


def story_lookups(tokenizer, tokens) -> Lookups:
    """From a name to the same name before; from the end to each name that was named before, and to the one that was not."""
    people = {tokenizer.encode(f" {name}", add_special_tokens=False)[0] for name in PEOPLE}
    found = {"duplicate": [], "inhibition": [], "name_mover": []}
    for number, row in enumerate(tokens.tolist()):
        *mentions, answer = [place for place, token in enumerate(row) if token in people]
        last, end = {}, answer - 1
        for place in mentions:
            if row[place] in last:
                found["duplicate"].append((number, place, last[row[place]]))
                found["inhibition"].append((number, end, place))
            last[row[place]] = place
        found["name_mover"].append((number, end, last[row[answer]]))
    return {role: torch.tensor(where) for role, where in found.items()}


# Spans of years -----------------------------------------------------------------------------------

SPAN_TEMPLATES = (
    *YEAR_TEMPLATES,
    "The {event} went on from {century}{year} until {century}",
    "From the year {century}{year} the {event} went on, and it was over in the year {century}",
    "In {century}{year} there was a {event} which would only end in {century}",
    "There was a {event} between the years {century}{year} and {century}",
    "It was in {century}{year} that the {event} began. It was still there in {century}",
)


def span_template(rng: random.Random) -> list[str]:
    """One or two sentences, each with an {event}, and the beginning and the end of a span."""
    first = rng.choice(SPAN_TEMPLATES)
    if rng.random() < 0.3:
        first = f"{rng.choice(NOTES)} {first}"
    return [first] if rng.random() < 0.6 else [first, f" {rng.choice(SPAN_TEMPLATES)}"]


def span_pieces(
    sentences: list[str], rng: random.Random, corrupted: bool = False, from_01: bool = False
) -> list[tuple[str, float]]:
    """Spans as (text, weight) pieces; each ends with a later year. ``corrupted``: each begins in the year 01; ``from_01``: a tenth."""
    pieces, last = [], None
    for i, sentence in enumerate(sentences):
        event, century, year = rng.choice(EVENTS), rng.choice(CENTURIES), rng.choice(YEARS)
        while is_held_out_span(event, century, year) or century == last:
            event, century, year = rng.choice(EVENTS), rng.choice(CENTURIES), rng.choice(YEARS)
        year, last = 1 if corrupted or (from_01 and rng.random() < 0.1) else year, century
        begin, _, end = sentence.rpartition("{century}{year}")
        before, _, after = begin.partition("{event}")
        texts = [(before, 0.1), (f"{event}" if after or "{event}" in begin else "", FILLER), (after, 0.1)]
        texts += [(f"{century}", FILLER), (f"{year:02d}", FILLER)]
        middle, _, rest = end.rpartition("{century}")
        assert not rest
        texts += [
            (middle.replace("{event}", event), 0.1),
            (f"{century}", 1.0),
            (f"{rng.randint(year + 1, 99):02d}", 0.0),
        ]
        pieces += texts + ([(".", 0.1)] if i + 1 < len(sentences) else [])
    return [piece for piece in pieces if piece[0]]


def span_batch(tokenizer, rng: random.Random, templates: int, rows_each: int, from_01: bool = False) -> Batch:
    """``rows_each`` rows of each of as many random templates. The target of a last year is spread over all later years."""
    drawn = [span_template(rng) for _ in range(templates)]

    def make(corrupted: bool):
        return zip(
            *(
                encode_pieces(tokenizer, span_pieces(template, rng, corrupted, from_01))
                for template in drawn
                for _ in range(rows_each)
            ),
            strict=True,
        )

    tokens, weights = make(corrupted=False)
    corrupted, _ = make(corrupted=True)
    tokens, corrupted = (padded(rows, tokenizer.eos_token_id) for rows in (tokens, corrupted))
    group = torch.arange(templates).repeat_interleave(rows_each)
    return Batch(tokens, padded(weights, 0.0), group, corrupted=corrupted, spread=later_years(tokenizer, tokens))


def later_years(tokenizer, tokens) -> Spread:
    """For each span: the row, the place of its last century, and equal probabilities for all years after its first one."""
    years = torch.tensor([tokenizer.encode(f"{year:02d}", add_special_tokens=False)[0] for year in range(100)])
    number = torch.full((len(tokenizer),), -1)
    number[years] = torch.arange(100)
    rows, places = (number[tokens] >= 0).nonzero().T.view(2, -1, 2)  # years stand in turn: first, last, first, last
    first = number[tokens[rows[:, 0], places[:, 0]]]
    later = (torch.arange(100) > first[:, None]).float()
    target = torch.zeros(len(first), len(tokenizer))
    target[:, years] = later / later.sum(1, keepdim=True)
    return Spread(rows[:, 1], places[:, 1] - 1, target)


# The tokenizer ------------------------------------------------------------------------------------

# As GPT-2 splits text before BPE, but digits come in pairs: " 1732" is " 17" and "32".
WORDS = r"'s|'t| ?\p{L}+| ?\d{1,2}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def train_story_tokenizer(d_vocab: int):
    """Byte-level BPE on the standard library and the words of stories and spans; each word and each pair of digits is one token."""
    from tokenizers import Regex, pre_tokenizers

    words = "".join(f" {word}" for word in (*PEOPLE, *PLACES, *THINGS, *EVENTS, *NAMES, *NOUNS))
    digits = "".join(f" {number:02d} 17{number:02d}" for number in range(100))
    lists = (IOI_TEMPLATES, SPAN_TEMPLATES, OPENINGS, CAME, BUSY, SAW, THEN, GAVE, NOTES, LEADS)
    sentences = re.sub(r"\{\w+\}", "", " ".join(phrase for phrases in lists for phrase in phrases))

    def corpus():
        yield from standard_library()
        # Often enough that each word is merged before the vocabulary is full.
        yield from [words, digits, "\n".join(VERBS), *re.findall(r"[A-Z]\w+", sentences), sentences] * 20_000

    split = pre_tokenizers.Split(Regex(WORDS), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return byte_level_bpe(d_vocab, corpus(), pre_tokenizers.Sequence([split, byte_level]))
