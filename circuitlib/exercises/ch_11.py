"""The checks of chapter 11, real models."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

from .checking import exercise
from .compare import NotYet, Unanswered, call, compare, say


@exercise("11.1", hint="an input counts once, however many edges reach it; MLPs and logits have no such extra edge.")
def _count_as_acdc(answer: Callable) -> str:
    """``count_as_acdc(edges: list of text like "a0.5→a1.4.v") -> int``."""
    cases = {
        "for ['embed→a0.5.v']": ["embed→a0.5.v"],
        "for ['embed→m0', 'm0→logits']": ["embed→m0", "m0→logits"],
        "for ['embed→a1.0.q', 'a0.1→a1.0.q', 'embed→a1.0.k']": ["embed→a1.0.q", "a0.1→a1.0.q", "embed→a1.0.k"],
        "for the published docstring circuit": _published("docstring"),
        "for the published IOI circuit": _published("ioi"),
    }
    for where, edges in cases.items():
        inputs = {edge.split("→")[1] for edge in edges if edge[-2:] in (".q", ".k", ".v")}
        count = len(edges) + len(inputs)
        compare(lambda edges=edges: answer(list(edges)), (), lambda count=count: count, where)
    return "37 edges for docstring, 1,041 for IOI."


@exercise(
    "11.2",
    hint="for each rule, every pair of a head that is read and a head that reads, if the first is in a lower layer.",
)
def _edges_of_classes(answer: Callable) -> str:
    """``edges_of_classes(classes: name → heads, rules: list of (class, reading class, parts)) -> collection of text``."""
    small = ({"early": ["a0.1"], "late": ["a1.0", "a0.2"]}, [("early", "late", "kv")])
    _compare_edges(answer, *small, "for early [a0.1] and late [a1.0, a0.2], read by k and v")
    tens = ({"early": ["a9.9", "a10.0"], "late": ["a10.7", "a11.2"]}, [("early", "late", "q")])
    _compare_edges(answer, *tens, "for early [a9.9, a10.0] and late [a10.7, a11.2], read by q")
    rng = random.Random(112)
    for n_classes in (3, 5):
        heads = [f"a{layer}.{head}" for layer in range(12) for head in range(3)]
        rng.shuffle(heads)
        classes = {f"class {i}": heads[4 * i : 4 * i + 4] for i in range(n_classes)}
        rules = [(*rng.sample(sorted(classes), 2), "".join(rng.sample("qkv", rng.randint(1, 3)))) for _ in range(4)]
        _compare_edges(answer, classes, rules, f"for {n_classes} random classes and 4 rules")
    return "every edge that the rules name, and none that points upstream."


@exercise("11.3", hint="compare each row with every other one; a row with equal numbers beats nobody.")
def _not_beaten(answer: Callable) -> str:
    """``not_beaten(rows [n, 2]: edges and KL) -> indices of the rows that no other row beats``."""

    def expected(rows):
        def beats(a, b):
            return all(x <= y for x, y in zip(a, b, strict=True)) and any(x < y for x, y in zip(a, b, strict=True))

        rows = rows.tolist()
        return [i for i, row in enumerate(rows) if not any(beats(other, row) for other in rows)]

    def answers(rows):
        return sorted(answer(rows))

    named = {
        "for rows (10, 0.5), (20, 0.4), (20, 0.6)": [(10, 0.5), (20, 0.4), (20, 0.6)],
        "for rows (10, 0.5), (10, 0.5), (10, 0.7)": [(10, 0.5), (10, 0.5), (10, 0.7)],
        "for Table 4 of Conmy et al.": [(1377, 0), (464, 0.83), (258, 0.33), (98, 0.67), (37, 1.1), (34, 1.2)],
    }
    for where, rows in named.items():
        _refuse_none(answer, np.array(rows, dtype=float), where)
        compare(answers, (np.array(rows, dtype=float),), expected, where)
    generator = np.random.default_rng(113)
    for n in (6, 15):
        rows = np.stack([generator.integers(1, 9, n), generator.integers(0, 9, n) / 10], 1)
        compare(answers, (rows,), expected, f"for {n} random rows")
    return "the rows that no other row beats."


def _published(name: str) -> list[str]:
    from ..published import published_circuit

    return [str(edge) for edge in published_circuit(name).edges]


def _refuse_none(answer: Callable, rows, where: str) -> None:
    if call(answer, (rows,), where) is None:
        raise Unanswered


def _compare_edges(answer: Callable, classes, rules, where: str) -> None:
    given = call(lambda: answer({name: list(heads) for name, heads in classes.items()}, list(rules)), (), where)
    if given is None:
        raise Unanswered
    if not isinstance(given, list | tuple | set | frozenset) or not all(isinstance(edge, str) for edge in given):
        raise NotYet(f"{where}, expected texts like 'a0.1→a1.0.k', got {say(given)}.")
    found, wanted = set(given), set(_edges(classes, rules))
    for edge in sorted(found - wanted):
        raise NotYet(f"{where}, {say(edge)} should not be there: you gave {len(found)} edges, expected {len(wanted)}.")
    for edge in sorted(wanted - found):
        raise NotYet(f"{where}, {say(edge)} is missing: you gave {len(found)} edges, expected {len(wanted)}.")


def _edges(classes, rules):
    def layer(head: str) -> int:
        return int(head[1:].split(".")[0])

    for name, reading, parts in rules:
        for sender in classes[name]:
            for reader in classes[reading]:
                if layer(sender) < layer(reader):
                    yield from (f"{sender}→{reader}.{part}" for part in parts)
