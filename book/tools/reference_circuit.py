"""Measure the circuit that chapter 05 finds by hand, and write it down: circuitlib's ``reference_circuit_docstring.json``.

Run as ``python book/tools/reference_circuit.py``. The file is frozen: a second run gives the same numbers. It was written
before any automatic method (exact effects of all edges, EAP, EAP-IG, ACDC) had been run on the model.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

import circuitlib as cl
from circuitlib.models.registry import info
from circuitlib.models.training.export import write_hashes

MODEL, N, SEED = "docstring-4l", 100, 100
DECIDES, ALSO = "random_random", ("random_answer", "random_def", "random_doc")
WORTH, SHARE = 0.04, 0.1
ROLES = {
    "previous_token": ["a0.5", "a0.4", "a0.0"],
    "locator": ["a1.4"],
    "induction": ["a2.3", "a2.5"],
    "mover": ["a3.6", "a3.4", "a3.2"],
}
LOOKS = {
    "previous_token": (("comma_C", "C_def"), ("comma_B", "B_def")),
    "locator": (("B_doc", "comma_B"),),
    "induction": (("param_3", "B_doc"),),
    "mover": (("param_3", "comma_C"),),
}
FOUND = (
    "Backwards from the logits. Of every input of a head that was reached, all senders were patched at once; the input counts "
    "if that costs at least 0.04 of the distance from corrupted to clean. Of an input that counts, each sender was patched "
    "alone, and spared while all others were patched; the mean of the two effects, as a share of what the input is worth, "
    "must be at least 0.1. Corruption random_random decides; the other corruptions say which trail an arrow belongs to."
)


def main() -> None:
    torch.set_grad_enabled(False)
    model = cl.load_model(MODEL)
    engines = {c: cl.Engine(model, cl.docstring(model, n=N, corruption=c, seed=SEED)) for c in (DECIDES, *ALSO)}
    inputs = {receiver: {DECIDES: effects} for receiver, effects in walk(engines[DECIDES]).items()}
    for receiver, effects in inputs.items():
        effects |= {corruption: cl.input_effects(engines[corruption], receiver) for corruption in ALSO}
    evidence = {
        f"{sender}→{receiver}": {
            "worth": {c: round(of.worth, 4) for c, of in effects.items()},
            "alone": {c: round(of.alone[sender], 4) for c, of in effects.items()},
            "spared": {c: round(of.spared[sender], 4) for c, of in effects.items()},
        }
        for receiver, effects in inputs.items()
        for sender in effects[DECIDES].writers(SHARE)
    }
    circuit = cl.Circuit(engines[DECIDES].graph, evidence)
    content = {
        "format": "circuitlib reference circuit",
        "version": 1,
        "model": MODEL,
        "task": "docstring",
        "ablation": "corrupted",
        "found": FOUND,
        "prompts": {"n": N, "seed": SEED, "corruption": DECIDES},
        "rule": {"worth": WORTH, "share": SHARE},
        "roles": ROLES,
        "attention": attention(model, engines[DECIDES].task),
        "edges": {str(edge): evidence[str(edge)] for edge in circuit.edges},
    }
    folder = info(MODEL).folder
    path = folder / "reference_circuit_docstring.json"
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", "utf8")
    write_hashes(folder)
    sys.stdout.write(f"{len(circuit)} edges, heads {', '.join(circuit.heads())}: {Path(path).name}\n")


def walk(engine: cl.Engine) -> dict:
    """The inputs that count, from the logits back to the embedding: receiver → effects."""
    reached, found = {"logits"}, {}
    for node in ("logits", *reversed(engine.graph.senders)):
        if node not in reached or node == "embed":
            continue
        for receiver in ["logits"] if node == "logits" else [f"{node}.{part}" for part in "qkv"]:
            effects = cl.input_effects(engine, receiver)
            if effects.worth >= WORTH:
                found[receiver] = effects
                reached |= set(effects.writers(SHARE))
    return found


def attention(model, task) -> dict[str, list]:
    between = cl.attention_between(model, task)
    rows = {}
    for role, heads in ROLES.items():
        for name in heads:
            layer, head = map(int, name[1:].split("."))
            rows[name] = [[query, key, round(float(between(query, key)[layer, head]), 4)] for query, key in LOOKS[role]]
    return rows


if __name__ == "__main__":
    main()
