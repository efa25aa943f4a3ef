"""What heads do: scores against naive loops, attribution against the metric, weights against TransformerLens."""

from __future__ import annotations

import pytest
import torch

import circuitlib as cl
from circuitlib.heads import attention_between, attention_patterns, head_effects, out_edges, repeated_tokens


@pytest.fixture(scope="module")
def model():
    return cl.load_model("docstring-4l")


@pytest.fixture(scope="module")
def task(model):
    return cl.docstring(model, n=6)


def test_head_scores_by_a_naive_loop(model):
    period, n = 7, 3
    scores = cl.head_scores(model, n=n, period=period, seed=5)
    tokens = repeated_tokens(model, n, period, 5)
    patterns = attention_patterns(model, tokens)
    layer, head = 1, 4
    sums = {"previous_token": 0.0, "induction": 0.0, "duplicate_token": 0.0, "first_token": 0.0}
    for row in range(n):
        for query in range(period + 1, 2 * period + 1):
            attention = patterns[layer][row, head, query]
            assert tokens[row, query] == tokens[row, query - period]
            sums["previous_token"] += attention[query - 1].item()
            sums["induction"] += attention[query - period + 1].item()
            sums["duplicate_token"] += attention[query - period].item()
            sums["first_token"] += attention[0].item()
    for name, total in sums.items():
        assert scores[name][layer, head].item() == pytest.approx(total / (n * period), abs=1e-5), name


def test_attention_between_named_positions(model, task):
    between = attention_between(model, task)
    pattern = attention_patterns(model, task.clean)[2]
    q, k = task.positions["param_3"], task.positions["C_def"]
    assert torch.allclose(between("param_3", "C_def")[2], pattern[:, :, q, k].mean(0))
    with pytest.raises(ValueError, match="position 'nowhere' does not exist"):
        between("nowhere", "C_def")


def test_head_effects_are_what_patching_says(model, task):
    """Cutting all out-edges of a head is patching its output: an independent path through TransformerLens."""
    patched = cl.activation_patching(model, task, site="z", mode="noising")
    assert torch.allclose(head_effects(cl.Engine(model, task)), -patched, atol=1e-4)


def test_roles_play_what_they_are_named_for(model, task):
    roles, between, effects = (
        cl.roles(model, task),
        attention_between(model, task),
        head_effects(cl.Engine(model, task)),
    )
    assert roles.keys() == {"previous_token", "induction", "mover"}
    for name in roles["mover"]:
        layer, head = map(int, name[1:].split("."))
        assert between("param_3", "C_def")[layer, head] + between("param_3", "comma_C")[layer, head] >= 0.25
        assert effects[layer, head] >= 0.02
    assert all(len(heads) <= 3 for heads in roles.values())
    assert cl.roles(model, task, attention=1.1) == {"previous_token": [], "induction": [], "mover": []}


def test_roles_of_a_model_that_is_known():
    known = cl.load_model("handmade-docstring")
    roles = cl.roles(known, cl.default_task(known, n=10))
    assert roles == {"previous_token": ["a0.0"], "induction": ["a1.0"], "mover": ["a2.0"]}


def test_out_edges(model, task):
    graph = cl.Graph(model)
    assert len(out_edges(graph, "a3.0")) == 1 and len(out_edges(graph, "a2.0")) == 25
    assert len(out_edges(graph, "embed")) == 97


@pytest.mark.parametrize("name", ["docstring", "induction"])
def test_attribution_sums_to_the_logit_difference(model, name):
    task = getattr(cl, name)(model, n=8)
    parts = cl.direct_logit_attribution(model, task)
    with torch.no_grad():
        assert parts.total == pytest.approx(task.metric(model(task.clean)).mean().item(), abs=1e-3)
    assert parts.parts_sum() == pytest.approx(parts.total, abs=1e-3)


def test_attribution_of_the_last_layer_is_the_effect_of_a_direct_path(model, task):
    """A last-layer head only writes to the logits. With the LayerNorm's scale held fixed, removing it costs its attribution."""
    parts, head = (
        cl.direct_logit_attribution(model, task),
        int(cl.direct_logit_attribution(model, task).heads[3].argmax()),
    )
    with torch.no_grad():
        logits, cache = model.run_with_cache(task.clean)
        scale = cache["ln_final.hook_scale"][:, -1]
        residual = cache["resid_post", 3][:, -1]
        written = cache["z", 3][:, -1, head] @ model.blocks[3].attn.W_O[head]
        weight, bias = model.ln_final.weight, model.ln_final.bias

        def logits_of(x):
            return (((x - x.mean(-1, keepdim=True)) / scale.view(-1, 1)) * weight + bias) @ model.W_U + model.b_U

        full, without = logits_of(residual), logits_of(residual - written)
        assert torch.allclose(full, logits[:, -1], atol=1e-3)
        best = task.distractors.gather(1, full.gather(1, task.distractors).argmax(1, keepdim=True))
        change = (full - without).gather(1, task.answers[:, None]) - (full - without).gather(1, best)
    assert parts.heads[3, head].item() == pytest.approx(change.mean().item(), abs=1e-3)


def test_composition_agrees_with_transformer_lens_after_folding():
    folded = cl.load_model("docstring-4l")
    ours = {kind: cl.composition(folded, kind) for kind in "QKV"}
    folded.enable_compatibility_mode(disable_warnings=True)
    for kind, scores in ours.items():
        theirs = folded.all_composition_scores(kind)
        assert torch.allclose(scores, theirs.float(), atol=2e-3), kind


def test_a_head_that_copies_has_score_one():
    model = cl.load_model("docstring-4l")
    with torch.no_grad():  # head 0.0: a projection on the first d_head dimensions; tokens that are far apart there
        attn = model.blocks[0].attn
        state = model.state_dict()
        eye = torch.eye(32, 128)
        state["blocks.0.attn.v.weight"][:32] = eye
        state["blocks.0.attn.o.weight"][:, :32] = eye.T
        state["blocks.0.ln1.weight"].fill_(1.0)
        state["blocks.0.ln1.bias"].zero_()
        state["ln_final.weight"].fill_(1.0)
        embedding = torch.zeros(2048, 128)
        embedding[:32, :32] = torch.eye(32)
        state["embed.weight"].copy_(embedding)
        state["unembed.weight"].copy_(embedding)
        model.load_state_dict(state)
        assert attn.W_V.shape == (8, 128, 32)
    scores = cl.ov_copying(model, torch.arange(32))
    assert scores[0, 0] == 1.0 and scores.shape == (4, 8)


def test_bad_input_is_one_clear_line(model):
    with pytest.raises(ValueError, match="kind: expected 'Q', 'K' or 'V', got 'q'"):
        cl.composition(model, "q")
    with pytest.raises(ValueError, match="period: expected 2 to 47 for this model, got 99"):
        cl.head_scores(model, period=99)
