"""Tasks: prompts, corruptions, positions and metrics, against what they say about themselves."""

from __future__ import annotations

import pytest
import torch

import circuitlib as cl
from circuitlib.models.words import HELD_OUT_NAMES, NAMES, NOUNS, VERBS
from circuitlib.tasks.base import Task
from circuitlib.tasks.docstring import CORRUPTIONS


@pytest.fixture(scope="module")
def model():
    return cl.load_model("docstring-4l")


def differing(task: Task) -> set[str]:
    """Names of the positions where some clean and corrupted prompt differ; unnamed positions by number."""
    places = {position: name for name, position in task.positions.items()}
    columns = (task.clean != task.corrupted).any(0).nonzero().flatten().tolist()
    return {places.get(column, str(column)) for column in columns}


WHAT_CHANGES = {
    "random_random": {"A_def", "B_def", "C_def", "A_doc", "B_doc"},
    "random_def": {"A_def", "B_def"},
    "random_answer": {"C_def"},
    "random_doc": {"A_doc", "B_doc"},
    "random_answer_doc": {"C_def", "A_doc", "B_doc"},
    "random_def_doc": {"A_def", "B_def", "A_doc", "B_doc"},
}


def test_every_corruption_is_tested():
    assert WHAT_CHANGES.keys() == CORRUPTIONS.keys()


@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_a_corruption_changes_what_it_says_and_nothing_else(model, corruption):
    task = cl.docstring(model, n=30, corruption=corruption)
    assert differing(task) == WHAT_CHANGES[corruption]
    # in every prompt, not just in some
    assert ((task.clean != task.corrupted).sum(1) == len(WHAT_CHANGES[corruption])).all()


def test_random_def_doc_is_a_consistent_renaming(model):
    task = cl.docstring(model, n=20, corruption="random_def_doc")
    row = task.corrupted
    for name in "AB":
        assert (row[:, task.positions[f"{name}_def"]] == row[:, task.positions[f"{name}_doc"]]).all()


def test_random_random_breaks_the_match(model):
    task = cl.docstring(model, n=20, corruption="random_random")
    for name in "AB":
        assert (
            task.corrupted[:, task.positions[f"{name}_def"]] != task.corrupted[:, task.positions[f"{name}_doc"]]
        ).all()


def test_the_prompt_reads_like_a_docstring(model):
    task = cl.docstring(model, n=1)
    text = model.tokenizer.decode(task.clean[0, 1:])
    lines = text.split("\n")
    assert lines[0] == "" and lines[1].startswith("def ") and lines[1].endswith("):")
    assert lines[2].startswith('    """') and lines[3] == ""
    assert [line.startswith("    :param ") for line in lines[4:6]] == [True, True] and lines[6] == "    :param"
    arguments = lines[1].split("(self, ")[1].rstrip("):").split(", ")
    assert len(arguments) == len(set(arguments)) == 6
    documented = [line.split()[1].rstrip(":") for line in lines[4:6]]
    assert documented == arguments[2:4]
    assert model.tokenizer.decode(task.answers[0]) == f" {arguments[4]}"


def test_positions_point_at_what_they_name(model):
    task = cl.docstring(model, n=10)
    p = task.positions
    assert task.clean.shape == (10, 41)
    assert p["C_def"] == 15 and p["param_3"] == 40 and task.read_positions == (40,)
    assert (task.clean[:, p["C_def"]] == task.answers).all()
    assert (task.clean[:, p["A_def"]] == task.clean[:, p["A_doc"]]).all()
    assert (task.clean[:, p["B_def"]] == task.clean[:, p["B_doc"]]).all()
    for name, text in {
        "comma_A": ",",
        "comma_B": ",",
        "comma_C": ",",
        "colon_B": ":",
        "param_1": "param",
        "param_2": "param",
        "param_3": "param",
    }.items():
        assert model.tokenizer.decode(task.clean[0, p[name]]) == text


def test_thirteen_wrong_names_five_of_them_in_the_prompt(model):
    task = cl.docstring(model, n=20)
    assert task.distractors.shape == (20, 13)
    for row, wrong, right in zip(task.clean, task.distractors, task.answers, strict=True):
        assert right not in wrong and len(set(wrong.tolist())) == 13
        assert torch.isin(wrong[:5], row).all() and not torch.isin(wrong[5:], row).any()


def test_metric_is_answer_minus_the_best_wrong_name(model):
    task = cl.docstring(model, n=4)
    logits = torch.randn(4, 1, model.cfg.d_vocab)
    by_hand = [
        (logits[i, 0, task.answers[i]] - max(logits[i, 0, j] for j in task.distractors[i])).item() for i in range(4)
    ]
    assert task.metric(logits).tolist() == pytest.approx(by_hand)
    everywhere = torch.randn(4, 41, model.cfg.d_vocab)
    everywhere[:, 40] = logits[:, 0]
    assert torch.equal(task.metric(everywhere), task.metric(logits))


def test_success_and_accuracy_differ_where_another_word_wins(model):
    task = cl.docstring(model, n=1)
    logits = torch.zeros(1, 1, model.cfg.d_vocab)
    logits[0, 0, task.answers[0]] = 1.0
    assert task.success(logits).item() == 1 and task.accuracy(logits).item() == 1
    logits[0, 0, 5] = 2.0  # not a name
    assert task.success(logits).item() == 1 and task.accuracy(logits).item() == 0


def test_same_seed_same_clean_prompts_whatever_the_corruption(model):
    first, second = (cl.docstring(model, n=5, corruption=c).clean for c in ("random_doc", "random_def"))
    assert torch.equal(first, second)
    assert not torch.equal(first, cl.docstring(model, n=5, seed=1).clean)


def test_every_word_is_one_token(model):
    for words, prefix in ((NAMES, " "), (NOUNS, " "), (VERBS, "")):
        assert all(len(model.tokenizer.encode(prefix + word, add_special_tokens=False)) == 1 for word in words)
    assert not set(NAMES) & set(NOUNS)
    assert len(HELD_OUT_NAMES) == pytest.approx(len(NAMES) / 10, abs=1)


def test_induction_repeats_and_its_corruption_does_not(model):
    task = cl.induction(model, n=8, period=10)
    assert task.clean.shape == (8, 20)
    assert torch.equal(task.clean[:, 1:10], task.clean[:, 11:20])
    assert torch.equal(task.clean[:, 10], task.answers)
    assert torch.equal(task.clean[:, 11:], task.corrupted[:, 11:])
    assert all(not torch.isin(c[1:11], k).any() for c, k in zip(task.corrupted, task.clean, strict=True))
    assert task.read_positions == (19,)


def test_default_task(model):
    assert cl.default_task(model, n=3).name == "docstring"


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda m: cl.docstring(m, corruption="random"),
            "corruption: 'random' is unknown; choose one of: random_random",
        ),
        (lambda m: cl.docstring(m, n=0), "n: expected an integer from 1, got 0"),
        (lambda m: cl.docstring(m, names=("size", "path")), "at least 15"),
        (
            lambda m: cl.docstring(m, names=(*NAMES, "antidisestablishment")),
            "'antidisestablishment' is not a single token",
        ),
        (lambda m: cl.induction(m, period=500), "period: expected 2 to 48 for this model, got 500"),
        (
            lambda m: cl.docstring(m, n=2).position("D_def"),
            "position 'D_def' does not exist in task 'docstring'; choose one of: method",
        ),
        (
            lambda m: cl.docstring(m, n=2).metric(torch.zeros(2, 3, 5)),
            r"logits: expected \[2, 1, d_vocab\] or \[2, 41, d_vocab\]",
        ),
        (lambda m: cl.default_task(object()), "model: expected one that cl.load_model returned"),
    ],
)
def test_bad_input_is_one_clear_line(model, make, message):
    with pytest.raises(ValueError, match=message) as error:
        make(model)
    assert "\n" not in str(error.value)


def test_a_task_checks_its_own_shapes():
    tokens = torch.zeros(2, 5, dtype=torch.long)
    good = dict(
        name="t",
        clean=tokens,
        corrupted=tokens,
        answers=tokens[:, 0],
        distractors=tokens[:, :2],
        positions={},
        read_positions=(4,),
    )
    Task(**good)
    for change, message in (
        ({"corrupted": tokens[:, :4]}, "corrupted: expected the shape of clean"),
        ({"clean": tokens[:0], "corrupted": tokens[:0]}, "at least one prompt"),
        ({"read_positions": (5,)}, "expected 0 to 4"),
        ({"positions": {"x": -1}}, "'x' is -1"),
        ({"answers": tokens[:1, 0]}, "one row for each of 2 prompts"),
        ({"metric_name": "loss"}, "metric_name"),
    ):
        with pytest.raises(ValueError, match=message):
            Task(**good | change)
