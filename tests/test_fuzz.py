"""Whatever a file, a text or a tensor holds: a result that is right, or one line. Nothing else comes out of a parser.

The other tests of the parsers say what is wrong with which file; here Hypothesis chooses. The seeds are fixed.
"""

from __future__ import annotations

import functools
import json
import math

import naive
import pytest
import shells
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from test_engine import naive_setting

import circuitlib as cl
from circuitlib.cli.export import read_scores
from circuitlib.engine import Engine
from circuitlib.graph import Circuit, Edge, Graph
from circuitlib.models import hub
from circuitlib.models.errors import Missing
from circuitlib.reproduction import prompts_from
from circuitlib.sweep.grid import read_grid
from circuitlib.tasks.base import Task

quick = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip

SMALL = Graph.from_shape(2, 2, True)
POSITIONS = Graph.from_shape(1, 2, False, n_pos=3)

# --- what to write ------------------------------------------------------------------------------------------------------

texts = st.text(max_size=12) | st.sampled_from(["", "→", "->", "@", "embed", "logits", "a0.0", "m0", "\ud800", "\0", "\n", "\u2028", "\x1b[2J", "9" * 40])  # fmt: skip
numbers = st.integers() | st.floats() | st.sampled_from([0, -1, 1, True, 10**400, 1e308, -0.0])
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)


@st.composite
def changed(draw, content):
    """A good JSON value with one to three places changed: another value, a key more, a key less, an item twice."""
    content = json.loads(json.dumps(content))
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(content))
        holder, key = draw(st.sampled_from(places))
        what = draw(st.sampled_from(["value", "value", "more", "less", "twice"]))
        if what == "value" or (what == "less" and len(holder) == 1):
            holder[key] = draw(values)
        elif what == "less":
            del holder[key]
        elif isinstance(holder, list):
            holder.append(holder[key])
        else:
            holder[draw(texts)] = draw(values)
    return content


def _places(content):
    pairs = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in list(pairs):
        yield content, key
        if isinstance(value, dict | list) and value:
            yield from _places(value)


def damaged(text: str):
    """Bytes of a good file, cut, doubled or overwritten somewhere."""
    content = text.encode("utf8", "surrogatepass")
    return st.builds(
        lambda at, length, new: content[: at % (len(content) + 1)] + new + content[at % (len(content) + 1) + length :],
        st.integers(0, 10**6),
        st.integers(0, 40),
        st.binary(max_size=6) | st.sampled_from([b"\xff", b"[" * 3000, b'"', b"\0", b"NaN", b"1e999", b"\r\n"]),
    )


def written(good):
    """What may stand in a file of JSON: something near a good one, any JSON, a damaged file, any bytes."""
    dumped = (changed(good) | values).map(lambda content: json.dumps(content).encode())
    return dumped | damaged(json.dumps(good)) | st.binary(max_size=60)


def one_line(error: Exception, *kinds: type) -> None:
    message = str(error)
    assert type(error) in (kinds or (ValueError,)), repr(error)
    assert message and len(message.splitlines()) == 1 and len(message) < 1200, message
    message.encode()


# --- edges and circuits ------------------------------------------------------------------------------------------------

words = st.lists(st.sampled_from(["embed", "logits", "a", "m", "0", "1", "7", "00", ".", "q", "k", "v", "→", "->", "@", " ", "-1", "٣", "\n"]), max_size=9).map("".join)  # fmt: skip


@quick
@given(words | texts | values)
@example("a0.0→a1.1.v@0")
@example("a٣.0→logits")
def test_edges(text):
    try:
        edge = Edge.parse(text)
    except ValueError as error:
        one_line(error)
        return
    assert Edge.parse(str(edge)) == edge and str(edge).isprintable()
    for graph in (SMALL, POSITIONS):
        try:
            assert graph.edge(edge) == edge and edge in graph.edges
        except ValueError as error:
            one_line(error)
            assert edge not in graph.edges


GOOD_CIRCUIT = json.loads(Circuit(SMALL, ["embed→a0.1.q", "a0.1→m1", "m1→logits"], "gate", "zero").to_json())


@quick
@given(written(GOOD_CIRCUIT))
def test_circuit_files(tmp_path, content):
    path = tmp_path / "c.json"
    path.write_bytes(content)
    try:
        circuit = Circuit.load(path)
    except ValueError as error:
        one_line(error)
        assert str(error).startswith(str(path))
        return
    again = json.loads(circuit.to_json())
    given_ = json.loads(content)
    assert {**again, "edges": {*again["edges"]}} == {**given_, "edges": {str(Edge.parse(edge)) for edge in given_["edges"]}}  # fmt: skip


def foreign() -> dict:
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        Circuit(SMALL, ["embed→m0"]).to_eap_ig(Path(folder) / "g.json", {"embed→m0": 0.5}, d_model=8)
        return json.loads((Path(folder) / "g.json").read_text("utf8"))


@quick
@given(written(foreign()))
def test_graphs_of_the_eap_ig_repository(tmp_path, content):
    path = tmp_path / "g.json"
    path.write_bytes(content)
    try:
        circuit, scores = Circuit.from_eap_ig(path)
    except ValueError as error:
        one_line(error)
        return
    assert all(math.isfinite(score) for score in scores.values()) and {*circuit} <= {*circuit.graph.edges}


SCORES = "edge,score\n" + "".join(f"{edge},{i / 7}\n" for i, edge in enumerate(SMALL.edges))


@quick
@given(damaged(SCORES) | st.binary(max_size=80) | st.lists(st.lists(texts, max_size=3), max_size=4).map(lambda rows: ("edge,score\n" + "\n".join(",".join(row) for row in rows)).encode("utf8", "replace")))  # fmt: skip
def test_tables_of_scores(tmp_path, content):
    path = tmp_path / "s.csv"
    path.write_bytes(content)
    try:
        scores = read_scores(path, SMALL)
    except ValueError as error:
        one_line(error)
        return
    assert scores.keys() == {*SMALL.edges} and all(math.isfinite(score) for score in scores.values())


# --- tasks, sweeps, manifests, prompts, checkpoints ------------------------------------------------------------------------


@functools.cache
def gate():
    model = cl.load_model("handmade-and")
    return Engine(model, cl.default_task(model, n=4))


@functools.cache
def saved_task() -> tuple[str, ...]:
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        cl.save_task(gate().model, gate().task, Path(folder) / "t.jsonl")
        return tuple((Path(folder) / "t.jsonl").read_text("utf8").splitlines())


@quick
@given(st.data())
def test_task_files(tmp_path, data):
    path, lines = tmp_path / "t.jsonl", [*saved_task()]
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(lines) - 1))
        lines[at] = json.dumps(data.draw(changed(json.loads(lines[at]))))
        path.write_text("\n".join(lines), "utf8")
    else:
        path.write_bytes(data.draw(damaged("\n".join(lines))))
    try:
        task = cl.load_task(gate().model, path)
    except ValueError as error:
        one_line(error)
        assert str(error).startswith(str(path))
        return
    d_vocab = gate().model.cfg.d_vocab
    for tokens in (task.clean, task.corrupted, task.answers):
        assert int(tokens.max()) < d_vocab and len(task.name) < 1000
    assert task.clean.shape == task.corrupted.shape and all(0 <= p < task.clean.shape[1] for p in task.read_positions)


GRID = "circuits = true\n[grid]\nmodel = ['handmade-or', 'handmade-and']\nmethod = ['eap', 'acdc']\nthreshold = [0.1, 1]\nseed = 3\n"


@quick
@given(damaged(GRID) | st.binary(max_size=60))
def test_sweep_files(tmp_path, content):
    path = tmp_path / "g.toml"
    path.write_bytes(content)
    try:
        plan = read_grid(path)
    except ValueError as error:
        one_line(error)
        assert str(error).startswith(str(path))
        return
    assert 0 < len(plan.cells) == len({cell.key for cell in plan.cells}) and all(
        cell.key.isalnum() for cell in plan.cells
    )


@quick
@given(st.binary(max_size=80) | damaged("ab" * 32 + "  models--o--m/snapshots/x/config.json\n") | texts.map(lambda text: text.encode("utf8", "replace")))  # fmt: skip
def test_manifests_and_revisions(tmp_path, content):
    folder = tmp_path / "models"
    stored = folder / "models--o--m"
    (stored / "refs").mkdir(parents=True, exist_ok=True)
    (stored / "snapshots" / "x").mkdir(parents=True, exist_ok=True)
    file = stored / "snapshots" / "x" / "config.json"
    file.write_text("{}")
    (folder / "SHA256SUMS").write_bytes(content)
    (stored / "refs" / "main").write_bytes(content)
    with pytest.raises(Missing) as error:  # nothing here has the right hash
        hub.check_manifest(folder, [file])
    one_line(error.value, Missing)
    found, _ = hub.find_snapshot(folder, "o/m", ["config.json"])
    assert found is None or found.parent == stored / "snapshots" and found.name not in (".", "..")


PROMPTS = {"prompts": [{"clean": "0 1", "corrupt": "1 1", "answers": ["1"], "wrong_answers": ["0"]}]}


@quick
@given(written(PROMPTS))
@example(json.dumps(PROMPTS).replace('["0"]', f'["{"[" * 3000}"]').encode())
def test_files_of_prompts(tmp_path, content):
    path, model = tmp_path / "p.json", gate().model
    path.write_bytes(content)
    try:
        task = prompts_from(model, path, "docstring", n=1)
    except ValueError as error:
        one_line(error)
        assert str(error).startswith(str(path))
        return
    assert len(task) == 1 and int(task.clean.max()) < model.cfg.d_vocab


@functools.cache
def kept(method: str) -> dict:
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        resumed(method, Path(folder) / "k.json")
        return json.loads((Path(folder) / "k.json").read_text("utf8"))


def resumed(method: str, path):
    run = cl.exact if method == "exact" else functools.partial(cl.acdc, threshold=0.1)
    return run(gate(), checkpoint=path)


@settings(quick, max_examples=60)
@given(st.data(), st.sampled_from(["exact", "acdc"]))
def test_checkpoints(tmp_path, data, method):
    path, content = tmp_path / "k.json", data.draw(written(kept(method)))
    path.write_bytes(content)
    try:
        resumed(method, path)
    except ValueError as error:
        one_line(error)
        assert str(path) in str(error) and path.read_bytes() == content


# --- the engine ---------------------------------------------------------------------------------------------------------


@functools.cache
def shell(kind: str):
    model = shells.native(2, 2, 16) if kind == "attn-only" else shells.gpt2(2, 2, 16)
    return model.to(torch.float64)


@settings(quick, max_examples=25)
@given(
    st.sampled_from(["gpt2", "attn-only"]),
    st.sampled_from(["corrupted", "zero", "mean"]),
    st.sampled_from(["noising", "denoising"]),
    st.integers(1, 3),
    st.integers(1, 5),
    st.data(),
)
def test_any_circuit_on_any_tokens_is_the_naive_run(kind, ablation, direction, n, length, data):
    model = shell(kind)
    tokens = st.integers(0, model.cfg.d_vocab - 1)
    rows = st.lists(st.lists(tokens, min_size=length, max_size=length), min_size=n, max_size=n).map(torch.tensor)
    clean, corrupted, answers = data.draw(rows), data.draw(rows), data.draw(rows)[:, 0]
    read = data.draw(st.integers(0, length - 1))
    task = Task("any", clean, corrupted, answers, (answers[:, None] + 1) % model.cfg.d_vocab, {}, (read,), "logit_diff")
    engine = Engine(model, task, ablation, direction)
    circuits = [Circuit(engine.graph, data.draw(st.sets(st.sampled_from(engine.graph.edges)))) for _ in range(2)]
    for circuit, logits in zip(circuits, engine.run(circuits, full=True), strict=True):
        expected = naive.run(model, *naive_setting(model, task, ablation, direction), {*map(str, circuit)})
        assert torch.isfinite(logits).all() and torch.allclose(logits, expected, rtol=0, atol=1e-9)
    assert torch.isfinite(engine.values(circuits[0])).all()
