"""What the book's comparison measures: three tasks, seven methods, two metrics, three seeds.

``make results`` runs this and writes the tables that ``cl.results`` reads. Every engine cuts edges by noising with corrupted prompts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from .circuits import ReferenceCircuit, reference_circuit
from .discovery import AcdcCircuit, acdc_sweep, eap, eap_ig, exact
from .engine import Engine
from .evaluation import random_scores
from .models import load_model
from .tasks import docstring, greater_than, ioi

N_PROMPTS = 20
SEEDS = (0, 1, 2)  # the circuits that stand for the truth were found on prompts of seed 100
METRICS = (None, "kl")
SHARES = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001)  # ACDC's thresholds, as shares of M(all) − M(∅)
MODELS = {"docstring": "docstring-4l", "ioi": "gpt-mini", "greater_than": "gpt-mini"}
PROMPTS = {"docstring": docstring, "ioi": ioi, "greater_than": greater_than}


def tasks() -> dict[str, Callable[[int], tuple[Engine, ReferenceCircuit]]]:
    """For ``compare``: name → a function from a seed to the engine and the circuit that was found by hand."""
    return {name: functools.partial(_task, name) for name in MODELS}


def _task(name: str, seed: int) -> tuple[Engine, ReferenceCircuit]:
    model = _model(MODELS[name])
    return Engine(model, PROMPTS[name](model, n=N_PROMPTS, seed=seed)), reference_circuit(MODELS[name], name)


@functools.cache
def _model(name: str):
    return load_model(name)


def acdc_by_shares(engine: Engine, *, metric=None) -> list[AcdcCircuit]:
    """ACDC at thresholds that are shares of M(all) − M(∅); so that one list of them serves tasks of different units."""
    whole, nothing = engine.metric([engine.all, engine.none], metric).tolist()
    return acdc_sweep(engine, [share * (whole - nothing) for share in SHARES], metric=metric)


METHODS: dict[str, Callable] = {
    "exact": exact,
    "EAP": eap,
    "EAP-IG inputs": functools.partial(eap_ig, steps=5),
    "EAP-IG activations": functools.partial(eap_ig, variant="activations", steps=5),
    "EAP-IG clean-corrupted": functools.partial(eap_ig, variant="clean-corrupted"),
    "ACDC": acdc_by_shares,
    "random": random_scores,
}
