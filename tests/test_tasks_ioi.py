"""The tasks ``ioi`` and ``greater_than``: prompts, corruptions, positions and metrics, against what they say about themselves."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch

import circuitlib as cl
from circuitlib.models.words import EVENTS, PEOPLE, PLACES, THINGS
from circuitlib.tasks import greater_than as gt
from circuitlib.tasks import ioi
from circuitlib.tasks.base import Task

IOI_TEMPLATES = 10


@pytest.fixture(scope="module")
def model():
    return cl.load_model("gpt-mini")


def texts(model, tokens) -> list[str]:
    return [model.tokenizer.decode(row[1:]) for row in tokens]


# IOI ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("template", range(IOI_TEMPLATES))
@pytest.mark.parametrize("order", ["ABBA", "BABA"])
def test_the_giver_is_named_twice_and_the_receiver_once(model, template, order):
    task = ioi(model, n=10, template=template, order=order)
    p = task.positions
    for row, io, (s,) in zip(task.clean, task.answers, task.distractors.tolist(), strict=True):
        assert (row == io).nonzero().flatten().tolist() == [p["IO"]]
        assert (row == s).nonzero().flatten().tolist() == [p["S1"], p["S2"]]
    assert (p["IO"] < p["S1"]) == (order == "ABBA") and p["S1"] < p["S2"] < p["end"] and p["S1+1"] == p["S1"] + 1
    assert task.read_positions == (p["end"],) == (task.clean.shape[1] - 1,)
    assert all(text.endswith(" to") for text in texts(model, task.clean))
    assert not texts(model, task.clean)[0].startswith(" ")


def test_mixed_has_both_orders_and_positions_for_both(model):
    task = ioi(model, n=10)
    first, second = (task.clean[:, task.positions[name]] for name in ("N1", "N2"))
    receiver_first = first == task.answers
    assert receiver_first.tolist() == [i % 2 == 0 for i in range(10)]
    assert (torch.where(receiver_first, second, first) == task.answers).logical_not().all()
    assert (torch.where(receiver_first, second, first) == task.distractors[:, 0]).all()
    assert (task.clean[:, task.positions["S2"]] == task.distractors[:, 0]).all()


@pytest.mark.parametrize("order", ["mixed", "ABBA", "BABA"])
def test_roles_name_positions_that_exist(model, order):
    task = ioi(model, n=2, order=order)
    assert {"duplicate_token", "previous_token", "induction", "s_inhibition", "name_mover"} == task.roles.keys()
    for pairs in task.roles.values():
        for query, key in pairs:
            assert task.positions[query] > task.positions[key]


def test_abc_changes_every_name_and_nothing_else(model):
    task = ioi(model, n=30, corruption="abc", order="ABBA")
    changed = task.clean != task.corrupted
    places = [task.positions[name] for name in ("IO", "S1", "S2")]
    assert changed[:, places].all() and changed.sum() == 3 * 30
    for clean, corrupted in zip(task.clean, task.corrupted, strict=True):
        names = corrupted[places].tolist()
        assert len(set(names)) == 3 and not set(names) & set(clean.tolist())


def test_name_swap_makes_the_receiver_give(model):
    task = ioi(model, n=30, corruption="name_swap")
    changed = task.clean != task.corrupted
    assert changed.sum(0).nonzero().flatten().tolist() == [task.positions["S2"]] and changed.sum() == 30
    assert (task.corrupted[:, task.positions["S2"]] == task.answers).all()


def test_same_seed_same_clean_prompts_whatever_the_corruption(model):
    assert torch.equal(ioi(model, n=5, corruption="abc").clean, ioi(model, n=5, corruption="name_swap").clean)
    assert not torch.equal(ioi(model, n=5, seed=1).clean, ioi(model, n=5, seed=2).clean)


def test_metric_is_io_minus_s(model):
    task = ioi(model, n=4)
    logits = torch.randn(4, 1, model.cfg.d_vocab)
    by_hand = [(logits[i, 0, task.answers[i]] - logits[i, 0, task.distractors[i, 0]]).item() for i in range(4)]
    assert task.metric(logits).tolist() == pytest.approx(by_hand)


def test_accept_chooses_the_stories(model):
    task = ioi(model, n=5, accept=lambda story: story.io == "Mary" and story.place == "bank")
    assert all("Mary" in text and "bank" in text for text in texts(model, task.clean))
    assert {model.tokenizer.decode(token) for token in task.answers} == {" Mary"}


# Greater-Than -------------------------------------------------------------------------------------


@pytest.mark.parametrize("template", range(3))
def test_the_century_stands_twice_and_the_year_after_it(model, template):
    task = cl.greater_than(model, n=20, template=template)
    p = task.positions
    assert (task.clean[:, p["XX1"]] == task.clean[:, p["end"]]).all() and p["YY"] == p["XX1"] + 1
    assert task.read_positions == (p["end"],) == (task.clean.shape[1] - 1,)
    for row, text in zip(task.clean, texts(model, task.clean), strict=True):
        century, year = (model.tokenizer.decode(row[p[name]]).strip() for name in ("XX1", "YY"))
        assert f"{century}{year}" in text and text.endswith(f" {century}")
        assert 11 <= int(century) <= 17 and 2 <= int(year) <= 98
        assert model.tokenizer.decode(row[p["noun"]]).strip() in EVENTS


def test_every_year_is_an_answer_or_a_distractor(model):
    task = cl.greater_than(model, n=20)
    years = [model.tokenizer.encode(f"{y:02d}", add_special_tokens=False)[0] for y in range(100)]
    for row, right, wrong in zip(task.clean, task.answers, task.distractors, strict=True):
        start = years.index(row[task.positions["YY"]].item())
        assert right[right >= 0].tolist() == years[start + 1 :]
        assert wrong[wrong >= 0].tolist() == years[: start + 1]


def test_the_corrupted_span_starts_in_01(model):
    task = cl.greater_than(model, n=20)
    changed = task.clean != task.corrupted
    assert changed.sum(0).nonzero().flatten().tolist() == [task.positions["YY"]] and changed.sum() == 20
    assert {model.tokenizer.decode(t) for t in task.corrupted[:, task.positions["YY"]]} == {"01"}


def test_probability_difference_by_hand(model):
    task = cl.greater_than(model, n=6)
    logits = 3 * torch.randn(6, 1, model.cfg.d_vocab)
    years = [model.tokenizer.encode(f"{y:02d}", add_special_tokens=False)[0] for y in range(100)]
    by_hand = []
    for i in range(6):
        start = int(model.tokenizer.decode(task.clean[i, task.positions["YY"]]))
        p = (logits[i, 0] - logits[i, 0].logsumexp(0)).exp().tolist()
        by_hand.append(sum(p[t] if y > start else -p[t] for y, t in enumerate(years)))
    assert task.metric(logits).tolist() == pytest.approx(by_hand, abs=1e-6)
    everywhere = torch.randn(6, task.clean.shape[1], model.cfg.d_vocab)
    everywhere[:, -1] = logits[:, 0]
    assert torch.equal(task.metric(everywhere), task.metric(logits))


def test_success_and_accuracy_of_a_probability_difference(model):
    task = cl.greater_than(model, n=1)
    logits = torch.zeros(1, 1, model.cfg.d_vocab)
    logits[0, 0, task.answers[0, 3]] = 9.0
    assert task.success(logits).item() == task.accuracy(logits).item() == 1 and task.metric(logits).item() > 0
    logits[0, 0, 5] = 10.0  # not a year: the most probable token, but years still speak for the later ones
    assert task.success(logits).item() == 1 and task.accuracy(logits).item() == 0
    logits[0, 0, task.distractors[0, 0]] = 12.0
    assert task.success(logits).item() == 0 and task.metric(logits).item() < 0


def test_probability_difference_with_several_read_positions():
    """Two read positions, sets of different size: the mean of the two differences."""
    tokens, fill = torch.zeros(1, 3, dtype=torch.long), -1
    answers = torch.tensor([[[1, 2], [3, fill]]])
    distractors = torch.tensor([[[0, fill, fill], [0, 1, 2]]])
    task = Task("t", tokens, tokens, answers, distractors, {}, (0, 2), metric_name="prob_diff")
    logits = torch.randn(1, 2, 4)
    p, q = logits[0].softmax(-1).tolist()
    by_hand = (p[1] + p[2] - p[0] + q[3] - q[0] - q[1] - q[2]) / 2
    assert task.metric(logits).item() == pytest.approx(by_hand, abs=1e-6)


# Both ---------------------------------------------------------------------------------------------


def test_default_task(model):
    assert cl.default_task(model, n=3).name == "ioi"


@pytest.mark.parametrize("make", [ioi, gt])
def test_the_engine_agrees_with_the_model(model, make):
    task = make(model, n=5)
    engine = cl.Engine(model, task)
    full, none = (model(tokens)[:, [-1]] for tokens in (task.clean, task.corrupted))
    assert torch.allclose(engine.run(engine.all), full, atol=1e-4)
    assert torch.allclose(engine.run(engine.none), none, atol=1e-4)
    assert torch.allclose(engine.values(engine.all), task.metric(full), atol=1e-4)


def test_every_word_is_one_token(model):
    for word in (*PEOPLE, *PLACES, *THINGS, *EVENTS):
        assert len(model.tokenizer.encode(f" {word}", add_special_tokens=False)) == 1, word
    for words in (PEOPLE, PLACES, THINGS, EVENTS):
        assert len(words) == len(set(words))
    for year in range(100):
        assert len(model.tokenizer.encode(f"{year:02d}", add_special_tokens=False)) == 1
        assert len(model.tokenizer.encode(f" 17{year:02d}", add_special_tokens=False)) == 2


class Words:
    """A tokenizer that knows each of some texts as one token, and everything else letter by letter."""

    bos_token_id = 0

    def __init__(self, texts):
        self.ids = {text: 1000 + i for i, text in enumerate(texts)}

    def encode(self, text, add_special_tokens=False):
        ids = []
        while text:
            known = max((t for t in self.ids if text.startswith(t)), key=len, default=None)
            ids.append(ord(text[0]) if known is None else self.ids[known])
            text = text[len(known or " ") :]
        return ids

    def decode(self, ids):
        return " ".join(map(str, ids))


def test_on_other_models_unknown_words_are_left_out_and_counted(caplog):
    few = [*PEOPLE[:6], *PLACES[:3], *THINGS[:4]]
    other = SimpleNamespace(tokenizer=Words([f" {word}" for word in few]))
    with caplog.at_level(logging.WARNING):
        task = ioi(other, n=20)
    assert f"left out {len(PEOPLE) - 6} of {len(PEOPLE)} words" in caplog.text
    assert set(task.answers.tolist()) <= {other.tokenizer.ids[f" {name}"] for name in PEOPLE[:6]}


def test_on_other_models_years_of_one_token_are_never_drawn():
    years, centuries = [f"{y:02d}" for y in range(100)], [f" {c}" for c in (16, 17)]
    whole = [" 1632", " 1601", *(f" 17{y:02d}" for y in range(3, 90))]
    other = SimpleNamespace(tokenizer=Words([" war", *years, *centuries, *whole]))
    task = gt(other, n=30)
    ids = other.tokenizer.ids
    assert set(task.clean[:, task.positions["XX1"]].tolist()) == {ids[" 17"]}  # 1601 is one token: no corrupted prompt
    assert set(task.clean[:, task.positions["YY"]].tolist()) <= {ids[f"{y:02d}"] for y in (2, *range(90, 99))}


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda m: ioi(m, corruption="acb"), "corruption: 'acb' is unknown; choose one of: abc, name_swap"),
        (lambda m: ioi(m, order="AB"), "order: 'AB' is unknown; choose one of: mixed, ABBA, BABA"),
        (lambda m: ioi(m, template=10), "template: expected 0 to 9, got 10"),
        (lambda m: ioi(m, n=0), "n: expected an integer from 1, got 0"),
        (lambda m: ioi(m, names=("Mary", "John")), "at least 5"),
        (lambda m: ioi(m, names=(*PEOPLE, "Bartholomew")), "'Bartholomew' is not a single token"),
        (lambda m: gt(m, corruption="02"), "corruption: '02' is unknown; choose one of: 01"),
        (lambda m: gt(m, template=-1), "template: expected 0 to 2, got -1"),
        (lambda m: gt(m, n=0), "n: expected an integer from 1, got 0"),
        (lambda m: ioi(cl.load_model("docstring-4l")), "is not a single token of this model"),
        (
            lambda m: cl.direct_logit_attribution(m, gt(m, n=2)),
            "task: expected one whose metric is a logit difference, got 'prob_diff'",
        ),
    ],
)
def test_bad_input_is_one_clear_line(model, make, message):
    with pytest.raises(ValueError, match=message) as error:
        make(model)
    assert "\n" not in str(error.value)
