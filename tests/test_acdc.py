"""ACDC against the same search written out naively, against known circuits, and against itself: fast is plain, resumed is whole."""

from __future__ import annotations

import functools
import json
import os
import random
import subprocess
import sys

import naive
import numpy as np
import pytest
import shells
import torch
from test_discovery import naive_setting

import circuitlib as cl
from circuitlib.discovery import AcdcCircuit, longwork
from circuitlib.discovery.acdc import _Search
from circuitlib.engine import Engine
from circuitlib.graph import Circuit, Graph, node_of

HANDMADE = ("handmade-or", "handmade-and", "handmade-induction", "handmade-docstring")
SIX = (0.001, 0.01, 0.03, 0.1, 0.3, 1.0)


@functools.cache
def engine(name: str, direction: str = "noising", n: int = 6) -> Engine:
    if name == "gpt2 of 4 layers":
        model = shells.gpt2(4, 4, 64, d_vocab=60, n_ctx=16)
        task = shells.random_task(model, n=8, n_pos=12, read=(11,), solved=True)
    elif name == "gpt2 of 2 layers":
        model = shells.gpt2(2, 3, 24)
        task = shells.random_task(model, n=4, read=(3, 5))
    else:
        model = cl.load_model(name)
        task = cl.default_task(model, n=n, seed=0)
    return Engine(model, task, direction=direction)


def decisions(circuit: AcdcCircuit) -> list[tuple]:
    return [(str(d.edge), d.removed, d.tested) for d in circuit.trace]


def the_same(a: AcdcCircuit, b: AcdcCircuit, within: float = 1e-5) -> None:
    """The same circuit by the same decisions; values up to rounding."""
    assert decisions(a) == decisions(b)
    assert a == b
    for x, y in zip(a.trace, b.trace, strict=True):
        for a_value, b_value in ((x.before, y.before), (x.after, y.after)):
            assert abs(a_value - b_value) <= within * max(1.0, abs(b_value)), (x, y)


# The search, written out ------------------------------------------------------------------------------


def written_out(graph: Graph, value, threshold: float, sign: int = 1, order: str = "reverse", start=None):
    """ACDC as the paper states it, with names alone: ``value`` takes the set of edges that are kept."""
    layers, heads = range(graph.n_layers), range(graph.n_heads)
    down = list(reversed(heads)) if order == "reverse" else list(heads)
    receivers = ["logits"]
    for layer in reversed(layers):
        receivers += [f"m{layer}"] if graph.mlps else []
        receivers += [f"a{layer}.{head}.{part}" for part in "vkq" for head in down]
    senders = [["embed"]]  # in groups, first to last: what of a group is tried first is what ``order`` says
    for layer in layers:
        senders.append([f"a{layer}.{head}" for head in down])
        senders += [[f"m{layer}"]] if graph.mlps else []
    if order == "forward":
        parents = [name for group in senders for name in group]
    else:
        parents = [name for group in reversed(senders) for name in group]
    kept = {str(edge) for edge in (start or graph.edges)}
    current, trace = value(kept), []
    for receiver in receivers:
        node = receiver if receiver[0] in "ml" else receiver[:-2]
        alive = node == "logits" or any(edge.startswith(f"{node}→") for edge in kept)
        for edge in [f"{parent}→{receiver}" for parent in parents if f"{parent}→{receiver}" in kept]:
            if not alive:
                kept.remove(edge)
                trace.append((edge, True, False, current, current))
                continue
            new = value(kept - {edge})
            removed = sign * (current - new) < threshold
            trace.append((edge, removed, True, current, new))
            if removed:
                kept.remove(edge)
                current = new
    return kept, trace


def full_runs(engine: Engine, metric=None):
    """The value of a set of edges, by a whole run of the engine."""
    return remembered(lambda kept: float(engine.metric(Circuit(engine.graph, kept), metric).double()))


def remembered(value):
    known = functools.cache(value)
    return lambda kept: known(frozenset(kept))


def agrees(circuit: AcdcCircuit, expected, within: float) -> None:
    kept, trace = expected
    assert decisions(circuit) == [step[:3] for step in trace]
    assert {str(edge) for edge in circuit} == kept
    for decision, (edge, _, _, before, after) in zip(circuit.trace, trace, strict=True):
        assert abs(decision.before - before) < within and abs(decision.after - after) < within, edge


@pytest.mark.parametrize("direction", ["noising", "denoising"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: shells.native(n_heads=2, d_model=16, seed=3),
        lambda: shells.gpt2(2, 2, 16, seed=4),
    ],
    ids=["attention-only", "gpt2"],
)
def test_against_the_naive_forward_pass(make, direction):
    """Nothing of the engine is in the expected search: not its pass, not its masks, not its order of receivers."""
    model = make().double()
    task = shells.random_task(model, n=2, n_pos=4, read=(3,))
    it = Engine(model, task, direction=direction)
    setting = naive_setting(it)
    value = remembered(lambda kept: float(task.metric(naive.run(model, *setting, set(kept))).mean()))
    effects = sorted(effect for _, effect in cl.exact(it).items() if effect > 0)
    for threshold in (effects[len(effects) // 3] * 1.0001, effects[-3] * 1.0001):
        expected = written_out(it.graph, value, threshold, it.sign)
        assert len({step[1:3] for step in expected[1]}) >= 2  # some stay and some go
        agrees(cl.acdc(it, threshold=threshold, lookahead=0), expected, 1e-9)
        agrees(cl.acdc(it, threshold=threshold), expected, 1e-9)


@pytest.mark.parametrize("metric", [None, "kl"])
@pytest.mark.parametrize("direction", ["noising", "denoising"])
@pytest.mark.parametrize("name", HANDMADE)
def test_plain_and_fast_are_the_search_written_out_on_hand_made_models(name, direction, metric):
    it = engine(name, direction)
    value = full_runs(it, metric)
    for threshold in SIX:
        expected = written_out(it.graph, value, threshold, it.sign)
        plain = cl.acdc(it, threshold=threshold, metric=metric, lookahead=0)
        agrees(plain, expected, 1e-4)
        the_same(cl.acdc(it, threshold=threshold, metric=metric), plain)


@pytest.mark.parametrize("order", ["reverse", "ascending", "forward"])
def test_every_order_is_the_one_that_is_documented(order):
    it = engine("gpt2 of 2 layers")
    for threshold in (0.02, 0.3):
        expected = written_out(it.graph, full_runs(it), threshold, order=order)
        agrees(cl.acdc(it, threshold=threshold, order=order, lookahead=0), expected, 1e-4)
        agrees(cl.acdc(it, threshold=threshold, order=order), expected, 1e-4)


def test_a_seed_as_order_shuffles_and_repeats():
    it = engine("gpt2 of 2 layers")
    first, again, other = (cl.acdc(it, threshold=0.1, order=order) for order in (1, 1, 2))
    assert decisions(first) == decisions(again) != decisions(other)
    tried = [str(d.edge) for d in first.trace if d.edge.receiver == "logits"]
    reverse = [str(d.edge) for d in cl.acdc(it, threshold=0.1).trace if d.edge.receiver == "logits"]
    assert tried != reverse and sorted(tried) == sorted(reverse)
    the_same(first, cl.acdc(it, threshold=0.1, order=1, lookahead=0))


# Fast is plain ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "metric", "threshold"),
    [
        ("gpt2 of 4 layers", None, 0.03),
        ("gpt2 of 4 layers", None, 0.3),
        ("gpt2 of 4 layers", "kl", 0.1),
        ("docstring-4l", None, 0.3),
        ("docstring-4l", "kl", 0.1),
    ],
)
def test_fast_is_plain(name, metric, threshold):
    it = engine(name)
    plain = cl.acdc(it, threshold=threshold, metric=metric, lookahead=0)
    fast = cl.acdc(it, threshold=threshold, metric=metric)
    the_same(fast, plain)
    assert 0 < len(plain) < it.graph.n_edges // 2 and fast.batches < plain.batches / 2


@pytest.mark.slow
@pytest.mark.parametrize("metric", [None, "kl"])
@pytest.mark.parametrize("name", ["gpt2 of 4 layers", "docstring-4l"])
def test_fast_is_plain_at_six_thresholds(name, metric):
    it = engine(name, n=20)
    for threshold in SIX:
        plain = cl.acdc(it, threshold=threshold, metric=metric, lookahead=0)
        the_same(cl.acdc(it, threshold=threshold, metric=metric), plain)


def test_how_far_it_looks_ahead_and_what_fits_in_a_pass_change_no_decision():
    it = engine("gpt2 of 4 layers")
    plain = cl.acdc(it, threshold=0.1, lookahead=0)
    for lookahead in (1, 3, 1000):
        the_same(cl.acdc(it, threshold=0.1, lookahead=lookahead), plain)
    small = Engine(it.model, it.task, memory_mb=0.2)
    the_same(cl.acdc(small, threshold=0.1), plain)


@pytest.mark.parametrize("guess", ["everything matters", "nothing matters", "at random", "the opposite"])
def test_wrong_guesses_change_no_decision(monkeypatch, guess):
    it = engine("gpt2 of 2 layers")
    plain = cl.acdc(it, threshold=0.1, lookahead=0)
    removed = {d.edge: d.removed for d in plain.trace}
    draw = random.Random(0)
    wrong = {
        "everything matters": lambda edge: 9.0,
        "nothing matters": lambda edge: 0.0,
        "at random": lambda edge: draw.random(),
        "the opposite": lambda edge: 9.0 if removed[edge] else 0.0,
    }[guess]
    monkeypatch.setattr(_Search, "_learn", lambda *_: None)
    monkeypatch.setattr(_Search, "expect", lambda self, _: self.expected.update({e: wrong(e) for e in it.graph.edges}))
    the_same(cl.acdc(it, threshold=0.1), plain)


def test_rounding_decides_nothing(monkeypatch):
    """Thresholds that lie exactly on a difference, and batches that round as badly as they may: still the plain search."""
    it = engine("gpt2 of 2 layers")
    falls = [d.before - d.after for d in cl.acdc(it, threshold=0.05, lookahead=0).trace if d.tested]
    on_the_spot = [fall for fall in falls if fall > 1e-3][::4]
    assert len(on_the_spot) >= 5
    values, draw = _Search._values, random.Random(0)

    def noisy(self, receiver, states):
        exact = values(self, receiver, states)
        return exact if len(states) == 1 else [value + self.tie * draw.uniform(-0.4, 0.4) for value in exact]

    for threshold in on_the_spot:
        plain = cl.acdc(it, threshold=threshold, lookahead=0)
        monkeypatch.setattr(_Search, "_values", noisy)
        the_same(cl.acdc(it, threshold=threshold), plain, within=1e-4)
        monkeypatch.setattr(_Search, "_values", values)


def test_batches_round_less_than_what_counts_as_a_tie():
    it = engine("gpt2 of 4 layers")
    search = _Search(it, it.all, 0.1, None, "reverse", 32)
    worst = 0.0
    for receiver in it.graph.receivers[::5]:
        row = it.graph.receiver_index[receiver]
        states = search.run.keep[row].repeat(12, 1) & (torch.rand(12, len(it.graph.senders)) < 0.8)
        alone = [search._values(receiver, state[None])[0] for state in states]
        worst = max(worst, *(abs(a - b) for a, b in zip(alone, search._values(receiver, states), strict=True)))
    assert worst < search.tie / 5


def test_a_pass_is_counted_once_and_fast_needs_fewer(monkeypatch):
    it = engine("gpt2 of 4 layers")
    rows = []
    logits_from = Engine.logits_from

    def counted(self, run, receiver, states):
        rows.append(len(states))
        return logits_from(self, run, receiver, states)

    monkeypatch.setattr(Engine, "logits_from", counted)
    plain = cl.acdc(it, threshold=0.1, lookahead=0)
    assert set(rows) == {1}
    assert plain.cost.forwards == 1 + len(rows)  # and the reference; the first is the run of all edges
    assert plain.cost.backwards == 0 and plain.batches == len(rows)
    tested = sum(decision.tested for decision in plain.trace)
    assert tested + 1 <= len(rows) <= tested + 10  # a tie takes two more
    rows.clear()
    fast = cl.acdc(it, threshold=0.1)
    assert fast.cost.forwards == 1 + sum(rows) + 1  # the clean run of EAP
    assert fast.cost.backwards == 1 and fast.batches == len(rows)
    assert fast.batches < plain.batches / 2
    assert fast.cost.forwards < 1.5 * plain.cost.forwards


def test_the_same_under_another_hash_seed(tmp_path):
    code = """
import json, sys
import shells
import circuitlib as cl
from circuitlib.engine import Engine
model = shells.gpt2(2, 3, 24)
it = Engine(model, shells.random_task(model, n=4, read=(3, 5)))
found = [cl.acdc(it, threshold=0.1, order=order, lookahead=k) for order in ("reverse", "ascending", 3) for k in (0, 32)]
print("found", json.dumps([[[str(d.edge), d.removed, d.tested] for d in c.trace] for c in found]))
"""
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    environment = os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": seed}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    theirs = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("found"))[6:])
    it = engine("gpt2 of 2 layers")
    for i, order in enumerate(("reverse", "ascending", 3)):
        ours = [list(step) for step in decisions(cl.acdc(it, threshold=0.1, order=order))]
        assert theirs[2 * i] == theirs[2 * i + 1] == ours


# Known circuits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", [None, "kl"])
@pytest.mark.parametrize("threshold", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("name", ["handmade-induction", "handmade-docstring"])
def test_the_known_circuit_is_found(name, threshold, metric):
    assert cl.acdc(engine(name), threshold=threshold, metric=metric) == cl.known_circuit(name)


@pytest.mark.parametrize(
    ("name", "direction", "both"),
    [
        ("handmade-or", "noising", False),
        ("handmade-and", "noising", True),
        ("handmade-or", "denoising", True),
        ("handmade-and", "denoising", False),
    ],
)
def test_gates(name, direction, both):
    """Of an OR gate's inputs ACDC keeps one, and which one depends on the order; of an AND gate's both. Denoising: the reverse."""
    it, known = engine(name, direction), cl.known_circuit(name, direction=direction)
    unit = abs(float(it.metric(it.all) - it.metric(it.none)))
    for order, first in (("reverse", "a0.1"), ("ascending", "a0.0")):
        found = cl.acdc(it, threshold=0.1 * unit, order=order)
        one_less = known - [edge for edge in known if first in (edge.sender, edge.receiver[:4])]
        assert found == (known if both else one_less)
        gate = {d.edge.sender: (d.before, d.after, d.removed) for d in found.trace if d.edge.receiver == "m0"}
        tried = [sender for sender in gate if sender != "embed"]
        assert tried[0] == first and gate[first][2] is not both
        fall = {sender: it.sign * (before - after) / unit for sender, (before, after, _) in gate.items()}
        second = tried[1]
        assert fall[first] == pytest.approx(1 if both else 0, abs=1e-3)
        assert fall[second] == pytest.approx(1, abs=1e-3) and not gate[second][2]


def test_negative_effects_are_cut():
    """No absolute value: an edge that the metric is better off without goes, however much it matters."""
    it = engine("gpt2 of 4 layers")
    falls = [(d.before - d.after, d.removed) for d in cl.acdc(it, threshold=0.1).trace if d.tested]
    assert any(fall < -0.1 for fall, _ in falls)
    assert all(removed == (fall < 0.1) for fall, removed in falls)


def test_what_nothing_reads_loses_its_inputs_without_a_run():
    it = engine("gpt2 of 4 layers")
    found = cl.acdc(it, threshold=0.3)
    skipped = [d for d in found.trace if not d.tested]
    assert skipped and all(d.removed and d.before == d.after for d in skipped)
    assert {d.edge for d in found.trace if not d.removed} == set(found)
    assert {d.edge for d in found.trace} == set(it.graph.edges) and len(found.trace) == it.graph.n_edges
    left = set(it.graph.edges)
    for decision in found.trace:
        assert decision.tested is (
            decision.edge.receiver == "logits" or any(e.sender == node_of(decision.edge.receiver) for e in left)
        )
        left -= {decision.edge} if decision.removed else set()
    last = [d for d in found.trace if d.tested][-1]
    final = last.after if last.removed else last.before
    assert float(it.metric(found)) == pytest.approx(final, abs=1e-4)


# Where to start ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("lookahead", [0, 32])
def test_eap_then_acdc_searches_what_eap_left(lookahead):
    it = engine("gpt2 of 4 layers")
    start = cl.eap(it).top(120)
    found = cl.acdc(it, threshold=0.05, start=start, lookahead=lookahead)
    assert {d.edge for d in found.trace} == set(start.edges)
    assert 0 < len(found) < len(start) and not found - start
    agrees(found, written_out(it.graph, full_runs(it), 0.05, start=start), 1e-4)
    the_same(cl.acdc(it, threshold=0.05, start=it.all, lookahead=lookahead), cl.acdc(it, threshold=0.05))
    assert len(cl.acdc(it, threshold=0.05, start=it.none, lookahead=lookahead)) == 0


def test_edges_with_positions():
    """A circuit with positions is searched position by position; the naive search goes over the same edges by whole runs."""
    it = engine("handmade-docstring")
    scores = cl.eap(it, per_position=True)
    start = scores.top(40)
    plain, fast = (cl.acdc(it, threshold=0.1, start=start, lookahead=k) for k in (0, 32))
    the_same(plain, fast)
    kept, current = start, float(it.metric(start))
    for decision in plain.trace:
        if decision.tested:
            new = float(it.metric(kept - [decision.edge]))
            assert decision.removed == (current - new < 0.1)
            assert decision.after == pytest.approx(new, abs=1e-4)
            current = new if decision.removed else current
        kept = kept - [decision.edge] if decision.removed else kept
    assert plain == kept and plain.graph.per_position
    assert {f"{edge.sender}→{edge.receiver}" for edge in plain} <= {
        str(e) for e in cl.known_circuit("handmade-docstring")
    }


def test_a_sweep_is_one_search_after_another(tmp_path):
    it = engine("gpt2 of 4 layers")
    thresholds = [0.3, 0.03, 0.1]
    swept = cl.acdc_sweep(it, thresholds, metric="kl", checkpoint=tmp_path / "sweep.json")
    assert [circuit.threshold for circuit in swept] == thresholds
    for circuit, threshold in zip(swept, thresholds, strict=True):
        the_same(circuit, cl.acdc(it, threshold=threshold, metric="kl", lookahead=0))
    assert {path.name for path in tmp_path.iterdir()} == {f"sweep-{t}.json" for t in thresholds}
    assert swept[1].cost.backwards == 0  # its guesses come from the search before


def test_the_result_says_what_it_is(tmp_path):
    it = engine("handmade-docstring")
    found = cl.acdc(it, threshold=0.1, metric="kl")
    assert isinstance(found, AcdcCircuit) and isinstance(found, cl.Circuit)
    assert (found.threshold, found.metric_name, found.order) == (0.1, "kl", "reverse")
    assert (found.task, found.ablation) == (it.task.name, "corrupted")
    assert found.cost.seconds > 0
    found.save(tmp_path / "c.json")
    assert cl.Circuit.load(tmp_path / "c.json") == found
    with pytest.raises(AttributeError):
        found.trace[0].removed = True

    def mean_logit(logits):
        return logits.mean((1, 2))

    assert cl.acdc(it, threshold=0.1, metric=mean_logit).metric_name == "mean_logit"


# Interrupted, and gone on with ------------------------------------------------------------------------


def interrupted(at: int):
    """A metric that interrupts when it is asked for the ``at``-th time: the task's, of the 4-layer model."""
    calls = 0

    def metric(logits):
        nonlocal calls
        calls += 1
        if calls == at:
            raise KeyboardInterrupt
        return engine("gpt2 of 4 layers").task.metric(logits)

    return metric


@pytest.mark.parametrize("lookahead", [0, 32])
def test_what_was_interrupted_goes_on_to_the_same_result(tmp_path, lookahead):
    it = engine("gpt2 of 4 layers")
    settings = dict(threshold=0.1, lookahead=lookahead, checkpoint=tmp_path / "run.json")
    whole = cl.acdc(it, threshold=0.1, lookahead=lookahead)
    found = 0
    for at in (4, 5, 22, 43, 1):  # the run is interrupted five times, at several places, and ends the sixth time
        with pytest.raises(KeyboardInterrupt):
            cl.acdc(it, metric=interrupted(at), **settings)
        if at > 1:
            state = json.loads(settings["checkpoint"].read_text())["state"]
            assert len(state["decisions"]) >= found
            found = len(state["decisions"])
    assert 20 < found < len(whole.trace)
    resumed = cl.acdc(it, metric=interrupted(-1), **settings)
    the_same(resumed, whole)
    if lookahead == 0:
        assert [(d.before, d.after) for d in resumed.trace] == [(d.before, d.after) for d in whole.trace]
    assert resumed.cost.forwards >= whole.cost.forwards - 2 and resumed.cost.seconds > 0
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    again = cl.acdc(it, metric=interrupted(4), **settings)  # it is finished: nothing is run but the start
    the_same(again, resumed, within=0)


def test_a_search_that_is_killed_keeps_what_it_had(tmp_path, monkeypatch):
    """The file is written on the way, not only when Python gets to say goodbye."""
    it, path = engine("gpt2 of 2 layers"), tmp_path / "run.json"
    monkeypatch.setattr(longwork, "EVERY_SECONDS", 0.0)
    save, left = longwork.Checkpoint.save, []

    def killed_after_five(self, state, now=True):
        if len(left) < 5:
            left.append(len(state["decisions"]))
            save(self, state, now)

    monkeypatch.setattr(longwork.Checkpoint, "save", killed_after_five)
    whole = cl.acdc(it, threshold=0.1, checkpoint=path)
    assert len(json.loads(path.read_text())["state"]["decisions"]) == left[-1] < len(whole.trace)
    monkeypatch.setattr(longwork.Checkpoint, "save", save)
    the_same(cl.acdc(it, threshold=0.1, checkpoint=path), whole)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    it, path = engine("gpt2 of 2 layers"), tmp_path / "run.json"
    cl.acdc(it, threshold=0.1, checkpoint=path)
    before = path.read_bytes()
    model, task = it.model, it.task
    other_model = shells.gpt2(2, 3, 24, seed=1)
    other_task = shells.random_task(model, n=4, read=(3, 5), seed=1)

    def metric(logits):
        return task.metric(logits)

    others = [
        ("threshold is 0.1", lambda: cl.acdc(it, threshold=0.2, checkpoint=path)),
        ("threshold", lambda: cl.acdc(it, threshold=0.1 + 1e-15, checkpoint=path)),
        ("metric", lambda: cl.acdc(it, threshold=0.1, metric="kl", checkpoint=path)),
        ("metric", lambda: cl.acdc(it, threshold=0.1, metric=metric, checkpoint=path)),
        ("order", lambda: cl.acdc(it, threshold=0.1, order="forward", checkpoint=path)),
        ("order", lambda: cl.acdc(it, threshold=0.1, order=1, checkpoint=path)),
        ("model", lambda: cl.acdc(Engine(other_model, task), threshold=0.1, checkpoint=path)),
        ("task", lambda: cl.acdc(Engine(model, other_task), threshold=0.1, checkpoint=path)),
        ("ablation", lambda: cl.acdc(Engine(model, task, "mean"), threshold=0.1, checkpoint=path)),
        ("direction", lambda: cl.acdc(Engine(model, task, direction="denoising"), threshold=0.1, checkpoint=path)),
        ("edges", lambda: cl.acdc(it, threshold=0.1, start=it.all - ["embed→logits"], checkpoint=path)),
    ]
    for what, run in others:
        with pytest.raises(ValueError, match=f"^checkpoint: .*is of another run: its {what}") as error:
            run()
        assert "\n" not in str(error.value) and len(str(error.value)) < 400
        assert path.read_bytes() == before
    cl.acdc(it, threshold=0.1, lookahead=0, checkpoint=path)  # how far it looks ahead is no part of what a run is


def test_a_damaged_checkpoint_is_refused(tmp_path):
    it, path = engine("gpt2 of 2 layers"), tmp_path / "run.json"
    cl.acdc(it, threshold=0.1, checkpoint=path)
    good = json.loads(path.read_text())

    def with_decisions(change):
        content = json.loads(json.dumps(good))
        change(content["state"]["decisions"])
        return json.dumps(content)

    def swap(rows):
        rows[0], rows[1] = rows[1], rows[0]

    def replaced(at, value):
        return lambda rows: rows[3].__setitem__(at, value)

    bad = [
        "",
        "[]",
        "{}",
        '{"format": "circuitlib checkpoint", "version": 1}',
        json.dumps({**good, "version": 2}),
        json.dumps({**good, "state": {}}),
        json.dumps({**good, "state": {**good["state"], "forwards": "many"}}),
        json.dumps({**good, "state": {**good["state"], "decisions": 3}}),
        with_decisions(swap),
        with_decisions(lambda rows: rows.append(rows[-1])),
        with_decisions(lambda rows: rows.pop(0)),
        with_decisions(replaced(0, "a9.9→logits")),
        with_decisions(replaced(0, 7)),
        with_decisions(replaced(1, "x")),
        with_decisions(replaced(2, None)),
        with_decisions(replaced(3, "true")),
        with_decisions(replaced(4, False)),
        with_decisions(lambda rows: rows[3].pop()),
        json.dumps(good)[:-40],
    ]
    for text in bad:
        path.write_text(text)
        with pytest.raises(ValueError) as error:
            cl.acdc(it, threshold=0.1, checkpoint=path)
        assert "\n" not in str(error.value) and "run.json" in str(error.value), text[:80]
        assert path.read_text() == text


def test_a_place_that_cannot_be_written_to_is_known_before_the_search(tmp_path):
    it, calls = engine("gpt2 of 2 layers"), []

    def metric(logits):
        calls.append(1)
        return it.task.metric(logits)

    with pytest.raises(ValueError, match="^checkpoint: .*no_such_folder/run.json can't be written"):
        cl.acdc(it, threshold=0.1, metric=metric, checkpoint=tmp_path / "no_such_folder/run.json")
    assert len(calls) == 3  # of the start, and of what says which metric it is


def test_a_bar_is_shown_only_if_asked_for(monkeypatch):
    given = []

    class Bar:
        n = 0

        def __init__(self, **more):
            given.append(more)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def update(self, n):
            self.n += n
            given[-1]["n"] = self.n

    monkeypatch.setattr(longwork, "tqdm", Bar)
    it = engine("handmade-docstring")
    for progress in (False, True):
        cl.acdc(it, threshold=0.1, progress=progress)
    assert given[0]["disable"] is True
    assert "disable" not in given[1]  # so that TQDM_DISABLE counts
    assert given[1]["total"] == given[1]["n"] == it.graph.n_edges


# Bad input --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(threshold=-0.1), "^threshold: expected a number from 0, in units of the metric, got -0.1$"),
        (dict(threshold=float("nan")), "^threshold: .*got nan$"),
        (dict(threshold=float("inf")), "^threshold: .*got inf$"),
        (dict(threshold="0.1"), "^threshold: .*got '0.1'$"),
        (dict(threshold=None), "^threshold: .*got None$"),
        (dict(threshold=True), "^threshold: .*got True$"),
        (dict(threshold=0.1, order="normal"), "^order: expected one of reverse, ascending, forward, or a number"),
        (dict(threshold=0.1, order=None), "^order: "),
        (dict(threshold=0.1, order=1.5), "^order: "),
        (dict(threshold=0.1, lookahead=-1), "^lookahead: expected an integer from 0, got -1$"),
        (dict(threshold=0.1, lookahead=2.0), "^lookahead: "),
        (dict(threshold=0.1, metric="loss"), "^metric: expected None, 'kl' or a function"),
        (dict(threshold=0.1, metric=lambda logits: logits.mean()), "^metric: expected one number for each of"),
        (dict(threshold=0.1, start=["embed→logits"]), "^start: expected a Circuit to search in, or None, got list$"),
        (dict(threshold=0.1, start=Circuit(Graph.from_shape(3, 2, False), ())), "^circuit: expected one of Graph"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message) as error:
        cl.acdc(engine("gpt2 of 2 layers"), **arguments)
    assert "\n" not in str(error.value)


def test_a_sweep_refuses_what_a_search_refuses():
    with pytest.raises(ValueError, match="^threshold: .*got -1$"):
        cl.acdc_sweep(engine("gpt2 of 2 layers"), [0.1, -1])


def test_a_search_that_is_stopped_while_it_goes_through_its_checkpoint_keeps_all_of_it(tmp_path, monkeypatch):
    """What was found before must be in the file at any moment, although the new search has not come to it yet."""
    it, path = engine("gpt2 of 2 layers"), tmp_path / "run.json"
    whole = cl.acdc(it, threshold=0.1, checkpoint=path)
    monkeypatch.setattr(longwork, "EVERY_SECONDS", 0.0)
    steps = _Search.steps

    def stopped(self):
        for number, step in enumerate(steps(self)):
            yield step
            if number == 1:
                raise KeyboardInterrupt

    monkeypatch.setattr(_Search, "steps", stopped)
    with pytest.raises(KeyboardInterrupt):
        cl.acdc(it, threshold=0.1, checkpoint=path)
    assert len(json.loads(path.read_text())["state"]["decisions"]) == len(whole.trace)
    monkeypatch.setattr(_Search, "steps", steps)
    the_same(cl.acdc(it, threshold=0.1, checkpoint=path), whole, within=0)


def test_a_threshold_of_numpy_names_the_same_checkpoint(tmp_path):
    it = engine("gpt2 of 2 layers")
    cl.acdc_sweep(it, np.array([0.25]), checkpoint=tmp_path / "sweep.json")
    assert [path.name for path in tmp_path.iterdir()] == ["sweep-0.25.json"]


def test_guesses_that_are_always_right_look_no_further_than_they_may():
    search = _Search(engine("gpt2 of 2 layers"), engine("gpt2 of 2 layers").all, 0.1, None, "reverse", 32)
    search.wrong = 5e-324  # what 15,000 right guesses in a row make of it
    assert search._ahead() == 32


def test_a_checkpoint_of_another_function_is_refused_whatever_it_is_called(tmp_path):
    it, path = engine("gpt2 of 2 layers"), tmp_path / "run.json"
    up, down = (lambda logits: it.task.metric(logits)), (lambda logits: -it.task.metric(logits))
    for method in (functools.partial(cl.acdc, threshold=0.1), cl.exact):
        method(it, metric=up, checkpoint=path)
        with pytest.raises(ValueError, match="is of another run: its metric"):
            method(it, metric=down, checkpoint=path)
        path.unlink()
