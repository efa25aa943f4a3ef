"""What EAP costs next to plain passes of the same model, and how long every method takes: lines for ``benchmarks.discovery``."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from circuitlib.discovery import acdc, eap, eap_ig, exact
from circuitlib.engine import Engine

from .engine import best_of, docstring_4l, peak_mb, random_gpt2, random_task


def eap_lines() -> Iterator[str]:
    """EAP of all 32,491 edges of a GPT-2 small shape against two plain forward passes and one plain backward pass.

    The plain backward pass goes back to the embedding and leaves the weights' gradients out: the cheapest there is.
    """
    model = random_gpt2(12, 12, 768, 50257)
    task, hf = random_task(model, 8, 20), model.original_model
    model.requires_grad_(False)
    engine = Engine(model, task)

    def plain() -> None:
        hf(task.corrupted)
        with torch.enable_grad():
            start = hf.transformer.wte(task.clean).detach().requires_grad_()
            task.metric(hf(inputs_embeds=start).logits).sum().backward()

    def ours() -> None:
        engine._start_and_reference()  # the first of the two forward passes, which an engine makes once
        eap(engine)

    ours_s, plain_s = best_of(4, ours, plain)
    yield f"2. EAP of {engine.graph.n_edges:,} edges, 12 × 12 × 768, 8 × 20 tokens: {ours_s:.2f} s,"
    yield f"   two plain forwards and a plain backward {plain_s:.2f} s, ratio {ours_s / plain_s:.2f} (at most 1.5, aim 1.2);"
    yield f"   peak memory of this process so far {peak_mb():,.0f} MB (at most 4,096)"


def method_lines(n: int = 50) -> Iterator[str]:
    """Every method on the docstring task of ``docstring-4l``, 50 prompts; seconds on the clock."""
    from circuitlib.tasks import docstring

    model, _ = docstring_4l()
    engine = Engine(model, docstring(model, n=n))
    methods = {
        "exact": lambda: exact(engine),
        "EAP": lambda: eap(engine),
        "EAP-IG inputs, m = 5": lambda: eap_ig(engine),
        "EAP-IG activations, m = 5": lambda: eap_ig(engine, variant="activations"),
        "EAP-IG clean-corrupted": lambda: eap_ig(engine, variant="clean-corrupted"),
        "EAP per position": lambda: eap(engine, per_position=True),
        "ACDC, τ = 0.1": lambda: acdc(engine, threshold=0.1),
        "ACDC, KL, τ = 0.1": lambda: acdc(engine, threshold=0.1, metric="kl"),
        "EAP, then ACDC on the best 300": lambda: acdc(engine, threshold=0.1, start=eap(engine).top(300)),
    }
    yield f"3. All methods on the docstring task, {n} prompts (at most 300 s together):"
    total = 0.0
    for name, method in methods.items():
        start = time.perf_counter()
        found = method()
        seconds = time.perf_counter() - start
        total += seconds
        yield f"   {name:<31} {seconds:6.1f} s  {found.cost.forwards:>6,} forward, {found.cost.backwards:>2} backward"
    yield f"   together {total:.0f} s"
