"""``circuitlib evaluate``: what circuit files are worth, on prompts that they may not have been found on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from . import common
from .common import Ablation, Direction

MAX_CIRCUITS = 100


@common.answers
def evaluate(
    circuit: Annotated[list[Path], typer.Argument(help="Circuit files, such as `circuitlib discover --out` writes.")],
    model: common.Name,
    task: common.Task = None,
    corruption: common.Corruption = None,
    n: common.Prompts = None,
    seed: common.Seed = None,
    ablation: Annotated[
        Ablation | None,
        typer.Option(help="What a cut edge carries; by default what the first circuit says, or corrupted."),
    ] = None,  # fmt: skip
    direction: common.Directed = Direction.noising,
    truth: Annotated[
        Path | None, typer.Option(help="A circuit file to compare with; by default what is known of the model.")
    ] = None,  # fmt: skip
    random: Annotated[int, typer.Option(min=0, max=1000, help="How many random circuits of the same size.")] = 20,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Minimality and completeness too: many more runs.")
    ] = False,
    device: common.Device = "cpu",
    min_faithfulness: common.MinFaithfulness = None,
    as_json: common.Json = False,
    out: Annotated[
        Path | None, typer.Option(help="Write the table to this .csv or .json file instead of printing it.")
    ] = None,
    quiet: common.Quiet = False,
) -> None:
    """Judge circuits: faithfulness, KL, random circuits of the same size, and the known circuit where there is one.

    Examples:

    circuitlib evaluate c.json --model docstring-4l --seed 1 --n 100

    circuitlib evaluate c.json --model gpt2 --task my.jsonl --min-faithfulness 0.8
    """
    if out is not None and out.suffix not in (".csv", ".json"):
        raise ValueError(f"--out: expected a name that ends in .csv or .json, got {out.name!r}")
    common.check_finite(min_faithfulness=min_faithfulness)
    common.check_place(out)
    circuits = _read(circuit)
    first = next(iter(circuits.values()))
    ablation = str(ablation or first.ablation or "corrupted")
    setting = common.Setting(model, task, corruption, n, seed, ablation, direction, device, quiet)
    setting.check()
    known = setting.truth(truth)
    if truth is not None and first.graph.per_position:
        raise ValueError("--truth: is for circuits without positions; the edges of these have some")
    with common.results_apart():
        engine = setting.engine()
        _say_what_differs(circuits, engine, setting)
        table = _table(engine, circuits, known, random, thorough, setting)
    if as_json or (out is not None and out.suffix == ".json"):
        common.emit(table.reset_index().to_json(orient="records", indent=1), out)
    elif out is not None:
        common.emit(table.to_csv(lineterminator="\n"), out)
    else:
        common.emit(_shown(table), None)
    common.check_faithful(float(table["faithfulness"].min()), min_faithfulness)


def _shown(table) -> str:
    """A column for each circuit; four decimals, and no minus before a zero."""
    whole = ("edges", "edges_pruned", "heads")
    columns = {
        name: [
            "" if math.isnan(value) else f"{round(value, 4) + 0.0:.{0 if name in whole else 4}f}"
            for value in table[name]
        ]
        for name in table
    }
    return type(table)(columns, table.index).T.to_string()


def _read(paths: list[Path]) -> dict[str, object]:
    """Circuits by the name of their file."""
    from ..graph import Circuit

    if len(paths) > MAX_CIRCUITS or len({*paths}) != len(paths):
        raise ValueError(f"CIRCUIT: expected 1 to {MAX_CIRCUITS} files, each once, got {len(paths)}")
    circuits = {str(path): Circuit.load(path) for path in paths}
    if len({one.graph.per_position for one in circuits.values()}) > 1:
        raise ValueError("CIRCUIT: some files have positions and some have none; expected circuits of one graph")
    return circuits


def _say_what_differs(circuits: dict, engine, setting: common.Setting) -> None:
    """A circuit is a claim about a task, an ablation and more. Others may be asked about, and it is said."""
    asked = {"task": engine.task.name, "ablation": engine.ablation, **setting.conditions(engine)}
    for name, circuit in circuits.items():
        claims = {"task": circuit.task, "ablation": circuit.ablation, **circuit.conditions}
        for what in ("task", "ablation", "model", "corruption", "direction"):
            if None not in (claims.get(what), asked.get(what)) and claims[what] != asked[what]:
                common.say(
                    f"{name} is a claim about {what} {claims[what]!r}, and is judged on {asked[what]!r}", setting.quiet
                )


def _table(engine, circuits: dict, truth, n_random: int, thorough: bool, setting: common.Setting):
    """A row for each circuit."""
    from ..evaluation import completeness, evaluate, faithfulness, minimality, roc
    from ..graph import random_circuit

    common.say(f"{len(circuits)} circuits on {engine.task.name}, {len(engine.task)} prompts", setting.quiet)
    flat = not any(circuit.graph.per_position for circuit in circuits.values())
    table = evaluate(engine, circuits, truth if flat else None)
    for name, circuit in circuits.items():
        if n_random:
            # The same that cl.random_baseline draws, but with positions if the circuit has them.
            drawn = [random_circuit(circuit.graph, len(circuit), i) for i in range(n_random)]
            values = faithfulness(engine, drawn)
            table.loc[name, ["random_mean", "random_best"]] = float(values.mean()), float(values.max())
        if truth is not None and flat:
            point = roc(circuit, truth)
            table.loc[name, ["tpr", "fpr", "auc_pessimistic", "auc_trapezoid"]] = *next(iter(point))[::-1], point.auc(), point.auc("trapezoid")  # fmt: skip
        if thorough and len(circuit):
            table.loc[name, "least_needed_edge"] = float(minimality(engine, circuit)["change"].abs().min())
            table.loc[name, "completeness_gap"] = float(completeness(engine, circuit)["gap"].max())
    return table
