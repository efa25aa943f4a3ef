"""The engine against the models themselves, a naive reference, and TransformerLens's own tools."""

from __future__ import annotations

import dataclasses
import functools
import weakref

import naive
import pytest
import shells
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import circuitlib as cl
from circuitlib.engine import DIRECTIONS, Engine
from circuitlib.graph import ABLATIONS, Circuit, Graph, random_circuit
from circuitlib.models.registry import REGISTRY

MODELS = {
    "native LN": lambda: shells.native(),
    "native LNPre": lambda: shells.native(norm="LNPre", seed=1),
    "native without LayerNorm": lambda: shells.native(norm=None, seed=2),
    "native, one layer": lambda: shells.native(n_layers=1, seed=3),
    "native with ReLU MLPs": lambda: shells.native(attn_only=False, act="relu", seed=4),
    "native with GELU MLPs": lambda: shells.native(attn_only=False, act="gelu", seed=5, n_layers=1),
    "native, no LayerNorm, one layer with MLP": lambda: shells.native(
        attn_only=False, act="relu", norm=None, n_layers=1, seed=6
    ),
    "gpt2": lambda: shells.gpt2(seed=7),
    "gpt2, untied, narrow MLP": lambda: shells.gpt2(n_layers=3, tie=False, n_inner=5, seed=8),
    "attn-only shell": lambda: shells.gpt2_shell(shells.native(seed=9)),
}


@functools.cache
def model(name: str):
    return MODELS[name]()


def circuits_of(graph: Graph, seed: int = 0) -> list[Circuit]:
    """None, a tenth, half and nearly all of the edges."""
    sizes = (0, graph.n_edges // 10, graph.n_edges // 2, graph.n_edges - 3)
    return [random_circuit(graph, size, seed + i) for i, size in enumerate(sizes)]


def naive_setting(model, task, ablation, direction):
    """What the naive reference starts from, and what it takes for cut edges."""
    if direction == "noising":
        return naive.written(model, task.clean)["embed"], naive.ablated(model, task.corrupted, ablation)
    return naive.ablated(model, task.corrupted, ablation)["embed"], naive.written(model, task.clean)


def close(a, b, most):
    assert a.shape == b.shape and a.dtype == b.dtype
    assert float((a - b).abs().max()) < most, float((a - b).abs().max())


# All, none, and nothing to tell apart ---------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_all_edges_are_the_model_and_none_are_the_corrupted_run(name):
    task = shells.random_task(model(name), read=(1, 4))
    engine = Engine(model(name), task)
    close(engine.run(engine.all, full=True), model(name)(task.clean), 1e-4)
    close(engine.run(engine.all), model(name)(task.clean)[:, [1, 4]], 1e-4)
    close(engine.run(engine.none, full=True), model(name)(task.corrupted), 1e-4)
    other = Engine(model(name), task, direction="denoising")
    close(other.run(other.all, full=True), model(name)(task.corrupted), 1e-4)
    close(other.run(other.none, full=True), model(name)(task.clean), 1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_in_float64_all_edges_are_the_model_to_the_last_digits(name):
    double = MODELS[name]().double()
    task = shells.random_task(double)
    engine = Engine(double, task)
    assert engine.run(engine.all).dtype == torch.float64
    close(engine.run(engine.all, full=True), double(task.clean), 1e-9)
    close(engine.run(engine.none, full=True), double(task.corrupted), 1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_with_no_edges_zero_and_mean_leave_biases_and_means(name):
    """unembed(LN(B + Σ ref)), written out: under zero ablation the biases b_O alone, under mean ablation with Σ of means."""
    task = shells.random_task(model(name))
    bias = torch.stack([block.attn.b_O for block in model(name).blocks]).sum(0)
    written = naive.written(model(name), task.corrupted)
    for ablation, x in [
        ("zero", torch.zeros(3, 6, 24)),
        ("mean", sum(out.mean(0, keepdim=True) for out in written.values()).expand(3, -1, -1)),
    ]:
        engine = Engine(model(name), task, ablation=ablation)
        expected = naive._norm(model(name), model(name).ln_final, x + bias) @ model(name).W_U + model(name).b_U
        close(engine.run(engine.none, full=True), expected, 1e-4)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", MODELS)
def test_where_clean_is_corrupted_every_circuit_is_the_model(name, direction):
    task = shells.random_task(model(name), read=(2, 5))
    task = dataclasses.replace(task, corrupted=task.clean)
    engine = Engine(model(name), task, direction=direction)
    logits = engine.run(circuits_of(engine.graph), full=True)
    close(logits, model(name)(task.clean).expand_as(logits), 1e-4)


@pytest.mark.parametrize(
    ("shape", "make"),
    [
        ((4, 8, 512, 64), lambda: shells.native(4, 8, 512, 64, d_vocab=60, n_ctx=8)),
        ((12, 12, 768, 64), lambda: shells.gpt2(12, 12, 768, d_vocab=60, n_ctx=8)),
    ],
    ids=["attn-only-4l", "gpt2"],
)
def test_real_shapes(shape, make):
    big = make()
    assert (big.cfg.n_layers, big.cfg.n_heads, big.cfg.d_model, big.cfg.d_head) == shape
    task = shells.random_task(big, n=2, n_pos=4, read=(3,))
    engine = Engine(big, task)
    assert engine.graph.n_edges == {4: 1_281, 12: 32_491}[shape[0]]
    scale = float(big(task.clean).abs().max())  # random weights make logits of the order of 100
    close(engine.run(engine.all, full=True) / scale, big(task.clean) / scale, 1e-5)
    close(engine.run(engine.none, full=True) / scale, big(task.corrupted) / scale, 1e-5)


@pytest.mark.parametrize("name", [entry.name for entry in REGISTRY.values() if entry.family != "hub"])
def test_shipped_and_hand_made_models(name):
    it = cl.load_model(name)
    task = cl.default_task(it, n=5)
    engine = Engine(it, task)
    close(engine.run(engine.all, full=True), it(task.clean), 1e-4)
    close(engine.run(engine.none, full=True), it(task.corrupted), 1e-4)
    same = Engine(it, dataclasses.replace(task, corrupted=task.clean))
    logits = same.run(circuits_of(same.graph))
    close(logits, it(task.clean)[:, list(task.read_positions)].expand_as(logits), 1e-4)
    it.double()
    engine = Engine(it, task)
    close(engine.run(engine.all, full=True), it(task.clean), 1e-9)


# Against the naive reference ------------------------------------------------------------------------


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("ablation", ABLATIONS)
@pytest.mark.parametrize("name", MODELS)
def test_circuits_against_the_naive_reference(name, ablation, direction):
    double = model_in_double(name)  # so that what is compared is the computation, not its rounding
    task = shells.random_task(double, read=(2, 5))
    engine = Engine(double, task, ablation=ablation, direction=direction)
    circuits = circuits_of(engine.graph, seed=len(name))
    batch = engine.run(circuits)
    for circuit, logits in zip(circuits, batch, strict=True):
        expected = naive.run(double, *naive_setting(double, task, ablation, direction), set(map(str, circuit)))
        close(logits, expected[:, [2, 5]], 1e-9)
        close(engine.run(circuit), logits, 1e-9)
    close(engine.run(circuits[2], full=True)[:, [2, 5]], batch[2], 1e-9)


@pytest.mark.parametrize("name", ["native LN", "gpt2", "native, no LayerNorm, one layer with MLP"])
def test_float32_against_the_naive_reference(name):
    task = shells.random_task(model(name))
    engine = Engine(model(name), task)
    for circuit in circuits_of(engine.graph):
        expected = naive.run(
            model(name), *naive_setting(model(name), task, "corrupted", "noising"), set(map(str, circuit))
        )
        close(engine.run(circuit, full=True) / expected.abs().max(), expected / expected.abs().max(), 1e-5)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", MODELS)
def test_edges_with_positions_against_the_naive_reference(name, direction):
    double = model_in_double(name)
    task = shells.random_task(double, read=(2, 5))
    engine = Engine(double, task, direction=direction)
    circuits = circuits_of(engine.graph_with_positions, seed=len(name))
    for circuit, logits in zip(circuits, engine.run(circuits), strict=True):
        expected = naive.run(double, *naive_setting(double, task, "corrupted", direction), set(map(str, circuit)))
        close(logits, expected[:, [2, 5]], 1e-9)


@functools.cache
def model_in_double(name: str):
    return MODELS[name]().double()


def test_an_edge_at_every_position_is_the_edge():
    task = shells.random_task(model("gpt2"))
    engine = Engine(model("gpt2"), task)
    circuit = random_circuit(engine.graph, 40)
    everywhere = Circuit(engine.graph_with_positions, (f"{edge}@{p}" for edge in circuit for p in range(6)))
    close(engine.run(everywhere), engine.run(circuit), 1e-5)
    assert engine.like(everywhere, circuit) == everywhere


def test_the_order_of_read_positions_is_kept():
    task = shells.random_task(model("gpt2"), read=(5, 0, 3))
    engine = Engine(model("gpt2"), task)
    circuit = random_circuit(engine.graph, 60)
    close(engine.run(circuit), engine.run(circuit, full=True)[:, [5, 0, 3]], 1e-5)


# Batches, memory and runs that share their beginning -------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_a_memory_limit_changes_nothing_but_the_split(name, monkeypatch):
    task = shells.random_task(model(name), n=5)
    engine = Engine(model(name), task)
    circuits = circuits_of(engine.graph) + [engine.all]
    whole = engine.run(circuits)
    sizes = []
    forward = Engine.forward

    def watched(self, keep, **more):
        logits = forward(self, keep, **more)
        sizes.append(logits.shape[:2].numel())
        return logits

    monkeypatch.setattr(Engine, "forward", watched)
    for rows in (1, 2, 7, 12):  # of one prompt in one circuit each
        sizes.clear()
        engine.memory_mb = 1.01 * rows * engine._bytes() / 2**20
        close(engine.run(circuits), whole, 1e-5)
        assert max(sizes) <= rows and sum(sizes) == 25


class PeakMemory(TorchDispatchMode):
    """The most bytes that tensors made inside it held at a time. Tensors that were there before don't count."""

    def __init__(self):
        super().__init__()
        self.tensors, self.bytes, self.now, self.peak = {}, {}, 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {x.untyped_storage().data_ptr() for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, torch.Tensor) and (at := x.untyped_storage().data_ptr()):
                if at not in self.bytes:
                    if at in given:
                        continue
                    self.tensors[at], self.bytes[at] = 0, x.untyped_storage().nbytes()
                    self.now += self.bytes[at]
                    self.peak = max(self.peak, self.now)
                self.tensors[at] += 1
                weakref.finalize(x, self._gone, at)
        return result

    def _gone(self, at):
        self.tensors[at] -= 1
        if self.tensors[at] == 0:
            self.now -= self.bytes.pop(at)


@pytest.mark.parametrize("limit", [3, 10])
@pytest.mark.parametrize(
    "make",
    [
        lambda: shells.native(4, 8, 64, 8, d_vocab=50, n_ctx=40),
        lambda: shells.gpt2(4, 8, 64, d_vocab=50, n_ctx=40),
        lambda: shells.native(1, 2, 32, 16, d_vocab=3000, n_ctx=40),
    ],
    ids=["attention-only", "gpt2", "one layer, large vocabulary"],
)
def test_a_pass_stays_under_the_memory_limit(make, limit):
    big = make()
    task = shells.random_task(big, n=20, n_pos=40, read=(39,))
    engine = Engine(big, task, memory_mb=limit)
    half, edges = (
        random_circuit(engine.graph, engine.graph.n_edges // 2),
        engine.graph.edges[:: engine.graph.n_edges // 8],
    )
    with PeakMemory() as memory:
        engine.values([half, engine.all] * 3)
    assert 0.2 * limit * 2**20 < memory.peak < 1.05 * limit * 2**20
    run = engine.cache(half)
    cached = sum(x.untyped_storage().nbytes() for x in (run.stack.full, run.stack.read))
    with PeakMemory() as memory:
        engine.values_without(half, edges)
    assert memory.peak < 1.05 * limit * 2**20 + cached
    sparse = random_circuit(engine.graph, engine.graph.n_edges // 20)
    with PeakMemory() as memory:
        engine.values_without(sparse, sparse.edges[:8])
    assert memory.peak < 1.05 * limit * 2**20 + 1.25 * cached


@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_values_without_each_edge_are_those_of_the_circuit_without_it(name, positions):
    double = model_in_double(name)
    task = shells.random_task(double, read=(1, 4))
    engine = Engine(double, task)
    graph = engine.graph_with_positions if positions else engine.graph
    for circuit in (Circuit(graph, graph.edges), random_circuit(graph, graph.n_edges // 2, 1)):
        edges = (
            graph.edges
            if not positions and graph.n_layers == 1
            else random_circuit(graph, min(60, graph.n_edges), 2).edges
        )
        slow = engine.values([circuit - [edge] for edge in edges])
        close(engine.values_without(circuit, edges), slow, 1e-9)
        engine.memory_mb = 1e-6  # one at a time
        close(engine.values_without(circuit, list(map(str, edges[:9]))), slow[:9], 1e-9)
        engine.memory_mb = 512


@pytest.mark.parametrize(
    ("order", "share"),
    [("from the logits down", 0.5), ("from the logits down", 0.1), ("mixed", 0.5), ("in parts", 0.5)],
)
@pytest.mark.parametrize("name", MODELS)
def test_an_updated_run_is_the_run_of_the_changed_circuit(name, share, order):
    """What one receiver keeps changes, and the next is tried from there: as ACDC does, and in any order."""
    double = model_in_double(name)
    task = shells.random_task(double)
    engine = Engine(double, task, ablation="mean")
    circuit = random_circuit(engine.graph, int(engine.graph.n_edges * share), 5)
    run = engine.cache(circuit)
    generator = torch.Generator().manual_seed(0)
    receivers = list(reversed(engine.graph.receivers))
    if order == "in parts":  # of two prompts
        engine.memory_mb = 2.5 * engine._bytes() / 2**20
    if order == "mixed":
        receivers = [receivers[i] for i in torch.randperm(len(receivers), generator=generator).tolist()]
    for receiver in receivers:
        upstream = engine.graph.slot_of(receiver).n_upstream
        rows = torch.rand(3, len(engine.graph.senders), generator=generator) < share
        rows[:, upstream:] = False
        tried = []
        for row in rows:
            mask = circuit.mask.clone()
            mask[engine.graph.receiver_index[receiver]] = row
            tried.append(Circuit.from_mask(engine.graph, mask))
        close(torch.cat(list(engine.logits_from(run, receiver, rows))), engine.run(tried), 1e-9)
        circuit = tried[0]
        engine.update(run, receiver, rows[0])
    again = engine.cache(circuit)
    close(run.stack.full, again.stack.full, 1e-9)
    close(run.stack.read, again.stack.read, 1e-9)
    assert torch.equal(run.keep, again.keep)


def test_only_what_changes_and_is_heard_is_computed():
    """A chain: what no kept edge leads to, and what leads nowhere, is left alone."""
    engine = Engine(model("gpt2, untied, narrow MLP"), shells.random_task(model("gpt2, untied, narrow MLP")))
    chain = ["embed→a0.0.q", "a0.0→m0", "m0→a1.1.v", "a1.1→logits", "a0.0→a1.0.k", "embed→a2.2.q", "a2.2→logits"]
    keep = Circuit(engine.graph, chain).mask
    name = [engine.graph.senders[i] for i in engine._changed(keep, "a0.0", heard=True)]
    assert name == ["a0.0", "m0", "a1.1"]
    assert [engine.graph.senders[i] for i in engine._changed(keep, "a0.0")] == ["a0.0", "m0", "a1.0", "a1.1"]
    assert [engine.graph.senders[i] for i in engine._changed(keep, "a1.0", heard=True)] == ["a1.0"]


# Against TransformerLens ----------------------------------------------------------------------------


def test_one_edge_against_direct_path_patching():
    """``get_act_patch_direct_path``: head → head's q, k or v, clean into the corrupted run, on a GPT-2 shell of 4 × 8."""
    from transformer_lens.patching import get_act_patch_direct_path

    native = shells.native(4, 8, 32, 4, d_vocab=20, n_ctx=5, seed=3)
    shell = shells.gpt2_shell(native)
    task = shells.random_task(native, n=1, n_pos=5, read=(4,))
    weights = torch.randn(20, generator=torch.Generator().manual_seed(0)) / 20

    def metric(logits):
        return (logits[:, -1] @ weights).mean()

    _, clean = shell.run_with_cache(task.clean)
    _, corrupted = shell.run_with_cache(task.corrupted)
    engine = Engine(native, task, direction="denoising")
    for part in "qkv":
        for layer in range(3):
            for head in range(8):
                theirs = get_act_patch_direct_path(
                    shell, task.corrupted, clean, corrupted, metric, layer, head, part, verbose=False
                )
                edges = [f"a{layer}.{head}→a{to}.{h}.{part}" for to in range(layer + 1, 4) for h in range(8)]
                ours = engine.values_without(engine.all, edges, lambda logits: logits[:, -1] @ weights).mean(-1)
                close(ours, theirs[layer + 1 :].flatten(), 1e-5)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", ["native LN", "native with ReLU MLPs", "gpt2"])
def test_cutting_all_edges_out_of_a_head_is_head_patching(name, direction):
    from transformer_lens.patching import get_act_patch_attn_head_out_all_pos

    task = shells.random_task(model(name))
    weights = torch.randn(29, generator=torch.Generator().manual_seed(0)) / 29
    runs, source = (task.clean, task.corrupted) if direction == "noising" else (task.corrupted, task.clean)
    _, cache = model(name).run_with_cache(source)
    theirs = get_act_patch_attn_head_out_all_pos(
        model(name), runs, cache, lambda logits: (logits[:, -1] @ weights).mean()
    )
    engine = Engine(model(name), task, direction=direction)
    heads = [[f"a{layer}.{head}" for head in range(3)] for layer in range(model(name).cfg.n_layers)]
    cut = [[engine.all - [edge for edge in engine.all if edge.sender == head] for head in row] for row in heads]
    ours = torch.stack([engine.metric(row, lambda logits: logits[:, -1] @ weights) for row in cut])
    close(ours, theirs, 1e-5)


def test_relabelling_heads_permutes_the_results():
    order = [2, 0, 1]  # new head i of layer 1 is the old head order[i]
    old = shells.native(seed=11)
    new = shells.native(seed=11)
    state = new.state_dict()
    for part in "qkvo":
        for kind in ("weight", "bias"):
            if (part, kind) != ("o", "bias"):
                name = f"blocks.1.attn.{part}.{kind}"
                heads = state[name].unflatten(1 if part == "o" else 0, (3, 8))
                state[name] = (heads[:, order] if part == "o" else heads[order]).flatten(
                    *((1, 2) if part == "o" else (0, 1))
                )
    new.load_state_dict(state)
    task = shells.random_task(old)
    a, b = Engine(old, task), Engine(new, task)

    def renamed(edge):
        for i, was in enumerate(order):
            if edge.sender == f"a1.{was}":
                return f"a1.{i}→{edge.receiver}"
            if edge.receiver.startswith(f"a1.{was}."):
                return f"{edge.sender}→a1.{i}.{edge.receiver[-1]}"
        return str(edge)

    close(
        a.values_without(a.all, a.graph.edges), b.values_without(b.all, [renamed(edge) for edge in a.graph.edges]), 1e-5
    )
    circuit = random_circuit(a.graph, 20)
    close(a.run(circuit), b.run(Circuit(b.graph, map(renamed, circuit))), 1e-5)


# Gradients ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["native LN", "gpt2"])
def test_gradients_of_the_mask_are_those_of_finite_differences(name):
    double = model_in_double(name)
    task = shells.random_task(double)
    engine = Engine(double, task)
    keep = engine.all.mask.double()[None].requires_grad_()
    task.metric(engine.forward(keep)[0]).mean().backward()
    with torch.no_grad():
        for edge in random_circuit(engine.graph, 12, 3):
            step = torch.zeros_like(keep)
            step[(0, *engine.graph.index(edge))] = 1e-5
            up, down = (task.metric(engine.forward(keep + sign * step)[0]).mean() for sign in (1, -1))
            assert abs(float((up - down) / 2e-5 - keep.grad[(0, *engine.graph.index(edge))])) < 1e-6


def test_a_run_may_start_from_any_embedding_and_passes_gradients_to_it():
    double = model_in_double("gpt2")
    task = shells.random_task(double)
    engine = Engine(double, task)
    corrupted = naive.written(double, task.corrupted)["embed"].requires_grad_()
    keep = engine.all.mask.double()[None]
    logits = engine.forward(keep, start=corrupted, full=True)[0]
    close(logits.detach(), double(task.corrupted), 1e-9)
    logits.sum().backward()
    assert corrupted.grad.shape == corrupted.shape and float(corrupted.grad.abs().min()) > 0


# Metrics and bad input ------------------------------------------------------------------------------


def test_metrics():
    task = shells.random_task(model("gpt2"), read=(1, 4))
    engine = Engine(model("gpt2"), task)
    circuits = circuits_of(engine.graph)
    logits = engine.run(circuits)
    close(engine.values(circuits), torch.stack([task.metric(of) for of in logits]), 1e-6)
    close(engine.metric(circuits), engine.values(circuits).mean(-1), 1e-6)
    assert engine.metric(circuits[0]).shape == () and engine.values(circuits[0]).shape == (3,)
    clean = model("gpt2")(task.clean)[:, [1, 4]].log_softmax(-1)
    kl = (
        torch.nn.functional.kl_div(logits.log_softmax(-1), clean.expand_as(logits), log_target=True, reduction="none")
        .sum(-1)
        .mean(-1)
    )
    close(engine.values(circuits, "kl"), -kl, 1e-5)
    assert float(engine.metric(engine.all, "kl")) == pytest.approx(0, abs=1e-6)
    close(engine.values(circuits, lambda of: of[:, 0, 7]), logits[:, :, 0, 7], 1e-6)


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ("nll", "metric: expected None, 'kl' or a function"),
        (lambda logits: logits.mean(), "one number for each of 3 prompts"),
        (lambda logits: logits[:, 0], "one number for each of 3 prompts"),
        (lambda logits: 1.0, "one number for each of 3 prompts"),
        (
            lambda logits: logits[:, 0, 0] * torch.tensor([1, float("nan"), 1]),
            "expected finite numbers, got nan for prompt 1",
        ),
    ],
)
def test_bad_metrics(metric, said):
    engine = Engine(model("native LN"), shells.random_task(model("native LN")))
    for call in (engine.values, lambda circuit, metric: engine.values_without(circuit, ["embed→logits"], metric)):
        with pytest.raises(ValueError, match=said) as error:
            call(engine.all, metric)
        assert "\n" not in str(error.value)


def test_bad_arguments():
    task = shells.random_task(model("native LN"))
    engine = Engine(model("native LN"), task)
    other = Graph.from_shape(3, 3, False)
    few = Graph.from_shape(2, 3, False, n_pos=5)
    long = shells.random_task(model("native LN"), n_pos=13, read=(12,))

    def make(task=task, **more):
        return Engine(model("native LN"), task, **more)

    for call, said in [
        (lambda: make(ablation="noise"), "ablation: expected one of"),
        (lambda: make(direction="up"), "direction: expected one of"),
        (lambda: make(memory_mb=0), "memory_mb: expected a positive number"),
        (lambda: make(memory_mb=float("nan")), "memory_mb: expected a positive number"),
        (lambda: make("docstring"), "task: expected a Task"),
        (lambda: make(dataclasses.replace(task, read_positions=())), "^read_positions: expected at least one"),
        (lambda: make(dataclasses.replace(task, clean=task.clean + 29)), "task.clean: expected token ids from 0 to 28"),
        (lambda: make(dataclasses.replace(task, corrupted=task.corrupted - 29)), "task.corrupted: expected token ids"),
        (
            lambda: make(dataclasses.replace(task, corrupted=task.corrupted.float())),
            "corrupted: expected a tensor of token ids, got torch.float32",
        ),
        (lambda: make(long), "prompts have 13 tokens, expected at most the model's 12"),
        (lambda: dataclasses.replace(task, corrupted=task.corrupted[:, :5]), "corrupted: expected the shape of clean"),
        (lambda: task.position("A_def"), "position 'A_def' does not exist"),
        (
            lambda: engine.run(Circuit(other, [])),
            "circuit: expected one of Graph.2 layers .* got one of Graph.3 layers",
        ),
        (lambda: engine.run(Circuit(few, [])), "6 positions.*5 positions"),
        (lambda: engine.run([engine.all, Circuit(engine.graph_with_positions, [])]), "circuits of one graph"),
        (lambda: engine.run([]), "at least one circuit"),
        (lambda: engine.run(["embed→logits"]), "circuit: expected a Circuit"),
        (lambda: engine.values_without(engine.all, ["embed→a7.0.q"]), "'a7.0.q' does not exist"),
        (lambda: list(engine.logits_from(engine.cache(engine.all), "a7.0.q", torch.ones(1, 7))), "receiver 'a7.0.q'"),
    ]:
        with pytest.raises(ValueError, match=said) as error:
            call()
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (dict(positional_embedding_type="rotary"), "rotary positions"),
        (dict(norm="RMS"), "RMS normalization"),
        (dict(norm="RMSPre"), "RMSPre normalization"),
        (dict(final_rms=True), "RMSNorm"),
        (dict(n_key_value_heads=1), "grouped queries"),
        (dict(attn_only=False, gated_mlp=True, act="silu"), "gated MLPs"),
        (dict(attn_only=False, act="solu_ln"), "activation 'solu_ln'"),
        (dict(attn_scores_soft_cap=30.0), "a soft cap on attention scores"),
        (dict(output_logits_soft_cap=30.0), "a soft cap on logits"),
        (dict(attention_dir="bidirectional"), "bidirectional attention"),
    ],
)
def test_unsupported_models_are_refused_by_name(changes, said):
    unsupported = shells.native(**changes)
    with pytest.raises(ValueError, match=f"model: {said}.* not supported") as error:
        Engine(unsupported, shells.random_task(unsupported))
    assert "\n" not in str(error.value)


def test_other_architectures_are_refused_by_name():
    task = shells.random_task(model("gpt2"))
    with pytest.raises(ValueError, match="attention scaled by layer is not supported"):
        Engine(shells.gpt2(scale_attn_by_inverse_layer_idx=True), task)
    with pytest.raises(ValueError, match="model: expected a TransformerBridge"):
        Engine(torch.nn.Linear(2, 2), task)
    changed = shells.gpt2()
    changed.cfg.architecture = "GPTNeoXForCausalLM"
    with pytest.raises(ValueError, match="architecture 'GPTNeoXForCausalLM' is not supported"):
        Engine(changed, task)
    changed = shells.gpt2()
    changed.cfg.parallel_attn_mlp = True
    with pytest.raises(ValueError, match="attention and MLP in parallel are not supported"):
        Engine(changed, task)


def test_a_model_that_the_engine_does_not_agree_with_is_refused():
    hooked = shells.native()
    task = shells.random_task(hooked)
    hooked.add_hook("blocks.0.attn.hook_z", lambda value, hook: value * 0)
    with pytest.raises(ValueError, match="the engine's logits differ from the model's"):
        Engine(hooked, task)
    hooked.reset_hooks()
    Engine(hooked, task)
    trained = shells.gpt2().train()  # with dropout
    with pytest.raises(ValueError, match="is the model in eval mode"):
        Engine(trained, task)


@pytest.mark.parametrize("name", ["blocks.1.attn.k.weight", "embed.weight", "ln_final.bias"])
def test_nan_in_the_weights_is_refused(name):
    broken = shells.native()
    task = shells.random_task(broken)
    with torch.no_grad():
        broken.state_dict(keep_vars=True)[name].view(-1)[3] = float("nan")
    with pytest.raises(ValueError, match="model: expected finite weights, found NaN or infinity in the"):
        Engine(broken, task)


def test_a_metric_of_truth_values_counts_and_one_without_a_gradient_is_refused_by_eap():
    it = Engine(model("native LN"), shells.random_task(model("native LN")))
    first = lambda logits: logits[:, 0, 0] > logits[:, 0, 1]  # noqa: E731
    assert torch.equal(it.values(it.all, first), it.values(it.all, lambda logits: first(logits).float()))
    with pytest.raises(ValueError, match="^metric: '<lambda>' has no gradient"):
        cl.eap(it, metric=first)
    with pytest.raises(ValueError, match="^metric: expected finite numbers, got -inf for prompt 0"):
        cl.exact(it, metric=lambda logits: logits[:, 0, 0] - float("inf"))


def test_half_precision_and_ids_that_are_none_are_said_so():
    task = shells.random_task(model("native LN"))
    with pytest.raises(ValueError, match="^model: expected weights in float32 or float64, got torch.bfloat16"):
        Engine(shells.native(n_layers=1, seed=3).to(torch.bfloat16), task)
    with pytest.raises(ValueError, match="^task.answers: expected token ids from 0 to 28, got 5"):
        Engine(model("native LN"), dataclasses.replace(task, answers=task.answers * 0 + 5000))
