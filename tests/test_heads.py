"""What heads do: scores against naive loops, attribution against the metric, weights against TransformerLens."""

from __future__ import annotations

import dataclasses

import pytest
import shells
import torch

import circuitlib as cl
from circuitlib import heads
from circuitlib.heads import attention_between, attention_patterns, head_effects, out_edges, repeated_tokens


@pytest.fixture(scope="module")
def model():
    return cl.load_model("docstring-4l")


@pytest.fixture(scope="module")
def task(model):
    return cl.docstring(model, n=6)


@pytest.fixture(scope="module")
def gpt():
    """A small random GPT-2 with MLPs, and a task for it."""
    model = shells.gpt2(seed=7)
    return model, shells.random_task(model, n=4)


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


def by_hooks(model, task):
    """The clean run through TransformerLens, and for each sender what it writes: a dictionary of [n, pos, d_model]."""
    with torch.no_grad():
        logits, cache = model.run_with_cache(task.clean)
        out = {"embed": cache["hook_embed"] + cache["hook_pos_embed"]}
        for layer, block in enumerate(model.blocks):
            for head in range(model.cfg.n_heads):
                out[f"a{layer}.{head}"] = cache["z", layer][:, :, head] @ block.attn.W_O[head]
    return logits, cache, out


def test_head_attribution_sums_to_the_attribution_of_the_head(model, task):
    heads = cl.direct_logit_attribution(model, task).heads
    for layer, head in ((0, 6), (2, 3), (3, 6), (3, 0)):
        parts = cl.head_attribution(model, task, f"a{layer}.{head}")
        assert parts.total == pytest.approx(heads[layer, head].item(), abs=1e-4)
        assert float(parts.values.sum()) + parts.biases == pytest.approx(parts.total, abs=1e-4)
        assert parts.senders == ("embed", *(f"a{i}.{j}" for i in range(layer) for j in range(8)))


def test_head_attribution_by_a_naive_loop(model, task):
    """One sender at one position, prompt by prompt: its share of the value, seen by the logits through two fixed scales."""
    logits, cache, out = by_hooks(model, task)
    layer, head, sender, position = 3, 4, "a0.5", task.position("comma_C")
    attn, total = model.blocks[layer].attn, 0.0
    for i in range(len(task)):
        wrong = max(task.distractors[i].tolist(), key=lambda token: logits[i, -1, token].item())
        x = out[sender][i, position]
        read = (x - x.mean()) / cache[f"blocks.{layer}.ln1.hook_scale"][i, position] * model.blocks[layer].ln1.weight
        written = cache["pattern", layer][i, head, -1, position] * (read @ attn.W_V[head] @ attn.W_O[head])
        seen = (written - written.mean()) / cache["ln_final.hook_scale"][i, -1] * model.ln_final.weight
        total += (seen @ (model.W_U[:, task.answers[i]] - model.W_U[:, wrong])).item()
    parts = cl.head_attribution(model, task, f"a{layer}.{head}")
    measured = parts.values[parts.senders.index(sender), position].item()
    assert measured == pytest.approx(total / len(task), abs=1e-4)
    assert abs(measured) > 0.1


def test_head_attribution_with_several_read_positions_and_without_layer_norm():
    model = cl.load_model("handmade-docstring")
    task = cl.default_task(model, n=4)
    both = cl.Task(
        "two",
        task.clean,
        task.corrupted,
        torch.stack([task.answers, task.answers], 1),
        torch.stack([task.distractors, task.distractors], 1),
        task.positions,
        (task.position("param_2"), task.position("param_3")),
    )
    for which in (task, both):
        parts, heads = cl.head_attribution(model, which, "a2.0"), cl.direct_logit_attribution(model, which).heads
        assert parts.total == pytest.approx(heads[2, 0].item(), abs=1e-4)
        assert float(parts.values.sum()) + parts.biases == pytest.approx(parts.total, abs=1e-4)
    parts = cl.head_attribution(model, task, "a2.0")
    assert divmod(int(parts.values.argmax()), parts.values.shape[1]) == (0, task.position("C_def"))


def test_head_attribution_of_a_model_with_mlps(gpt):
    model, task = gpt
    parts, heads = cl.head_attribution(model, task, "a1.1"), cl.direct_logit_attribution(model, task).heads
    assert parts.senders == tuple(cl.Graph(model).senders[: cl.Graph(model).slot_of("a1.1.v").n_upstream])
    assert "m0" in parts.senders
    assert parts.total == pytest.approx(heads[1, 1].item(), abs=1e-4)
    assert float(parts.values.sum()) + parts.biases == pytest.approx(parts.total, abs=1e-4)


@pytest.mark.parametrize(("head", "ablation"), [("a3.6", "corrupted"), ("a2.3", "mean"), ("a0.5", "zero")])
def test_self_repair_by_hooks(model, task, head, ablation):
    """The ablated run through TransformerLens's hooks; the direct effects read off its cache."""
    engine, (layer, at) = cl.Engine(model, task, ablation=ablation), map(int, head[1:].split("."))
    logits, cache, out = by_hooks(model, task)
    with torch.no_grad():
        _, corrupted = model.run_with_cache(task.corrupted)
        stand_in = {
            "corrupted": corrupted["z", layer][:, :, at],
            "mean": corrupted["z", layer][:, :, at].mean(0),
            "zero": torch.tensor(0.0),
        }[ablation]

        def hook(z, hook):
            z = z.clone()
            z[:, :, at] = stand_in
            return z

        with model.hooks(fwd_hooks=[(f"blocks.{layer}.attn.hook_z", hook)]):
            new_logits, new_cache, new_out = by_hooks(model, task)
        wrong = task.distractors.gather(1, logits[:, -1].gather(1, task.distractors).argmax(1, keepdim=True))[:, 0]
        direction = model.ln_final.weight * (model.W_U.T[task.answers] - model.W_U.T[wrong])
        direction = (direction - direction.mean(-1, keepdim=True)) / cache["ln_final.hook_scale"][:, -1]
        lost = {name: ((out[name] - new_out[name])[:, -1] * direction).sum(-1).mean().item() for name in out}
        same_rival = (
            new_logits[:, -1].gather(1, torch.stack([task.answers, wrong], 1)) @ torch.tensor([1.0, -1])
        ).mean()
        m_old, m_new = task.metric(logits).mean(), task.metric(new_logits).mean()
    parts = cl.self_repair(engine, [head])
    assert parts.total == pytest.approx((m_old - m_new).item(), abs=1e-3)
    assert parts.own == pytest.approx(lost.pop(head), abs=1e-3)
    for i in range(4):
        for j in range(8):
            assert parts.heads[i, j].item() == pytest.approx(lost.get(f"a{i}.{j}", 0), abs=1e-3)
    assert parts.rival == pytest.approx((same_rival - m_new).item(), abs=1e-3) and parts.rival > 0
    assert parts.own + float(parts.heads.sum()) + parts.scale + parts.rival == pytest.approx(parts.total, abs=1e-3)


def test_self_repair_of_a_model_with_mlps_and_of_several_senders(gpt):
    model, task = gpt
    parts = cl.self_repair(cl.Engine(model, task), ["a0.1", "m0", "a1.0"])
    assert parts.heads[0, 1] == parts.mlps[0] == parts.heads[1, 0] == 0 and abs(parts.mlps[1]) > 1e-4
    sums = parts.own + float(parts.heads.sum() + parts.mlps.sum()) + parts.scale + parts.rival
    assert sums == pytest.approx(parts.total, abs=1e-4)


def test_without_layer_norm_there_is_no_scale_to_repair():
    model = cl.load_model("handmade-docstring")
    parts = cl.self_repair(cl.Engine(model, cl.default_task(model, n=5)), ["a2.0"])
    assert parts.scale == pytest.approx(0, abs=1e-4) and parts.own > 5 and not parts.heads.any()


def test_ov_circuit_by_a_naive_loop(model):
    tokens, W = torch.tensor([5, 300, 1999]), model.blocks
    logits = cl.ov_circuit(model, [["a0.5", "a0.4"], "a3.6"], tokens)
    with torch.no_grad():
        for row, token in zip(logits, tokens.tolist(), strict=True):
            x = W[0].ln1(model.W_E[token][None])[0]
            x = sum(x @ W[0].attn.W_V[head] @ W[0].attn.W_O[head] for head in (4, 5))
            x = (x - x.mean()) * W[3].ln1.weight
            x = x @ W[3].attn.W_V[6] @ W[3].attn.W_O[6]
            assert torch.allclose(row, ((x - x.mean()) * model.ln_final.weight) @ model.W_U, atol=1e-3)


def test_ov_copying_counts_the_rows_of_the_ov_circuit_that_are_right(model):
    tokens = torch.arange(100, 140)
    for after in ((), ("a0.5", "a0.4")):
        scores = cl.ov_copying(model, tokens, after=after)
        assert scores[0].isnan().all() == bool(after)
        for layer, head in ((1, 3), (3, 6)):
            path = [after, f"a{layer}.{head}"] if after else [f"a{layer}.{head}"]
            rows = cl.ov_circuit(model, path, tokens)
            right = sum(int(row.argmax()) == token for row, token in zip(rows, tokens.tolist(), strict=True))
            assert scores[layer, head].item() == pytest.approx(right / 40)


def test_ov_circuit_of_a_mover_that_is_known():
    model = cl.load_model("handmade-docstring")
    task = cl.default_task(model, n=5)
    names = task.answers
    logits = cl.ov_circuit(model, ["a2.0"], names)
    assert torch.allclose(logits, 10 * torch.nn.functional.one_hot(names, logits.shape[1]).float(), atol=1e-4)
    assert cl.ov_copying(model, names)[2].tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, t: cl.head_attribution(m, t, "a4.0"), "head: expected a head from a0.0 to a3.7, got 'a4.0'"),
        (lambda m, t: cl.ov_circuit(m, []), "path: expected heads, side by side only within one layer, got []"),
        (lambda m, t: cl.ov_circuit(m, [["a0.1", "a1.1"]]), "side by side only within one layer"),
        (lambda m, t: cl.ov_circuit(m, ["a1.1", "a1.2"]), "path: expected each head in a later layer"),
        (lambda m, t: cl.ov_circuit(m, ["m0"]), "path: expected a head from a0.0 to a3.7, got 'm0'"),
        (lambda m, t: cl.ov_copying(m, after=["a0.9"]), "after: expected a head from a0.0 to a3.7, got 'a0.9'"),
        (lambda m, t: cl.self_repair(cl.Engine(m, t), ["a9.9"]), "senders: 'a9.9' does not exist"),
        (lambda m, t: cl.self_repair(cl.Engine(m, t, direction="denoising"), ["a0.0"]), "engine: expected one that is"),
        (lambda m, t: cl.direct_logit_attribution(m, logprob(t)), "whose metric is a logit difference, got 'logprob'"),
    ],
)
def test_bad_input_to_attribution_is_one_clear_line(model, task, call, message):
    with pytest.raises(ValueError) as error:
        call(model, task)
    assert message in str(error.value) and "\n" not in str(error.value)


def logprob(task):
    return dataclasses.replace(task, metric_name="logprob")


def test_a_sender_that_is_named_twice_is_ablated_once(model, task):
    engine = cl.Engine(model, task)
    once, twice = cl.self_repair(engine, ["a0.5"]), cl.self_repair(engine, ["a0.5", "a0.5"])
    assert (once.own, once.scale, once.total) == (twice.own, twice.scale, twice.total)
    with pytest.raises(ValueError, match="^senders: expected a list of names, got the single text 'a0.5'"):
        cl.self_repair(engine, "a0.5")


def test_effects_of_a_task_that_differs_in_nothing_are_refused(model, task):
    same = dataclasses.replace(task, corrupted=task.clean)
    with pytest.raises(ValueError, match="^task: the metric is .* with all edges and with none"):
        cl.head_effects(cl.Engine(model, same))


def test_copying_is_counted_in_parts_as_in_one(model, monkeypatch):
    tokens = torch.arange(40, 73)
    whole = cl.ov_copying(model, tokens)
    monkeypatch.setattr(heads, "AT_ONCE", 8)
    assert torch.equal(cl.ov_copying(model, tokens), whole) and whole.unique().numel() > 2
