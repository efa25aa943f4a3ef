"""Names, counts, paths and files of graphs and circuits."""

from __future__ import annotations

import itertools
import json
import math
import xml.etree.ElementTree

import networkx
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from circuitlib.graph import MAX_FILE_BYTES, Circuit, Edge, Graph, jaccard, node_of, random_circuit

SMALL = Graph.from_shape(2, 2, mlps=False)
WITH_MLPS = Graph.from_shape(2, 2, mlps=True, d_model=16)
POSITIONS = Graph.from_shape(2, 2, mlps=True, n_pos=3)
GRAPHS = (SMALL, WITH_MLPS, POSITIONS, Graph.from_shape(1, 1, mlps=False), Graph.from_shape(3, 1, mlps=True))

quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def circuits(draw, graphs=GRAPHS):
    graph = draw(st.sampled_from(graphs))
    edges = draw(st.sets(st.sampled_from(graph.edges)))
    task = draw(st.none() | st.text(max_size=20).filter(lambda text: text.isprintable()))
    return Circuit(graph, edges, task, draw(st.sampled_from([None, "corrupted", "zero", "mean"])))


@pytest.mark.parametrize(
    ("shape", "n_edges", "n_acdc"), [((4, 8, False), 1_281, 1_377), ((12, 12, True), 32_491, 32_923)]
)
def test_counts_by_formula_and_by_enumeration(shape, n_edges, n_acdc):
    graph = Graph.from_shape(*shape)
    assert graph.n_edges == len(graph.edges) == len(set(graph.edges)) == int(graph.edge_mask.sum()) == n_edges
    assert graph.edge_count("acdc") == n_acdc and graph.edge_count() == n_edges
    # The closed formulas: per layer, H heads with 3 inputs and maybe an MLP read 1 + what the layers before wrote.
    n_layers, n_heads, mlps = shape
    writes = [1 + layer * (n_heads + mlps) for layer in range(n_layers + 1)]
    assert n_edges == 3 * n_heads * sum(writes[:-1]) + mlps * sum(w + n_heads for w in writes[:-1]) + writes[-1]


def test_positions_multiply_the_edges():
    graph = Graph.from_shape(4, 8, False, n_pos=41)  # the docstring task; auto-circuit counts the same
    assert graph.n_edges == 52_521
    assert len(POSITIONS.edges) == POSITIONS.n_edges == 3 * WITH_MLPS.n_edges


@pytest.mark.parametrize("graph", GRAPHS)
def test_edges_are_in_canonical_order_and_strictly_downstream(graph):
    assert list(graph.edges) == sorted(graph.edges)
    order = ["embed", *(node for node in graph.senders if node != "embed"), "logits"]
    for edge in graph.edges:
        receiver = node_of(edge.receiver)
        assert order.index(edge.sender) < order.index(receiver)
        assert not (edge.sender[0] == "a" == receiver[0] and edge.sender.split(".")[0] == receiver.split(".")[0])


@pytest.mark.parametrize("graph", GRAPHS)
def test_masks_and_edges_are_the_same_thing(graph):
    assert graph.edges_of(graph.edge_mask) == graph.edges
    for edge in graph.edges[:: max(1, len(graph.edges) // 10)]:
        assert graph.edges_of(graph.mask([str(edge)])) == (edge,)
    assert not graph.mask([]).any()
    for row, receiver in enumerate(graph.receivers):
        slot = graph.slot_of(receiver)
        assert slot.rows.start <= row < slot.rows.stop
        assert graph.edge_mask[row].reshape(len(graph.senders), -1)[:, 0].tolist() == [
            column < slot.n_upstream for column in range(len(graph.senders))
        ]


@pytest.mark.parametrize("graph", GRAPHS)
def test_every_name_is_read_back(graph):
    for edge in graph.edges:
        assert Edge.parse(str(edge)) == edge == Edge.parse(str(edge).replace("→", "->")) and edge in graph
        assert hash(Edge.parse(str(edge))) == hash(edge)


@pytest.mark.parametrize(
    "text",
    ["", "a0.5", "a0.5→", "→a1.4.v", "a0.5 → a1.4.v", "a0.5→a1.4.v ", "a0.5–a1.4.v", "a0.5→a1.4.v→logits", "a0.5→a1.4.v@", "a0.5→a1.4.v@-1"]
    + ["a0.5→a1.4.v@01", "a0.5→a1.4.v@1.5", "A0.5→a1.4.v", "a0.5→a1.4.V", "a0.5=>a1.4.v", "a0.5→a1.4.v\n", "a٣.5→a4.4.v"],
)  # fmt: skip
def test_what_is_not_an_edge_is_refused(text):
    with pytest.raises(ValueError, match="edge .*expected"):
        Edge.parse(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a0→a1.4.v", "sender 'a0'"),
        ("a00.5→a1.4.v", "sender 'a00.5'"),
        ("a0.5.q→a1.4.v", "sender 'a0.5.q'"),
        ("logits→a1.4.v", "sender 'logits'"),
        ("a0.5→a1.4", "receiver 'a1.4'"),
        ("a0.5→a1.4.z", "receiver 'a1.4.z'"),
        ("a0.5→embed", "receiver 'embed'"),
        ("m0→m1.q", "receiver 'm1.q'"),
        ("a1.5→a1.4.v", "upstream: a1.5"),
        ("a1.4→a0.4.v", "upstream: a1.4"),
        ("m1→a1.0.q", "upstream: m1"),
        ("m1→m1", "upstream: m1"),
        ("a2.0→m1", "upstream: a2.0"),
    ],
)
def test_errors_say_which_name_is_wrong(text, said):
    with pytest.raises(ValueError, match=said) as error:
        Edge.parse(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("graph", "edge", "said"),
    [
        (SMALL, "a2.0→logits", "'a2.0' does not exist"),
        (SMALL, "a0.2→logits", "'a0.2' does not exist"),
        (SMALL, "embed→m0", "'m0' does not exist"),
        (SMALL, "m0→logits", "'m0' does not exist"),
        (SMALL, "embed→logits@0", "without a position"),
        (POSITIONS, "embed→logits", "with a position"),
        (POSITIONS, "embed→logits@3", "position 3 does not exist, expected 0 to 2"),
        (SMALL, 3, "expected an Edge or text"),
    ],
)
def test_edges_of_another_graph_are_refused(graph, edge, said):
    with pytest.raises(ValueError, match=said):
        graph.edge(edge)
    assert isinstance(edge, int) or edge not in graph
    with pytest.raises(ValueError, match=said):
        Circuit(graph, [edge])


def test_bad_arguments():
    for make, said in [
        (lambda: Graph.from_shape(0, 2, False), "n_layers"),
        (lambda: Graph.from_shape(2, 2.0, False), "n_heads"),
        (lambda: Graph.from_shape(2, 2, False, n_pos=0), "n_pos"),
        (lambda: SMALL.edge_count("other"), "convention"),
        (lambda: SMALL.edges_of(torch.ones(3)), "mask: expected shape"),
        (lambda: SMALL.edges_of(torch.ones_like(SMALL.edge_mask)), "no edge"),
        (lambda: SMALL.slot_of("a7.0.q"), "receiver 'a7.0.q'"),
        (lambda: Circuit(SMALL, "embed→logits"), "edges: expected a list"),
        (lambda: Circuit("graph", []), "graph: expected a Graph"),
        (lambda: Circuit(SMALL, [], ablation="noise"), "ablation: expected one of"),
        (lambda: random_circuit(SMALL, 30, 0), "k: expected an integer from 0 to 29"),
        (lambda: random_circuit(SMALL, -1, 0), "k: expected"),
        (lambda: jaccard(Circuit(SMALL, []), Circuit(WITH_MLPS, [])), "c2: expected a circuit of"),
        (lambda: Circuit(SMALL, []) | Circuit(WITH_MLPS, []), "circuit: expected one of"),
        (lambda: Edge("embed", "logits", -1), "position"),
        (lambda: Edge("embed", "logits", True), "position"),
    ]:
        with pytest.raises(ValueError, match=said) as error:
            make()
        assert "\n" not in str(error.value)


def test_a_circuit_is_a_set_of_edges_in_order():
    texts = ["a0.1→logits", "embed->a0.1.v", "a0.1→logits"]
    circuit = Circuit(SMALL, texts, task="docstring", ablation="zero")
    assert [str(edge) for edge in circuit.edges] == ["embed→a0.1.v", "a0.1→logits"] and len(circuit) == 2
    assert (
        circuit == Circuit(SMALL, reversed(circuit.edges))
        and "embed→a0.1.v" in circuit
        and "embed→logits" not in circuit
    )
    assert circuit.heads() == ["a0.1"] and circuit.nodes() == ["embed", "a0.1", "logits"]
    other = Circuit(SMALL, ["a0.1→logits", "embed→logits"])
    assert len(circuit | other) == 3 and (circuit & other).edges == (Edge.parse("a0.1→logits"),)
    assert (circuit - other).edges == (Edge.parse("embed→a0.1.v"),) == (circuit - ["a0.1→logits"]).edges
    assert (circuit | other).task == "docstring" and (circuit | other).ablation == "zero"
    assert (
        jaccard(circuit, other) == 1 / 3
        and jaccard(circuit, circuit) == 1
        and jaccard(other - other, other - other) == 1
    )


# Pruning, against a search over all paths of a small graph ------------------------------------------


def on_paths(circuit: Circuit) -> set[Edge]:
    """Edges on some path embed → logits, found by following every path; a state is a node and a position."""
    edges: dict[tuple, list] = {}
    for edge in circuit:
        edges.setdefault((edge.sender, edge.position), []).append(edge)
    n_pos = circuit.graph.n_pos or 1
    found: set[Edge] = set()

    def follow(node, position, path):
        for edge in edges.get((node, position if circuit.graph.per_position else None), ()):
            if edge.receiver == "logits":
                found.update([*path, edge])
                continue
            spreads = edge.receiver[-1] in "kv" and circuit.graph.per_position
            for to in range(position, n_pos) if spreads else [position]:
                follow(node_of(edge.receiver), to, [*path, edge])

    for position in range(n_pos):
        follow("embed", position, [])
    return found


@quick
@given(circuits(graphs=(SMALL, Graph.from_shape(2, 1, mlps=True, n_pos=2), Graph.from_shape(2, 1, mlps=True))))
def test_prune_keeps_what_lies_on_a_path(circuit):
    pruned = circuit.prune()
    assert set(pruned) == on_paths(circuit)
    assert pruned.prune() == pruned and (pruned.task, pruned.ablation) == (circuit.task, circuit.ablation)


@pytest.mark.parametrize("graph", GRAPHS)
def test_prune_leaves_the_whole_graph_and_the_empty_one(graph):
    assert Circuit(graph, graph.edges).prune().edges == graph.edges
    assert not Circuit(graph, []).prune() and not Circuit(graph, [graph.edges[0]]).prune()


def test_random_circuits_are_reproducible_and_uniform():
    assert random_circuit(SMALL, 7, 3) == random_circuit(SMALL, 7, 3) != random_circuit(SMALL, 7, 4)
    assert len(random_circuit(SMALL, 0, 0)) == 0 and random_circuit(SMALL, 29, 0).edges == SMALL.edges
    counts = dict.fromkeys(SMALL.edges, 0)
    for seed in range(1000):
        for edge in random_circuit(SMALL, 10, seed):
            counts[edge] += 1
    assert all(abs(count - 1000 * 10 / 29) < 5 * (1000 * 10 / 29 * 19 / 29) ** 0.5 for count in counts.values())


# Files --------------------------------------------------------------------------------------------


@quick
@given(circuits())
def test_files_survive_a_round_trip(tmp_path, circuit):
    circuit.save(tmp_path / "c.json")
    loaded = Circuit.load(tmp_path / "c.json")
    assert loaded == circuit and loaded.graph == circuit.graph
    assert (loaded.task, loaded.ablation) == (circuit.task, circuit.ablation)
    assert [path.name for path in tmp_path.iterdir()] == ["c.json"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def refused(path, load=Circuit.load) -> str:
    with pytest.raises(ValueError) as error:
        load(path)
    message = str(error.value)
    assert message.startswith(str(path)) and "\n" not in message and len(message) < len(str(path)) + 250
    assert type(error.value) is ValueError
    return message


GOOD = {
    "format": "circuitlib circuit",
    "version": 1,
    "graph": {"n_layers": 2, "n_heads": 2, "mlps": False, "n_pos": None},
    "task": None,
    "ablation": None,
    "edges": ["embed→logits", "embed→a0.1.v"],
}


@quick
@given(data=st.data())
def test_every_wrong_value_gives_one_clear_error(tmp_path, data):
    content = json.loads(json.dumps(GOOD))
    where = data.draw(
        st.sampled_from([("graph", key) for key in GOOD["graph"]] + [(key,) for key in GOOD] + [("edges", 0)])
    )
    value = data.draw(json_values)
    target = content if len(where) == 1 else content[where[0]]
    if where[-1] in ("task", "ablation", "n_pos") and (value is None or isinstance(value, str) and where[-1] == "task"):
        return
    if type(value) is type(target[where[-1]]) and (
        value == target[where[-1]] or where[-1] in ("n_layers", "n_heads", "mlps")
    ):
        return
    target[where[-1]] = value
    if where == ("edges",) and value == []:
        return
    path = tmp_path / "c.json"
    path.write_text(json.dumps(content), "utf8")
    if where[-1] == "n_pos" and type(value) is int and 1 <= value <= 65536:
        assert "with a position" in refused(path)
    else:
        refused(path)


@quick
@given(st.text(max_size=200) | json_values.map(lambda value: json.dumps(value)))
def test_any_other_text_is_refused(tmp_path, text):
    (tmp_path / "c.json").write_text(text, "utf8")
    refused(tmp_path / "c.json")


@quick
@given(st.sampled_from(sorted(GOOD)), st.integers(1, 40))
def test_missing_keys_and_cut_off_files_are_refused(tmp_path, key, n):
    path = tmp_path / "c.json"
    path.write_text(json.dumps({name: value for name, value in GOOD.items() if name != key}), "utf8")
    assert repr(key) in refused(path)
    path.write_text(json.dumps(GOOD)[:-n], "utf8")
    assert "not valid JSON" in refused(path)


def test_malformed_files(tmp_path):
    path = tmp_path / "c.json"
    for text, said in [
        (json.dumps({**GOOD, "more": 1}), "unknown key 'more'"),
        (json.dumps({**GOOD, "version": 2}), "version: expected 1"),
        (json.dumps({**GOOD, "version": True}), "version: expected 1"),
        (json.dumps({**GOOD, "edges": ["embed→logits", "embed->logits"]}), "an edge is repeated"),
        (json.dumps({**GOOD, "edges": ["a1.0→a0.0.q"]}), "points upstream"),
        (json.dumps({**GOOD, "edges": ["a5.0→logits"]}), "'a5.0' does not exist"),
        (
            json.dumps({**GOOD, "graph": {**GOOD["graph"], "n_layers": 10**9}}),
            "n_layers: expected an integer from 1 to 512",
        ),
        (json.dumps({**GOOD, "graph": {**GOOD["graph"], "n_heads": True}}), "n_heads: expected"),
        (json.dumps(GOOD).replace('"version": 1', '"version": 1, "version": 1'), "a key is repeated"),
        (json.dumps(GOOD).replace('"version": 1', '"version": NaN'), "not valid JSON"),
        (json.dumps(GOOD).replace('"version": 1', '"version": ' + "1" * 5000), "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("", "not valid JSON"),
    ]:
        path.write_text(text, "utf8")
        assert said in refused(path), text[:80]
    path.write_bytes(b"\xff\xfe{}")
    assert "not UTF-8" in refused(path)
    assert "can't be read" in refused(tmp_path / "none.json")
    assert "can't be read" in refused(tmp_path)
    with path.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    assert "expected at most" in refused(path)


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "c.json"
    Circuit(SMALL, ["embed→logits"]).save(path)
    before = path.read_bytes()
    monkeypatch.setattr("pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError):
        Circuit(SMALL, []).save(path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


# Other people's formats -----------------------------------------------------------------------------


@quick
@given(circuits())
def test_networkx_has_every_edge_and_only_paths_downstream(tmp_path, circuit):
    graph = circuit.to_networkx()
    assert networkx.is_directed_acyclic_graph(graph) and set(graph) == set(circuit.nodes())
    assert sorted(key for *_, key in graph.edges(keys=True)) == sorted(map(str, circuit))
    for sender, node, key, data in graph.edges(keys=True, data=True):
        edge = Edge.parse(key)
        assert (sender, node, data.get("position")) == (edge.sender, node_of(edge.receiver), edge.position)
        assert data["input"] == (edge.receiver[-1] if edge.receiver[0] == "a" else "")
    circuit.to_graphml(tmp_path / "c.graphml")
    assert xml.etree.ElementTree.parse(tmp_path / "c.graphml").getroot().tag.endswith("graphml")
    read = networkx.read_graphml(tmp_path / "c.graphml", force_multigraph=True)
    assert sorted(label for *_, label in read.edges(data="label")) == sorted(map(str, circuit))


def eap_ig_names(n_layers: int, n_heads: int) -> list[str]:
    """Edge names of the EAP-IG repository, as its ``Graph.from_model`` makes them: one loop over a growing residual stream."""
    stream, names = ["input"], []
    for layer in range(n_layers):
        heads = [f"a{layer}.h{head}" for head in range(n_heads)]
        names += [f"{node}->{head}<{part}>" for node, head, part in itertools.product(stream, heads, "qkv")]
        stream += heads
        names += [f"{node}->m{layer}" for node in stream]
        stream.append(f"m{layer}")
    return names + [f"{node}->logits" for node in stream]


def test_eap_ig_file(tmp_path):
    path = tmp_path / "graph.json"
    circuit = Circuit(WITH_MLPS, ["embed→a0.1.k", "a0.1→m1", "m1→logits"])
    circuit.to_eap_ig(path, scores={"embed→a0.1.k": 2.0, "a0.0→logits": -0.5})
    content = json.loads(path.read_text())
    assert content["cfg"] == {"n_layers": 2, "n_heads": 2, "parallel_attn_mlp": False, "d_model": 16}
    assert sorted(content["edges"]) == sorted(eap_ig_names(2, 2))
    assert {name for name, node in content["nodes"].items() if node["in_graph"]} == {"input", "a0.h1", "m1", "logits"}
    assert set(content["nodes"]) == {"input", "a0.h0", "a0.h1", "m0", "a1.h0", "a1.h1", "m1", "logits"}
    # Theirs estimates loss(cut) − loss(all), ours M(all) − M(cut), and the loss is −M.
    assert content["edges"]["input->a0.h1<k>"] == {"score": 2.0, "in_graph": True}
    assert content["edges"]["a0.h0->logits"] == {"score": -0.5, "in_graph": False}
    assert content["edges"]["a0.h1->m1"] == {"score": 0.0, "in_graph": True}
    read, scores = Circuit.from_eap_ig(path)
    assert read == circuit and read.graph.d_model == 16
    assert scores[Edge.parse("embed→a0.1.k")] == 2 and scores[Edge.parse("a0.0→logits")] == -0.5
    assert len(scores) == WITH_MLPS.n_edges
    # As if the metric itself had been given there.
    circuit.to_eap_ig(path, scores={"embed→a0.1.k": 2.0, "a0.0→logits": -0.5}, loss=False)
    signed = json.loads(path.read_text())["edges"]
    assert [signed[name]["score"] for name in ("input->a0.h1<k>", "a0.h0->logits", "a0.h1->m1")] == [-2.0, 0.5, 0.0]
    assert math.copysign(1, signed["a0.h1->m1"]["score"]) == 1  # 0.0 and not -0.0
    assert Circuit.from_eap_ig(path, loss=False) == (read, scores)
    assert Circuit.from_eap_ig(path)[1][Edge.parse("embed→a0.1.k")] == -2


def test_eap_ig_refuses_what_it_cannot_hold(tmp_path):
    path = tmp_path / "graph.json"
    for graph, said in [
        (SMALL, "attention-only"),
        (POSITIONS, "no positions"),
        (Graph.from_shape(2, 2, True), "d_model"),
    ]:
        with pytest.raises(ValueError, match=said):
            Circuit(graph, []).to_eap_ig(path)
    assert not path.exists()
    Circuit(Graph.from_shape(1, 1, True), []).to_eap_ig(path, d_model=4)
    good = json.loads(path.read_text())
    for change, said in [
        ({"cfg": {**good["cfg"], "parallel_attn_mlp": True}}, "parallel_attn_mlp"),
        ({"cfg": {"n_layers": 1}}, "'n_heads' is missing"),
        ({"cfg": {**good["cfg"], "n_layers": "1"}}, "n_layers"),
        ({"edges": {"input->m7": {"score": 0.0, "in_graph": True}}}, "'input->m7' does not exist"),
        ({"edges": {"input->m0": {"score": 0.0}}}, "'in_graph' is missing"),
        ({"edges": {"input->m0": {"score": "1", "in_graph": True}}}, "score must be a number"),
        ({"edges": {"input->m0": {"score": 1.0, "in_graph": 1}}}, "in_graph must be true or false"),
        ({"edges": []}, "edges: expected an object"),
    ]:
        path.write_text(json.dumps({**good, **change}))
        assert said in refused(path, Circuit.from_eap_ig)
    path.write_text(json.dumps({"cfg": {}, "nodes": {}}))
    assert "'edges' is missing" in refused(path, Circuit.from_eap_ig)
