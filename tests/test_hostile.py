"""Files, names and tokens that somebody else chose: no code of theirs runs, and they can ask for little."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from circuitlib.graph import Circuit, Graph

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "circuitlib"


# --- files that ask for more than they are worth ---------------------------------------------------------------------

SHAPE = {"n_layers": 2, "n_heads": 2, "mlps": False, "n_pos": None}
GOOD = {
    "format": "circuitlib circuit",
    "version": 1,
    "graph": SHAPE,
    "task": None,
    "ablation": None,
    "edges": ["embed→logits", "embed→a0.1.v"],
}


def foreign(edges: dict, **shape) -> dict:
    """A graph JSON of the EAP-IG repository."""
    cfg = {"n_layers": 1, "n_heads": 1, "d_model": 8, "parallel_attn_mlp": False} | shape
    return {"cfg": cfg, "nodes": {}, "edges": edges}


EDGE = {"score": 1.0, "in_graph": True}


def refused(path: Path, load=Circuit.load) -> str:
    with pytest.raises(ValueError) as error:
        load(path)
    message = str(error.value)
    assert message.startswith(str(path)) and len(message.splitlines()) == 1 and len(message) < len(str(path)) + 600
    message.encode()  # half a surrogate pair would fail where it is printed
    return message


@pytest.mark.parametrize(
    ("change", "said"),
    [
        # A hundred bytes that ask for 200 GB: every shape alone is allowed.
        ({"graph": SHAPE | {"n_layers": 512, "n_heads": 512}}, "places for edges, expected at most 268435456"),
        ({"graph": SHAPE | {"n_layers": 12, "n_heads": 12, "n_pos": 65536}}, "places for edges, expected at most"),
        ({"task": "x" * 1001}, "task: expected text of at most 1000 characters"),
        ({"task": "\ud800"}, r"task: expected text of at most 1000 characters, got '\ud800'"),
        ({"ablation": "\ud800" * 2000}, "ablation: expected text of at most"),
        ({"\ud800\n": 1}, r"unknown key '\ud800\n'"),
        ({"edges": ["embed→logits@" + "9" * 4000]}, "expected text like"),
        ({"edges": ["\ud800→\n"]}, r"edge '\ud800→\n': expected text like"),
        ({"graph": SHAPE | {"n_layers": 1e300}}, "n_layers: expected an integer from 1 to 512"),
    ],
)
def test_a_circuit_file_may_not_ask_for_much(change, said, tmp_path):
    path = tmp_path / "c.json"
    path.write_text(json.dumps(GOOD), "utf8")
    assert len(Circuit.load(path)) == 2
    path.write_text(json.dumps(GOOD | change), "utf8")
    assert said in refused(path)


def test_the_largest_graph_of_a_file_is_larger_than_any_model_of_the_book(tmp_path):
    """GPT-2 XL with a position on each edge, fifty of them, is inside."""
    path = tmp_path / "c.json"
    path.write_text(json.dumps(GOOD | {"graph": {"n_layers": 48, "n_heads": 25, "mlps": True, "n_pos": 50}, "edges": ["embed→a47.24.q@49"]}), "utf8")  # fmt: skip
    assert Circuit.load(path).graph == Graph.from_shape(48, 25, True, 50)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (foreign({}, n_layers=512, n_heads=512), "places for edges"),
        (foreign({}, n_layers=64, n_heads=32), "expected at most 2097152"),
        (foreign({"input->a0.h0<q>": EDGE | {"score": 10**400}}), "score must be a finite number"),
        (foreign({"input->a0.h0<q>": EDGE | {"score": "1"}}), "score must be a number or null, got str"),
        (foreign({"\ud800": EDGE}), r"'\ud800' does not exist in Graph(1 layers"),
        (foreign({"a9.h0->logits": EDGE}), "'a9.h0->logits' does not exist in Graph(1 layers"),
    ],
)
def test_a_graph_of_the_eap_ig_repository_may_not_either(content, said, tmp_path):
    path = tmp_path / "g.json"
    path.write_text(json.dumps(foreign({"input->a0.h0<q>": EDGE})), "utf8")
    circuit, scores = Circuit.from_eap_ig(path)
    assert [str(edge) for edge in circuit] == ["embed→a0.0.q"] and [*scores.values()] == [-1.0]
    path.write_text(json.dumps(content), "utf8")
    assert said in refused(path, Circuit.from_eap_ig)
    path.write_text(json.dumps(foreign({"input->a0.h0<q>": EDGE})).replace("1.0", "1e999"), "utf8")
    assert "score must be a finite number" in refused(path, Circuit.from_eap_ig)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_file_that_never_ends_is_not_read(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    endless = tmp_path / "endless.json"
    endless.symlink_to("/dev/zero")
    for path in (pipe, endless):
        for load in (Circuit.load, Circuit.from_eap_ig):
            assert "can't be read (not an ordinary file)" in refused(path, load)
