"""Activation patching: put one activation of one run into another run and see what the metric does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from unittest import mock

import torch
from jaxtyping import Float
from torch import Tensor

from .tasks import Task

# Site → (TransformerLens's sweep over whole sequences, its sweep position by position).
SWEEPS = {
    "resid_pre": (None, "get_act_patch_resid_pre"),
    "attn_out": (None, "get_act_patch_attn_out"),
    "mlp_out": (None, "get_act_patch_mlp_out"),
    "z": ("get_act_patch_attn_head_out_all_pos", "get_act_patch_attn_head_out_by_pos"),
    "q": ("get_act_patch_attn_head_q_all_pos", "get_act_patch_attn_head_q_by_pos"),
    "k": ("get_act_patch_attn_head_k_all_pos", "get_act_patch_attn_head_k_by_pos"),
    "v": ("get_act_patch_attn_head_v_all_pos", "get_act_patch_attn_head_v_by_pos"),
    "pattern": ("get_act_patch_attn_head_pattern_all_pos", "get_act_patch_attn_head_pattern_by_pos"),
}


def activation_patching(
    model,
    task: Task,
    site: str = "resid_pre",
    mode: str = "noising",
    by_position: bool | None = None,
    normalize: bool = True,
    metric: Callable[[Tensor], Tensor] | None = None,
    progress: bool = False,
) -> Float[Tensor, "layer pos"] | Float[Tensor, "layer head"] | Float[Tensor, "layer pos head"]:
    """Patch one activation at a time and measure the metric, with TransformerLens's own sweeps.

    Args:
        site: what is patched. ``resid_pre``, ``attn_out``, ``mlp_out``: one layer at one position → ``[layer, pos]``.
            ``z`` (the head's output), ``q``, ``k``, ``v``, ``pattern``: one head → ``[layer, head]``, or with
            ``by_position=True`` one head at one position → ``[layer, pos, head]`` (``pattern``: the query's position).
        mode: "noising" puts corrupted values into the clean run (is the activation necessary?), "denoising" clean values
            into the corrupted run (is it sufficient?).
        by_position: default: True for sites that are not heads.
        normalize: divide ``M(patched) − M(base)`` by ``M(clean) − M(corrupted)``: −1 in noising and +1 in denoising mean that
            patching this one place does as much as changing the whole prompt. ``False``: the raw metric.
        metric: logits ``[n, pos, d_vocab]`` → ``[n]``; default the task's.
        progress: show a progress bar.

    Heimersheim & Nanda, "How to use and interpret activation patching" (2024), section 2.
    """
    whole, positional = _sweeps(model, site, by_position)
    if mode not in ("noising", "denoising"):
        raise ValueError(f"mode: expected 'noising' or 'denoising', got {mode!r}")
    score = task.metric if metric is None else metric
    base, source = (task.clean, task.corrupted) if mode == "noising" else (task.corrupted, task.clean)

    with torch.no_grad(), _progress(progress):
        _, cache = model.run_with_cache(source, names_filter=_names_filter(site))
        patched = (whole or positional)(model, base, cache, lambda logits: _checked(score(logits), len(task)).mean())
        if not normalize:
            return patched
        m_clean, m_corrupted = (
            _checked(score(model(tokens)), len(task)).mean() for tokens in (task.clean, task.corrupted)
        )
    gap = m_clean - m_corrupted
    if gap.abs() < 1e-6:
        raise ValueError(
            "task: clean and corrupted prompts have the same mean metric, so nothing can be normalised (normalize=False)"
        )
    return (patched - (m_clean if mode == "noising" else m_corrupted)) / gap


def _sweeps(model, site: str, by_position: bool | None):
    """The TransformerLens sweep to run, as (over whole sequences, by position) with one of them None."""
    from transformer_lens import patching

    if site not in SWEEPS:
        raise ValueError(f"site: {site!r} is unknown; choose one of: {', '.join(SWEEPS)}")
    if site == "mlp_out" and model.cfg.attn_only:
        raise ValueError("site: 'mlp_out' does not exist in an attention-only model")
    whole, positional = SWEEPS[site]
    if whole is None and by_position is False:
        raise ValueError(f"by_position: {site!r} is patched position by position only")
    use_positions = whole is None if by_position is None else by_position
    return (None, getattr(patching, positional)) if use_positions else (getattr(patching, whole), None)


def _names_filter(site: str) -> Callable[[str], bool]:
    suffix = {"resid_pre": "hook_resid_pre", "attn_out": "hook_attn_out", "mlp_out": "hook_mlp_out"}.get(
        site, f"attn.hook_{site}"
    )
    return lambda name: name.endswith(suffix)


def _checked(values: Tensor, n: int) -> Tensor:
    if not isinstance(values, Tensor) or values.shape != (n,):
        got = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(f"metric: expected one number for each of {n} prompts, a tensor [{n}], got {got}")
    if values.isnan().any():
        raise ValueError("metric: returned NaN")
    return values


@contextmanager
def _progress(show: bool):
    """TransformerLens's sweeps always draw a bar; hide it unless it was asked for."""
    from transformer_lens import patching

    with mock.patch.object(patching, "tqdm", patching.tqdm if show else lambda rows: rows):
        yield
