"""Tasks from templates, against prompts written out by hand; the checklist, against tasks with one thing wrong."""

from __future__ import annotations

import dataclasses
import logging

import pytest
import torch

import circuitlib as cl

CLEAN = "\nfrom {A} import {B}\nfrom {C} import {D}\nfrom {A} import"
CORRUPTED = "\nfrom {A} import {B}\nfrom {C} import {D}\nfrom {C} import"
WORDS = ("item", "city", "count", "group", "source", "schema")


@pytest.fixture(scope="module")
def model():
    return cl.load_model("docstring-4l")


def lookup(model, **changes):
    arguments = {"clean": CLEAN, "corrupted": CORRUPTED, "answer": " {B}", "wrong": [" {D}"]} | changes
    return cl.template_task(model, **arguments)


def text(model, tokens) -> str:
    return model.tokenizer.decode(tokens[1:])


def test_prompts_are_the_templates_filled_in(model):
    task = lookup(model, words=WORDS, n=20)
    assert task.clean.shape == task.corrupted.shape == (20, 15) and task.read_positions == (14,)
    for i in range(len(task)):
        a, b, c, d = (model.tokenizer.decode(task.clean[i, task.positions[name]]).strip() for name in "ABCD")
        assert len({a, b, c, d}) == 4 and {a, b, c, d} <= set(WORDS)
        assert text(model, task.clean[i]) == f"\nfrom {a} import {b}\nfrom {c} import {d}\nfrom {a} import"
        assert text(model, task.corrupted[i]) == f"\nfrom {a} import {b}\nfrom {c} import {d}\nfrom {c} import"
        assert model.tokenizer.decode(task.answers[i]) == f" {b}"
        assert [model.tokenizer.decode(token) for token in task.distractors[i]] == [f" {d}"]
    assert (task.clean[:, 0] == model.tokenizer.bos_token_id).all()


def test_positions_are_named_after_the_blanks(model):
    task = lookup(model, words=WORDS, n=3)
    assert task.positions == {"A": 3, "B": 5, "C": 8, "D": 10, "A_2": 13, "end": 14}
    assert task.labels[3] == "A" and task.labels[13] == "A_2" and task.labels[12] == "from"
    assert torch.equal(task.clean[:, 3], task.clean[:, 13])


def test_the_same_seed_gives_the_same_prompts(model):
    first, again, other = (lookup(model, n=5, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.clean, again.clean) and not torch.equal(first.clean, other.clean)


def test_blanks_of_the_corrupted_template_alone_get_other_words(model):
    task = lookup(model, corrupted="\nfrom {A} import {B}\nfrom {C} import {D}\nfrom {X} import", words=WORDS, n=20)
    for clean, corrupted in zip(task.clean, task.corrupted, strict=True):
        assert corrupted[13] not in clean.tolist()


def test_a_task_of_the_own_kind_runs_everywhere():
    model = cl.load_model("handmade-induction")
    task = cl.template_task(
        model, "{A}{B}{C}{D}{A}", "{A}{B}{C}{D}{C}", "{B}", ["{D}"], words=list("abcdefgh"), n=8, name="letters"
    )
    assert task.positions == {"A": 1, "B": 2, "C": 3, "D": 4, "A_2": 5, "end": 5}
    with torch.no_grad():
        assert task.success(model(task.clean)).mean() == 1
    engine = cl.Engine(model, task)
    assert float(engine.metric(engine.all)) > 5


def test_braces_and_no_wrong_answers(model):
    task = cl.template_task(model, "{{ {A}, {A}", "{{ {A}, {B}", " {A}", [], n=2, metric_name="logprob")
    assert text(model, task.clean[0]).startswith("{ ") and task.distractors.shape == (2, 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clean": "\nfrom x import"}, "clean: expected a template with at least one blank"),
        ({"clean": "\nfrom {A import"}, "clean: expected '}' before end of string; expected blanks such as {A}"),
        ({"clean": "\nfrom {} import"}, "clean: expected blanks with names such as {A}"),
        ({"corrupted": CORRUPTED + " {D}"}, "corrupted: expected the 15 tokens that clean has, got 16"),
        (
            {"answer": "{B}"},
            "is not a single token of this model (nor are 72 others), with no space before it as in answer",
        ),
        ({"answer": " {B} {B}"}, "is 2 tokens of this model, expected a single one"),
        ({"words": ["item", "city", "unladen"]}, "words: 'unladen' is not a single token of this model"),
        ({"words": ["item", "city"]}, "at least 4 words that are single tokens of the model, got 2"),
        ({"n": 0}, "n: expected an integer from 1, got 0"),
    ],
)
def test_bad_input_is_one_clear_line(model, changes, message):
    with pytest.raises(ValueError) as error:
        lookup(model, **changes)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_on_other_models_words_that_do_not_fit_are_left_out_and_counted(model, caplog):
    model = cl.load_model("docstring-4l")
    model.circuitlib_name = None
    with caplog.at_level(logging.WARNING):
        task = lookup(model, words=[*WORDS, "unladen"], n=3)
    assert len(task) == 3 and "left out 1 of 7 words" in caplog.text


# The checklist ------------------------------------------------------------------------------------


def failing(table) -> list[str]:
    return [question for question, ok in table["ok"].items() if ok == "NO"]


def test_a_good_task_passes_and_the_numbers_are_right(model):
    task = lookup(model, n=40)
    table = cl.examine(model, task)
    assert failing(table) == []
    with torch.no_grad():
        clean, corrupted = (task.metric(model(tokens)) for tokens in (task.clean, task.corrupted))
    gaps = clean - corrupted
    measured = table["measured"]
    assert measured["Are the prompts different?"] == "40 of 40"
    assert measured["Where do clean and corrupted differ?"] == "A_2 (100%)"
    assert measured["Metric, clean and corrupted"] == f"{clean.mean():.2f}, {corrupted.mean():.2f}"
    assert measured["Gap, and its standard error"] == f"{gaps.mean():.2f} ± {gaps.std() / 40**0.5:.2f}"


def test_each_fault_is_found(model):
    task = lookup(model, n=40)
    same = dataclasses.replace(task, corrupted=task.clean)
    assert failing(cl.examine(model, same)) == [
        "Where do clean and corrupted differ?",
        "Right answer above the wrong ones, corrupted",
        "Gap, and its standard error",
    ]
    half = task.corrupted.clone()
    half[:20] = task.clean[:20]
    assert "Where do clean and corrupted differ?" in failing(
        cl.examine(model, dataclasses.replace(task, corrupted=half))
    )
    once = dataclasses.replace(
        task, **{k: getattr(task, k)[:1].repeat(40, 1) for k in ("clean", "corrupted", "distractors")}
    )
    once = dataclasses.replace(once, answers=task.answers[:1].repeat(40))
    assert failing(cl.examine(model, once)) == ["Are the prompts different?", "Do the answers vary?"]
    swapped = dataclasses.replace(task, answers=task.distractors[:, 0], distractors=task.answers[:, None])
    assert {"Right answer above the wrong ones, clean", "Gap, and its standard error"} <= set(
        failing(cl.examine(model, swapped))
    )
    clash = dataclasses.replace(task, distractors=torch.stack([task.distractors[:, 0], task.answers], 1))
    assert "Is a wrong answer the right one?" in failing(cl.examine(model, clash))


@pytest.mark.parametrize("name", ["docstring", "induction"])
def test_the_tasks_of_the_book_can_be_examined(model, name):
    table = cl.examine(model, getattr(cl, name)(model, n=20))
    assert len(table) == 9 and set(table["ok"]) <= {"yes", "NO", "–"}


def test_a_list_of_answers_that_is_filled_up_is_no_clash():
    model = cl.load_model("gpt-mini")
    task = cl.greater_than(model, n=40)
    assert (task.answers < 0).any() and (task.distractors < 0).any()
    table = cl.examine(model, task)
    assert table["measured"]["Is a wrong answer the right one?"] == "no"
    rows = [tuple(row) for row in task.answers.tolist()]
    most = max(map(rows.count, rows)) / 40
    assert table["measured"]["Do the answers vary?"] == f"the most common one: {most:.0%}" and most < 0.5
    clash = task.distractors.clone()
    clash[7, 0] = task.answers[7, 0]
    assert (
        failing(cl.examine(model, dataclasses.replace(task, distractors=clash)))[0]
        == "Is a wrong answer the right one?"
    )


def test_a_task_without_distractors_can_be_examined(model):
    task = lookup(model, wrong=[], metric_name="logprob", n=20)
    with torch.no_grad():
        logits = model(task.clean)
    assert torch.equal(task.success(logits), task.accuracy(logits)) and 0 < task.success(logits).mean()
    table = cl.examine(model, task)
    assert "Right answer above all others, clean" in table.index and len(table) == 9


def test_a_blank_that_is_like_another_keeps_its_own_name(model):
    task = lookup(
        model, clean=CLEAN.replace("{C}", "{A_x}"), corrupted=CORRUPTED.replace("{C}", "{A_x}"), words=WORDS, n=3
    )
    assert task.positions == {"A": 3, "B": 5, "A_x": 8, "D": 10, "A_2": 13, "end": 14}
    for name in ("A_2", "end"):
        with pytest.raises(ValueError, match=f"^clean: the position '{name}' would have two meanings"):
            lookup(model, clean=CLEAN.replace("{C}", f"{{{name}}}"), corrupted=CORRUPTED.replace("{C}", f"{{{name}}}"), words=WORDS)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"distractors": torch.zeros(4, 0, dtype=torch.long)}, "^distractors: expected at least one for each prompt"),
        ({"distractors": torch.zeros(4, dtype=torch.long)}, r"^distractors: expected token ids \[4, 'n_wrong'\]"),
        ({"answers": torch.zeros(4, 2, dtype=torch.long)}, r"^answers: expected token ids \[4\] for 1 read"),
        ({"read_positions": (13, 14)}, r"^answers: expected token ids \[4, 2\] for 2 read positions, got shape \[4\]"),
        ({"read_positions": ()}, "^read_positions: expected at least one"),
        ({"metric_name": "prob_diff"}, r"^answers: expected token ids \[4, 'n_right'\]"),
    ],
)
def test_a_task_that_no_metric_can_read_is_one_line(model, changes, said):
    with pytest.raises(ValueError, match=said):
        dataclasses.replace(lookup(model, words=WORDS, n=4), **changes)


def test_what_a_template_can_not_mean_is_one_line(model):
    several = lookup(model, words=WORDS, n=4, metric_name="prob_diff")
    assert several.answers.shape == (4, 1) and several.metric(model(several.clean)).abs().max() <= 1
    for changes, said in (
        ({"wrong": " {D}"}, "^wrong: expected a list of templates such as "),
        ({"answer": " {Z}"}, "^answer: expected blanks of the prompts, A, B, C, D, got {Z}"),
        ({"wrong": [" {D}", " {B}"]}, "^wrong: ' {B}' is the answer"),
    ):
        with pytest.raises(ValueError, match=said):
            lookup(model, words=WORDS, **changes)
    task = lookup(model, words=WORDS, n=4)
    for changes, said in (
        ({"clean": task.clean.tolist()}, "^clean: expected a tensor of token ids, got list"),
        ({"read_positions": 14}, "^read_positions: expected a tuple such as "),
        ({"distractors": task.distractors * 0 - 1}, "^distractors: expected token ids from 0, got -1; only prob_diff"),
    ):
        with pytest.raises(ValueError, match=said):
            dataclasses.replace(task, **changes)
