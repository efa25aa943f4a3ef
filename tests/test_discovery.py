"""Exact effects, EAP and EAP-IG against naive references, autograd, TransformerLens, and results known by construction."""

from __future__ import annotations

import functools
import importlib
import os
import statistics
import subprocess
import sys
import textwrap
from pathlib import Path

import naive
import pytest
import shells
import torch

import circuitlib as cl
from circuitlib.discovery import EdgeScores, NodeScores
from circuitlib.engine import Engine
from circuitlib.graph import Circuit, Graph

ROOT = Path(__file__).resolve().parents[1]
MODELS = {
    "native LN": lambda: shells.native(),
    "native without LayerNorm, GELU MLPs": lambda: shells.native(attn_only=False, norm=None, n_heads=2, seed=5),
    "native LNPre": lambda: shells.native(norm="LNPre", seed=1, n_heads=2),
    "gpt2": lambda: shells.gpt2(seed=7, n_heads=2, d_model=16),
}


@functools.cache
def model(name: str):
    return MODELS[name]()


@functools.cache
def engine(name: str, ablation: str = "corrupted", direction: str = "noising", **more) -> Engine:
    return Engine(model(name), shells.random_task(model(name), **more), ablation, direction)


def naive_setting(engine: Engine):
    model, task = engine.model, engine.task
    if engine.direction == "noising":
        return naive.written(model, task.clean)["embed"], naive.ablated(model, task.corrupted, engine.ablation)
    return naive.ablated(model, task.corrupted, engine.ablation)["embed"], naive.written(model, task.clean)


def naive_gradients(engine: Engine, start, replaced=None):
    """∂Σ metric/∂x_r at every receiver, by a leaf of zeros added to what it reads; and what every sender writes.

    ``replaced``: sender → value that it writes instead of its own.
    """
    model, embedding = engine.model, start.clone()
    nudges = {name: torch.zeros_like(embedding).requires_grad_() for name in engine.graph.receivers}
    out = {}
    with torch.enable_grad():
        logits = naive.run(
            model,
            embedding,
            None,
            {str(e) for e in engine.graph.edges},
            nudges=nudges,
            out=out,
            replaced=replaced or {},
        )
        total = engine.task.metric(logits).sum()
    gradients = torch.autograd.grad(total, list(nudges.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(nudges, gradients, strict=True)), {name: value.detach() for name, value in out.items()}


def naive_scores(engine: Engine, gradients, out, reference) -> torch.Tensor:
    """Per position: mean over prompts of Σ_d g_r · (out[s] − ref[s])."""
    graph = engine.graph
    scores = torch.zeros(*graph.edge_mask.shape, engine.task.clean.shape[1])
    for edge in graph.edges:
        product = (gradients[edge.receiver] * (out[edge.sender] - reference[edge.sender])).sum(-1).mean(0)
        scores[graph.index(edge)] = engine.sign * product
    return scores


def close(a, b, relative=1e-4):
    assert a.shape == b.shape
    assert float((a - b).abs().max()) <= relative * float(b.abs().max()), float((a - b).abs().max() / b.abs().max())


# The gates -------------------------------------------------------------------------------------------

OR, AND = "handmade-or", "handmade-and"


@pytest.mark.parametrize(
    ("gate", "direction", "exact", "eap"),
    [(OR, "noising", 0, 0), (AND, "noising", 1, 1), (OR, "denoising", 1, 1), (AND, "denoising", 0, 0)],
)
def test_gates(gate, direction, exact, eap):
    bridge = cl.load_model(gate)
    engine = Engine(bridge, cl.default_task(bridge, n=4), direction=direction)
    steps = 100
    for edge in ("a0.0→m0", "a0.1→m0"):
        assert cl.exact(engine)[edge] == pytest.approx(exact, abs=1e-5)
        assert cl.eap(engine)[edge] == pytest.approx(eap, abs=1e-5)
        assert cl.eap_ig(engine, steps=steps)[edge] == pytest.approx(0.5, abs=1.01 / steps)  # → ½ as steps grow


# Naive references ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("direction", ["noising", "denoising"])
@pytest.mark.parametrize("ablation", ["corrupted", "zero", "mean"])
def test_exact_is_the_difference_of_two_naive_runs(name, ablation, direction):
    e = engine(name, ablation, direction)
    start, reference = naive_setting(e)
    scores, every = cl.exact(e), [str(edge) for edge in e.graph.edges]
    whole = e.task.metric(naive.run(e.model, start, reference, set(every))).mean()
    for edge in every[:: max(1, len(every) // 8)]:
        less = e.task.metric(naive.run(e.model, start, reference, set(every) - {edge})).mean()
        assert scores[edge] == pytest.approx(e.sign * float(whole - less), abs=2e-4)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("direction", ["noising", "denoising"])
@pytest.mark.parametrize("ablation", ["corrupted", "zero", "mean"])
def test_eap_by_forks(name, ablation, direction):
    e = engine(name, ablation, direction)
    start, reference = naive_setting(e)
    if direction == "denoising" and ablation == "zero":
        start = torch.zeros_like(reference["embed"])
    expected = naive_scores(e, *naive_gradients(e, start), reference)
    close(cl.eap(e, per_position=True).values, expected, 1e-3)
    close(cl.eap(e).values, expected.sum(-1), 1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_eap_is_the_gradient_of_the_edge_mask(name):
    """∂M/∂keep[r, s] at keep = 1 is Σ g_r · (out[s] − ref[s]): the engine's own mask, differentiated, is another way to EAP."""
    e = engine(name, "corrupted", read=(2, 5))
    keep = e.graph.edge_mask.float().requires_grad_()
    (expected,) = torch.autograd.grad(e.measure()(e.forward(keep[None])).mean(), keep)
    close(cl.eap(e).values, expected * e.graph.edge_mask)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("ablation", ["corrupted", "mean"])
def test_eap_ig_inputs_by_forks(name, ablation):
    e = engine(name, ablation)
    start, reference = naive_setting(e)
    out, expected, steps = naive.written(e.model, e.task.clean), 0, 3
    for k in range(steps):
        gradients, _ = naive_gradients(e, reference["embed"] + k / steps * (start - reference["embed"]))
        expected = expected + naive_scores(e, gradients, out, reference) / steps
    close(cl.eap_ig(e, steps=steps, per_position=True).values, expected, 1e-3)
    close(cl.eap_ig(e, steps=steps).values, expected.sum(-1), 1e-3)
    ends = [naive_scores(e, naive_gradients(e, x)[0], out, reference) for x in (start, reference["embed"])]
    close(cl.eap_ig(e, variant="clean-corrupted").values, (sum(ends) / 2).sum(-1), 1e-3)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("ablation", "steps"), [("corrupted", 2), ("corrupted", 1), ("zero", 2)])
def test_eap_ig_activations_by_forks(name, ablation, steps):
    e = engine(name, ablation)
    start, reference = naive_setting(e)
    out, expected = naive.written(e.model, e.task.clean), 0
    layers = range(e.graph.n_layers)
    sublayers = [["embed"], *([f"a{layer}.{head}" for head in range(e.graph.n_heads)] for layer in layers)]
    sublayers += [[f"m{layer}"] for layer in layers if e.graph.mlps]
    for senders in sublayers:
        for k in range(1, steps + 1):
            replaced = {s: reference[s] + k / steps * (out[s] - reference[s]) for s in senders}
            gradients, _ = naive_gradients(e, replaced.pop("embed", start), replaced)
            expected = expected + naive_scores(e, gradients, out, reference)
    expected = expected.sum(-1) / (steps * len(sublayers))
    scores = cl.eap_ig(e, steps=steps, variant="activations")
    close(scores.values, expected, 1e-3)
    assert scores.cost.backwards == steps * len(sublayers)
    assert scores.cost.forwards == steps * len(sublayers) + (
        2 if steps > 1 else 1
    )  # the first of one step is the run itself


def test_eap_is_attribution_patch_of_transformer_lens():
    """Theirs takes the gradient on the run that it calls corrupt, and points to the other: swapped, and the sign turned, it is EAP."""
    from transformer_lens.tools.analysis import attribution_patching as theirs

    def compare(bridge, task):
        e = Engine(bridge, task)
        ours, expected = cl.eap(e), torch.zeros(e.graph.edge_mask.shape)
        bridge.requires_grad_(True)  # without, their run leaves no tape
        config = theirs.EdgeAttributionConfig(granularity="edge")
        for i in range(len(task)):
            one = shells.pick(task, i)
            result = theirs.attribution_patch(
                bridge, one.corrupted, one.clean, lambda logits, one=one: one.metric(logits).sum(), config
            )
            for (writer, reader), score in result.edge_scores.items():
                sender, receiver = tl_name(writer), tl_name(reader)
                expected[e.graph.receiver_index[receiver], e.graph.sender_index[sender]] -= score / len(task)
        bridge.requires_grad_(False)
        return ours.values, expected

    def tl_name(node):
        if node.kind in ("embed", "logits"):
            return node.kind
        kind = {"attn_head_out": "", "q_input": ".q", "k_input": ".k", "v_input": ".v"}.get(node.kind)
        return f"m{node.layer}" if kind is None else f"a{node.layer}.{node.head}{kind}"

    # The sign first, where it can be seen: the metric rises with what embed writes, on the edge embed → logits alone.
    tiny = shells.gpt2(n_layers=1, n_heads=1, d_model=4, d_vocab=5, n_ctx=4, seed=3)
    with torch.no_grad():
        for name, value in tiny.state_dict(keep_vars=True).items():
            if ".attn.o." in name or ".mlp.out." in name:
                value.zero_()
    ours, expected = compare(tiny, shells.random_task(tiny, n=2, n_pos=3, read=(2,)))
    assert ours[-1, 0].abs() > 1e-3 and not ours[:-1].abs().max() > 1e-6
    close(ours, expected)
    close(*compare(model("gpt2"), shells.random_task(model("gpt2"), n=3)))


# Sums that must come out ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_the_edges_out_of_a_node_add_up_to_its_attribution(name):
    """Σ_r EAP(s→r) = ∂M/∂out[s] · (out[s] − ref[s]), with the gradient from TransformerLens's hooks on z."""
    e = engine(name)
    bridge, task = e.model, e.task
    _, corrupted = bridge.run_with_cache(task.corrupted)
    names = [f"blocks.{layer}.attn.hook_z" for layer in range(e.graph.n_layers)]
    kept = {}

    def keep(z, hook, name):
        kept[name] = z.clone() if z.requires_grad else z.clone().requires_grad_()
        return kept[name]

    with torch.enable_grad():
        hooks = [(name, functools.partial(keep, name=name)) for name in names]
        logits = bridge.run_with_hooks(task.clean, fwd_hooks=hooks)
        gradients = torch.autograd.grad(task.metric(logits).mean(), [kept[name] for name in names])
    nodes = cl.eap(e).nodes()
    for layer, (name_z, g) in enumerate(zip(names, gradients, strict=True)):
        expected = (g * (kept[name_z].detach() - corrupted[name_z])).sum((0, 1, 3))
        ours = [nodes[f"a{layer}.{head}"] for head in range(e.graph.n_heads)]
        assert ours == pytest.approx(expected.tolist(), abs=1e-5 + 1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize("name", ["native LN", "gpt2"])
def test_eap_ig_accounts_for_the_whole_difference(name):
    e = engine(name)
    gap = float(e.metric(e.all) - e.metric(e.none))
    errors = [abs(float(cl.eap_ig(e, steps=m).values[:, 0].sum()) - gap) for m in (1, 4, 16, 64, 256)]
    assert all(later < earlier for earlier, later in zip(errors[1:], errors[2:], strict=False))
    assert errors[-1] < 0.02 * abs(gap) and errors[-1] < errors[0] / 20, (errors, gap)


def test_exact_nodes_are_runs_without_their_edges():
    e = engine("gpt2")
    nodes = cl.exact(e, level="node")
    for sender in e.graph.senders:
        rest = e.all - [edge for edge in e.all if edge.sender == sender]
        assert nodes[sender] == pytest.approx(float(e.metric(e.all) - e.metric(rest)), abs=1e-5)
    assert isinstance(nodes, NodeScores) and len(nodes) == len(e.graph.senders)


def test_exact_per_position_cuts_one_position():
    e = engine("native LN")
    scores = cl.exact(e, per_position=True)
    whole = Circuit.from_mask(e.graph_with_positions, e.graph_with_positions.edge_mask)
    for edge in ("embed→a0.0.v@1", "a0.1→a1.2.q@5", "a1.0→logits@5", "a1.0→logits@2"):
        assert scores[edge] == pytest.approx(float(e.metric(whole) - e.metric(whole - [edge])), abs=1e-5)
    assert abs(scores["a1.0→logits@2"]) < 1e-5  # nothing is read there


def test_eap_ig_is_nearer_to_the_exact_effects_than_eap():
    """On ten random 2-layer models, Pearson; the medians are .980 and .990. The order is what is claimed."""
    correlations = {"eap": [], "eap-ig": []}
    for seed in range(10):
        bridge = shells.gpt2(n_layers=2, n_heads=4, d_model=32, seed=seed)
        e = Engine(bridge, shells.random_task(bridge, n=4, n_pos=8, read=(7,), solved=True, seed=seed))
        exact = cl.exact(e).flat
        for method, scores in (("eap", cl.eap(e)), ("eap-ig", cl.eap_ig(e, steps=5))):
            correlations[method].append(float(torch.corrcoef(torch.stack([exact, scores.flat]))[0, 1]))
    medians = {method: statistics.median(values) for method, values in correlations.items()}
    print("median correlation with exact effects over 10 seeds:", medians)
    assert medians["eap"] < medians["eap-ig"]
    assert sum(b > a for a, b in zip(*correlations.values(), strict=True)) >= 7, correlations


def test_effects_that_are_only_rounding_are_zero():
    """In an OR gate no single cut matters: none of its edges may rank above another by dust."""
    bridge = cl.load_model(OR)
    scores = cl.exact(Engine(bridge, cl.default_task(bridge, n=4)))
    assert {str(edge) for edge, effect in scores.items() if effect} == {"m0→logits"}


# Cost and batches --------------------------------------------------------------------------------------


def test_eap_takes_two_forwards_and_one_backward(monkeypatch):
    """Counted where they can't hide: attention of a layer over all prompts, and autograd.grad."""
    engine_module, eap_module = (importlib.import_module(f"circuitlib.{name}") for name in ("engine", "discovery.eap"))
    prompts, backwards = [], []
    attend, grad = engine_module.attend, torch.autograd.grad

    def counted(layer, q, *rest):
        prompts.append(q.shape[0] * q.shape[2])
        return attend(layer, q, *rest)

    for module in (engine_module, eap_module):
        monkeypatch.setattr(module, "attend", counted)
    bridge = model("gpt2")
    e = Engine(bridge, shells.random_task(bridge, n=4))
    checked = e.graph.n_layers  # Engine compares one prompt with the model's own run
    monkeypatch.setattr(torch.autograd, "grad", lambda y, x, *a, **k: (backwards.append(x), grad(y, x, *a, **k))[1])
    scores = cl.eap(e)
    assert (sum(prompts) - checked) / 4 / e.graph.n_layers == 2 == scores.cost.forwards
    through_the_model = [x for x in backwards if isinstance(x, list)]  # the other one stops at the logits
    assert len(through_the_model) == 1 == scores.cost.backwards
    for variant, steps, forwards, backward in (("inputs", 7, 9, 7), ("clean-corrupted", None, 3, 2)):
        cost = cl.eap_ig(e, steps=steps, variant=variant).cost
        assert (cost.forwards, cost.backwards) == (forwards, backward)


@pytest.mark.parametrize("method", [cl.eap, cl.eap_ig, functools.partial(cl.eap_ig, variant="activations"), cl.exact])
def test_batches_change_nothing(method):
    bridge = model("gpt2")
    task = shells.random_task(bridge, n=7)
    whole, split = (method(Engine(bridge, task, memory_mb=mb)).values for mb in (256, 0.02))
    assert float((whole - split).abs().max()) < 1e-6 * max(1.0, float(whole.abs().max()))


def test_the_same_scores_when_gradients_are_switched_off():
    e = engine("gpt2")
    before = cl.eap(e).values
    with torch.no_grad():
        assert torch.equal(cl.eap(e).values, before)


# What scores can do -------------------------------------------------------------------------------------


def test_scores_rank_and_name_edges():
    graph = Graph.from_shape(1, 1, mlps=False)  # embed→a0.0.q, .k, .v, embed→logits, a0.0→logits
    values = torch.tensor([[1.0, 0], [-3, 0], [0, 0], [3, 2]])
    scores = EdgeScores(graph, values, "mine", "task")
    assert [str(edge) for edge in scores.ranked()] == [
        "embed→a0.0.k", "embed→logits", "a0.0→logits", "embed→a0.0.q", "embed→a0.0.v",
    ]  # fmt: skip
    assert str(scores.ranked(signed=True)[-1]) == "embed→a0.0.k"
    assert scores["embed→a0.0.k"] == -3 and dict(scores.items())[graph.edge("a0.0→logits")] == 2
    assert scores.top(2) == Circuit(graph, ["embed→a0.0.k", "embed→logits"])
    assert scores.top(1, signed=True) == Circuit(graph, ["embed→logits"])
    assert len(scores.top(0)) == 0 and len(scores.top(5)) == 5
    assert len(scores.above(2)) == 3 and len(scores.above(2, signed=True)) == 2
    assert list(scores.to_pandas().score) == [-3, 3, 2, 1, 0]
    assert dict(scores.nodes().items()) == {"embed": 1, "a0.0": 2} and scores.nodes().top(1) == ["a0.0"]


def test_scores_refuse():
    graph = Graph.from_shape(1, 1, mlps=False)
    with pytest.raises(ValueError, match=r"^values: expected shape \[4, 2\]"):
        EdgeScores(graph, torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"^values: expected finite numbers, got nan for embed→a0.0.k"):
        EdgeScores(graph, torch.tensor([[0, 0], [float("nan"), 0], [0, 0], [0, 0]]))
    scores = EdgeScores(graph, torch.zeros(4, 2))
    for k in (-1, 6, 2.0, True):
        with pytest.raises(ValueError, match=r"^k: expected an integer from 0 to 5"):
            scores.top(k)
    for threshold in (-0.1, float("nan")):
        with pytest.raises(ValueError, match=r"^threshold: expected a number from 0"):
            scores.above(threshold)
    with pytest.raises(ValueError, match="^edge 'a0.1→logits'"):
        scores["a0.1→logits"]
    with pytest.raises(ValueError, match="^node 'a9.9' does not exist"):
        scores.nodes()["a9.9"]


# Bad input ------------------------------------------------------------------------------------------------


def test_a_gradient_that_vanishes_is_refused():
    e = engine("gpt2")
    with pytest.raises(ValueError, match="^metric: the gradient of 'kl' vanishes at the run that eap looks at"):
        cl.eap(e, metric="kl")
    assert cl.eap_ig(e, metric="kl").flat.abs().max() > 1e-3  # away from the clean run it has a gradient
    assert cl.eap(engine("gpt2", direction="denoising"), metric="kl").flat.abs().max() > 1e-3
    with pytest.raises(ValueError, match="^metric: the gradient of 'flat' vanishes"):

        def flat(logits):
            return logits.sum((-1, -2)) * 0

        cl.eap_ig(e, metric=flat)


def test_eap_ig_refuses():
    e = engine("gpt2")
    with pytest.raises(
        ValueError, match="^variant: expected one of inputs, activations, clean-corrupted, got 'outputs'"
    ):
        cl.eap_ig(e, variant="outputs")
    with pytest.raises(ValueError, match="^steps: expected None with variant 'clean-corrupted'"):
        cl.eap_ig(e, steps=5, variant="clean-corrupted")
    for steps in (0, -1, 2.5, True):
        with pytest.raises(ValueError, match="^steps: expected a positive integer"):
            cl.eap_ig(e, steps=steps)
    for variant in ("inputs", "clean-corrupted"):
        with pytest.raises(ValueError, match="^variant: .* zero ablation .* steeper by orders of magnitude"):
            cl.eap_ig(engine("gpt2", "zero"), variant=variant)
        cl.eap_ig(engine("native without LayerNorm, GELU MLPs", "zero"), variant=variant)
    with pytest.raises(ValueError, match="^level: expected 'edge' or 'node'"):
        cl.exact(e, level="head")
    with pytest.raises(ValueError, match="^metric: expected None, 'kl' or a function"):
        cl.eap(e, metric="loss")


# Interrupted and resumed ------------------------------------------------------------------------------------


def test_exact_goes_on_where_it_was_stopped(tmp_path):
    e = engine("gpt2")
    whole, path = cl.exact(e), tmp_path / "exact.json"
    for stop_after in (1, 7, 12):
        calls = 0

        def interrupted(logits):
            nonlocal calls
            calls += 1
            if calls > stop_after:  # noqa: B023
                raise KeyboardInterrupt
            return e.task.metric(logits)

        path.unlink(missing_ok=True)
        with pytest.raises(KeyboardInterrupt):
            cl.exact(e, metric=interrupted, checkpoint=path)
        calls = -(10**9)
        again = cl.exact(e, metric=interrupted, checkpoint=path)
        assert torch.equal(again.values, whole.values)
        assert again.cost.forwards == whole.cost.forwards


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    path = tmp_path / "exact.json"
    cl.exact(engine("gpt2"), checkpoint=path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="^checkpoint: .* is of another run: its ablation is corrupted, expected mean"):
        cl.exact(engine("gpt2", "mean"), checkpoint=path)
    with pytest.raises(ValueError, match="^checkpoint: .* is of another run: its metric is task, expected kl"):
        cl.exact(engine("gpt2"), metric="kl", checkpoint=path)
    with pytest.raises(ValueError, match="^checkpoint: .* is of another run: its task"):
        cl.exact(engine("gpt2", seed=1), checkpoint=path)
    assert path.read_bytes() == before
    path.write_text(before.decode().replace('"a0.0.q": [', '"a0.0.q": [0.5, '))
    with pytest.raises(ValueError, match="^checkpoint: .* is damaged"):
        cl.exact(engine("gpt2"), checkpoint=path)


def test_exact_shows_a_bar_on_stderr_if_asked():
    """In a process of its own: tqdm reads ``TQDM_DISABLE`` once, when it is imported."""
    code = """
        import circuitlib as cl
        model = cl.load_model("handmade-or")
        engine = cl.Engine(model, cl.default_task(model, n=4))
        cl.exact(engine, progress={progress})
    """
    for progress, disable, shown in ((True, "", True), (False, "", False), (True, "1", False)):
        env = {k: v for k, v in os.environ.items() if k != "TQDM_DISABLE"} | (
            {"TQDM_DISABLE": disable} if disable else {}
        )
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code.format(progress=progress))],
            env=env,
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0 and done.stdout == "", done.stderr
        assert ("exact: 100%" in done.stderr and "edges/s" in done.stderr) is shown


def test_what_works_for_edges_only_is_refused_for_nodes(tmp_path):
    model = cl.load_model("handmade-or")
    it = cl.Engine(model, cl.default_task(model))
    for name, given in (("per_position", {"per_position": True}), ("checkpoint", {"checkpoint": tmp_path / "c.json"})):
        with pytest.raises(ValueError, match=f"^{name}: works for edges only"):
            cl.exact(it, level="node", **given)
    assert not list(tmp_path.iterdir())
