"""Path patching against cut edges, TransformerLens, Wang et al.'s procedure through hooks, and a naive recursion."""

from __future__ import annotations

import dataclasses
import functools
import math

import naive
import pytest
import shells
import torch

import circuitlib as cl
from circuitlib.engine import DIRECTIONS, Engine
from circuitlib.graph import ABLATIONS, Edge, Graph, node_of

MODELS = {
    "native LN": lambda: shells.native(3, seed=1),
    "native with MLPs": lambda: shells.native(3, attn_only=False, act="relu", seed=2),
    "native with MLPs, no LayerNorm": lambda: shells.native(3, attn_only=False, act="gelu", norm=None, seed=3),
    "gpt2": lambda: shells.gpt2(3, seed=4),
}


@functools.cache
def model(name: str):
    return MODELS[name]().double()  # so that what is compared is the computation, not its rounding


@functools.cache
def engine(name: str, ablation="corrupted", direction="noising") -> Engine:
    return Engine(model(name), shells.random_task(model(name), read=(2, 5)), ablation, direction)


def effect(engine: Engine, logits) -> float:
    """What ``path_patching`` returns if the patched run has these logits, from the model's own runs."""
    task, of = engine.task, engine.model
    clean, corrupted = (task.metric(of(tokens)).mean() for tokens in (task.clean, task.corrupted))
    change = engine.sign * (engine.metric(engine.all) - task.metric(logits).mean())
    return float(change / (clean - corrupted))


# A naive recursion ----------------------------------------------------------------------------------


def followed(engine: Engine, senders, receivers, through_mlps=False, via=()) -> torch.Tensor:
    """Logits ``[n, pos, d_vocab]`` of the patched run: what each receiver reads, asked recursively.

    ``view`` says who is reading: 0 the run itself, j > 0 an input of the path's j-th step. A receiver may read one position
    with one view and the next with another: ``views`` has one for each position.
    """
    of, task, graph = engine.model, engine.task, engine.graph
    ablated = naive.ablated(of, task.corrupted, engine.ablation)
    clean = naive.written(of, task.clean)
    start, carried = (clean["embed"], ablated) if engine.direction == "noising" else (ablated["embed"], clean)
    steps, everywhere = [*via, receivers], range(task.clean.shape[1])

    def in_step(step, receiver: str, position: int) -> bool:
        return receiver in step or f"{receiver}@{position}" in step

    @functools.cache
    def writes(sender: str, view: int) -> torch.Tensor:
        """What ``sender`` writes, as a reader with this view sees it."""
        if view == 1 and sender in senders:
            return carried[sender]
        if view > 1 and sender in [node_of(name.partition("@")[0]) for name in steps[view - 2]]:
            # Where the path does not enter, an MLP that it may pass through shows what this reader sees of it.
            other = view if through_mlps and sender.startswith("m") else None
            return node(sender, lambda r, p: view - 1 if in_step(steps[view - 2], r, p) else other or as_run(r, p))
        if view > 0 and through_mlps and sender.startswith("m"):
            return node(sender, lambda receiver, position: view)
        return start if sender == "embed" else node(sender, as_run)

    def as_run(receiver: str, position: int) -> int:
        return len(steps) if in_step(receivers, receiver, position) else 0

    def read(receiver: str, view_at) -> torch.Tensor:
        layer = of.cfg.n_layers if receiver == "logits" else int(receiver[1:].split(".")[0])
        below = layer + receiver.startswith("m")
        x = sum((block.attn.b_O for block in list(of.blocks)[:below]), torch.zeros_like(start))
        views = [view_at(receiver, p) for p in everywhere]
        for sender in graph.senders[: graph.slot_of(receiver).n_upstream]:
            for view in set(views):
                mine = torch.tensor([v == view for v in views])[:, None]
                x = x + writes(sender, view) * mine
        return x

    def node(name: str, view_of) -> torch.Tensor:
        block = of.blocks[int(name[1:].split(".")[0])]
        if name.startswith("m"):
            h = naive._norm(of, block.ln2, read(name, view_of)) @ block.mlp.W_in + block.mlp.b_in
            return naive._act(of.cfg.act_fn, h) @ block.mlp.W_out + block.mlp.b_out
        head, attn = int(name.split(".")[1]), block.attn
        x = [naive._norm(of, block.ln1, read(f"{name}.{part}", view_of)) for part in "qkv"]
        q, k, v = (x[i] @ W[head] + b[head] for i, (W, b) in enumerate(
            [(attn.W_Q, attn.b_Q), (attn.W_K, attn.b_K), (attn.W_V, attn.b_V)]
        ))  # fmt: skip
        scores = q @ k.mT / math.sqrt(of.cfg.d_head)
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return scores.masked_fill(later, -math.inf).softmax(-1) @ v @ attn.W_O[head]

    return naive._norm(of, of.ln_final, read("logits", as_run)) @ of.W_U + of.b_U


PATHS = [
    dict(senders=["a0.1"], receivers=["logits"]),
    dict(senders=["embed", "a0.0"], receivers=["a1.2.q", "a1.1.v", "a2.0.k"]),
    dict(senders=["a0.1"], receivers=["logits"], through_mlps=True),
    dict(senders=["embed"], receivers=["a2.1.k"], through_mlps=True),
    dict(senders=["a0.0", "a1.1"], receivers=["a2.0.q", "a2.0.v", "logits"], through_mlps=True),
    dict(senders=["a0.2"], receivers=["a1.0.v", "a2.1.q", "logits"], through_mlps=True),
    dict(senders=["a0.0"], receivers=["logits"], via=[["a1.2.q"]]),
    dict(senders=["a0.0", "embed"], receivers=["a2.0.q"], via=[["a1.2.k", "a1.2.v", "a1.0.q"]]),
    dict(senders=["embed"], receivers=["logits"], via=[["a0.1.v"], ["a1.1.k"], ["a2.2.q"]]),
    dict(senders=["embed"], receivers=["a2.0.v", "logits"], via=[["a0.1.q", "a0.1.k", "a0.1.v"], ["a1.0.v"]]),
    dict(senders=["embed"], receivers=["a2.0.v"], via=[["a0.1.v", "a1.1.v"]], through_mlps=True),
    dict(senders=["embed"], receivers=["a2.0.q", "logits"], via=[["a0.1.v"], ["a1.1.k"]], through_mlps=True),
    dict(senders=["a0.0"], receivers=["a1.1.k@3"]),
    dict(senders=["embed", "a1.1"], receivers=["a2.0.q@5", "a2.0.q@1", "a2.1.v@2", "a1.2.v", "logits@2"]),
    dict(senders=["a0.1"], receivers=["a2.0.k@4", "logits@5"], through_mlps=True),
    dict(senders=["embed"], receivers=["a2.1.v"], via=[["a0.1.v@1", "a0.2.k@2"]]),
    dict(senders=["a0.0"], receivers=["a2.2.q@5", "logits"], via=[["a1.0.v@0", "a1.0.q@3", "a1.1.k"]]),
    dict(senders=["embed"], receivers=["a2.0.v@4", "logits"], via=[["a0.1.v@1"], ["a1.0.v@2"]], through_mlps=True),
]
WITH_MLPS = [
    dict(senders=["m0"], receivers=["m1", "a2.0.q"]),
    dict(senders=["m0", "a0.0"], receivers=["m2"], through_mlps=True),
    dict(senders=["a0.0", "m1"], receivers=["logits"], through_mlps=True),
    dict(senders=["a0.0"], receivers=["m1", "m2", "logits"], through_mlps=True),
    dict(senders=["a0.0"], receivers=["logits"], via=[["m0", "a1.1.q"], ["m2"]]),
    dict(senders=["a0.0"], receivers=["m2", "a2.0.q"], via=[["m1"]], through_mlps=True),
    dict(senders=["a0.0"], receivers=["m1@5", "m2@2", "logits@5"], through_mlps=True),
    dict(senders=["a0.0"], receivers=["m2", "a2.0.q@5"], via=[["m1@2"]]),
    dict(senders=["a0.0"], receivers=["m2@2", "a2.0.q"], via=[["m1@2", "m1@5"]], through_mlps=True),
]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("ablation", ABLATIONS)
@pytest.mark.parametrize("name", MODELS)
def test_against_a_naive_recursion(name, ablation, direction):
    with torch.no_grad():
        for path in PATHS + (WITH_MLPS if "LN" not in name or "MLPs" in name else []):
            of = engine(name, ablation, direction)
            expected = effect(of, followed(of, **path)[:, [2, 5]])
            assert float(cl.path_patching(of, **path)) == pytest.approx(expected, abs=1e-9), path


def test_the_longer_paths_of_these_tests_say_something_of_their_own():
    """Each option changes the result, so that a test can't pass with an option that does nothing."""
    of = engine("gpt2")
    plain = float(cl.path_patching(of, ["embed"], ["logits"]))
    through = float(cl.path_patching(of, ["embed"], ["logits"], through_mlps=True))
    via = float(cl.path_patching(of, ["embed"], ["logits"], via=["a1.0"]))
    both = float(cl.path_patching(of, ["embed"], ["logits"], via=["a1.0"], through_mlps=True))
    values = [plain, through, via, both]
    assert all(abs(a - b) > 1e-3 for i, a in enumerate(values) for b in values[:i]), values


# At positions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", ["native LN", "gpt2"])
def test_a_position_is_where_the_receiver_reads(name, direction):
    """Against the naive pass with the edge cut at this position: ``a0.1→a1.0.k@3`` is the key of position 3."""
    of = engine(name, direction=direction)
    ablated, clean = naive.ablated(of.model, of.task.corrupted, "corrupted"), naive.written(of.model, of.task.clean)
    start, carried = (clean["embed"], ablated) if direction == "noising" else (ablated["embed"], clean)
    for sender, receiver in (("a0.1", "a1.0.k"), ("embed", "a0.2.v"), ("a0.0", "a2.1.q"), ("a1.1", "logits")):
        effects = cl.path_patching_by_position(of, [sender], [receiver])
        assert effects.shape == (of.task.clean.shape[1],)
        for position in (1, 2, 5):
            kept = {str(edge) for edge in of.graph.edges} - {f"{sender}→{receiver}"}
            kept |= {f"{sender}→{receiver}@{p}" for p in range(of.task.clean.shape[1]) if p != position}
            with torch.no_grad():
                logits = naive.run(of.model, start, carried, kept)
            expected = effect(of, logits[:, [2, 5]])
            one = cl.path_patching(of, [sender], [f"{receiver}@{position}"])
            assert float(one) == pytest.approx(expected, abs=1e-9)
            assert float(effects[position]) == pytest.approx(expected, abs=1e-9)
        assert float(effects.abs().max()) > 1e-4


def test_the_same_as_cutting_edges_of_the_graph_with_positions():
    of = engine("gpt2")
    graph = of.graph_with_positions
    cut = [Edge("a0.1", "a1.0.k", 3), Edge("a0.1", "a1.0.k", 1), Edge("a0.1", "m1", 5)]
    expected = of.metric(of.all) - of.metric(cl.Circuit(graph, set(graph.edges) - set(cut)))
    ours = cl.path_patching(of, ["a0.1"], ["a1.0.k@3", "a1.0.k@1", "m1@5"], normalize=False)
    assert float(ours) == pytest.approx(float(expected), abs=1e-9)


def test_every_position_together_is_no_position():
    of = engine("gpt2")
    n_pos = of.task.clean.shape[1]
    for options in (dict(), dict(through_mlps=True), dict(via=["a1.1"])):
        at_each = [f"a2.0.v@{position}" for position in range(n_pos)]
        assert float(cl.path_patching(of, ["a0.1"], at_each, **options)) == pytest.approx(
            float(cl.path_patching(of, ["a0.1"], ["a2.0.v"], **options)), abs=1e-9
        )
    both = cl.path_patching(of, ["a0.1"], ["a2.0.v@3", "a2.0.v"])  # without a position wins
    assert float(both) == pytest.approx(float(cl.path_patching(of, ["a0.1"], ["a2.0.v"])), abs=1e-9)


def test_positions_by_name():
    of = Engine(cl.load_model("handmade-docstring"), cl.docstring(cl.load_model("handmade-docstring"), n=3))
    place = of.task.position("comma_C")
    effects = cl.path_patching_by_position(of, ["a0.0"], ["a2.0.k"])
    by_name = cl.path_patching(of, ["a0.0"], ["a2.0.k@comma_C"])
    assert float(by_name) == float(cl.path_patching(of, ["a0.0"], [f"a2.0.k@{place}"])) == float(effects[place])
    # The mover finds C by the name that stands before it, B, which the previous-token head brought to C.
    assert of.task.labels[int(effects.argmax())] == "C_def" and float(effects.max()) > 0.4
    sweep = cl.path_patching_sweep(of, ["a2.0.k@C_def"])
    assert sweep.top(1)[0][0] == "a0.0" and sweep["a0.0"] == pytest.approx(float(effects.max()), abs=1e-9)


# Against cut edges ----------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", MODELS)
def test_a_direct_path_is_a_cut_edge(name, direction):
    of = engine(name, direction=direction)
    m_all = of.metric(of.all)
    gap = of.task.metric(of.model(of.task.clean)).mean() - of.task.metric(of.model(of.task.corrupted)).mean()
    for receiver in ("a1.0.q", "a2.1.k", "a1.2.v", "logits", *(["m1"] if of.graph.mlps else [])):
        sweep = cl.path_patching_sweep(of, [receiver])
        edges = [edge for edge in of.graph.edges if edge.receiver == receiver]
        assert [name for name, _ in sweep.items()] == [edge.sender for edge in edges]
        for edge in edges:
            cut = of.sign * (m_all - of.metric(of.all - [edge]))
            one = cl.path_patching(of, [edge.sender], [receiver], normalize=False)
            assert float(one) == pytest.approx(float(cut), abs=1e-9)
            assert sweep[edge.sender] == pytest.approx(float(cut / gap), abs=1e-9)


def test_many_senders_and_receivers_are_all_edges_between_them():
    of = engine("gpt2")
    senders, receivers = ["embed", "a0.1", "m1", "a1.0"], ["a1.1.k", "m1", "a2.0.q", "logits"]
    cut = [edge for edge in of.graph.edges if edge.sender in senders and edge.receiver in receivers]
    assert len(cut) == 2 + 3 + 4 + 4
    expected = of.metric(of.all) - of.metric(of.all - cut)
    assert float(cl.path_patching(of, senders, receivers, normalize=False)) == pytest.approx(float(expected), abs=1e-9)


def test_the_stream_by_stream_run_is_the_cut_edge_too():
    """The runs with ``via`` and ``through_mlps`` are not the engine's; on a direct path both must agree."""
    from circuitlib.patching import _follow, _Path

    for name in MODELS:
        of = engine(name)
        for senders, receivers in ((["embed"], ["a1.0.q"]), (["a0.1", "a1.1"], ["a2.0.v", "logits"])):
            cut = [edge for edge in of.graph.edges if edge.sender in senders and edge.receiver in receivers]
            with torch.no_grad():
                logits = _follow(of, senders, _Path.of(of, receivers, False, ()))
            assert torch.allclose(logits, of.run(of.all - cut), atol=1e-10)


def test_without_mlps_there_is_nothing_to_pass_through():
    of = engine("native LN")
    for path in PATHS[:2]:
        assert float(cl.path_patching(of, **path)) == float(cl.path_patching(of, **path, through_mlps=True))


def test_a_station_by_all_its_inputs():
    of = engine("gpt2")
    inputs = ["a1.1.q", "a1.1.k", "a1.1.v"]
    by_name = cl.path_patching(of, ["a0.0"], ["a2.1"], via=["a1.1"])
    by_input = cl.path_patching(of, ["a0.0"], ["a2.1.q", "a2.1.k", "a2.1.v"], via=[inputs])
    assert float(by_name) == float(by_input) != 0


def test_all_paths_from_the_embedding_through_one_layer_are_the_whole_effect():
    """A one-layer model has only these paths: direct, and via each head; patched together they are everything."""
    one = shells.native(1, seed=5).double()
    task = shells.random_task(one)
    of = Engine(one, task)
    heads = [f"a0.{head}.{part}" for head in range(3) for part in "qkv"]
    assert float(cl.path_patching(of, ["embed"], [*heads, "logits"])) == pytest.approx(1, abs=1e-9)
    # Linear from heads to logits but for LayerNorm: with the direct path left alone, via all heads = all heads patched.
    via = cl.path_patching(of, ["embed"], ["logits"], via=[heads])
    assert float(via) == pytest.approx(float(cl.path_patching(of, ["a0.0", "a0.1", "a0.2"], ["logits"])), abs=1e-9)


# Against TransformerLens and hooks ------------------------------------------------------------------


@pytest.mark.parametrize("part", "qkv")
def test_against_transformerlens_direct_path_patching(part):
    """``get_act_patch_direct_path`` puts clean values into the corrupted run, on a GPT-2 shell of 4 × 8."""
    from transformer_lens.patching import get_act_patch_direct_path

    native = shells.native(4, 8, 32, 4, d_vocab=20, n_ctx=5, seed=3)
    shell = shells.gpt2_shell(native)
    task = shells.random_task(native, n=1, n_pos=5, read=(4,), seed=1)
    of = Engine(native, task, direction="denoising")
    _, clean = shell.run_with_cache(task.clean)
    corrupted_logits, corrupted = shell.run_with_cache(task.corrupted)
    base = task.metric(corrupted_logits).mean()
    gap = task.metric(shell(task.clean)).mean() - base
    for layer, head in ((0, 0), (0, 5), (1, 7), (2, 3)):
        theirs = get_act_patch_direct_path(
            shell, task.corrupted, clean, corrupted, lambda logits: task.metric(logits).mean(), layer, head, part, False
        )
        for to in range(layer + 1, 4):
            for h in (0, 4, 6):
                ours = cl.path_patching(of, [f"a{layer}.{head}"], [f"a{to}.{h}.{part}"])
                assert float(ours) == pytest.approx(float((theirs[to, h] - base) / gap), abs=1e-5 / float(gap.abs()))


def wang(of, base_tokens, source_tokens, sender: str, receivers: list[str], heads_frozen=True):
    """The procedure of Wang et al. (2023), appendix B, with nothing but hooks: logits ``[n, pos, d_vocab]``.

    1. Run both prompts. 2. Run the base with every head frozen to its base value, the sender to its source value, and
    MLPs computed anew; save what the receivers read. 3. Run the base with the receivers' inputs set to that.
    """
    cfg = of.cfg
    _, base = of.run_with_cache(base_tokens)
    _, source = of.run_with_cache(source_tokens)
    saved = {}

    def freeze(name, layer):
        z = base[name].clone()
        if sender.startswith(f"a{layer}."):
            head = int(sender.split(".")[1])
            z[:, :, head] = source[name][:, :, head]
        return name, lambda value, hook: z

    def save(place):
        return place, lambda value, hook: saved.update({place: value.clone()})

    hooks = [freeze(f"blocks.{layer}.attn.hook_z", layer) for layer in range(cfg.n_layers)]
    if sender == "embed":
        hooks.append(("hook_embed", lambda value, hook: source["hook_embed"]))
    if sender.startswith("m"):
        name = f"blocks.{sender[1:]}.hook_mlp_out"
        hooks.append((name, lambda value, hook: source[name]))
    places = [
        f"blocks.{layer}.{kind}" for layer in range(cfg.n_layers) for kind in ("hook_resid_pre", "hook_resid_mid")
    ]
    last = f"blocks.{cfg.n_layers - 1}.hook_resid_post"
    of.run_with_hooks(base_tokens, fwd_hooks=[*hooks, *map(save, [*places, last])])

    def put_input(receiver):
        if receiver == "logits":
            return last, lambda value, hook: saved[last]
        if receiver.startswith("m"):
            place = f"blocks.{receiver[1:]}.hook_resid_mid"
            block = of.blocks[int(receiver[1:])]
            h = naive._norm(of, block.ln2, saved[place]) @ block.mlp.W_in + block.mlp.b_in
            new = naive._act(cfg.act_fn, h) @ block.mlp.W_out + block.mlp.b_out
            return f"blocks.{receiver[1:]}.hook_mlp_out", lambda value, hook: new
        layer, head, part = int(receiver[1]), int(receiver[3]), receiver[-1]
        block = of.blocks[layer]
        x = naive._norm(of, block.ln1, saved[f"blocks.{layer}.hook_resid_pre"])
        new = x @ getattr(block.attn, f"W_{part.upper()}")[head] + getattr(block.attn, f"b_{part.upper()}")[head]

        def put(value, hook):
            value = value.clone()
            value[:, :, head] = new
            return value

        return f"blocks.{layer}.attn.hook_{part}", put

    return of.run_with_hooks(base_tokens, fwd_hooks=[put_input(receiver) for receiver in receivers])


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("sender", ["embed", "a0.2", "m0", "a1.1"])
@pytest.mark.parametrize("receivers", [["logits"], ["a2.0.q"], ["a2.1.k", "a2.2.v"], ["m2"]], ids=" ".join)
def test_through_mlps_is_the_procedure_of_wang_et_al(sender, receivers, direction):
    of = engine("gpt2", direction=direction)
    tokens = (of.task.clean, of.task.corrupted) if direction == "noising" else (of.task.corrupted, of.task.clean)
    expected = effect(of, wang(of.model, *tokens, sender, receivers)[:, [2, 5]])
    ours = float(cl.path_patching(of, [sender], receivers, through_mlps=True))
    assert ours == pytest.approx(expected, abs=1e-9)
    if not sender.startswith("a1") or receivers == ["logits"]:
        assert abs(ours - float(cl.path_patching(of, [sender], receivers))) > 1e-4  # MLPs lie between


# On models that are known ---------------------------------------------------------------------------


@functools.cache
def handmade(name: str, direction="noising") -> Engine:
    of = cl.load_model(name)
    return Engine(of, cl.default_task(of, n=20), direction=direction)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", ["handmade-induction", "handmade-docstring", "handmade-or", "handmade-and"])
def test_known_effects(name, direction):
    of = handmade(name, direction)
    for edge, expected in cl.known_effects(name, direction=direction).items():
        assert float(cl.path_patching(of, [edge.sender], [edge.receiver])) == pytest.approx(expected, abs=0.006)


def test_a_chain_of_the_known_circuit_carries_what_its_links_carry():
    of = handmade("handmade-docstring")
    chain = dict(via=["a1.0.v", "a2.0.q"], receivers=["logits"])
    assert float(cl.path_patching(of, ["a0.0"], **chain)) == pytest.approx(0.93, abs=0.006)
    sweep = cl.path_patching_sweep(of, **chain)
    assert sweep.top(1)[0][0] == "a0.0"
    assert abs(sweep["a0.1"]) < 1e-6 and abs(sweep["embed"]) < 1e-6
    assert sweep.heads.shape == (3, 2) and bool(sweep.heads[1:].isnan().all()) and len(sweep.mlps) == 0
    # By another input of the same head nothing comes along.
    assert float(cl.path_patching(of, ["a0.0"], ["logits"], via=["a1.0.v", "a2.0.k"])) == pytest.approx(0, abs=1e-6)


def test_a_gate_hides_and_shows_its_inputs():
    """Through the MLP of an OR gate, one input noised is silent and both together are everything."""
    of = handmade("handmade-or")
    assert float(cl.path_patching(of, ["a0.0"], ["logits"], through_mlps=True)) == pytest.approx(0, abs=1e-6)
    assert float(cl.path_patching(of, ["a0.0", "a0.1"], ["logits"], through_mlps=True)) == pytest.approx(1, abs=1e-5)
    assert float(cl.path_patching(of, ["a0.0", "a0.1"], ["logits"])) == pytest.approx(0, abs=1e-6)
    assert float(cl.path_patching(of, ["a0.0", "a0.1"], ["logits"], via=["m0"])) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("name", ["handmade-induction", "handmade-docstring", "handmade-and"])
def test_the_composition_graph_is_the_known_circuit(name):
    of = handmade(name)
    found = cl.composition_graph(of)
    assert list(found) == sorted(found)
    assert set(found) == set(cl.known_circuit(name))
    for edge, value in cl.known_effects(name).items():
        assert found[edge] == pytest.approx(value, abs=0.006)


def test_the_composition_graph_stops_where_nothing_is_read():
    of = engine("native LN")
    found = cl.composition_graph(of, threshold=0.1)
    assert found
    reached = {"logits"} | {edge.sender for edge in found}
    assert all(node_of(edge.receiver) in reached for edge in found)
    for edge in of.graph.edges:
        if node_of(edge.receiver) in reached:
            value = float(cl.path_patching(of, [edge.sender], [edge.receiver]))
            assert (edge in found) == (abs(value) >= 0.1) and found.get(edge, value) == pytest.approx(value)
    assert cl.composition_graph(of, threshold=1e6) == {}


# Metrics and bad input ------------------------------------------------------------------------------


def test_other_metrics():
    of = engine("gpt2")
    edge = Edge("a0.1", "a1.0.v")
    kl = cl.path_patching(of, ["a0.1"], ["a1.0.v"], metric="kl", normalize=False)
    assert float(kl) == pytest.approx(-float(of.metric(of.all - [edge], "kl")), abs=1e-9) and float(kl) > 0
    gap = float(of.metric(of.none, "kl"))
    assert float(cl.path_patching(of, ["a0.1"], ["a1.0.v"], metric="kl")) == pytest.approx(float(kl) / -gap, abs=1e-9)
    seen = cl.path_patching(of, ["embed"], ["logits"], True, metric=lambda logits: logits[:, 0, 7], normalize=False)
    expected = of.model(of.task.clean)[:, 2, 7].mean() - followed(of, ["embed"], ["logits"], True)[:, 2, 7].mean()
    assert float(seen) == pytest.approx(float(expected), abs=1e-9)


def test_nothing_to_normalise_by():
    task = shells.random_task(model("native LN"))
    of = Engine(model("native LN"), dataclasses.replace(task, corrupted=task.clean))
    with pytest.raises(ValueError, match="same mean metric, so nothing can be normalised"):
        cl.path_patching(of, ["a0.0"], ["logits"])
    assert float(cl.path_patching(of, ["a0.0"], ["logits"], normalize=False)) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (dict(senders=["a0.7"], receivers=["logits"]), r"senders: 'a0.7' does not exist in Graph\(3 layers"),
        (dict(senders=["a0.1.q"], receivers=["logits"]), "senders: 'a0.1.q' does not exist"),
        (dict(senders=["m0"], receivers=["logits"]), "senders: 'm0' does not exist"),
        (dict(senders="a0.1", receivers=["logits"]), "senders: expected a list of names, got the single text 'a0.1'"),
        (dict(senders=[], receivers=["logits"]), "senders: expected at least one name, got none"),
        (dict(senders=[3], receivers=["logits"]), "senders: 3 does not exist"),
        (dict(senders=["a0.1"], receivers=["embed"]), "receivers: 'embed' does not exist"),
        (dict(senders=["a0.1"], receivers=["a7.1"]), "receivers: 'a7.1' does not exist"),
        (dict(senders=["a0.1"], receivers=["a1.1.z"]), "receivers: 'a1.1.z' does not exist"),
        (dict(senders=["a0.1"], receivers=[]), "receivers: expected at least one name, got none"),
        (dict(senders=["a0.1"], receivers=[None]), "receivers: None does not exist"),
        (dict(senders=["a1.0"], receivers=["a1.1.q"]), "senders: 'a1.0' is not upstream of a1.1.q"),
        (dict(senders=["embed", "a2.0"], receivers=["a1.1.q", "a2.1.k"]), "'a2.0' is not upstream of a1.1.q or a2.1.k"),
        (dict(senders=["a1.0"], receivers=["a1.1.q", "a2.1.k"]), "nothing in a1.0 is upstream of 'a1.1.q'"),
        (dict(senders=["a0.0"], receivers=["logits"], via="a1.0"), "via: expected a list of stations"),
        (dict(senders=["a0.0"], receivers=["logits"], via=["m1"]), "via: 'm1' does not exist"),
        (dict(senders=["a0.0"], receivers=["logits"], via=[[]]), "via: expected at least one name"),
        (dict(senders=["a0.0"], receivers=["logits"], via=["logits"]), "via: 'logits' writes nothing"),
        (dict(senders=["embed"], receivers=["logits"], via=["a1.0", "a0.1"]), "via: 'a1.0' is not upstream of a0.1.q"),
        (dict(senders=["a1.0"], receivers=["logits"], via=["a0.1"]), "senders: 'a1.0' is not upstream of a0.1.q"),
        (dict(senders=["embed"], receivers=["a1.0.q"], via=["a1.1"]), "via: 'a1.1' is not upstream of a1.0.q"),
        (
            dict(senders=["embed"], receivers=["a1.0.q@6"]),
            "receivers: 'a1.0.q@6' has no such position; expected 0 to 5",
        ),
        (dict(senders=["embed"], receivers=["a1.0.q@"]), "receivers: 'a1.0.q@' has no such position"),
        (dict(senders=["embed"], receivers=["a1.0.q@-1"]), "receivers: 'a1.0.q@-1' has no such position"),
        (dict(senders=["embed"], receivers=["a1.0.q@1@2"]), "receivers: 'a1.0.q@1@2' has no such position"),
        (dict(senders=["embed"], receivers=["a1.0.q@²"]), "receivers: 'a1.0.q@²' has no such position"),
        (dict(senders=["embed"], receivers=["a9.0.q@1"]), "receivers: 'a9.0.q@1' does not exist"),
        (dict(senders=["embed"], receivers=["logits"], via=["a1.0@9"]), "via: 'a1.0@9' has no such position"),
        (dict(senders=["a0.1@3"], receivers=["logits"]), "senders: 'a0.1@3' has a position, expected positions on"),
        (dict(senders=["embed"], receivers=["logits"], metric="nll"), "metric: expected None, 'kl' or a function"),
    ],
)
def test_bad_input_is_one_clear_line(path, said):
    with pytest.raises(ValueError, match=said) as error:
        cl.path_patching(engine("native LN"), **path)
    assert "\n" not in str(error.value)


def test_more_bad_input():
    of = engine("native LN")
    for call, said in [
        (lambda: cl.path_patching(of.model, ["embed"], ["logits"]), "engine: expected an Engine"),
        (lambda: cl.path_patching_by_position(of, ["embed"], ["a1.0.q@2"]), "receivers: expected names without"),
        (lambda: cl.path_patching_by_position(of, ["a2.0"], ["a1.0.q"]), "senders: 'a2.0' is not upstream"),
        (lambda: cl.path_patching_sweep(of, ["a9.0"]), "receivers: 'a9.0' does not exist"),
        (lambda: cl.path_patching_sweep(of, ["a1.0.q"])["a1.1"], "sender: no path leads from 'a1.1'"),
        (lambda: cl.composition_graph(of, threshold=0), "threshold: expected a positive number"),
        (lambda: cl.composition_graph(of, threshold=float("nan")), "threshold: expected a positive number"),
        (lambda: cl.composition_graph(Graph(of.model)), "engine: expected an Engine"),
    ]:
        with pytest.raises(ValueError, match=said) as error:
            call()
        assert "\n" not in str(error.value)


def test_nobody_has_a_share_of_an_input_that_is_worth_nothing():
    model = cl.load_model("handmade-docstring")
    engine = cl.Engine(model, cl.default_task(model, n=5))
    idle = cl.input_effects(engine, "a0.1.q")  # a head that nothing reads
    assert abs(idle.worth) < 1e-6 and all(math.isnan(share) for share in idle.shares.values()) and idle.writers() == []
    busy = cl.input_effects(engine, "a2.0.k")
    assert sum(busy.shares.values()) == pytest.approx(1, abs=1e-4) and busy.writers() == ["a0.0"]
