"""The docstring task: which argument does the next ``:param`` line name?

Heimersheim & Janiak, "A circuit for Python docstrings in a 4-layer attention-only transformer" (2023); template and
corruptions as in the code of Conmy et al., "Towards automated circuit discovery" (2023), words our own.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from ..models.words import NAMES, NOUNS, VERBS
from .base import Task
from .tokens import check_count, known_words, one_token, same_length

CORRUPTIONS = {
    "random_random": "all six matching names are new: A, B, C in the signature and A, B in the docstring, unrelated",
    "random_def": "A and B are new in the signature only; the answer stays",
    "random_answer": "C is new in the signature",
    "random_doc": "A and B are new in the docstring only",
    "random_answer_doc": "C is new in the signature, A and B in the docstring",
    "random_def_doc": "A and B are renamed everywhere: the prompt still makes sense, so this is a control, not a corruption",
}


# How a head of each role attends. A fuzzy previous-token head may look past the comma; a head that needs the name B may find
# it at B or, brought there by another head, one token later.
ROLES = {
    "previous_token": (("C_def", "B_def"), ("C_def", "comma_B"), ("B_doc", "param_2")),
    "induction": (("param_3", "B_doc"), ("param_3", "colon_B")),
    "mover": (("param_3", "C_def"), ("param_3", "comma_C")),
}


@dataclass(frozen=True)
class Names:
    """The names of one pair of prompts: six arguments and the method, and eight that are absent from the clean prompt."""

    method: str
    prefix: tuple[str, str]
    a: str
    b: str
    c: str
    suffix: str
    new_answer: str
    new_def: tuple[str, str, str]
    new_doc: tuple[str, str]
    renamed: tuple[str, str]

    def all(self) -> tuple[str, ...]:
        wrong = (
            *self.prefix,
            self.a,
            self.b,
            self.suffix,
            self.new_answer,
            *self.new_def,
            *self.new_doc,
            *self.renamed,
        )
        return (self.method, self.c, *wrong)


def docstring(
    model,
    n: int = 50,
    corruption: str = "random_random",
    seed: int = 0,
    names: tuple[str, ...] | None = None,
    accept: Callable[[Names], bool] | None = None,
) -> Task:
    """Prompts that end in ``:param``; the answer is the third of three documented arguments.

    Args:
        model: its tokenizer decides what the words become.
        corruption: a key of ``CORRUPTIONS``.
        seed: same seed, same clean prompts, whatever the corruption.
        names: argument names to draw from (at least 15); default: the book's list.
        accept: draw the names of a prompt again until this is true of them, to ask for special combinations.

    Metric: logit of the answer minus the largest logit of 13 wrong names, 5 in the prompt and 8 absent, at the last position.
    """
    if corruption not in CORRUPTIONS:
        raise ValueError(f"corruption: {corruption!r} is unknown; choose one of: {', '.join(CORRUPTIONS)}")
    check_count(n)
    names = known_words(model, NAMES if names is None else names, prefix=" ", at_least=15)
    nouns = known_words(model, NOUNS, prefix=" ", at_least=6)
    verbs = known_words(model, VERBS, prefix="", at_least=1)
    rng = random.Random(seed)
    pairs, clean, corrupted, answers, wrong = [], [], [], [], []
    for _ in range(n):
        drawn = draw(rng, names)
        while accept is not None and not accept(drawn):
            drawn = draw(rng, names)
        # A description may hold any other name, so what a word is does not tell whether it is an argument; only its place does.
        words = rng.sample([*nouns, *(name for name in names if name not in drawn.all())], 6)
        summary, words = f"{rng.choice(verbs)} {words[0]} {words[1]}", words[2:]
        pairs.append(drawn)
        clean.append(prompt(drawn, summary, words, (drawn.a, drawn.b, drawn.c), (drawn.a, drawn.b)))
        corrupted.append(prompt(drawn, summary, words, *corrupt(drawn, corruption)))
        answers.append(drawn.c)
        wrong.append(drawn.all()[2:])
    clean_tokens = same_length(model, clean)
    positions = named_positions(model, clean_tokens[0].tolist(), pairs[0])
    return Task(
        name="docstring",
        clean=clean_tokens,
        corrupted=same_length(model, corrupted),
        answers=one_token(model, [f" {word}" for word in answers]),
        distractors=one_token(model, [[f" {word}" for word in row] for row in wrong]),
        positions=positions,
        read_positions=(clean_tokens.shape[1] - 1,),
        roles=ROLES,
        labels=position_labels(model, clean_tokens, positions),
        meta={"corruption": corruption, "seed": seed},
    )


def draw(rng: random.Random, names: tuple[str, ...]) -> Names:
    """Fifteen different names in their places."""
    method, p1, p2, a, b, c, s, r, x, y, z, u, v, n1, n2 = rng.sample(names, 15)
    return Names(method, (p1, p2), a, b, c, s, r, (x, y, z), (u, v), (n1, n2))


def corrupt(names: Names, corruption: str) -> tuple[tuple[str, str, str], tuple[str, str]]:
    """The matching names of the corrupted prompt: three for the signature, two for the docstring."""
    clean_def, clean_doc = (names.a, names.b, names.c), (names.a, names.b)
    return {
        "random_random": (names.new_def, names.new_doc),
        "random_def": ((*names.renamed, names.c), clean_doc),
        "random_answer": ((names.a, names.b, names.new_answer), clean_doc),
        "random_doc": (clean_def, names.renamed),
        "random_answer_doc": ((names.a, names.b, names.new_answer), names.renamed),
        "random_def_doc": ((*names.renamed, names.c), names.renamed),
    }[corruption]


def prompt(names: Names, summary: str, words: list[str], in_def: tuple[str, str, str], in_doc: tuple[str, str]) -> str:
    """The text of one prompt."""
    arguments = ", ".join((*names.prefix, *in_def, names.suffix))
    return (
        f'\ndef {names.method}(self, {arguments}):\n    """{summary}\n\n'
        f"    :param {in_doc[0]}: {words[0]} {words[1]}\n"
        f"    :param {in_doc[1]}: {words[2]} {words[3]}\n"
        f"    :param"
    )


def named_positions(model, row: list[int], names: Names) -> dict[str, int]:
    """Where the parts of a prompt stand: found in the first prompt, the same in all of them."""

    def place(word: str, after: int = 0) -> int:
        return row.index(one_token(model, f" {word}").item(), after)

    p1, p2, a, b, c, s = (place(word) for word in (*names.prefix, names.a, names.b, names.c, names.suffix))
    a_doc, b_doc = place(names.a, a + 1), place(names.b, b + 1)
    return {
        "method": place(names.method),
        "P1_def": p1,
        "P2_def": p2,
        "A_def": a,
        "comma_A": a + 1,
        "B_def": b,
        "comma_B": b + 1,
        "C_def": c,
        "comma_C": c + 1,
        "S_def": s,
        "param_1": a_doc - 1,
        "A_doc": a_doc,
        "param_2": b_doc - 1,
        "B_doc": b_doc,
        "colon_B": b_doc + 1,
        "param_3": len(row) - 1,
    }


def position_labels(model, tokens, positions: dict[str, int]) -> tuple[str, ...]:
    """Axis labels: the role of a position where it has one, else its token in the first prompt."""
    labels = list(model.to_str_tokens(tokens[0]))
    for name, position in positions.items():
        labels[position] = name
    return tuple(labels)
