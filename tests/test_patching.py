"""Activation patching, against patching by hand."""

from __future__ import annotations

import pytest
import torch

import circuitlib as cl


@pytest.fixture(scope="module")
def model():
    return cl.load_model("docstring-4l")


@pytest.fixture(scope="module")
def task(model):
    return cl.docstring(model, n=4)


def metric(task, logits):
    return task.metric(logits).mean()


def by_hand(model, task, name, mode, put):
    """M when ``put(activation, other)`` replaces one activation of the run by that of the other run."""
    base, other = (task.clean, task.corrupted) if mode == "noising" else (task.corrupted, task.clean)
    with torch.no_grad():
        _, cache = model.run_with_cache(other)
        logits = model.run_with_hooks(base, fwd_hooks=[(name, lambda value, hook: put(value.clone(), cache[name]))])
        return metric(task, logits)


@pytest.mark.parametrize("mode", ["noising", "denoising"])
def test_residual_stream_by_hand(model, task, mode):
    position = task.positions["C_def"]

    def put(value, other):
        value[:, position] = other[:, position]
        return value

    got = cl.activation_patching(model, task, "resid_pre", mode, normalize=False)
    assert got.shape == (4, 41)
    assert got[1, position].item() == pytest.approx(
        by_hand(model, task, "blocks.1.hook_resid_pre", mode, put).item(), abs=1e-4
    )


@pytest.mark.parametrize("site", ["z", "q", "k", "v", "pattern"])
@pytest.mark.parametrize("mode", ["noising", "denoising"])
def test_heads_by_hand(model, task, site, mode):
    layer, head = 0, 3

    def put(value, other):
        if site == "pattern":
            value[:, head] = other[:, head]
        else:
            value[:, :, head] = other[:, :, head]
        return value

    got = cl.activation_patching(model, task, site, mode, normalize=False)
    assert got.shape == (4, 8)
    assert got[layer, head].item() == pytest.approx(
        by_hand(model, task, f"blocks.{layer}.attn.hook_{site}", mode, put).item(), abs=1e-4
    )


@pytest.mark.parametrize(
    ("site", "at", "layer", "head"), [("z", "param_3", 1, 2), ("v", "comma_C", 3, 6), ("pattern", "param_3", 3, 6)]
)
def test_a_head_at_one_position(model, task, site, at, layer, head):
    position = task.positions[at]
    where = (slice(None), head, position) if site == "pattern" else (slice(None), position, head)

    def put(value, other):
        value[where] = other[where]
        return value

    got = cl.activation_patching(model, task, site, by_position=True, normalize=False)
    assert got.shape == (4, 41, 8)
    assert got[layer, position, head].item() == pytest.approx(
        by_hand(model, task, f"blocks.{layer}.attn.hook_{site}", "noising", put).item(), abs=1e-4
    )


@pytest.mark.parametrize("mode, sign", [("noising", -1), ("denoising", 1)])
def test_normalised_effect_runs_from_zero_to_one(model, task, mode, sign):
    with torch.no_grad():
        clean, corrupted = metric(task, model(task.clean)), metric(task, model(task.corrupted))
    raw = cl.activation_patching(model, task, "z", mode, normalize=False)
    base = clean if mode == "noising" else corrupted
    got = cl.activation_patching(model, task, "z", mode)
    assert torch.allclose(got, (raw - base) / (clean - corrupted), atol=1e-5)
    # the last residual stream at the last position is everything that the metric reads
    full = cl.activation_patching(model, task, "resid_pre", mode, normalize=False)[3, 40]
    layer_3 = cl.activation_patching(model, task, "attn_out", mode, normalize=False)[3, 40]
    assert torch.isfinite(full) and torch.isfinite(layer_3)
    everything = by_hand(model, task, "blocks.3.hook_resid_post", mode, lambda value, other: other)
    assert ((everything - base) / (clean - corrupted)).item() == pytest.approx(sign, abs=1e-4)


def test_positions_before_the_first_change_do_nothing(model, task):
    first = int((task.clean != task.corrupted).any(0).nonzero()[0])
    effects = cl.activation_patching(model, task, "resid_pre")
    assert effects[:, :first].abs().max() < 1e-5
    assert effects[0].abs().max() > 0.1


def test_another_metric(model, task):
    got = cl.activation_patching(model, task, "z", normalize=False, metric=lambda logits: logits[:, -1, 0])
    assert got.std() > 0


def test_no_progress_bar_and_no_hook_left(model, task, capfd):
    cl.activation_patching(model, task, "attn_out")
    assert capfd.readouterr() == ("", "")
    with pytest.raises(ZeroDivisionError):
        cl.activation_patching(model, task, "z", metric=lambda logits: 1 / 0)
    assert (
        not any(hooks for hooks in model.list_hooks().values())
        if isinstance(model.list_hooks(), dict)
        else not model.list_hooks()
    )


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"site": "residual"}, "site: 'residual' is unknown; choose one of: resid_pre"),
        ({"site": "mlp_out"}, "'mlp_out' does not exist in an attention-only model"),
        ({"mode": "noise"}, "mode: expected 'noising' or 'denoising', got 'noise'"),
        ({"by_position": False}, "position by position only"),
        (
            {"site": "z", "metric": lambda logits: logits.mean()},
            r"expected one number for each of 4 prompts, a tensor \[4\], got \[\]",
        ),
        ({"site": "z", "metric": lambda logits: logits[:, -1, 0] * torch.nan}, "metric: returned NaN"),
    ],
)
def test_bad_input_is_one_clear_line(model, task, arguments, message):
    with pytest.raises(ValueError, match=message):
        cl.activation_patching(model, task, **arguments)


def test_nothing_to_normalise(model, task):
    from dataclasses import replace

    same = replace(task, corrupted=task.clean)
    with pytest.raises(ValueError, match="same mean metric"):
        cl.activation_patching(model, same, "z")
    assert cl.activation_patching(model, same, "z", normalize=False).std() < 1e-5
