"""Every number of the worked examples on the notation page, computed again."""

from __future__ import annotations

import functools
import itertools
import re
from pathlib import Path

import pytest
import torch

import circuitlib as cl
from circuitlib.evaluation import Curve

PAGE = (Path(__file__).resolve().parents[1] / "book" / "notation.md").read_text("utf8")
EDGES = ("a0.0→m0", "a0.1→m0", "a0.0→logits", "a0.1→logits", "m0→logits")


def section(title: str) -> str:
    """The text below a heading, up to the next heading of this level or a label."""
    return re.search(rf"^## {title}\n(.*?)(?=^## |^\(|\Z)", PAGE, flags=re.M | re.S)[1]


@functools.cache
def example() -> cl.Engine:
    """The model of "Two heads, with numbers": the AND gate, whose first head writes twice as much, read directly too."""
    model = cl.load_model("handmade-and")
    state = model.state_dict()
    write, read = state["blocks.0.attn.o.weight"].clone(), state["unembed.weight"].clone()
    total = int(write[:, : write.shape[1] // 2].abs().sum(1).argmax())  # where both heads write
    write[total, : write.shape[1] // 2] *= 2
    read[model.tokenizer.convert_tokens_to_ids("1"), total] = 0.5
    model.load_state_dict(state | {"blocks.0.attn.o.weight": write, "unembed.weight": read})
    return cl.Engine(model, cl.default_task(model, n=1))


def by_hand(cut=(), a=2.0, b=1.0, corrupted=(0.0, 0.0)):
    """The metric with edges cut, from the page's own formulas."""

    def read(sender, receiver, value, instead):
        return instead if f"{sender}→{receiver}" in cut else value

    m0 = torch.relu(torch.as_tensor(read("a0.0", "m0", a, corrupted[0]) + read("a0.1", "m0", b, corrupted[1]) - 1.0))
    m0_corrupted = torch.relu(torch.tensor(sum(corrupted) - 1.0))
    direct = read("a0.0", "logits", a, corrupted[0]) + read("a0.1", "logits", b, corrupted[1])
    return read("m0", "logits", m0, m0_corrupted) + 0.5 * direct


def measured(cut=()) -> float:
    engine = example()
    return float(engine.metric(engine.all - list(cut)))


def exact(*edges: str) -> float:
    return measured() - measured(edges)


def eap(edge: str, steps: int | None = None) -> float:
    """By autograd on the formula; with ``steps``, averaged over the way from corrupted to clean."""
    sender, receiver = edge.split("→")
    total = 0.0
    for share in [1.0] if steps is None else [k / steps for k in range(steps)]:
        a, b = 2.0 * share, 1.0 * share
        at_m0 = torch.tensor(a + b, requires_grad=True)  # what m0 reads
        written = torch.relu(at_m0 - 1)
        at_logits = (written + 0.5 * (a + b)).clone()
        gradient = torch.autograd.grad(at_logits, at_m0)[0] if receiver == "m0" else 1.0 if sender == "m0" else 0.5
        total += float(gradient) * {"a0.0": 2.0, "a0.1": 1.0, "m0": 2.0}[sender]
    return total / (steps or 1)


def number(value: float) -> str:
    """As the page writes it: at most two decimals, none that is zero."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return text.replace("-", "−") if float(text) else "0"


def test_the_model_of_the_example_is_its_formulas():
    for size in range(len(EDGES) + 1):
        for cut in itertools.combinations(EDGES, size):
            assert measured(cut) == pytest.approx(float(by_hand(cut)), abs=1e-5), cut
    engine = example()
    for edge in engine.graph.edges:
        if edge.sender != "embed" and str(edge) not in EDGES:
            raise AssertionError(f"{edge} is missing on the page")
        if str(edge) == "embed→logits" or str(edge) == "embed→m0":
            assert exact(str(edge)) == pytest.approx(0, abs=1e-6)


def test_the_values_of_the_senders():
    from circuitlib.engine import embed, write_all, write_heads

    engine, text = example(), section("Two heads, with numbers")
    rows = []
    for tokens in (engine.task.clean, engine.task.corrupted):
        written = write_all(engine.weights, embed(engine.weights, tokens))
        a, b = (float(out[0, -1].sum()) for out in write_heads(engine.weights.layers[0].W_O, written.z[0]))
        rows.append((a, b, float(written.mlp[0][0, -1].sum()), float(engine.task.metric(engine.model(tokens)).mean())))
    for i, name in enumerate(("`a0.0` writes $a$", "`a0.1` writes $b$", "`m0` writes", "metric:")):
        (row,) = [line for line in text.splitlines() if line.startswith(f"| {name}")]
        assert row.endswith(f"| {number(rows[0][i])} | {number(rows[1][i])} |"), row


@pytest.mark.parametrize("edge", EDGES)
def test_the_table_of_edges(edge):
    row = f"| `{edge}` | {number(exact(edge))} | {number(eap(edge))} | {number(eap(edge, 5))} |"
    assert row in section("Two heads, with numbers"), row


def test_eap_by_the_engine():
    """The gradient of the metric in what an edge keeps is (out − ref) · gradient: EAP again, from the engine itself."""
    engine = example()
    keep = engine.all.mask.float()[None].requires_grad_()
    with torch.enable_grad():
        engine.task.metric(engine.forward(keep)[0]).mean().backward()
    for edge in EDGES:
        index = engine.graph.index(engine.graph.edge(edge))
        assert float(keep.grad[0][index]) == pytest.approx(eap(edge), abs=1e-5), edge


def sentences() -> list[str]:
    """The statements of the page, with every number computed."""
    engine = example()
    full, cut = measured(), measured(["a0.0→m0"])
    reads = [3 * k / 5 for k in range(5)]
    a_out = [edge for edge in engine.graph.edges if edge.sender == "a0.0"]
    noised = float(engine.metric(engine.all - a_out))
    other = cl.Engine(engine.model, engine.task, direction="denoising")
    denoised = float(other.metric(other.all - a_out))
    base = float(other.metric(other.all))

    def path(**more):
        return number(float(cl.path_patching(engine, ["a0.0"], ["logits"], normalize=False, **more)))

    kept = engine.all - ["a0.1→logits"]
    left = float(engine.metric(kept))
    rest = [measured(["a0.1→logits"]) - float(engine.metric(kept - [edge])) for edge in EDGES if edge != "a0.1→logits"]
    assert all(cost >= 0.75 for cost in rest) and exact("a0.1→logits") < 0.75
    empty = float(engine.metric(engine.none))
    return [
        *sentences_on_rankings(engine),
        "0 + 1 = 1 and writes 0",
        f"0 + ½ · 3 = {number(cut)}",
        f"{number(full)} − {number(cut)} = {number(exact('a0.0→m0'))}",
        f"is {number(eap('a0.1→m0'))} on the clean prompt, and $a$ changes by 2: the score is 1 · 2 = {number(eap('a0.0→m0'))}",
        f"reads {', '.join(map(number, reads[:4]))} and {number(reads[4])} on the way",
        f"at {sum(x > 1 for x in reads)} of 5 steps: the score is "
        f"{number(sum(x > 1 for x in reads) / 5)} · 2 = {number(eap('a0.0→m0', 5))}",
        "with $m = 5$",
        f"costs {number(exact('a0.0→m0', 'a0.1→m0'))}, not {number(exact('a0.0→m0'))} + {number(exact('a0.1→m0'))} = "
        f"{number(exact('a0.0→m0') + exact('a0.1→m0'))}",
        f"Direct: {path()}. By the MLP: {path(via=['m0'])}. Both together: {path(through_mlps=True)}, "
        f"of the {number(full)} that there are",
        f"leaves {number(noised)}, so the map shows ({number(noised)} − {number(full)}) / {number(full)} = "
        f"{number((noised - full) / full)}",
        f"from {number(base)} to {number(denoised)}, so the map shows {number(denoised)} / {number(full)} = "
        f"{number((denoised - base) / full)}",
        f"costs {number(exact('a0.1→logits'))}, less than",
        f"at least {number(min(rest))} and is restored",
        f"metric is {number(left)}, so it is ({number(left)} − {number(empty)}) / ({number(full)} − {number(empty)}) = "
        f"{number(float(cl.faithfulness(engine, kept)))}",
        r"$\tau = 0.75$",
        "open from 1 on",
    ]


def sentences_on_rankings(engine: cl.Engine) -> list[str]:
    """KL by its formula; the curve and the areas by hand and by ``cl``, over the five edges of the table."""
    cut = engine.all - ["a0.0→m0"]
    logits = engine.model(engine.task.clean)[0, -1].double()
    p, q = logits.softmax(-1), engine.run(cut)[0, 0].double().softmax(-1)
    kl = float(-(p * (p / q).log()).sum())
    assert kl == pytest.approx(float(engine.metric(cut, "kl")), abs=1e-5)
    answer, wrong = int(engine.task.answers[0]), int(engine.task.distractors[0, 0])
    others = [float(x) for i, x in enumerate(logits) if i not in (answer, wrong)]
    assert len(others) == 3 and {round(x, 5) for x in others} == {-1.0}

    ranked = sorted(EDGES, key=lambda edge: (-round(exact(edge), 4), EDGES.index(edge)))
    by_size = {k: measured(set(EDGES) - set(ranked[:k])) / measured() for k in (0, 2, 4, 5)}
    curve = Curve((2, 4), (by_size[2], by_size[4]), 5)
    steps = [(0, 2), (2, 4), (4, 5)]
    cpr = sum((b - a) / 5 * (by_size[a] + by_size[b]) / 2 for a, b in steps)
    cmd = sum((b - a) / 5 * (abs(1 - by_size[a]) + abs(1 - by_size[b])) / 2 for a, b in steps)
    assert cl.cpr(curve) == pytest.approx(cpr) and cl.cmd(curve) == pytest.approx(cmd)

    true = {"a0.0→m0", "a0.1→m0", "m0→logits"}
    points = [(len({*ranked[:k]} - true) / 2, len({*ranked[:k]} & true) / 3) for k in (2, 4, 5)]
    assert points == [(0, 2 / 3), (1 / 2, 1), (1, 1)]
    assert set(ranked[:2]) == {"a0.0→m0", "m0→logits"}
    assert [round(exact(edge), 4) for edge in ranked] == [2, 2, 1, 1, 0.5]
    steps, lines = 2 / 3 * 1 / 2 + 1 / 2, (2 / 3 + 1) / 2 * 1 / 2 + 1 / 2
    assert cl.auc(points) == pytest.approx(steps) and cl.auc(points, "trapezoid") == pytest.approx(lines)
    return [
        f"answer's logit is {number(float(logits[answer]))}, that of the wrong answer {number(float(logits[wrong]))}, "
        "and those of three other tokens are −1",
        f"$p$ of the answer is {float(p[answer]):.2f}",
        f"falls to {number(float(engine.run(cut)[0, 0, answer]))}, $q$ of it to {float(q[answer]):.2f}, "
        f"and the metric to −{-kl:.2f}",
        f"the metric is {number(measured(set(EDGES) - set(ranked[:2])))} and $f$ = {by_size[2]:.2f}",
        f"With four edges $f$ = {by_size[4]:.2f}, with five {number(by_size[5])}, with none {number(by_size[0])}",
        f"CPR is {cpr:.2f}, and CMD is {cmd:.2f}",
        "two edges with effect 2, both true: the point is (0, 2/3)",
        "Two edges with effect 1 come in together, one of them true: (1/2, 1)",
        "The last edge is false: (1, 1)",
        f"The AUC is {steps:.2f} by steps (*pessimistic*) and {lines:.2f} by lines",
    ]


def test_every_number_in_the_text():
    text = section("Two heads, with numbers")
    for sentence in sentences():
        assert sentence in text, sentence
        text = text.replace(sentence, "")
    # What is left names things (a0.0, m0) or stands in a formula or a table.
    text = "\n".join(line for line in text.splitlines() if not line.startswith("|"))
    left = re.findall(r"[^\s]*\d[^\s]*", re.sub(r"`[^`]*`|\$[^$]*\$", "", text))
    assert not left, left


# Two heads and a gate --------------------------------------------------------------------------------


@functools.cache
def gate(name: str, direction="noising") -> cl.Engine:
    model = cl.load_model(f"handmade-{name}")
    return cl.Engine(model, cl.default_task(model, n=1), direction=direction)


def gate_by_hand(name: str, total):
    return torch.relu(total) - torch.relu(total - 1) if name == "or" else torch.relu(total - 1)


@pytest.mark.parametrize("name", ["or", "and"])
def test_the_gate_table(name):
    engine = gate(name)
    assert float(engine.metric(engine.all)) == pytest.approx(1, abs=1e-5)
    assert float(engine.metric(engine.none)) == pytest.approx(0, abs=1e-5)
    effects = {float(engine.metric(engine.all) - engine.metric(engine.all - [f"a0.{head}→m0"])) for head in (0, 1)}
    (exact,) = {round(effect, 4) + 0.0 for effect in effects}
    on_the_way = torch.linspace(0, 2, 1001).requires_grad_()
    (slope,) = torch.autograd.grad(gate_by_hand(name, on_the_way).sum(), on_the_way)
    at_clean, average = float(slope[-1]), float(slope.mean())
    assert average == pytest.approx(0.5, abs=2e-3)
    keeps = {True: "both", False: "one of the two; which one depends on the order"}[exact > 0]
    row = f"| {name.upper()} | {exact:.0f} | {at_clean:.0f} | ½ | {keeps} |"
    assert row in section("Two heads and a gate"), row
    if name == "or":  # the other input still carries the answer; without it nothing does
        rest = engine.all - ["a0.0→m0"]
        assert float(engine.metric(rest) - engine.metric(rest - ["a0.1→m0"])) == pytest.approx(1, abs=1e-5)


def test_the_gates_trade_places():
    for name, expected in (("or", 1.0), ("and", 0.0)):
        engine = gate(name, "denoising")
        effect = engine.metric(engine.all - ["a0.0→m0"]) - engine.metric(engine.all)
        assert float(effect) == pytest.approx(expected, abs=1e-5)
