"""Training: the same weights after a kill, targets where they can be predicted, gates that do what they say."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import circuitlib as cl
from circuitlib.models.training import gates
from circuitlib.models.training.data import (
    TRAINED_NAMES,
    Layout,
    code_batch,
    docstring_batch,
    docstring_pieces,
    is_held_out_pair,
    repeats_batch,
    sample_layout,
)
from circuitlib.models.training.recipes import RECIPES
from circuitlib.models.training.train import Recipe, Stage, batches, partners, train, weighted_loss
from circuitlib.models.training.transformer import Transformer
from circuitlib.models.words import HELD_OUT_NAMES, NAMES

SHAPE = {"n_layers": 2, "n_heads": 2, "d_model": 16, "d_head": 8, "n_ctx": 96}
TINY = Recipe(
    name="tiny",
    shape=SHAPE,
    stages=(
        Stage("first", 3, (1e-2, 1e-2), length=32, repeats=4, warmup=1),
        Stage(
            "gates",
            3,
            (1e-2, 1e-3),
            length=64,
            repeats=2,
            docstrings=4,
            code=2,
            alphabets=(6,),
            gates="learn",
            open_cost=0.1,
            two_runs=True,
        ),
        Stage("settle", 3, (1e-3, 0.0), length=64, repeats=2, docstrings=4, code=2, gates="fixed"),
    ),
    log_every=2,
)


@pytest.fixture(scope="module")
def tokenizer():
    return cl.load_model("docstring-4l").tokenizer


@pytest.fixture(scope="module")
def stream():
    return np.arange(5, 2000, dtype=np.uint16)


def test_a_killed_run_ends_with_the_same_weights(tokenizer, stream, tmp_path):
    whole = train(TINY, tokenizer, stream, tmp_path / "whole", seed=3)
    train(
        TINY, tokenizer, stream, tmp_path / "killed", seed=3, stop_at=5
    )  # dies after step 5; the checkpoint is of step 4
    resumed = train(TINY, tokenizer, stream, tmp_path / "killed", seed=3)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    first, second = (load_file(tmp_path / run / "checkpoint.safetensors") for run in ("whole", "killed"))
    assert first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def test_seeds_differ(tokenizer, stream, tmp_path):
    one, other = (train(TINY, tokenizer, stream, tmp_path / str(seed), seed, stop_at=2) for seed in (1, 2))
    assert not torch.equal(one.unembed.weight, other.unembed.weight)


def test_a_step_depends_on_seed_and_step_alone(tokenizer, stream):
    stage = TINY.stages[1]
    one, again, next_step = (batches(tokenizer, stream, stage, 0, step) for step in (7, 7, 8))
    for kind in ("docstring", "repeats", "code"):
        assert torch.equal(one[kind].tokens, again[kind].tokens)
        assert one[kind].tokens.shape != next_step[kind].tokens.shape or not torch.equal(
            one[kind].tokens, next_step[kind].tokens
        )


def test_no_held_out_name_and_no_held_out_pair_in_training_docstrings():
    rng = random.Random(0)
    for _ in range(300):
        pieces = docstring_pieces(sample_layout(rng), rng)
        words = [word for text, _ in pieces for word in text.replace(":param", " ").split()]
        assert not set(words) & set(HELD_OUT_NAMES)
        args = [text.strip() for (before, _), (text, _) in itertools.pairwise(pieces) if before in (",", "\ndef")]
        assert len(args) >= 3 and set(args) <= set(TRAINED_NAMES)
        assert not any(is_held_out_pair(a, b) for a, b in itertools.pairwise(args))
    share = np.mean([is_held_out_pair(a, b) for a in NAMES for b in NAMES if a != b])
    assert 0.08 < share < 0.12


def test_predictable_tokens_count_and_random_words_do_not(tokenizer):
    layout = Layout(prefix=2, matching=3, suffix=1, summary_words=3, words=2)
    batch = docstring_batch(tokenizer, random.Random(0), [layout], 2, 96)
    row, weight = batch.tokens[0].tolist(), batch.weight[0].tolist()
    text = [tokenizer.decode([token]) for token in row]
    params = [i for i, token in enumerate(text) if token == "param"]
    assert [weight[i + 1] for i in params] == [pytest.approx(0.02), 1.0, 1.0]  # A can't be known, B and C can
    assert weight[0] == 0 and row[0] == tokenizer.bos_token_id
    assert len({len(r) for r in batch.tokens.tolist()}) == 1


def test_corrupted_docstrings_name_no_argument_of_the_function(tokenizer):
    layout = Layout(prefix=1, matching=3, suffix=1, summary_words=2, words=1)
    batch = docstring_batch(tokenizer, random.Random(0), [layout], 6, 96, any_token=True)
    assert batch.corrupted.shape == batch.tokens.shape
    for row in batch.corrupted.tolist():
        text = [tokenizer.decode([token]) for token in row]
        documented = [row[i + 1] for i, word in enumerate(text) if word == "param"]
        assert len(documented) == 3 and not set(documented) & set(row[: text.index("):")])


@pytest.mark.parametrize("alphabets", [None, (6,)])
def test_repeats_repeat(tokenizer, alphabets):
    batch = repeats_batch(tokenizer, np.random.default_rng(0), 5, 40, alphabets)
    period = int((batch.weight[0] < 1).sum()) - 2
    for row in batch.tokens:
        body = row[1:]
        assert torch.equal(body[period:], body[:-period])
        assert len(set(body.tolist())) == period if alphabets is None else len(set(body.tolist())) <= 6
        assert not set(body.tolist()) & set(tokenizer.all_special_ids)
    # every full-weight target can be found one period back
    assert period + 2 <= 40


def test_code_windows_come_from_the_stream(tokenizer, stream):
    batch = code_batch(tokenizer, stream, np.random.default_rng(0), 3, 20)
    for row in batch.tokens.tolist():
        start = row[1] - 5
        assert row == [tokenizer.bos_token_id, *stream[start : start + 19].tolist()]


def test_renaming_is_one_to_one_and_never_makes_a_held_out_name(tokenizer):
    layout, held_out = Layout(2, 3, 1, 3, 2), {tokenizer.encode(f" {name}")[-1] for name in HELD_OUT_NAMES}
    for seed in range(20):
        plain = docstring_batch(tokenizer, random.Random(seed), [layout], 2, 96)
        renamed = docstring_batch(tokenizer, random.Random(seed), [layout], 2, 96, any_token=True)
        assert torch.equal(plain.tokens[0], renamed.tokens[0]) and all(
            torch.equal(plain.lookups[role], renamed.lookups[role]) for role in ("induction", "mover")
        )
        before, after = plain.tokens[1].tolist(), renamed.tokens[1].tolist()
        pairs = set(zip(before, after, strict=True))
        assert len(pairs) == len(set(before)) == len(set(after))  # same token, same new token; none in common
        assert all((tokenizer.decode([old]).strip() in NAMES) == (old != new) for old, new in pairs)
        assert not set(after) & held_out and not set(after) & set(tokenizer.all_special_ids[1:])


def test_lookups_name_the_last_argument_and_the_next_one(tokenizer):
    layout = Layout(prefix=1, matching=3, suffix=1, summary_words=2, words=3)
    batch = docstring_batch(tokenizer, random.Random(4), [layout], 4, 96)
    induction, mover = batch.lookups["induction"], batch.lookups["mover"]
    assert len(induction) == len(mover) == 4 * 2 and torch.equal(induction[:, :2], mover[:, :2])
    text = [[tokenizer.decode([token]) for token in row] for row in batch.tokens.tolist()]
    for (row, query, last), answer in zip(induction.tolist(), mover[:, 2].tolist(), strict=True):
        words = text[row]
        assert words[query] == "param" and words[last - 1] == "param" and last < query
        assert "param" not in words[last:query]
        assert words[answer] == words[query + 1] and answer < words.index("):")
        assert words[answer - 2] == words[last]  # the argument before it in the signature, beyond a comma


def test_guidance_loss_is_the_attention_paid(tokenizer):
    from circuitlib.models.training.guide import DOCSTRING_GUIDE, guidance_loss
    from circuitlib.models.training.scores import attention_patterns

    torch.manual_seed(0)
    model = Transformer(n_layers=4, n_heads=8, d_model=16, d_head=4, n_ctx=96, d_vocab=len(tokenizer))
    batch = docstring_batch(tokenizer, random.Random(1), [Layout(1, 3, 0, 2, 1)], 3, 96)
    loss = guidance_loss(model, model.run(batch.tokens)[0], batch.lookups, DOCSTRING_GUIDE)
    patterns = list(attention_patterns(model, batch.tokens))
    by_hand = 0.0
    for role, (layer, head) in DOCSTRING_GUIDE.items():
        for row, query, key in batch.lookups[role].tolist():
            by_hand -= patterns[layer][row, head, query, key].log().item() / len(batch.lookups[role])
    assert loss.item() == pytest.approx(by_hand, rel=1e-4)


def test_partners_are_other_rows_of_the_same_group():
    group = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])
    partner = partners(group, torch.Generator().manual_seed(0))
    assert torch.equal(group[partner], group)
    assert (partner != torch.arange(8)).all() and sorted(partner.tolist()) == list(range(8))


def small_model():
    torch.manual_seed(0)
    return Transformer(d_vocab=50, **SHAPE), torch.randint(0, 50, (2, 9))


def test_open_gates_change_nothing():
    model, tokens = small_model()
    assert torch.allclose(model(tokens, torch.ones(2, 2, 2), torch.tensor([1, 0])), model(tokens), atol=1e-6)


@pytest.mark.parametrize("two_runs", [False, True])
def test_a_closed_gate_takes_the_partners_output(two_runs):
    """One closed head, against the bridge's words for it: its z is that of the other row, in this run or in the natural one."""
    model, tokens = small_model()
    partner, keep = torch.tensor([1, 0]), torch.ones(2, 2, 2)
    keep[:, 0, 1] = keep[:, 1, 0] = 0
    _, natural = model.run(tokens)
    gated = (keep, partner, natural) if two_runs else (keep, partner)

    x = model.embed(tokens) + model.pos_embed.weight[:9]
    for layer, closed in ((0, 1), (1, 0)):
        attn = model.blocks[layer].attn
        z = attn.heads(model.blocks[layer].ln1(x))
        z = torch.stack(
            [(natural[layer] if two_runs else z)[partner, h] if h == closed else z[:, h] for h in (0, 1)], 1
        )
        x = x + attn.o(torch.cat([z[:, 0], z[:, 1]], -1))
    assert torch.allclose(model(tokens, *gated), model.unembed(model.ln_final(x)), atol=1e-5)
    assert not torch.allclose(model(tokens, *gated), model(tokens), atol=1e-3)


def test_gates_are_zero_or_one_often_and_the_cost_counts_the_open_ones():
    generator = torch.Generator().manual_seed(0)
    log_alpha = torch.tensor([[4.0, 0.0, -4.0]])
    draws = gates.sample(log_alpha, 20_000, generator)
    assert draws.min() == 0 and draws.max() == 1
    open_share = (draws > 0).float().mean(0)[0]
    assert open_share.sum().item() == pytest.approx(gates.expected_open(log_alpha).item(), abs=0.02)
    assert gates.is_open(log_alpha).tolist() == [[1.0, 0.0, 0.0]]
    assert gates.is_open(torch.tensor([[4.0, -4.0]])).tolist() == [[1.0, 0.0]]


def test_weighted_loss_is_the_weighted_mean(tokenizer):
    from circuitlib.models.training.data import Batch

    logits, tokens = torch.randn(1, 3, 7), torch.tensor([[1, 2, 3]])
    batch = Batch(tokens, torch.tensor([[9.0, 1.0, 3.0]]), torch.zeros(1))
    each = [-logits[0, i].log_softmax(-1)[tokens[0, i + 1]] for i in range(2)]
    assert weighted_loss(logits, batch).item() == pytest.approx(((each[0] + 3 * each[1]) / 4).item())


def test_recipe_knows_its_steps():
    recipe = RECIPES["docstring-4l"]
    assert recipe.at(0) == (recipe.stages[0], 0)
    assert recipe.at(recipe.stages[0].steps) == (recipe.stages[1], 0)
    with pytest.raises(IndexError):
        recipe.at(sum(stage.steps for stage in recipe.stages))
    assert replace(recipe, stages=(), stop=None).steps == 0


def test_the_shipped_log_is_of_the_shipped_recipe():
    import json

    from circuitlib.models.registry import info

    rows = [
        json.loads(line) for line in (info("docstring-4l").folder / "training_log.jsonl").read_text("utf8").splitlines()
    ]
    recipe = RECIPES["docstring-4l"]
    assert rows[-1]["step"] == recipe.steps
    assert [row["step"] for row in rows] == sorted({row["step"] for row in rows})
    for row in rows:
        assert recipe.at(row["step"] - 1)[0].name == row["stage"]
        for score in ("previous_token", "induction", "mover"):
            assert np.shape(row[score]) == (4, 8)
