"""Published circuits against the code that their edges come from: counts, and a digest of each edge list.

The digests are those of the edge lists that the code of Conmy et al. 2023 (get_docstring_subgraph_true_edges, get_ioi_true_edges,
get_greaterthan_true_edges) and of Miller et al. 2024 (ioi_true_edges) returns, without ACDC's direct and placeholder edges.
"""

from __future__ import annotations

import hashlib
import itertools

import pytest

import circuitlib as cl
from circuitlib.published import PublishedCircuit, edges_between, published_circuit

# (name, variant): edges, edges in ACDC's count, SHA-256 of the sorted lines "sender→receiver".
LISTED = {
    ("docstring", "acdc"): (24, 37, "ce4a94adc7ca066599ca1bdd09220a19e27795261c55463a8f5c24ccbc9c087a"),
    ("ioi", "acdc"): (963, 1041, "16754e9ed72b2bae5be53d2263561cc34524c9103e109375c87e58ba29ccef1c"),
    ("ioi", "auto-circuit"): (739, 813, "a1cfb10a410dec48fd2d257dbc7057898d928d2fba07c0e297fcf4c505192082"),
    ("greater-than", "acdc"): (235, 262, "5ad038e52731ffcdd7a5a8008adf548a1bfbddb858546bd16fd53b6118212b06"),
}
HEADS = {  # as the authors list them
    "docstring": "a0.5 a1.2 a1.4 a2.0 a3.0 a3.6",
    "ioi": "a0.1 a0.10 a2.2 a3.0 a4.11 a5.5 a5.8 a5.9 a6.9 a7.3 a7.9 a8.6 a8.10 a9.0 a9.6 a9.7 a9.9 a10.0 a10.1 a10.2 a10.6 "
    "a10.7 a10.10 a11.2 a11.9 a11.10",
    "greater-than": "a0.1 a0.3 a0.5 a5.5 a6.1 a6.9 a7.10 a8.11 a9.1",
}


def digest(circuit) -> str:
    return hashlib.sha256("\n".join(sorted(f"{e.sender}→{e.receiver}" for e in circuit)).encode()).hexdigest()


@pytest.mark.parametrize(("name", "variant"), LISTED)
def test_the_edges_are_those_of_the_code_they_were_published_with(name, variant):
    circuit = published_circuit(name, variant)
    assert (len(circuit), circuit.edge_count("acdc"), digest(circuit)) == LISTED[name, variant]
    assert circuit.edge_count() == len(circuit)


def test_a_digest_sees_one_edge_more_or_less():
    circuit = published_circuit("docstring")
    assert len({digest(circuit), digest(circuit - ["a1.4→a2.0.v"]), digest(circuit | ["a1.4→a2.0.q"])}) == 3


@pytest.mark.parametrize(("name", "variant"), LISTED)
def test_the_heads_are_those_that_have_a_role(name, variant):
    circuit = published_circuit(name, variant)
    assert circuit.heads() == sorted(HEADS[name].split(), key=lambda head: [int(n) for n in head[1:].split(".")])
    of_roles = [node for nodes in circuit.roles.values() for node in nodes if node[0] == "a"]
    assert sorted(of_roles) == sorted(circuit.heads())  # and each head has one


@pytest.mark.parametrize(("name", "variant"), LISTED)
def test_nothing_dangles(name, variant):
    circuit = published_circuit(name, variant)
    assert circuit.prune() == circuit


def test_the_variants_of_ioi_differ_in_mlps_only():
    ours, theirs = published_circuit("ioi"), published_circuit("ioi", "auto-circuit")
    assert set(theirs) < set(ours)
    for edge in set(ours) - set(theirs):
        assert edge.sender[0] == "m" or edge.receiver[0] == "m" or edge == cl.Edge("embed", "logits")


def test_the_eight_heads_with_all_their_edges():
    circuit = published_circuit("docstring", "heads")
    heads = {"a0.2", "a0.4", *HEADS["docstring"].split()}
    expected = {
        edge
        for edge in circuit.graph.edges
        if edge.sender in heads | {"embed"} and edge.receiver.rpartition(".")[0] in heads | {""}
    }
    assert set(circuit) == expected
    assert len(circuit) == 102 and circuit.edge_count("acdc") == 126
    assert set(published_circuit("docstring")) < set(circuit)


def test_edges_into_heads_that_nothing_reads_change_nothing():
    """Why the eight heads need no edges into the other ones: on docstring-4l, which has the same graph."""
    model = cl.load_model("docstring-4l")
    engine = cl.Engine(model, cl.docstring(model, n=4))
    circuit = published_circuit("docstring", "heads")
    senders = ["embed", *circuit.heads()]
    more = circuit | edges_between(circuit.graph, senders, circuit.graph.senders[1:])
    assert len(more) == 441
    assert (engine.run(circuit) - engine.run(more)).abs().max() < 1e-4
    fewer = circuit - ["a0.5→a1.4.v", "a1.4→a3.0.q"]
    assert (engine.run(circuit) - engine.run(fewer)).abs().max() > 1e-3


def test_what_is_known_about_a_circuit_travels_with_it():
    circuit = published_circuit("greater_than")
    assert isinstance(circuit, cl.Circuit) and isinstance(circuit, PublishedCircuit)
    assert (circuit.task, circuit.ablation, circuit.model) == ("greater_than", "corrupted", "gpt2")
    assert circuit.roles["late_mlp"] == ("m8", "m9", "m10", "m11")
    assert str(circuit.source).startswith("Hanna et al. 2023") and circuit.source.address in str(circuit.source)
    for name, variant in LISTED:
        found = published_circuit(name, variant)
        assert found.source.address.startswith("https://") and found.coded_by.address.startswith("https://")
        assert found.graph == cl.Graph.from_shape(*((4, 8, False) if name == "docstring" else (12, 12, True)))


def test_a_published_circuit_can_be_saved_and_compared(tmp_path):
    circuit = published_circuit("docstring")
    circuit.save(tmp_path / "c.json")
    assert cl.Circuit.load(tmp_path / "c.json") == circuit
    assert cl.jaccard(circuit, circuit - ["a1.4→a2.0.v"]) == pytest.approx(23 / 24)


def test_edges_between_against_a_loop_over_all_edges():
    graph = cl.Graph.from_shape(3, 2, True)
    senders, readers = ["a0.1", "m1", "embed"], ["a1.0", "m0", "m1", "logits"]
    for parts in ("q", "kv", "qkv", ""):
        expected = {
            edge
            for edge, sender, reader in itertools.product(graph.edges, senders, readers)
            if edge.sender == sender
            and edge.receiver in ([f"a1.0.{p}" for p in parts] if reader == "a1.0" else [reader])
        }
        assert set(edges_between(graph, senders, readers, parts)) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("docstrings",), "name: expected one of docstring, ioi, greater-than, got 'docstrings'"),
        ((None,), "name: expected one of docstring, ioi, greater-than, got None"),
        (("greater-than", "heads"), "variant: expected one of acdc for 'greater-than', got 'heads'"),
    ],
)
def test_bad_input_is_one_line(arguments, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        published_circuit(*arguments)


def test_a_convention_that_does_not_exist():
    with pytest.raises(ValueError, match="^convention: expected 'circuitlib' or 'acdc', got 'eap'$"):
        published_circuit("ioi").edge_count("eap")
