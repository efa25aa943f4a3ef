"""Tasks as JSON Lines: what is written comes back, what is wrong is refused with the number of its line."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import circuitlib as cl
from circuitlib.tasks import jsonl

TENSORS = ("clean", "corrupted", "answers", "distractors")
REST = ("name", "positions", "read_positions", "metric_name", "roles", "labels", "meta")

CLEAN, CORRUPTED = "\nfrom city import item\nfrom city import", "\nfrom city import item\nfrom group import"
PAIR = {"clean": CLEAN, "corrupted": CORRUPTED, "answer": " item", "distractors": [" count", " source"]}
HEADER = {"format": "circuitlib task", "version": 1}


@pytest.fixture(scope="module")
def model():
    return cl.load_model("docstring-4l")


def written(path: Path, *rows, text: str | None = None) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) if text is None else text, "utf8")
    return path


def load(model, folder: Path, *rows, text: str | None = None):
    return cl.load_task(model, written(folder / "lookup.jsonl", *rows, text=text))


def refused(model, folder: Path, *rows, text: str | None = None) -> str:
    with pytest.raises(ValueError) as error:
        load(model, folder, *rows, text=text)
    message = str(error.value)
    assert "\n" not in message and len(message) < 400 and message.startswith(str(folder / "lookup.jsonl"))
    return message.removeprefix(str(folder / "lookup.jsonl"))


# --- there and back


def make(model, task: str, n: int):
    from circuitlib import tasks as all_tasks

    return getattr(all_tasks, task)(model, n=n, seed=3)


@pytest.mark.parametrize(
    ("name", "task", "n"),
    [
        ("docstring-4l", "docstring", 50),
        ("gpt-mini", "ioi", 20),
        ("gpt-mini", "greater_than", 20),
        ("handmade-or", "gate", 3),
        ("handmade-docstring", "docstring", 6),
        ("handmade-induction", "induction", 6),
    ],
)
def test_a_task_that_is_saved_and_loaded_is_the_same_task(name, task, n, tmp_path):
    model = cl.load_model(name)
    task = make(model, task, n)
    cl.save_task(model, task, tmp_path / "t.jsonl")
    again = cl.load_task(model, tmp_path / "t.jsonl")
    for tensor in TENSORS:
        assert torch.equal(getattr(again, tensor), getattr(task, tensor)), tensor
        assert getattr(again, tensor).dtype == torch.long
    assert [getattr(again, field) for field in REST] == [getattr(task, field) for field in REST]


def test_its_scores_are_the_same_to_the_last_bit(model, tmp_path):
    task = cl.docstring(model, n=10)
    cl.save_task(model, task, tmp_path / "t.jsonl")
    scores = [cl.eap(cl.Engine(model, one)) for one in (task, cl.load_task(model, tmp_path / "t.jsonl"))]
    assert torch.equal(scores[0].values, scores[1].values) and scores[0].values.abs().max() > 0.1


def test_a_task_without_wrong_answers_and_one_from_templates(model, tmp_path):
    task = cl.template_task(model, " {A} or {B}, {A}", " {A} or {B}, {B}", " or", [], n=4, metric_name="logprob")
    cl.save_task(model, task, tmp_path / "t.jsonl")
    again = cl.load_task(model, tmp_path / "t.jsonl")
    assert again.distractors.shape == (4, 0) and torch.equal(again.clean, task.clean)
    assert again.meta == {"seed": 0, "clean": " {A} or {B}, {A}", "corrupted": " {A} or {B}, {B}"}


def test_what_text_can_not_hold_is_refused_and_nothing_is_written(model, tmp_path):
    path = written(tmp_path / "t.jsonl", text="old")
    task, random_tokens = cl.docstring(model, n=3), cl.induction(model, n=5)
    twice = {"answers": task.answers[:, None].repeat(1, 2), "distractors": task.distractors[:, None].repeat(1, 2, 1)}
    for one in (
        random_tokens,  # BPE would join what stands side by side
        replace(task, read_positions=(5, 9), **twice),
        replace(task, meta={"model": model}),
        replace(task, meta={"share": float("nan")}),
        replace(task, name="a\nb"),
        replace(task, corrupted=task.clean),
        replace(task, clean=torch.cat([task.clean[:, 1:], task.clean[:, :1]], 1)),  # without BOS in front
    ):
        with pytest.raises(ValueError, match=r"^task[:.]"):
            cl.save_task(model, one, path)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_task_that_would_not_be_read_again_is_not_written(model, tmp_path, monkeypatch):
    monkeypatch.setattr(jsonl, "MAX_FILE_BYTES", 5000)
    with pytest.raises(ValueError, match="task: a file of .* bytes, expected at most 5000; take fewer prompts"):
        cl.save_task(model, cl.docstring(model, n=50), tmp_path / "t.jsonl")
    assert not list(tmp_path.iterdir())
    cl.save_task(model, cl.docstring(model, n=2), tmp_path / "t.jsonl")


# --- written by hand


def test_a_file_without_a_first_line_about_all(model, tmp_path):
    other = {**PAIR, "clean": CLEAN.replace("item", "type"), "answer": " type"}
    task = load(model, tmp_path, PAIR, other)
    assert (task.name, task.metric_name, len(task)) == ("lookup", "logit_diff", 2)
    assert task.positions == {} and task.roles == {} and task.meta == {}
    assert [model.tokenizer.decode(row[1:]) for row in task.clean] == [CLEAN, other["clean"]]
    assert task.clean[0, 0] == model.tokenizer.bos_token_id and task.read_positions == (task.clean.shape[1] - 1,)
    assert [model.tokenizer.decode(token) for token in task.answers] == [" item", " type"]
    assert model.tokenizer.decode(task.distractors[1]) == " count source"
    assert task.labels == tuple(model.tokenizer.decode([token]) for token in task.clean[0])
    assert float(cl.Engine(model, task).metric(cl.Engine(model, task).all)) > 1


def test_positions_by_word_and_by_number(model, tmp_path):
    row = {**PAIR, "positions": {"held": "item", "asked": -2, "import": 9, "with its space": " item"}}
    task = load(model, tmp_path, row, row)
    tokens = [model.tokenizer.decode([token]) for token in task.clean[0]]
    assert task.positions["held"] == task.positions["with its space"] == tokens.index(" item")
    assert task.positions["asked"] == 8 == len(tokens) - 2 and tokens[8] == " city"
    assert task.labels[8] == "asked" and task.labels[task.positions["held"]] in ("held", "with its space")


def test_the_first_line_says_what_holds_for_all(model, tmp_path):
    header = {**HEADER, "name": "Wer sucht, der findet", "metric": "logprob", "read": "asked", "positions": {"asked": -2, "held": 5}, "roles": {"mover": [["asked", "held"]]}, "labels": [*"abcdefghij"], "meta": {"from": "me", "n": 1}}  # fmt: skip
    task = load(model, tmp_path, header, {key: PAIR[key] for key in ("clean", "corrupted", "answer")})
    assert (task.name, task.metric_name, task.read_positions) == ("Wer sucht, der findet", "logprob", (8,))
    assert task.roles == {"mover": (("asked", "held"),)} and task.labels == tuple("abcdefghij")
    assert task.meta == {"from": "me", "n": 1} and task.distractors.shape == (1, 0)


def test_sets_of_answers_of_different_size(model, tmp_path):
    header = {**HEADER, "metric": "prob_diff"}
    rows = [{**PAIR, "answer": [" item", " type"]}, {**PAIR, "distractors": [" count"]}]
    task = load(model, tmp_path, header, *rows)
    assert task.answers.shape == (2, 2) and task.answers[1, 1] == -1 == task.distractors[1, 1]
    assert 0 < task.metric(model(task.clean)).min()


def test_line_ends_blank_lines_and_a_mark_at_the_start_do_not_count(model, tmp_path):
    plain = load(model, tmp_path, HEADER, PAIR, PAIR)
    text = "\ufeff" + "\r\n\r\n".join(json.dumps(row) for row in (HEADER, PAIR, PAIR)) + "\r\n \n"
    again = load(model, tmp_path, text=text)
    assert all(torch.equal(getattr(plain, name), getattr(again, name)) for name in TENSORS)
    broken = json.dumps({**PAIR, "answer": " no such token"})
    assert "line 8: answer: ' no such token' is" in refused(model, tmp_path, text=text + "\r\n" + broken)


def test_a_line_separator_inside_a_text_does_not_break_the_line(model, tmp_path):
    """JSON allows U+2028 in a string, and Python's splitlines would break the line there."""
    row = {key: PAIR[key].replace("\n", "\u2028") for key in ("clean", "corrupted")}
    text = json.dumps({**PAIR, **row}, ensure_ascii=False)
    assert "\u2028" in text and len(load(model, tmp_path, text=text)) == 1


# --- what is wrong

X = "x" * 80
WRONG = {
    "nothing": ([], ": no lines, expected at least one pair"),
    "no pair": ([HEADER], ": nothing after line 1, expected at least one pair"),
    "a list": ([[PAIR]], ", line 1: expected a JSON object, {…}, got a list"),
    "no answer": ([PAIR, {"clean": CLEAN, "corrupted": CORRUPTED}], ", line 2: 'answer' is missing"),
    "unknown key": ([{**PAIR, "distractor": []}], ", line 1: unknown key 'distractor', expected some of clean, corrupted"),
    "long unknown key": ([{**PAIR, X: 1}], f", line 1: unknown key '{'x' * 60}'"),
    "clean: a number": ([{**PAIR, "clean": 5}], ", line 1: clean: expected text, got a number"),
    "clean: null": ([{**PAIR, "clean": None}], ", line 1: clean: expected text, got null"),
    "clean: empty": ([{**PAIR, "clean": ""}], ", line 1: clean: expected 1 to 100,000 characters, got 0"),
    "clean: huge": ([{**PAIR, "clean": "a" * 100_001}], ", line 1: clean: expected 1 to 100,000 characters, got 100,001"),
    "clean: too many tokens": ([{**PAIR, "clean": " city" * 500}], ", line 1: clean: expected 1 to 95 tokens of this model, got 500"),
    "clean: other length": ([PAIR, {**PAIR, "clean": CLEAN + " (", "corrupted": CORRUPTED + " ("}], ", line 2: clean: expected the 9 tokens of line 1, got 10"),
    "clean: half a character": ([{**PAIR, "clean": "\ud800"}], ", line 1: clean: expected text, found half of a surrogate pair"),
    "clean: a special token": ([{**PAIR, "clean": "<|BOS|>" + CLEAN}], ", line 1: clean: expected text that this model's tokenizer knows, found '<|BOS|>'"),
    "corrupted: other length": ([{**PAIR, "corrupted": CORRUPTED + " ("}], ", line 1: corrupted: expected the 9 tokens that clean has, got 10; they part at token 8"),
    "corrupted: longer": ([{**PAIR, "corrupted": CLEAN + " ("}], "got 10; they part at token 10"),
    "corrupted: the same": ([PAIR, {**PAIR, "corrupted": CLEAN}], ", line 2: corrupted: the same tokens as clean"),
    "answer: two tokens": ([{**PAIR, "answer": " item item"}], ", line 1: answer: ' item item' is 2 tokens of this model, expected a single one"),
    "answer: no space": ([{**PAIR, "answer": "limit"}], "tokens of this model, expected a single one; ' limit' is"),
    "answer: a list": ([{**PAIR, "answer": [" item"]}], ", line 1: answer: expected text, got a list (only the metric prob_diff takes a list)"),
    "answer: empty list": ([{**HEADER, "metric": "prob_diff"}, {**PAIR, "answer": []}], ", line 2: answer: expected at least one, got none"),
    "answer: list of numbers": ([{**HEADER, "metric": "prob_diff"}, {**PAIR, "answer": [3]}], ", line 2: answer: expected text, got a number"),
    "answer: an object": ([{**HEADER, "metric": "prob_diff"}, {**PAIR, "answer": {}}], ", line 2: answer: expected a list of texts, got an object"),
    "answer: among the wrong ones": ([{**PAIR, "distractors": [" count", " item"]}], ", line 1: distractors: ' item' is the answer too"),
    "distractors: text": ([{**PAIR, "distractors": " count"}], ", line 1: distractors: expected a list of texts, got text"),
    "distractors: none": ([{**PAIR, "distractors": []}], ", line 1: distractors: expected at least one"),
    "distractors: not there": ([{key: PAIR[key] for key in PAIR if key != "distractors"}], ", line 1: distractors: expected at least one"),
    "distractors: repeated": ([{**PAIR, "distractors": [" count", " count"]}], ", line 1: distractors: ' count' is repeated"),
    "distractors: null": ([{**PAIR, "distractors": None}], ", line 1: distractors: expected a list of texts, got null"),
    "distractors: not so many": ([PAIR, {**PAIR, "distractors": [" count"]}], ", line 2: distractors: expected 2, as in line 1, got 1"),
    "positions: a list": ([{**PAIR, "positions": [1]}], ", line 1: positions: expected an object, {…}, got a list"),
    "positions: outside": ([{**PAIR, "positions": {"a": 12}}], ", line 1: positions: 'a' is 12, expected -10 to 9"),
    "positions: a fraction": ([{**PAIR, "positions": {"a": 1.5}}], ", line 1: positions: 'a' is a number, expected the number of a token"),
    "positions: true": ([{**PAIR, "positions": {"a": True}}], ", line 1: positions: 'a' is true or false, expected the number of a token"),
    "positions: twice": ([{**PAIR, "positions": {"a": "city"}}], ", line 1: positions: 'a' is 'city', which is 2 times in clean"),
    "positions: never": ([{**PAIR, "positions": {"a": "town"}}], ", line 1: positions: 'a' is 'town', which is 0 times in clean"),
    "positions: no word": ([{**PAIR, "positions": {"a": ""}}], ", line 1: positions: 'a' is '', which is 0 times in clean"),
    "positions: a number for a name": ([{**PAIR, "positions": {"12": 1}}], "printable characters that is no number, got '12'"),
    "positions: long name": ([{**PAIR, "positions": {X: 1}}], ", line 1: positions: expected a name of 1 to 60 printable characters"),
    "positions: control character": ([{**PAIR, "positions": {"a\x1b[31m": 1}}], ", line 1: positions: expected a name"),
    "positions: elsewhere": ([{**PAIR, "positions": {"a": 1}}, {**PAIR, "positions": {"a": 2}}], ", line 2: positions: 'a' is token 2, in line 1 it is token 1"),
    "positions: missing": ([{**PAIR, "positions": {"a": 1}}, PAIR], ", line 2: positions: 'a' is not there, in line 1 it is token 1"),
    "positions: more": ([PAIR, {**PAIR, "positions": {"a": 1}}], ", line 2: positions: 'a' is token 1, in line 1 it is not there"),
    "positions: in both places": ([{**HEADER, "positions": {"a": 1}}, {**PAIR, "positions": {"a": 1}}], ", line 1: positions: 'a' is in this line and in others too"),
    "header: a word": ([{**HEADER, "positions": {"a": "city"}}, PAIR], ", line 1: positions: 'a' is text, expected the number of a token"),
    "header: format": ([{**HEADER, "format": "circuitlib circuit"}, PAIR], ", line 1: format: expected circuitlib task, got 'circuitlib circuit'"),
    "header: version": ([{**HEADER, "version": 2}, PAIR], ", line 1: version: expected 1, got '2'"),
    "header: version true": ([{**HEADER, "version": True}, PAIR], ", line 1: version: expected 1, got 'True'"),
    "header: no version": ([{"format": "circuitlib task"}, PAIR], ", line 1: 'version' is missing"),
    "header: unknown key": ([{**HEADER, "clean": "a"}, PAIR], ", line 1: unknown key 'clean', expected some of format"),
    "header: metric": ([{**HEADER, "metric": "kl"}, PAIR], ", line 1: metric: expected logit_diff or logprob or prob_diff, got 'kl'"),
    "header: metric, a list": ([{**HEADER, "metric": []}, PAIR], ", line 1: metric: expected logit_diff"),
    "header: name": ([{**HEADER, "name": ""}, PAIR], ", line 1: name: expected a name of 1 to 60 printable characters"),
    "header: name, a number": ([{**HEADER, "name": 3}, PAIR], ", line 1: name: expected a name, got a number"),
    "header: read": ([{**HEADER, "read": "end"}, PAIR], ", line 1: read: expected a number or the name of a position, got 'end'"),
    "header: read outside": ([{**HEADER, "read": 99}, PAIR], ", line 1: read: 'read' is 99, expected -10 to 9"),
    "header: roles": ([{**HEADER, "roles": {"mover": ["end", "a"]}}, PAIR], ", line 1: roles: 'mover' is no list of pairs"),
    "header: roles unknown": ([{**HEADER, "roles": {"mover": [["end", "a"]]}}, PAIR], ", line 1: roles: 'mover' names a position that is not there, 'end'"),
    "header: labels": ([{**HEADER, "labels": ["a"]}, PAIR], ", line 1: labels: expected one for each of 10 tokens, got 1"),
    "header: labels, numbers": ([{**HEADER, "labels": [1]}, PAIR], ", line 1: labels: expected a list of texts"),
    "header: meta": ([{**HEADER, "meta": {"a": [1]}}, PAIR], ", line 1: meta: 'a' is a list, expected text"),
    "header: in the second line": ([PAIR, HEADER], ", line 2: 'clean' is missing"),
}  # fmt: skip


@pytest.mark.parametrize(("rows", "said"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_said_with_the_line(rows, said, model, tmp_path):
    assert said in refused(model, tmp_path, *rows)


GOOD = json.dumps(PAIR)
TEXTS = {
    "only blank lines": ("\n \r\n\n", ": no lines"),
    "half a line": (GOOD + "\n" + GOOD[:50], ", line 2: not valid JSON ("),
    "a comma too many": ("{,}", ", line 1: not valid JSON (expecting property name enclosed in double quotes, column 2)"),
    "two on a line": (GOOD + GOOD, ", line 1: not valid JSON (extra data, column"),
    "NaN": ('{"clean": NaN}', ", line 1: not valid JSON (NaN is not a JSON number)"),
    "infinite": (json.dumps(HEADER)[:-1] + ', "meta": {"a": 1e999}}\n' + GOOD, ", line 1: meta: 'a' is a number, expected"),
    "a repeated key": (GOOD[:-1] + ', "answer": " type"}', ", line 1: not valid JSON (the key 'answer' is repeated)"),
    "deep": ("[" * 200_000, ", line 1: not valid JSON (nested too deep)"),
    "an endless number": ('{"clean": ' + "1" * 5000 + "}", ", line 1: not valid JSON (Exceeds the limit"),
    "a raw control character": ('{"clean": "a\tb"}', ", line 1: not valid JSON (invalid control character at"),
    "text": ("hello", ", line 1: not valid JSON"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "said"), TEXTS.values(), ids=TEXTS)
def test_what_is_no_json_is_said_with_the_line(text, said, model, tmp_path):
    assert said in refused(model, tmp_path, text=text)


def test_files_that_are_none(model, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"none.jsonl: can't be read \(No such file"):
        cl.load_task(model, tmp_path / "none.jsonl")
    with pytest.raises(ValueError, match=": expected a file$"):
        cl.load_task(model, tmp_path)
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(ValueError, match="pipe.jsonl: expected a file$"):  # and nobody waits for what it might say
        cl.load_task(model, tmp_path / "pipe.jsonl")
    path = tmp_path / "t.jsonl"
    path.write_bytes((GOOD + "\n").encode("utf8") + b'{"clean": "\xff"}')
    with pytest.raises(ValueError, match=r"t.jsonl, line 2: not UTF-8 text"):
        cl.load_task(model, path)
    path.write_text(GOOD, "utf-16")
    with pytest.raises(ValueError, match=r"t.jsonl, line 1: not UTF-8 text"):
        cl.load_task(model, path)
    monkeypatch.setattr(jsonl, "MAX_FILE_BYTES", 100)
    with pytest.raises(ValueError, match="t.jsonl: more than 100 bytes"):
        cl.load_task(model, path)


def test_unknown_characters_are_refused_where_the_tokenizer_has_a_token_for_them(tmp_path):
    model = cl.load_model("handmade-or")
    row = {"clean": "11=", "corrupted": "0?=", "answer": "1", "distractors": ["0"]}
    with pytest.raises(ValueError, match=r"line 1: corrupted: expected text that this model's tokenizer knows"):
        cl.load_task(model, written(tmp_path / "t.jsonl", row))


def test_a_word_is_not_looked_for_where_the_tokenizer_drops_spaces(tmp_path):
    model = cl.load_model("handmade-induction")
    row = {"clean": "a b c a", "corrupted": "a d c a", "answer": "b", "distractors": ["c"], "positions": {"first": "b"}}
    with pytest.raises(
        ValueError, match=r"line 1: text: this model's tokenizer makes 'abca' of 'a b c a', so words can't"
    ):
        cl.load_task(model, written(tmp_path / "t.jsonl", row))
    row["positions"] = {"first": 2}
    assert cl.load_task(model, written(tmp_path / "t.jsonl", row)).positions == {"first": 2}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([*jsonl.PAIR, *jsonl.HEADER, "x"]), inner, max_size=6),
    max_leaves=20,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys((*jsonl.PAIR, *jsonl.HEADER), JSON)) | JSON, min_size=1, max_size=3), st.booleans())  # fmt: skip
def test_any_json_gives_a_task_or_one_line(rows, with_pair):
    model, path = cl.load_model("handmade-or"), Path("any.jsonl")
    good = {"clean": "11=", "corrupted": "00=", "answer": "1", "distractors": ["0"]}
    rows = [{**good, **row} if with_pair and isinstance(row, dict) and "format" not in row else row for row in rows]
    try:
        task = jsonl._task_of(
            model, path, [(i, jsonl._parsed(path, i, json.dumps(row))) for i, row in enumerate(rows, 1)]
        )
    except ValueError as error:
        assert "\n" not in str(error) and str(error).startswith("any.jsonl")
    else:
        assert len(task) in (len(rows), len(rows) - 1)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_give_one_line(content):
    path = Path("any.jsonl")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonl, "read_bytes", lambda path, most: content)
        try:
            jsonl._rows(path)
        except ValueError as error:
            assert "\n" not in str(error) and str(error).startswith("any.jsonl")
