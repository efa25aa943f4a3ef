"""How fast circuits are found: ``python -m benchmarks.discovery``.

Prints, for one run on this machine:

1. ACDC by guessing ahead against the plain loop with a whole forward pass for each edge, extrapolated from 300 edges,
   on ``docstring-4l`` (aim: at least 10 times faster at a mid threshold) and on a 6-layer GPT-2 shape (aim: 8 times);
   with the number of forward passes beside the bound of 2,269 that the ACDC repository's loop has on a graph of this shape.

2. EAP of all 32,491 edges of a GPT-2 small shape against two plain forward passes and one plain backward pass (at most
   1.5 times as long, aim 1.2), and peak memory (at most 4 GB);
3. all methods on the docstring task with 50 prompts (together at most 5 minutes), on the clock.

Times are CPU seconds of one thread, so that other work on the machine disturbs them little.
"""

from __future__ import annotations

import time
from itertools import chain

import torch

from circuitlib.discovery import AcdcCircuit, acdc, eap
from circuitlib.engine import Engine

from .attribution import eap_lines, method_lines
from .engine import docstring_4l, random_gpt2, random_task

PEERS_BOUND = 2_269  # forwards of ArthurConmy/Automatic-Circuit-Discovery on 4 layers × 8 heads if nothing is pruned


def main() -> None:
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, 1 thread")
    for line in chain(acdc_lines(), eap_lines(), method_lines()):
        print(line, flush=True)


def acdc_lines():
    """The lines about ACDC, as they are measured."""
    model, task = docstring_4l()
    yield "1. ACDC, guessing ahead, against the loop with a whole forward pass for each edge (extrapolated from 300 edges):"
    for threshold in (0.03, 0.1, 0.3):
        note = f"; their bound: {PEERS_BOUND:,}" if threshold == 0.1 else ""
        yield from compare_acdc("docstring-4l", Engine(model, task), threshold, "at least 10", note)
    model = random_gpt2(6, 8, 256, 1000)
    spread_out(model)
    engine = Engine(model, random_task(model, 8, 20))
    scores = eap(engine).flat.abs().sort(descending=True).values
    threshold = float(scores[len(scores) // 10])  # one that a tenth of the edges are worth in the whole model
    yield from compare_acdc("random weights, 6 × 8 × 256, GPT-2", engine, threshold, "at least 8", "")


def compare_acdc(name: str, engine: Engine, threshold: float, aim: str, note: str):
    engine.values(engine.all)  # so that nobody pays for the first call
    found, fast_s = timed(lambda: acdc(engine, threshold=threshold))
    tested = [i for i, decision in enumerate(found.trace) if decision.tested]
    sample = tested[:: max(1, len(tested) // 300)]
    circuits = tried(engine, found, set(sample))
    engine.masks(circuits)  # made once and remembered by each circuit: not a part of a pass
    _, some_s = timed(lambda: [engine.values(circuit) for circuit in circuits])
    full_s = some_s / len(sample) * len(tested)
    n, n_pos = engine.task.clean.shape
    yield f"   {name}, {n} × {n_pos} tokens, τ = {threshold:.3g}: {len(found)} of {engine.graph.n_edges:,} edges kept,"
    yield f"   {found.cost.forwards:,} forward passes in {found.batches} batches for {len(tested):,} edges tested{note}"
    yield f"   {fast_s:.1f} s, whole passes {full_s:.1f} s, ratio {full_s / fast_s:.1f} (aim: {aim})"


def tried(engine: Engine, found: AcdcCircuit, which: set[int]) -> list:
    """The circuits that these decisions were about, the edge in question cut."""
    circuits, left = [], engine.all
    for i, decision in enumerate(found.trace):
        without = left - [decision.edge]
        if i in which:
            circuits.append(without)
        left = without if decision.removed else left
    return circuits


def spread_out(model) -> None:
    """Larger weights than an untrained model has, so that heads attend to something and edges differ in what they are worth."""
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.dim() == 2:
                embedding = "embed" in name or "wte" in name or "wpe" in name
                value.normal_(0, 0.4 if embedding else 0.8 / value.shape[0] ** 0.5)


def timed(function) -> tuple:
    start = time.process_time()
    result = function()
    return result, time.process_time() - start


if __name__ == "__main__":
    main()
