"""What gpt-mini reads: stories in which exactly one person is named once, spans of years, and nothing that is held out."""

from __future__ import annotations

import json
import random
from collections import Counter

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import circuitlib as cl
from circuitlib.models.training.data import Batch, Spread
from circuitlib.models.training.export import export
from circuitlib.models.training.guide import STORY_GUIDE, guidance_loss
from circuitlib.models.training.recipes import RECIPES
from circuitlib.models.training.stories import (
    is_held_out_couple,
    is_held_out_scene,
    is_held_out_span,
    span_batch,
    span_pieces,
    span_template,
    story_batch,
    story_pieces,
    story_template,
)
from circuitlib.models.training.train import Recipe, Stage, train, weighted_loss
from circuitlib.models.training.transformer import Transformer
from circuitlib.models.words import EVENTS, PEOPLE, PLACES, THINGS

SHAPE = {"n_layers": 4, "n_heads": 8, "d_model": 16, "d_head": 2, "n_ctx": 64, "d_mlp": 24, "tied": True}
TINY = Recipe(
    name="tiny",
    shape=SHAPE,
    gated=("story", "span"),
    guided=STORY_GUIDE,
    closed=((0, 0), (1, 3)),
    measure=RECIPES["gpt-mini"].measure,
    stages=(
        Stage("solve", 3, (1e-2, 1e-2), length=32, repeats=2, stories=4, spans=4, guidance=0.2, gates="fixed", from_corrupted=True),
        Stage("gates", 3, (1e-2, 1e-3), length=32, repeats=2, stories=4, spans=4, gates="learn", open_cost=0.1, two_runs=True),
    ),
    log_every=2,
)  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer():
    return cl.load_model("gpt-mini").tokenizer


def words(text: str) -> list[str]:
    return text.replace(",", "").replace(".", "").split()


def test_the_receiver_is_the_one_person_named_once():
    rng = random.Random(0)
    firsts = Counter()
    for _ in range(400):
        pieces = story_pieces(*story_template(rng), rng)
        *story, answer = words("".join(text for text, _ in pieces))
        mentions = [word for word in story if word in PEOPLE]
        assert [name for name, n in Counter(mentions).items() if n == 1] == [answer]
        assert pieces[-1] == (f" {answer}", 1.0) and story[-1] == "to"
        firsts[(mentions.index(answer), len(set(mentions)))] += 1
    # wherever the receiver is named, and among two or three people: no place gives the answer away
    assert (
        min(firsts[key] for key in ((0, 2), (1, 2), (0, 3), (1, 3))) > 15
        and sum(n for (i, _), n in firsts.items() if i > 1) > 15
    )


def test_nothing_held_out_is_in_a_training_story():
    rng = random.Random(1)
    for _ in range(400):
        story = words("".join(text for text, _ in story_pieces(*story_template(rng), rng)))
        people = sorted({word for word in story if word in PEOPLE})
        assert not any(is_held_out_couple(a, b) for a in people for b in people if a != b)
        places, things = ([w for w in story if w in names] for names in (PLACES, THINGS))
        assert len(set(places)) == 1 and not any(is_held_out_scene(places[0], thing) for thing in things)
    share = np.mean([is_held_out_couple(a, b) for a in PEOPLE for b in PEOPLE if a != b])
    assert 0.08 < share < 0.12 and is_held_out_couple("Mary", "Paul") == is_held_out_couple("Paul", "Mary")
    assert 0.08 < np.mean([is_held_out_scene(a, b) for a in PLACES for b in THINGS]) < 0.12


def test_in_a_corrupted_story_everybody_is_named_once():
    for seed in range(100):
        rng = random.Random(seed)
        template = story_template(rng)
        clean, corrupted = ("".join(t for t, _ in story_pieces(*template, rng, bad)[:-1]) for bad in (False, True))
        mentions = [word for word in words(corrupted) if word in PEOPLE]
        assert len(set(mentions)) == len(mentions) == sum(word in PEOPLE for word in words(clean)) >= 3
        assert len(words(clean)) == len(words(corrupted))


def test_spans_end_later_and_none_is_held_out():
    rng, seen = random.Random(2), 0
    for _ in range(400):
        text = "".join(t for t, _ in span_pieces(span_template(rng), rng))
        numbers = [w for w in words(text) if w.isdigit()]
        events = [w for w in words(text) if w in EVENTS]
        for event, begin, end in zip(events, numbers[::2], numbers[1::2], strict=True):
            assert begin[:2] == end[:2] and int(end) > int(begin)
            assert not is_held_out_span(event, int(begin[:2]), int(begin[2:]))
            seen += 1
    assert seen > 450
    share = np.mean([is_held_out_span(e, c, y) for e in EVENTS for c in range(11, 18) for y in range(2, 99)])
    assert 0.08 < share < 0.12


def test_a_tenth_of_the_spans_can_begin_in_01():
    begins = []
    for seed in range(500):
        rng = random.Random(seed)
        text = "".join(
            t for t, _ in span_pieces(["The {event} went on from {century}{year} until {century}"], rng, from_01=True)
        )
        begins.append([w for w in words(text) if w.isdigit()][0][2:])
    assert 0.06 < begins.count("01") / 500 < 0.14


def test_the_target_of_a_span_is_every_later_year(tokenizer):
    batch = span_batch(tokenizer, random.Random(0), 6, 2)
    spread = batch.spread
    assert len(spread.row) >= 12 and torch.allclose(spread.probability.sum(-1), torch.ones(len(spread.row)))
    for row, pos, probability in zip(spread.row, spread.pos, spread.probability, strict=True):
        text = [tokenizer.decode(token).strip() for token in batch.tokens[row]]
        begin = max(i for i in range(pos) if text[i] == text[pos])  # the same century before
        later = [y for y in range(100) if y > int(text[begin + 1])]
        assert sorted(int(tokenizer.decode(t)) for t in probability.nonzero().flatten()) == later
        assert len(set(probability[probability > 0].tolist())) == 1
        assert batch.weight[row, pos + 1] == 0 and int(text[pos + 1]) in later


def test_a_spread_target_counts_like_a_token_of_weight_one():
    logits, tokens = torch.randn(1, 3, 7), torch.tensor([[1, 2, 3]])
    target = torch.tensor([[0.0, 0.5, 0.5, 0, 0, 0, 0]])
    spread = Spread(torch.tensor([0]), torch.tensor([1]), target)
    batch = Batch(tokens, torch.tensor([[0.0, 3.0, 0.0]]), torch.zeros(1), spread=spread)
    log_p = logits[0].log_softmax(-1)
    by_hand = (-3 * log_p[0, 2] - 0.5 * log_p[1, 1] - 0.5 * log_p[1, 2]) / 4
    assert weighted_loss(logits, batch).item() == pytest.approx(by_hand.item(), rel=1e-5)


def test_lookups_of_a_story(tokenizer):
    """From every name that was named before to its last mention; from the end to those, and to the one named once."""
    batch = story_batch(tokenizer, random.Random(3), 8, 2)
    for row, tokens in enumerate(batch.tokens):
        text = [tokenizer.decode(token).strip() for token in tokens]
        at = [i for i, word in enumerate(text) if word in PEOPLE]
        end, answer = at[-1] - 1, text[at[-1]]
        again = [i for i in at[:-1] if text[i] in text[:i]]
        mine = {role: where[where[:, 0] == row][:, 1:].tolist() for role, where in batch.lookups.items()}
        assert mine["inhibition"] == [[end, i] for i in again] and again
        assert mine["name_mover"] == [[end, text.index(answer)]]
        assert [i for i, _ in mine["duplicate"]] == again
        for i, key in mine["duplicate"]:
            assert text[key] == text[i] and text[i] not in text[key + 1 : i]


def test_guidance_falls_when_heads_look_where_they_are_shown(tokenizer):
    torch.manual_seed(0)
    model, batch = Transformer(d_vocab=len(tokenizer), **SHAPE), story_batch(tokenizer, random.Random(0), 2, 2)
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=1e-2), []
    for _ in range(15):
        losses.append(guidance_loss(model, model.run(batch.tokens)[0], batch.lookups, STORY_GUIDE))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.7 * losses[0]


def test_a_killed_run_ends_with_the_same_weights(tokenizer, tmp_path):
    stream = np.arange(5, 2000, dtype=np.uint16)
    whole = train(TINY, tokenizer, stream, tmp_path / "whole", seed=3)
    train(TINY, tokenizer, stream, tmp_path / "killed", seed=3, stop_at=5)
    resumed = train(TINY, tokenizer, stream, tmp_path / "killed", seed=3)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    row = json.loads((tmp_path / "whole" / "log.jsonl").read_text().splitlines()[0])
    assert "a0.0" not in row["open_story"] and "a0.1" in row["open_story"] and len(row["open_span"]) == 32


def test_a_run_becomes_a_gpt2_that_computes_the_same(tokenizer, tmp_path):
    from transformers import AutoModelForCausalLM

    model = train(TINY, tokenizer, np.arange(5, 2000, dtype=np.uint16), tmp_path / "run", seed=1)
    export(TINY, tokenizer, tmp_path / "run", tmp_path / "shipped")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "shipped").eval()
    tokens = torch.randint(3, len(tokenizer), (2, 20))
    with torch.no_grad():
        assert torch.allclose(plain(tokens).logits, model(tokens), atol=1e-4)
    assert load_file(tmp_path / "run" / "checkpoint.safetensors")["gates"].shape == (2, 4, 8)
