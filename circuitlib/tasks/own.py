"""A task of your own: prompts from two templates, and what to check before looking inside the model."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from string import Formatter

import torch

from ..models.words import NAMES
from .base import Task
from .tokens import check_count, ends_at, known_words, one_token, same_length


def template_task(
    model,
    clean: str,
    corrupted: str,
    answer: str,
    wrong: Sequence[str],
    words: Sequence[str] | None = None,
    *,
    n: int = 50,
    seed: int = 0,
    name: str = "own",
    metric_name: str = "logit_diff",
) -> Task:
    """Prompts that fill the blanks of two templates with words; the answer follows the clean one.

    Args:
        clean, corrupted: the templates, such as ``"import {A} as {B}"``. Blanks with one name get one word, blanks with
            different names different words, in both templates alike. Write ``{{`` for a brace.
        answer: what comes next after the clean prompt, one token, such as ``" {B}"``: with its leading space, if it has one.
        wrong: the wrong answers, such as ``[" {D}"]``, one token each.
        words: to draw from; each must be one token where it stands (on models that are not the book's, others are left out
            and counted in the log). Default: the argument names of the docstring task.
        seed: same seed, same words.

    Returns:
        a task whose positions are named after the blanks of ``clean``: "A", and "A_2" where a blank comes again; "end" is
        where the answer is read.

    Raises:
        ValueError: a template that can't be filled, a blank whose name is taken, prompts that are not aligned, or words that
            are not one token.
    """
    check_count(n)
    if isinstance(wrong, str):
        raise ValueError(f"wrong: expected a list of templates such as [{wrong!r}], got one text")
    templates = {"clean": clean, "corrupted": corrupted, "answer": answer} | {
        f"wrong {i}": w for i, w in enumerate(wrong)
    }
    fields = {role: _Template.of(role, text) for role, text in templates.items()}
    blanks = list(dict.fromkeys(blank for template in fields.values() for blank in template.blanks))
    if not fields["clean"].blanks:
        raise ValueError(f"clean: expected a template with at least one blank such as {{A}}, got {clean!r}")
    asked = {*fields["clean"].blanks, *fields["corrupted"].blanks}
    if strange := [blank for blank in fields["answer"].blanks if blank not in asked]:
        raise ValueError(f"answer: expected blanks of the prompts, {', '.join(sorted(asked))}, got {{{strange[0]}}}")
    if answer in wrong:
        raise ValueError(f"wrong: {answer!r} is the answer")
    known = _known(model, NAMES if words is None else words, fields, at_least=len(blanks))
    rng = random.Random(seed)
    drawn = [dict(zip(blanks, rng.sample(known, len(blanks)), strict=True)) for _ in range(n)]
    prompts = {role: [fields[role].fill(row)[0] for row in drawn] for role in ("clean", "corrupted")}
    tokens = {role: same_length(model, texts) for role, texts in prompts.items()}
    if tokens["clean"].shape != tokens["corrupted"].shape:
        n_clean, n_corrupted = (tokens[role].shape[1] for role in ("clean", "corrupted"))
        raise ValueError(f"corrupted: expected the {n_clean} tokens that clean has, got {n_corrupted}")
    positions = _positions(model, fields["clean"], drawn)
    last = tokens["clean"].shape[1] - 1
    labels = list(model.to_str_tokens(tokens["clean"][0]))
    for label, position in positions.items():
        labels[position] = label
    right = one_token(model, [fields["answer"].fill(row)[0] for row in drawn])
    return Task(
        name=name,
        clean=tokens["clean"],
        corrupted=tokens["corrupted"],
        answers=right[:, None] if metric_name == "prob_diff" else right,
        distractors=one_token(model, [[fields[f"wrong {i}"].fill(row)[0] for i in range(len(wrong))] for row in drawn])
        if len(wrong)
        else tokens["clean"][:, :0],
        positions=positions | {"end": last},
        read_positions=(last,),
        metric_name=metric_name,
        labels=tuple(labels),
        meta={"seed": seed, "clean": clean, "corrupted": corrupted},
    )


def examine(model, task: Task):
    """What to know about a task before anything is looked for in the model.

    Returns:
        A table with a row for each question: what was ``measured``, and whether it is ``ok``. The bars are the book's:
        the right answer above the wrong ones on 9 of 10 clean prompts and on at most half of the corrupted ones; a gap
        between the two of at least five standard errors; no answer on more than half of the prompts; each position that
        differs does so on at least 9 of 10 prompts.
    """
    import pandas as pd

    n = len(task)
    with torch.no_grad():
        runs = {role: model(tokens) for role, tokens in (("clean", task.clean), ("corrupted", task.corrupted))}
    value = {role: task.metric(logits).cpu().double() for role, logits in runs.items()}
    success = {role: float(task.success(logits).mean()) for role, logits in runs.items()}
    gaps = value["clean"] - value["corrupted"]
    gap, error = float(gaps.mean()), float(gaps.std()) / n**0.5 if n > 1 else float("inf")
    differs = (task.clean != task.corrupted).cpu().double().mean(0)
    where = [
        (task.labels[i] if task.labels else str(i), float(differs[i])) for i in differs.nonzero().flatten().tolist()
    ]
    n_distinct = len(task.clean.unique(dim=0))
    common, clash = _most_common(task), _clash(task)
    others = "the wrong ones" if task.distractors.shape[-1] else "all others"
    rows = {
        "Are the prompts different?": (f"{n_distinct} of {n}", n_distinct == n),
        "Where do clean and corrupted differ?": (
            ", ".join(f"{label} ({share:.0%})" for label, share in where) or "nowhere",
            bool(where) and min(share for _, share in where) >= 0.9,
        ),
        "Do the answers vary?": (f"the most common one: {common:.0%}", common <= 0.5),
        "Is a wrong answer the right one?": ("yes" if clash else "no", not clash),
        "Right answer first of all tokens": (f"{float(task.accuracy(runs['clean']).mean()):.0%}", None),
        f"Right answer above {others}, clean": (f"{success['clean']:.0%}", success["clean"] >= 0.9),
        f"Right answer above {others}, corrupted": (f"{success['corrupted']:.0%}", success["corrupted"] <= 0.5),
        "Metric, clean and corrupted": (f"{value['clean'].mean():.2f}, {value['corrupted'].mean():.2f}", None),
        "Gap, and its standard error": (f"{gap:.2f} ± {error:.2f}", gap > 5 * error),
    }
    marks = {True: "yes", False: "NO", None: "–"}
    table = [(question, measured, marks[ok]) for question, (measured, ok) in rows.items()]
    return pd.DataFrame(table, columns=["question", "measured", "ok"]).set_index("question")


def _most_common(task: Task) -> float:
    """The share of the answer that comes most often: of prompts if each has a list of them, else of all that are read."""
    one_each = task.answers.flatten(end_dim=-2) if task.metric_name == "prob_diff" else task.answers.flatten()
    return float(one_each.unique(dim=0, return_counts=True)[1].max()) / len(one_each)


def _clash(task: Task) -> bool:
    """Whether an answer is among the distractors of its prompt; −1 stands for no token."""
    answers = task.answers.view(*task.distractors.shape[:-1], -1)
    return bool(((answers[..., :, None] == task.distractors[..., None, :]) & (answers[..., :, None] >= 0)).any())


@dataclass(frozen=True)
class _Template:
    """A text with blanks: pieces of (text before, blank or None)."""

    pieces: tuple[tuple[str, str | None], ...]

    @classmethod
    def of(cls, role: str, text: str) -> _Template:
        try:
            parsed = list(Formatter().parse(text))
        except ValueError as error:
            raise ValueError(f"{role}: {str(error).lower()}; expected blanks such as {{A}}, got {text!r}") from None
        if any(blank is not None and not blank.isidentifier() for _, blank, _, _ in parsed):
            raise ValueError(f"{role}: expected blanks with names such as {{A}}, got {text!r}")
        return cls(tuple((before, blank) for before, blank, _, _ in parsed))

    @property
    def blanks(self) -> list[str]:
        return [blank for _, blank in self.pieces if blank is not None]

    def fill(self, words: dict[str, str]) -> tuple[str, list[tuple[str, int, int]]]:
        """The text, and for each blank its name and from which to which character its word goes."""
        text, spans = "", []
        for before, blank in self.pieces:
            text += before
            if blank is not None:
                spans.append((blank, len(text), len(text) + len(words[blank])))
                text += words[blank]
        return text, spans

    def prefixes(self) -> set[str]:
        """What a word's token begins with where it stands: a space or nothing."""
        return {" " if before.endswith(" ") else "" for before, blank in self.pieces if blank is not None}


def _known(model, words: Sequence[str], templates: dict[str, _Template], at_least: int) -> tuple[str, ...]:
    """The words that are one token in every blank of the templates."""
    for role, template in templates.items():
        for prefix in sorted(template.prefixes()):
            try:
                words = known_words(model, words, prefix=prefix, at_least=at_least)
            except ValueError as error:
                where = "" if prefix else f", with no space before it as in {role}"
                raise ValueError(f"{error}{where}") from None
    return tuple(dict.fromkeys(words))


def _positions(model, template: _Template, drawn: list[dict[str, str]]) -> dict[str, int]:
    """Name → token position of each blank, the same in all prompts."""
    filled = [template.fill(row) for row in drawn]
    found = [ends_at(model, text, [stop for _, _, stop in spans]) for text, spans in filled]
    odd = next((i for i, row in enumerate(found) if row != found[0]), None)
    if odd is not None:
        raise ValueError(f"clean: the blanks of prompt {odd} stand at other tokens than those of prompt 0")
    names, times = {}, Counter()
    for blank, position in zip(template.blanks, found[0], strict=True):
        times[blank] += 1
        name = blank if times[blank] == 1 else f"{blank}_{times[blank]}"
        if name in names or name == "end":
            raise ValueError(
                f"clean: the position {name!r} would have two meanings; give the blank {{{blank}}} another name"
            )
        names[name] = position
    return names
