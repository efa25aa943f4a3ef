"""What the shipped docstring model must show, measured again; and that its card says the same."""

from __future__ import annotations

import re
import shutil

import pytest

import circuitlib as cl
from circuitlib.models.registry import info
from circuitlib.models.training.bars import docstring_bars
from circuitlib.models.training.card import card


@pytest.fixture(scope="module")
def bars():
    return docstring_bars(cl.load_model("docstring-4l"))


def test_all_hard_bars_are_there(bars):
    """Every line of the list that the model was trained for, with its limit: a bar that is not measured can't be met."""
    hard = {bar.name.removeprefix("… "): bar.limit for bar in bars if bar.hard}
    assert hard["accuracy on 500 held-out prompts"] == "≥ 0.95"
    assert hard["mean logit difference, answer − best wrong name"] == "≥ 3"
    assert hard["heads needed for faithfulness ≥ 0.8"] == "≤ 10"
    assert hard["edges of the small circuit"] == "≤ 128" and hard["its faithfulness"] == "≥ 0.8 and ≤ 1.2"
    assert hard["the best of 20 random circuits of that size"] == "≤ 0.2"
    for role in ("previous-token", "induction", "mover"):
        assert hard[f"drop without the {role} heads"] == "≥ 0.5"
    assert hard["heads outside the circuit that are live on real code"] == "≥ 6"


def test_each_hard_bar_is_met(bars):
    missed = [f"{bar.name}: {bar.value:.3f}, expected {bar.limit}" for bar in bars if bar.hard and not bar.met]
    assert not missed, "; ".join(missed)


def test_roles_have_one_to_three_heads(bars):
    for bar in bars:
        if bar.name.startswith("drop without"):
            assert 1 <= len(bar.note.split(", ")) <= 3 and bar.note


def test_the_card_says_what_was_measured(bars):
    """Word for word, and each number to within what another processor may change in its last digit."""
    folder = info("docstring-4l").folder
    number = r"(?<![\w.])-?\d+\.\d+"
    written, measured = (folder / "README.md").read_text("utf8"), card("docstring-4l", folder, bars)
    assert re.sub(number, "#", written) == re.sub(number, "#", measured)
    assert [float(x) for x in re.findall(number, written)] == pytest.approx(
        [float(x) for x in re.findall(number, measured)], abs=2e-3
    )


def test_the_card_of_a_model_that_was_trained_again_speaks_of_that_one(tmp_path):
    shutil.copytree(info("docstring-4l").folder, tmp_path / "mine")
    text = card("docstring-4l", tmp_path / "mine", [], seed=7)
    assert "seed 7." in text and 'load_model("PATH/TO/mine")' in text and "circuitlib train docstring-4l" in text
