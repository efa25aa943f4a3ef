"""The circuit explorer's HTML: what it holds, how large it is, that nothing in it can break out. tests/test_explore_browser.py
looks at what a browser makes of it."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from bs4 import BeautifulSoup
from hypothesis import given, settings
from hypothesis import strategies as st

import circuitlib as cl
from circuitlib.discovery.acdc import AcdcCircuit
from circuitlib.evaluation import Curve

ROOT = Path(__file__).resolve().parents[1]
SMALL = cl.Graph.from_shape(2, 3, True)  # 75 edges
DOCSTRING = cl.Graph.from_shape(4, 8, False)
GPT2 = cl.Graph.from_shape(12, 12, True)
HOSTILE = '</script><img src=x onerror="alert(1)"><!--&amp;\u2028'


def random_scores(graph: cl.Graph, seed: int = 0, scale: float = 1.0) -> cl.EdgeScores:
    values = torch.randn(graph.edge_mask.shape, generator=torch.Generator().manual_seed(seed)) ** 3 * scale
    return cl.EdgeScores(graph, values * graph.edge_mask, "random")


def sweep(graph: cl.Graph, sizes=(2, 5, 9)) -> list[AcdcCircuit]:
    """Circuits with thresholds, as ``cl.acdc_sweep`` returns them."""
    circuits = []
    for seed, size in enumerate(sizes):
        circuit = AcdcCircuit(graph, cl.random_circuit(graph, size, seed))
        circuit.threshold = 1 / (1 + seed)
        circuits.append(circuit)
    return circuits


def curve(graph: cl.Graph, sizes=(1, 4, 9, 30), values=(0.1, 0.4, 0.9, 1.1)) -> Curve:
    return Curve(tuple(sizes), tuple(values), graph.n_edges)


def soup_of(view) -> BeautifulSoup:
    return BeautifulSoup(view.html, "html.parser")


def content(view) -> dict:
    """The JSON as a browser would read it."""
    (script,) = soup_of(view).select('.circuitlib-explorer script[type="application/json"]')
    return json.loads(script.string)


def ranking(method: dict) -> list[int]:
    """Edges, the strongest first, read from the JSON alone: |score|, then canonical order."""
    return sorted(range(len(method["scores"])), key=lambda e: (-abs(method["scores"][e]), e))


# --- structure ----------------------------------------------------------------------------------------------------


def test_it_is_one_host_with_its_data_and_a_script():
    soup = soup_of(cl.explore(random_scores(SMALL)))
    assert [tag.name for tag in soup.find_all(recursive=False)] == ["style", "div", "script"]
    assert soup.div["class"] == ["circuitlib-explorer"]
    assert [script.get("type") for script in soup.find_all("script")] == ["application/json", None]


def test_it_asks_for_nothing_outside_itself():
    text = cl.explore(random_scores(SMALL), cl.random_circuit(SMALL, 9), curve=curve(SMALL)).page
    addresses = set(re.findall(r"https?://[^\s\"'<>)]+", text))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, never fetched
    assert not re.search(r"\b(src|href|action|srcset|data-src)=|url\(|@import|import\(|require", text)
    assert not re.search(r"fetch\(|XMLHttpRequest|WebSocket|sendBeacon|localStorage|document\.cookie", text)


def test_texts_go_in_as_text():
    script = soup_of(cl.explore(random_scores(SMALL))).find_all("script")[1].string
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser", script
    )
    assert "</script" not in script and "<!--" not in script and '"STYLE"' not in script


def test_the_same_content_gives_the_same_text():
    def make():
        keywords = {"curve": curve(SMALL), "roles": {"x": ["a0.1"]}}
        return cl.explore(random_scores(SMALL), cl.random_circuit(SMALL, 9), **keywords).html

    assert make() == make()
    assert " id=" not in make() and not re.search(r"[0-9a-f]{8}-[0-9a-f]{4}", make())


def test_the_text_does_not_depend_on_the_order_of_sets():
    code = (
        "import circuitlib as cl; g = cl.Graph.from_shape(2, 3, True); a, b = (cl.random_circuit(g, 9, s) for s in (1, 2));"
        "import hashlib; print(hashlib.sha256(cl.explore([a, b], b, roles={'x': ['a0.1']}).html.encode()).hexdigest())"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    texts = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**environment, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1


def test_it_is_small_with_three_methods_and_1281_edges():
    methods = {"EAP": random_scores(DOCSTRING, 1), "EAP-IG": random_scores(DOCSTRING, 2, 1e-3)}
    methods["ACDC"] = sweep(DOCSTRING, (1, 11, 23, 32, 60, 87))
    curves = {name: curve(DOCSTRING, range(1, 30), np.linspace(0, 1, 29) ** 0.3) for name in ("EAP", "EAP-IG")}
    curves["ACDC"] = curve(DOCSTRING, (1, 11, 23, 32, 60, 87), (0.1, 0.2, 0.3, 0.4, 0.5, 0.6))
    truth = cl.reference_circuit("docstring-4l", "docstring")
    assert len(cl.explore(methods, truth, curve=curves, title="docstring").html.encode()) < 100_000


def test_it_is_shown_by_a_notebook_and_saved_as_a_page(tmp_path):
    view = cl.explore(random_scores(SMALL), title="a → b")
    assert view._repr_html_() == view.html
    assert repr(view) == "Explorer(scores; 75 edges)"
    view.save(tmp_path / "view.html")
    page = BeautifulSoup((tmp_path / "view.html").read_text("utf8"), "html.parser")
    assert page.html["lang"] == "en" and page.title.string == "a → b" and page.h1.string == "a → b"
    assert page.select_one("meta[charset]")["charset"] == "utf-8" and page.select_one('meta[name="viewport"]')
    assert len(page.select("main .circuitlib-explorer")) == 1


def test_without_scripts_there_is_a_table_of_the_counts():
    truth = cl.random_circuit(SMALL, 9, 5)
    soup = soup_of(cl.explore({"one": random_scores(SMALL), "two": sweep(SMALL)}, truth, curve={"one": curve(SMALL)}))
    heads = [cell.text for cell in soup.select("thead th")]
    assert heads == ["method", "edges", "hits", "missed", "false", "precision", "recall", "faithfulness"]
    hits = len(random_scores(SMALL).top(9) & truth)
    first = [cell.text for cell in soup.select("tbody tr")[0].find_all(["th", "td"])]
    assert first == ["one", "9", str(hits), str(9 - hits), str(9 - hits), f"{hits / 9:.2f}", f"{hits / 9:.2f}", "0.90"]
    assert soup.select("tbody tr")[1].find_all("td")[-1].text == "–"


# --- numbers ------------------------------------------------------------------------------------------------------


def test_the_graph_is_given_by_its_shape():
    assert content(cl.explore(random_scores(SMALL)))["shape"] == [2, 3, 1]
    assert content(cl.explore(random_scores(DOCSTRING)))["shape"] == [4, 8, 0]
    assert content(cl.explore(random_scores(DOCSTRING)))["edges"] == 1281


@pytest.mark.parametrize("graph", [SMALL, DOCSTRING], ids=["small", "docstring"])
@pytest.mark.parametrize("scale", [1.0, 1e-9, 1e9])
def test_few_digits_keep_the_order_of_the_edges(graph, scale):
    scores = random_scores(graph, 3, scale)
    (method,) = content(cl.explore(scores))["methods"]
    assert [graph.edges[e] for e in ranking(method)] == scores.ranked()
    np.testing.assert_allclose(method["scores"], scores.flat, rtol=5.001e-3)
    assert len(json.dumps(method["scores"])) < 13 * graph.n_edges


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.sampled_from([0.0, 1.0, -1.0, 1.0005, 1.00049, -1.00051, 1.0000001, 0.12345, 0.123449, 3e-8, 2.9999e-8]),
        min_size=24,
        max_size=24,
    )
)
def test_ties_and_near_ties_keep_their_order(values):
    graph = cl.Graph.from_shape(2, 2, False)
    matrix = torch.zeros(graph.edge_mask.shape, dtype=torch.float64)
    matrix[graph.edge_mask] = torch.tensor(values + values[: graph.n_edges - 24], dtype=torch.float64)[: graph.n_edges]
    scores = cl.EdgeScores(graph, matrix)
    (method,) = cl.explore(scores).data["methods"]
    assert [graph.edges[e] for e in ranking(method)] == scores.ranked()


def test_zeros_are_short():
    zeros = cl.EdgeScores(SMALL, torch.zeros(SMALL.edge_mask.shape))
    assert set(content(cl.explore(zeros))["methods"][0]["scores"]) == {0}


@pytest.mark.parametrize("size", [0, 1, 8, 9, 40, SMALL.n_edges])
def test_the_counts_are_those_of_the_circuits(size):
    scores, truth = random_scores(SMALL, 7), cl.random_circuit(SMALL, 9, 5)
    row = cl.explore({"x": scores}, truth).at(size).loc["x"]
    kept = scores.top(size)
    assert (row.edges, row.hits) == (len(kept), len(kept & truth))
    assert (row.missed, row.false) == (len(truth - kept), len(kept - truth))
    assert row.recall == len(kept & truth) / len(truth)
    assert row.precision == len(kept & truth) / size if size else math.isnan(row.precision)


def test_columns_of_what_was_not_given_are_left_out():
    assert list(cl.explore(random_scores(SMALL)).at(3)) == ["edges"]
    assert list(cl.explore(random_scores(SMALL), curve=curve(SMALL)).at(3)) == ["edges", "faithfulness"]


def test_faithfulness_is_read_from_the_curve():
    at = lambda k: cl.explore({"x": random_scores(SMALL)}, curve={"x": curve(SMALL)}).at(k).loc["x", "faithfulness"]  # noqa: E731
    assert [at(k) for k in (1, 4, 9, 30)] == [0.1, 0.4, 0.9, 1.1]
    assert at(2) == pytest.approx(0.2) and at(5) == pytest.approx(0.5)
    assert at(0) == 0 and at(SMALL.n_edges) == 1  # by definition


def test_of_circuits_the_nearest_in_size_is_shown():
    circuits = sweep(SMALL, (9, 2, 5))
    view = cl.explore({"x": circuits}, curve={"x": curve(SMALL, (2, 5, 9), (0.2, 0.5, 0.9))})
    assert [view.at(k).loc["x", "edges"] for k in (0, 3, 4, 5, 7, 8, 75)] == [2, 2, 5, 5, 5, 9, 9]
    assert [view.at(k).loc["x", "faithfulness"] for k in (0, 5, 30)] == [0.2, 0.5, 0.9]
    steps = content(view)["methods"][0]["steps"]
    assert [len(step["ids"]) for step in steps] == [2, 5, 9]
    assert [step["at"] for step in steps] == [0.5, 0.333, 1]
    assert [{*map(SMALL.edges.__getitem__, step["ids"])} for step in steps] == [{*circuits[i]} for i in (1, 2, 0)]


def test_a_single_circuit_and_circuits_without_thresholds():
    circuit = cl.random_circuit(SMALL, 6)
    (method,) = content(cl.explore(circuit))["methods"]
    assert [SMALL.edges[e] for e in method["steps"][0]["ids"]] == [*circuit] and method["steps"][0]["at"] is None


def test_the_known_circuit_and_its_roles_are_taken_over():
    truth = cl.reference_circuit("docstring-4l", "docstring")
    data = content(cl.explore(random_scores(DOCSTRING), truth))
    assert [DOCSTRING.edges[e] for e in data["truth"]] == [*truth] and data["size"] == len(truth)
    assert {role: tuple(heads) for role, heads in data["roles"]} == truth.roles
    assert content(cl.explore(random_scores(DOCSTRING), truth, roles={}))["roles"] == []
    assert content(cl.explore(random_scores(DOCSTRING), roles={"one": "a0.7"}))["roles"] == [["one", ["a0.7"]]]


# --- the chapter --------------------------------------------------------------------------------------------------


def committed() -> tuple[BeautifulSoup, str]:
    """The view that chapter 9 holds, and the table of counts that a compared cell prints. nbval does not look at the view."""
    chapter = json.loads((ROOT / "notebooks" / "09_comparison.ipynb").read_text("utf8"))
    shown = [output for cell in chapter["cells"] for output in cell.get("outputs", [])]
    (view,) = ["".join(o["data"]["text/html"]) for o in shown if "circuitlib-explorer" in str(o.get("data", ""))]
    (table,) = ["".join(o["text"]) for o in shown if "missed  false" in "".join(o.get("text", ""))]
    return BeautifulSoup(view, "html.parser"), table


def test_the_chapter_holds_the_script_as_it_is_now():
    view, _ = committed()
    now = soup_of(cl.explore(random_scores(SMALL)))
    assert view.find_all("script")[1].string == now.find_all("script")[1].string, "run chapter 9 again"
    assert view.style.string == now.style.string, "run chapter 9 again"


def test_the_view_of_the_chapter_holds_what_its_cells_print():
    view, table = committed()
    data = json.loads(view.find("script").string)
    truth = cl.reference_circuit("docstring-4l", "docstring")
    assert [DOCSTRING.edges[e] for e in data["truth"]] == [*truth]
    for method, line in zip(data["methods"], table.splitlines()[2:], strict=True):
        printed = line.removeprefix(method["name"]).split()
        if "steps" in method:
            kept = min((step["ids"] for step in method["steps"]), key=lambda ids: abs(len(ids) - len(truth)))
        else:
            kept = ranking(method)[: len(truth)]
        hits = len({*kept} & {*data["truth"]})
        assert printed[:4] == [str(n) for n in (len(kept), hits, len(truth) - hits, len(kept) - hits)]
    assert len(str(view)) < 100_000


# --- what is unusual ----------------------------------------------------------------------------------------------


def test_of_a_large_graph_the_strongest_edges_and_the_true_ones_are_kept():
    scores, truth = random_scores(GPT2, 1), cl.random_circuit(GPT2, 40, 2)
    view = cl.explore({"x": scores, "y": sweep(GPT2, (10, 3000))}, truth, most=500)
    data = content(view)
    ranked = scores.ranked()
    assert data["edges"] == GPT2.n_edges == 32_491 and data["most"] == 500
    ids = data["methods"][0]["ids"]
    assert [GPT2.edges[e] for e in ids[:500]] == ranked[:500]
    assert [GPT2.edges[e] for e in ids[500:]] == [edge for edge in ranked[500:] if edge in truth]
    assert data["methods"][1]["omitted"] == 1 and len(data["methods"][1]["steps"]) == 1
    assert view.at(500).loc["x", "hits"] == len(scores.top(500) & truth)
    assert len(cl.explore(scores).html.encode()) < 100_000


def test_one_edge_no_edge_all_zero_no_truth():
    empty = cl.Circuit(SMALL, ())
    zeros = cl.EdgeScores(SMALL, torch.zeros(SMALL.edge_mask.shape))
    assert cl.explore(empty, empty).at(0).iloc[0].to_dict()["edges"] == 0
    assert math.isnan(cl.explore(zeros, empty).at(5).iloc[0].recall)
    assert cl.explore(zeros, cl.Circuit(SMALL, ["a0.0→logits"])).at(SMALL.n_edges).iloc[0].hits == 1
    one = cl.Graph.from_shape(1, 1, False)
    assert cl.explore(random_scores(one)).data["size"] == one.n_edges == 5


# --- what is hostile ----------------------------------------------------------------------------------------------


def test_names_that_look_like_html_stay_text():
    view = cl.explore({HOSTILE: random_scores(SMALL)}, roles={HOSTILE: ["a0.1"]}, title=HOSTILE)
    for text in (view.html, view.page):
        soup = BeautifulSoup(text, "html.parser")
        assert not soup.find_all("img") and len(soup.find_all("script")) == 2
        assert soup.select_one("tbody th").text == HOSTILE
    data = content(view)
    assert data["methods"][0]["name"] == data["title"] == data["roles"][0][0] == HOSTILE
    raw = re.search(r'<script type="application/json">(.*?)</script>', view.html, flags=re.S)[1]
    assert "<" not in raw and "\u2028" not in raw
    assert BeautifulSoup(view.page, "html.parser").title.string == HOSTILE


# --- bad input ----------------------------------------------------------------------------------------------------

OTHER = cl.Graph.from_shape(2, 4, True)
SCORES = random_scores(SMALL)
POSITIONS = cl.Graph.from_shape(1, 1, False, n_pos=3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3,), "scores: expected EdgeScores or Circuit or a list of circuits, or a dict of them, got int"),
        (("EAP",), "scores: expected EdgeScores or Circuit"),
        (({},), "scores: expected 1 to 6 by name, got 0"),
        (({str(i): SCORES for i in range(7)},), "scores: expected 1 to 6 by name, got 7"),
        (({1: SCORES},), "scores: expected names that are text, got 1"),
        (([],), "scores: expected at least one circuit in a list, got none"),
        (([SCORES],), "scores: expected only circuits in a list, got EdgeScores among them"),
        (({"a": SCORES, "b": random_scores(OTHER)},), "scores: expected one graph for all, got Graph"),
        (([cl.Circuit(SMALL, ()), cl.Circuit(OTHER, ())],), "scores: expected one graph for all"),
        ((random_scores(POSITIONS),), "scores: expected a graph without positions"),
        ((SCORES, "a0.0→logits"), "truth: expected a Circuit or None, got str"),
        ((SCORES, cl.Circuit(OTHER, ())), "truth: expected a circuit of Graph"),
    ],
)
def test_bad_scores_and_truths(arguments, message):
    refused(message, *arguments)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"curve": 1}, "curve: expected Curve, or a dict of them, got int"),
        ({"curve": {"y": curve(SMALL)}}, "curve: expected curves by the names of scores, ''; got 'y'"),
        (
            {"curve": curve(OTHER)},
            f"curve: expected one of a graph of {SMALL.n_edges} edges, got {OTHER.n_edges} edges",
        ),
        ({"curve": Curve((), (), SMALL.n_edges)}, "curve: expected sizes with finite values, at least one"),
        ({"curve": curve(SMALL, (1,), (math.nan,))}, "curve: expected sizes with finite values"),
        ({"roles": ["a0.1"]}, "roles: expected role → heads, as cl.roles returns, got list"),
        ({"roles": {"mover": ["a2.0"]}}, "roles: expected heads such as 'a0.0' for 'mover', got 'a2.0'"),
        ({"roles": {"mover": [("a", "b")]}}, "roles: expected heads such as 'a0.0' for 'mover'"),
        ({"size": -1}, "size: expected an integer from 0 to"),
        ({"size": SMALL.n_edges + 1}, "size: expected an integer from 0 to"),
        ({"size": 1.5}, "size: expected an integer from 0 to"),
        ({"most": 0}, "most: expected an integer from 1, got 0"),
        ({"title": 3}, "title: expected text or None, got int"),
    ],
)
def test_bad_options(keywords, message):
    refused(message, SCORES, **keywords)


def test_a_curve_of_other_circuits_is_refused():
    refused(
        "curve: 'x' has circuits of (2, 5, 9) edges", {"x": sweep(SMALL)}, curve={"x": curve(SMALL, (2, 5), (0, 1))}
    )


def test_circuits_that_are_all_too_large_are_refused():
    refused("most: every circuit of 'x' has more than 8 edges", {"x": sweep(SMALL, (9, 10))}, most=8)


def refused(message: str, *arguments, **keywords) -> None:
    with pytest.raises(ValueError) as error:
        cl.explore(*arguments, **keywords)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_size_that_the_view_does_not_have_is_refused():
    with pytest.raises(ValueError, match="size: expected an integer from 0 to"):
        cl.explore(SCORES).at(SMALL.n_edges + 1)
