"""A task as a file of text: JSON Lines, a pair of prompts a line. Written by hand, by any program, or by ``save_task``.

A line says what the two prompts are, what comes next after the clean one, and what would be wrong:

    {"clean": "from city import item\\nfrom city import", "corrupted": "…", "answer": " item", "distractors": [" group"]}

``positions`` may be added: a name for a word of the clean prompt, or for the number of a token (BOS is 0, the last one −1). The
first line may be about all others: ``{"format": "circuitlib task", "version": 1, …}`` with any of ``name``, ``metric``,
``read`` (where the answer is read; the last token if nothing is said), ``positions`` (numbers only), ``roles``, ``labels``
and ``meta``, which mean what they mean for ``Task``.

A file is somebody else's word until it is checked: a task is made of all its lines or not at all.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..files import read_bytes
from .base import METRICS, Task
from .tokens import device_of, encode, ends_at

FORMAT = "circuitlib task"
MAX_FILE_BYTES = 16 * 2**20
MAX_CHARACTERS = 100_000  # of a prompt
MAX_NAME = 60
PAIR = ("clean", "corrupted", "answer", "distractors", "positions")
HEADER = ("format", "version", "name", "metric", "read", "positions", "roles", "labels", "meta")


def load_task(model, path: str | Path) -> Task:
    """Read a task of one's own from JSON Lines.

    Every line is checked against the model's tokenizer: prompts of one length in tokens, answers and distractors of one token
    each, the answer not among the distractors, the two prompts of a pair not the same.

    Args:
        model: its tokenizer decides what the text becomes; BOS is put in front of each prompt.
        path: the file, UTF-8. Blank lines don't count.

    Returns:
        the task; it is called what the first line says, or what the file is called.

    Raises:
        ValueError: the file can't be read, or a line is wrong; one line that names the file, the line and what was expected.
    """
    return _task_of(model, Path(path), _rows(Path(path)))


def save_task(model, task: Task, path: str | Path) -> None:
    """Write a task as JSON Lines that ``load_task`` makes the same task of: prompts, answers, positions, roles, metric.

    Raises:
        ValueError: a task that text can't hold: tokens that its text does not give back, or several read positions.
        OSError: the file can't be written.
    """
    path = Path(path)
    lines = [_dumped(_header_of(task)), *map(_dumped, _pairs_of(model, task))]
    rows = [(number, json.loads(line)) for number, line in enumerate(lines, start=1)]
    try:
        again = _task_of(model, path, rows)
    except ValueError as error:
        raise ValueError(f"task: a file of text can't hold it: {error}") from None
    for name in ("clean", "corrupted", "answers", "distractors"):
        _check_same(name, getattr(task, name), getattr(again, name))
    content = "\n".join(lines) + "\n"
    if (size := len(content.encode())) > MAX_FILE_BYTES:
        raise ValueError(f"task: a file of {size} bytes, expected at most {MAX_FILE_BYTES}; take fewer prompts")
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(content, "utf8")
        temporary.replace(path)  # so that an interrupted write leaves the old file
    finally:
        temporary.unlink(missing_ok=True)


# From a file to rows -----------------------------------------------------------------------------


def _rows(path: Path) -> list[tuple[int, dict]]:
    """Every line that is not blank, with its number: a JSON object."""
    content = read_bytes(path, MAX_FILE_BYTES)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}, line {line}: not UTF-8 text") from None
    # Not splitlines: a string in JSON may hold other characters at which that one breaks lines.
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise ValueError(f"{path}: no lines, expected at least one pair of prompts")
    return [(number, _parsed(path, number, line)) for number, line in lines]


def _parsed(path: Path, number: int, line: str) -> dict:
    with _on_line(path, number):
        try:
            row = json.loads(line, object_pairs_hook=_no_repeats, parse_constant=_no_constants)
        except json.JSONDecodeError as error:
            raise ValueError(f"not valid JSON ({error.msg.lower()}, column {error.colno})") from None
        except RecursionError:
            raise ValueError("not valid JSON (nested too deep)") from None
        except ValueError as error:
            raise ValueError(f"not valid JSON ({str(error).partition(';')[0]})") from None
        if not isinstance(row, dict):
            raise ValueError(f"expected a JSON object, {{…}}, got {_kind(row)}")
    return row


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict:
    seen: dict[str, Any] = {}
    for key, value in pairs:
        if key in seen:
            raise ValueError(f"the key {key[:MAX_NAME]!r} is repeated")
        seen[key] = value
    return seen


def _no_constants(text: str):
    raise ValueError(f"{text} is not a JSON number")


@contextmanager
def _on_line(path: Path, number: int) -> Iterator[None]:
    """Errors say in which line they are."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path}, line {number}: {error}") from None


# From rows to a task -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Pair:
    """A line in tokens."""

    clean: list[int]
    corrupted: list[int]
    answers: list[int]
    distractors: list[int]
    positions: dict[str, int]


def _task_of(model, path: Path, rows: list[tuple[int, dict]]) -> Task:
    first, header = rows[0] if "format" in rows[0][1] else (rows[0][0], {})
    if header:
        rows = rows[1:]
        with _on_line(path, first):
            _check_header(header)
        if not rows:
            raise ValueError(f"{path}: nothing after line {first}, expected at least one pair of prompts")
    metric, text = header.get("metric", METRICS[0]), _Text(model)
    pairs: list[_Pair] = []
    for number, row in rows:
        with _on_line(path, number):
            pairs.append(_pair(text, row, metric))
            _check_alike(pairs[0], pairs[-1], rows[0][0], metric)
    name = header.get("name", "".join(filter(str.isprintable, path.stem))[:MAX_NAME] or "own")
    with _on_line(path, first):
        return _made(model, name, metric, header, pairs)


def _made(model, name: str, metric: str, header: dict, pairs: list[_Pair]) -> Task:
    n_pos = len(pairs[0].clean)
    positions = {key: _number("positions", key, at, n_pos) for key, at in header.get("positions", {}).items()}
    if twice := positions.keys() & pairs[0].positions.keys():
        raise ValueError(f"positions: {min(twice)!r} is in this line and in others too, expected it in one place")
    positions |= pairs[0].positions
    read = header.get("read", -1)
    if isinstance(read, str) and read not in positions:
        raise ValueError(f"read: expected a number or the name of a position, got {read[:MAX_NAME]!r}")
    read = positions[read] if isinstance(read, str) else _number("read", "read", read, n_pos)
    _check_roles(header.get("roles", {}), positions)
    labels = header.get("labels")
    if labels is not None and len(labels) != n_pos:
        raise ValueError(f"labels: expected one for each of {n_pos} tokens, got {len(labels)}")
    device, several = device_of(model), metric == "prob_diff"
    answers = [pair.answers if several else pair.answers[0] for pair in pairs]
    return Task(
        name=name,
        clean=torch.tensor([pair.clean for pair in pairs], device=device),
        corrupted=torch.tensor([pair.corrupted for pair in pairs], device=device),
        answers=_filled(answers, device) if several else torch.tensor(answers, device=device),
        distractors=_filled([pair.distractors for pair in pairs], device),
        positions=positions,
        read_positions=(read,),
        metric_name=metric,
        roles={role: tuple(map(tuple, attends)) for role, attends in header.get("roles", {}).items()},
        labels=_labels(model, pairs[0].clean, positions) if labels is None else tuple(labels),
        meta=dict(header.get("meta", {})),
    )


def _pair(text: _Text, row: dict, metric: str) -> _Pair:
    """One line, checked by itself."""
    _check_keys(row, PAIR, required=PAIR[:3])
    clean, corrupted = (text.prompt(role, row[role]) for role in ("clean", "corrupted"))
    if len(corrupted) != len(clean):
        shorter = min(len(clean), len(corrupted))
        parting = next((i for i in range(shorter) if clean[i] != corrupted[i]), shorter)
        raise ValueError(
            f"corrupted: expected the {len(clean) - 1} tokens that clean has, got {len(corrupted) - 1}; they part at token {parting}"
        )
    if corrupted == clean:
        raise ValueError("corrupted: the same tokens as clean, expected a prompt with another answer")
    answers = text.words("answer", _answers(row["answer"], several=metric == "prob_diff"))
    distractors = text.words("distractors", row.get("distractors", []))
    if not distractors and metric != "logprob":
        raise ValueError("distractors: expected at least one; only the metric logprob, in a first line, needs none")
    if both := [token for token in answers if token in distractors]:
        raise ValueError(f"distractors: {text.decode(both)!r} is the answer too")
    return _Pair(clean, corrupted, answers, distractors, _positions(text, row, len(clean)))


def _answers(given: Any, several: bool) -> list:
    if not several and not isinstance(given, str):
        raise ValueError(f"answer: expected text, got {_kind(given)} (only the metric prob_diff takes a list)")
    if given == []:
        raise ValueError("answer: expected at least one, got none")
    return [given] if isinstance(given, str) else given


def _check_alike(first: _Pair, pair: _Pair, line: int, metric: str) -> None:
    """Against the first pair, which stands in ``line``."""
    if len(pair.clean) != len(first.clean):
        raise ValueError(f"clean: expected the {len(first.clean) - 1} tokens of line {line}, got {len(pair.clean) - 1}")
    if metric != "prob_diff" and len(pair.distractors) != len(first.distractors):
        raise ValueError(
            f"distractors: expected {len(first.distractors)}, as in line {line}, got {len(pair.distractors)}"
        )
    for name in (*first.positions, *pair.positions):
        found, expected = pair.positions.get(name), first.positions.get(name)
        if found != expected:
            at = "not there" if found is None else f"token {found}"
            raise ValueError(
                f"positions: {name!r} is {at}, in line {line} it is {'not there' if expected is None else f'token {expected}'}; expected one place for all lines"
            )


def _positions(text: _Text, row: dict, n_pos: int) -> dict[str, int]:
    """Name → token, each given by its number or as a word of the clean prompt; the last token of the word."""
    given, clean = row.get("positions", {}), row["clean"]
    _check_names("positions", given)
    for name, at in given.items():
        if isinstance(at, str) and (not at or clean.count(at) != 1):
            times = clean.count(at) if at else 0
            raise ValueError(
                f"positions: {name!r} is {at[:MAX_NAME]!r}, which is {times} times in clean; expected once, or a number"
            )
    words = {name: clean.index(at) + len(at) for name, at in given.items() if isinstance(at, str)}
    found = dict(zip(words, ends_at(text.model, clean, list(words.values())), strict=True)) if words else {}
    return {name: found[name] if name in found else _number("positions", name, at, n_pos) for name, at in given.items()}


def _labels(model, row: list[int], positions: dict[str, int]) -> tuple[str, ...]:
    """Axis labels: the name of a position where it has one, else its token in the first prompt."""
    labels = [model.tokenizer.decode([token]) for token in row]
    for name, position in positions.items():
        labels[position] = name
    return tuple(labels)


def _filled(rows: list[list[int]], device) -> torch.Tensor:
    """Rows of different length as one tensor, filled up with −1."""
    width = max(map(len, rows))
    return torch.tensor([row + [-1] * (width - len(row)) for row in rows], dtype=torch.long, device=device)


# Text and tokens ---------------------------------------------------------------------------------


class _Text:
    """A model's tokenizer, which remembers the words that it has seen: the same few stand in every line."""

    def __init__(self, model):
        self.model, self.special = model, {*model.tokenizer.all_special_ids}
        self.seen: dict[str, int] = {}

    def decode(self, ids: list[int]) -> str:
        return self.model.tokenizer.decode(ids)

    def prompt(self, role: str, given: Any) -> list[int]:
        """Token ids of a prompt, BOS in front."""
        ids, longest = self._tokens(role, given, MAX_CHARACTERS), self.model.cfg.n_ctx - 1
        if not 1 <= len(ids) <= longest:
            raise ValueError(f"{role}: expected 1 to {longest} tokens of this model, got {len(ids)}")
        return [self.model.tokenizer.bos_token_id, *ids]

    def words(self, role: str, given: Any) -> list[int]:
        """Token ids of words of one token each, all different."""
        if not isinstance(given, list):
            raise ValueError(f"{role}: expected a list of texts, got {_kind(given)}")
        found: dict[int, str] = {}
        for word in given:
            token = self._word(role, word)
            if token in found:
                raise ValueError(f"{role}: {word!r} is repeated")
            found[token] = word
        return list(found)

    def _word(self, role: str, word: Any) -> int:
        if isinstance(word, str) and word in self.seen:
            return self.seen[word]
        ids = self._tokens(role, word, MAX_NAME)
        if len(ids) != 1:
            better = f"; {' ' + word!r} is" if len(encode(self.model, f" {word}")) == 1 else ""
            raise ValueError(f"{role}: {word!r} is {len(ids)} tokens of this model, expected a single one{better}")
        self.seen[word] = ids[0]
        return ids[0]

    def _tokens(self, role: str, given: Any, longest: int) -> list[int]:
        """Token ids; an error for what the tokenizer does not know, and for special tokens that are spelt out."""
        if not isinstance(given, str):
            raise ValueError(f"{role}: expected text, got {_kind(given)}")
        if not 0 < len(given) <= longest:
            raise ValueError(f"{role}: expected 1 to {longest:,} characters, got {len(given):,}")
        if any("\ud800" <= character <= "\udfff" for character in given):
            raise ValueError(f"{role}: expected text, found half of a surrogate pair")
        ids = encode(self.model, given)
        if special := [i for i in ids if i in self.special]:
            raise ValueError(
                f"{role}: expected text that this model's tokenizer knows, found {self.decode(special[:1])!r} among its tokens"
            )
        return ids


# Checks ------------------------------------------------------------------------------------------


def _check_header(header: dict) -> None:
    _check_keys(header, HEADER, required=HEADER[:2])
    for key, expected in (("format", (FORMAT,)), ("version", (1,)), ("metric", METRICS)):
        found = header.get(key, METRICS[0])
        if type(found) is not type(expected[0]) or found not in expected:
            raise ValueError(f"{key}: expected {' or '.join(map(str, expected))}, got {str(found)[:MAX_NAME]!r}")
    if "name" in header:
        _check_name("name", header["name"])
    for key in ("positions", "roles", "meta"):
        _check_names(key, header.get(key, {}))
    for name, value in header.get("meta", {}).items():
        if not isinstance(value, str | int | None) and not (isinstance(value, float) and math.isfinite(value)):
            raise ValueError(f"meta: {name!r} is {_kind(value)}, expected text, a number, true, false or null")
    labels = header.get("labels", [])
    if not isinstance(labels, list) or not all(isinstance(label, str) and len(label) <= MAX_NAME for label in labels):
        raise ValueError(f"labels: expected a list of texts of at most {MAX_NAME} characters")


def _check_keys(row: dict, known: tuple[str, ...], required: tuple[str, ...]) -> None:
    if missing := next((key for key in required if key not in row), None):
        raise ValueError(f"{missing!r} is missing")
    if unknown := next((key for key in row if key not in known), None):
        raise ValueError(f"unknown key {unknown[:MAX_NAME]!r}, expected some of {', '.join(known)}")


def _check_names(key: str, given: Any) -> None:
    """An object whose keys are names."""
    if not isinstance(given, dict):
        raise ValueError(f"{key}: expected an object, {{…}}, got {_kind(given)}")
    for name in given:
        _check_name(key, name)


def _check_name(key: str, name: Any) -> None:
    if not isinstance(name, str):
        raise ValueError(f"{key}: expected a name, got {_kind(name)}")
    if not 0 < len(name) <= MAX_NAME or not name.isprintable() or name.isdecimal():
        raise ValueError(
            f"{key}: expected a name of 1 to {MAX_NAME} printable characters that is no number, got {name[:MAX_NAME]!r}"
        )


def _check_roles(roles: dict, positions: dict[str, int]) -> None:
    for role, attends in roles.items():
        pairs = attends if isinstance(attends, list) else [attends]
        if not pairs or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
            raise ValueError(f'roles: {role!r} is no list of pairs such as ["end", "name"], the names of two positions')
        for name in (name for pair in pairs for name in pair):
            if not isinstance(name, str) or name not in positions:
                raise ValueError(f"roles: {role!r} names a position that is not there, {str(name)[:MAX_NAME]!r}")


def _number(key: str, name: str, at: Any, n_pos: int) -> int:
    """A position from a number; −1 is the last one."""
    if type(at) is not int:
        raise ValueError(f"{key}: {name!r} is {_kind(at)}, expected the number of a token")
    if not -n_pos <= at < n_pos:
        raise ValueError(f"{key}: {name!r} is {str(at)[:MAX_NAME]}, expected {-n_pos} to {n_pos - 1}")
    return at % n_pos


def _kind(value: Any) -> str:
    """What JSON calls a value."""
    kinds = {str: "text", bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return kinds.get(type(value), "null")


# From a task to rows -----------------------------------------------------------------------------


def _header_of(task: Task) -> dict[str, Any]:
    if len(task.read_positions) != 1:
        raise ValueError(
            f"task: it is read at {len(task.read_positions)} positions, expected one, to be written as text"
        )
    return {
        "format": FORMAT,
        "version": 1,
        "name": task.name,
        "metric": task.metric_name,
        "read": task.read_positions[0],
        "positions": task.positions,
        "roles": task.roles,
        **({"labels": task.labels} if task.labels else {}),
        "meta": task.meta,
    }


def _pairs_of(model, task: Task) -> Iterator[dict[str, Any]]:
    def texts(ids: list[int]) -> list[str]:
        return [model.tokenizer.decode([i]) for i in ids if i >= 0]

    for clean, corrupted, answers, wrong in zip(
        *(tokens.tolist() for tokens in (task.clean, task.corrupted, task.answers, task.distractors)), strict=True
    ):
        prompts = (model.tokenizer.decode(row[1:], clean_up_tokenization_spaces=False) for row in (clean, corrupted))
        answer = texts(answers) if isinstance(answers, list) else texts([answers])[0]
        yield dict(zip(PAIR[:4], (*prompts, answer, texts(wrong)), strict=True))


def _dumped(row: dict) -> str:
    try:
        return json.dumps(row, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"task: its meta can't be written as JSON ({error})") from None


def _check_same(name: str, tokens, again) -> None:
    """What the text was turned back into, against what it was made of."""
    if tokens.shape == again.shape and torch.equal(tokens, again):
        return
    where = ""
    if tokens.shape == again.shape:
        where = f" of prompt {int((tokens != again).view(len(tokens), -1).any(1).nonzero()[0])}"
    raise ValueError(
        f"task.{name}: the text{where} gives other tokens than the task has, so a file of text can't hold it"
    )
