"""What ``gpt-mini`` must show on its two tasks; as in bars.py, tests and the card call the same functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from ...engine import Engine
from ...evaluation import faithfulness
from ...graph import Graph
from ...heads import head_scores, roles
from ...tasks import Task, greater_than, ioi
from ...tasks.greater_than import TEMPLATES as SPAN_TEMPLATES
from ...tasks.ioi import TEMPLATES as IOI_TEMPLATES
from .bars import CHOOSE, JUDGE, Bar, circuit_size, needed_heads, other_heads, out_edges, small_circuit
from .story_scores import held_out_ioi, held_out_spans

MOST_SHARE = 0.1  # of all edges


def story_bars(model) -> list[Bar]:
    """All bars of ``gpt-mini``."""
    most_edges = int(MOST_SHARE * Graph(model).n_edges)
    bars, of_circuits = [*story_skill(model), *span_skill(model)], []
    for make in (ioi, greater_than):
        heads = needed_heads(model, make(model, n=30, seed=CHOOSE), enough=0.9)
        circuit = small_circuit(model, make(model, n=50, seed=CHOOSE), heads, most_edges)
        judge = make(model, n=100, seed=JUDGE)
        label = {"ioi": "IOI", "greater_than": "Greater-Than"}[judge.name]
        sizes = circuit_size(model, judge, heads, circuit, most_edges)
        # How few heads is reported; the bars are on edges.
        bars += [named(label, bar) for bar in sizes[2:]]
        of_circuits += [named(label, replace(bar, hard=False)) for bar in sizes[:2]]
        of_circuits += [named(label, bar) for bar in (*other_prompts(model, circuit, judge), *role_drops(model, make))]
        of_circuits.append(named(label, other_heads(model, heads, hard=False)))
    return [*bars, *of_circuits, *attention(model)]


def named(label: str, bar: Bar) -> Bar:
    """The bar with the task's name in front."""
    return replace(bar, name=f"{label}: {bar.name}")


def story_skill(model, n: int = 25) -> list[Bar]:
    """IOI on held-out prompts of every template in both orders: accuracy over the whole vocabulary, and logit difference."""
    accuracy, difference = {}, {}
    with torch.no_grad():
        for new_couple in (True, False):
            tasks = [
                held_out_ioi(model, n, JUDGE, template, order, new_couple)
                for template in range(len(IOI_TEMPLATES))
                for order in ("ABBA", "BABA")
            ]
            logits = [model(task.clean) for task in tasks]
            accuracy[new_couple] = mean(tasks, logits, Task.accuracy)
            difference[new_couple] = mean(tasks, logits, Task.metric)
    n_prompts = 2 * len(tasks) * n
    return [
        Bar(f"IOI: accuracy on {n_prompts} held-out prompts", sum(accuracy.values()) / 2, "≥ 0.95"),
        Bar("IOI: accuracy on couples never seen together", accuracy[True], "≥ 0.95"),
        Bar("IOI: accuracy on new combinations of place and thing", accuracy[False], "≥ 0.95", hard=False),
        Bar("IOI: mean logit difference, IO − S", sum(difference.values()) / 2, "≥ 3"),
    ]


def span_skill(model, n: int = 200) -> list[Bar]:
    """Greater-Than on held-out spans of every template: probability of later years minus that of all others."""
    tasks = [held_out_spans(model, n, JUDGE, template) for template in range(len(SPAN_TEMPLATES))]
    with torch.no_grad():
        logits = [model(task.clean) for task in tasks]
    name = f"Greater-Than: mean probability difference on {len(tasks) * n} held-out prompts"
    return [
        Bar(name, mean(tasks, logits, Task.metric), "≥ 0.8"),
        Bar(
            "Greater-Than: share of them whose top token is a later year",
            mean(tasks, logits, Task.accuracy),
            "≥ 0.95",
            hard=False,
        ),
    ]


def mean(tasks: list[Task], logits: list, of: Callable) -> float:
    return torch.cat([of(task, x) for task, x in zip(tasks, logits, strict=True)]).mean().item()


def other_prompts(model, circuit, judge: Task) -> list[Bar]:
    """The same circuit where it was not chosen: the other order or other sentences. Reported, not asked for."""
    if judge.name == "ioi":
        others = [(f"{order} only", ioi(model, n=100, order=order, seed=JUDGE)) for order in ("ABBA", "BABA")]
        others += [("another sentence", ioi(model, n=100, template=4, seed=JUDGE))]
        others += [("name swap for corruption", ioi(model, n=100, corruption="name_swap", seed=JUDGE))]
    else:
        others = [("another sentence", greater_than(model, n=100, template=1, seed=JUDGE))]
    return [
        Bar(
            f"the circuit's faithfulness, {label}",
            faithfulness(Engine(model, task), circuit),
            "≥ 0.8 and ≤ 1.2",
            hard=False,
        )
        for label, task in others
    ]


def role_drops(model, make: Callable) -> list[Bar]:
    """How much of the metric is lost when the heads of one role are mean-ablated."""
    engine = Engine(model, make(model, n=100, seed=JUDGE), ablation="mean")
    full, empty = engine.metric(engine.all), engine.metric(engine.none)
    bars = []
    for role, names in roles(model, make(model, n=50, seed=CHOOSE)).items():
        cut = engine.all - [edge for name in names for edge in out_edges(engine.graph, name)]
        drop = ((full - engine.metric(cut)) / (full - empty)).item()
        bars.append(
            Bar(
                f"drop without the {role.replace('_', '-')} heads",
                drop,
                "≥ 0.5",
                hard=False,
                note=", ".join(names) or "none",
            )
        )
    return bars


def attention(model) -> list[Bar]:
    """How legible the best head of each kind is on repeated random tokens."""
    scores, bars = head_scores(model), []
    for kind, limit in (("previous_token", "≥ 0.6"), ("induction", "≥ 0.5"), ("duplicate_token", "≥ 0.5")):
        layer, head = divmod(int(scores[kind].argmax()), scores[kind].shape[1])
        name = f"best head's {kind.replace('_', '-')} attention on repeated random tokens"
        bars.append(Bar(name, scores[kind].max().item(), limit, hard=False, note=f"a{layer}.{head}"))
    return bars
