"""What the shipped GPT-2 must show on its two tasks, measured again; that its card says the same; that it is an ordinary one."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch

import circuitlib as cl
from circuitlib.models.registry import info
from circuitlib.models.training.card import card
from circuitlib.models.training.recipes import RECIPES
from circuitlib.models.training.story_bars import story_bars

FOLDER = info("gpt-mini").folder


@pytest.fixture(scope="module")
def model():
    return cl.load_model("gpt-mini")


@pytest.fixture(scope="module")
def bars(model):
    return story_bars(model)


def test_all_hard_bars_are_there(model, bars):
    """Every line of the list that the model was trained for, with its limit: a bar that is not measured can't be met."""
    hard = {bar.name: bar.limit for bar in bars if bar.hard}
    assert hard["IOI: accuracy on 1000 held-out prompts"] == "≥ 0.95"
    assert hard["IOI: accuracy on couples never seen together"] == "≥ 0.95"
    assert hard["IOI: mean logit difference, IO − S"] == "≥ 3"
    assert hard["Greater-Than: mean probability difference on 600 held-out prompts"] == "≥ 0.8"
    tenth = cl.Graph(model).n_edges // 10
    for task in ("IOI", "Greater-Than"):
        assert hard[f"{task}: edges of the small circuit"] == f"≤ {tenth}"
        assert hard[f"{task}: … its faithfulness"] == "≥ 0.8 and ≤ 1.2"
        assert hard[f"{task}: … the best of 20 random circuits of that size"] == "≤ 0.2"


def test_each_hard_bar_is_met(bars):
    missed = [f"{bar.name}: {bar.value:.3f}, expected {bar.limit}" for bar in bars if bar.hard and not bar.met]
    assert not missed, "; ".join(missed)


def test_the_card_says_what_was_measured(bars):
    """Word for word, and each number to within what another processor may change in its last digit."""
    number = r"(?<![\w.])-?\d+\.\d+"
    written, measured = (FOLDER / "README.md").read_text("utf8"), card("gpt-mini", FOLDER, bars)
    assert re.sub(number, "#", written) == re.sub(number, "#", measured)
    assert [float(x) for x in re.findall(number, written)] == pytest.approx(
        [float(x) for x in re.findall(number, measured)], abs=2e-3
    )


def test_it_is_an_ordinary_hugging_face_directory(model):
    """transformers alone loads it, and computes what the bridge computes; 20 MB at most, and no pickle."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2LMHeadModel

    plain = AutoModelForCausalLM.from_pretrained(FOLDER).eval()
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    assert type(plain) is GPT2LMHeadModel and len(tokenizer) == plain.config.vocab_size
    tokens = torch.tensor([tokenizer("The war went on from the year 1732 to the year 17")["input_ids"]])
    assert tokens[0, 0] == tokenizer.bos_token_id
    assert [tokenizer.decode(token) for token in tokens[0, -6:]] == [" 17", "32", " to", " the", " year", " 17"]
    with torch.no_grad():
        assert torch.allclose(plain(tokens).logits, model(tokens), atol=1e-4)
    assert sum(f.stat().st_size for f in FOLDER.iterdir()) < 20e6
    assert not [f for f in FOLDER.iterdir() if f.suffix in (".pt", ".pth", ".bin", ".pkl")]


def test_nothing_is_folded_and_the_bridge_is_whole(model):
    assert not model.training and not any(p.requires_grad for p in model.parameters())
    assert (model.cfg.n_layers, model.cfg.n_heads, model.cfg.d_model, model.cfg.attn_only) == (4, 8, 128, False)
    engine_weights = cl.Engine(model, cl.ioi(model, n=2)).weights
    assert engine_weights.layers[0].ln1[0].std() > 0
    assert torch.equal(engine_weights.W_U, engine_weights.W_E.T)


def test_the_shipped_log_is_of_the_shipped_recipe():
    rows = [json.loads(line) for line in (FOLDER / "training_log.jsonl").read_text("utf8").splitlines()]
    recipe = RECIPES["gpt-mini"]
    assert rows[-1]["step"] == recipe.steps
    for row in rows:
        assert recipe.at(row["step"] - 1)[0].name == row["stage"]
        for score in (
            "previous_token",
            "induction",
            "duplicate_token",
            "ioi_name_mover",
            "ioi_s_inhibition",
            "greater_than_year_mover",
        ):
            assert np.shape(row[score]) == (4, 8)
