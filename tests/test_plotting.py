from __future__ import annotations

import html.parser
import itertools
import json
import os
import re
import subprocess
import sys

import matplotlib
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge import TransformerBridge

import circuitlib as cl
from circuitlib import plotting
from circuitlib.evaluation import Curve, Roc
from circuitlib.plotting import (
    AttentionView,
    plot_attention,
    plot_heads,
    plot_lines,
    plot_residual,
    set_attention_mode,
    visible,
)

HOSTILE = [
    "<b>",
    "</script>",
    "'",
    '"',
    "&amp;",
    "\u2028",
    "$x$",
    "a_b^c",
    "\n",
    "\t",
    "        ",
    " size",
    "\\",
    "é",
    "∞",
]


@pytest.fixture(autouse=True)
def attention_mode():
    yield
    set_attention_mode("auto")


@pytest.fixture(scope="module")
def model():
    config = TransformerBridgeConfig(
        n_layers=2,
        d_model=12,
        n_heads=3,
        d_head=4,
        n_ctx=20,
        d_vocab=17,
        attn_only=True,
        normalization_type="LN",
        act_fn="relu",
        seed=3,
    )
    return TransformerBridge.boot_native(config).eval()


def cells(figure, panel: int = 0) -> np.ndarray:
    return np.asarray(figure.axes[panel].images[0].get_array())


def tick_labels(axis) -> list[str]:
    return [text.get_text() for text in axis.get_ticklabels()]


# --- heatmaps


def test_residual_shows_the_values_along_the_bottom_when_short_and_down_the_side_when_long():
    short = np.linspace(-1, 0.5, 12).reshape(3, 4)
    figure = plot_residual(short, ["a", "\n", " c", "d"])
    np.testing.assert_allclose(cells(figure), short)
    assert tick_labels(figure.axes[0].xaxis) == ["a", "⏎", "·c", "d"]
    assert tick_labels(figure.axes[0].yaxis) == ["0", "1", "2"]

    long = np.random.default_rng(0).normal(size=(3, 40))
    figure = plot_residual(long, [f"t{i}" for i in range(40)])
    np.testing.assert_allclose(cells(figure), long.T)
    assert tick_labels(figure.axes[0].yaxis)[:2] == ["t0", "t1"]
    np.testing.assert_allclose(cells(plot_residual(long, ["x"] * 40, tokens_on="x")), long)


def test_zero_is_white_and_the_scale_is_symmetric_and_shared():
    figure = plot_residual({"one": np.full((2, 3), 0.1), "two": np.array([[0, -4.0, 0], [0, 0, 1]])}, "abc")
    for panel in (0, 1):
        norm = figure.axes[panel].images[0].norm
        assert (norm.vmin, norm.vmax) == (-4.0, 4.0)
    red, green, blue, _ = figure.axes[0].images[0].cmap(0.5)
    assert min(red, green, blue) > 0.95
    assert plot_heads(np.zeros((2, 2))).axes[0].images[0].norm.vmax == 1.0
    assert plot_heads(np.ones((2, 2)), limit=3).axes[0].images[0].norm.vmax == 3.0


def test_positive_is_blue():
    red, _, blue, _ = plot_heads(np.ones((2, 2))).axes[0].images[0].cmap(0.95)
    assert blue > red


def test_heads_write_the_numbers_and_leave_out_what_rounds_to_zero():
    matrix = np.array([[0.5, -0.25, 0.001], [1.0, np.nan, 0]])
    axis = plot_heads(matrix, title="Effect").axes[0]
    written = {(round(t.get_position()[1]), round(t.get_position()[0])): t.get_text() for t in axis.texts}
    assert written == {(0, 0): ".50", (0, 1): "−.25", (1, 0): "1.00"}
    assert axis.get_title(loc="left") == "Effect"
    assert not plot_heads(matrix, annotate=False).axes[0].texts


def test_tensors_are_drawn_with_and_without_gradient():
    matrix = torch.randn(2, 3, dtype=torch.bfloat16).requires_grad_()
    np.testing.assert_allclose(cells(plot_heads(matrix)), matrix.detach().float().numpy())


def test_labels_are_never_read_as_mathematics():
    figure = plot_residual(np.ones((1, len(HOSTILE))), HOSTILE, title="$x$ and \\$ and $\\frac{$")
    figure._repr_png_()
    assert figure.axes[0].get_title(loc="left") == "$x$ and \\$ and $\\frac{$"
    assert "$x$" in tick_labels(figure.axes[0].xaxis)
    assert not any(t.get_parse_math() for t in figure.axes[0].get_xticklabels())


def test_every_label_has_a_glyph(recwarn):
    plot_residual(np.ones((1, 5)), ["\n", "\t", " x", " " * 9, "é"], title="−")._repr_png_()
    assert not [w for w in recwarn if "Glyph" in str(w.message)]


def test_pictures_are_the_same_bytes_whatever_the_reader_configured():
    def picture():
        return plot_residual({"a": np.eye(4), "b": -np.eye(4)}, "wxyz", title="T")._repr_png_()

    first = picture()
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "black", "figure.dpi": 40, "text.usetex": True}):
        assert picture() == first
    assert first[:8] == b"\x89PNG\r\n\x1a\n"


def test_nothing_is_left_open_and_nothing_is_configured():
    before = dict(matplotlib.rcParams)
    plot_heads(np.eye(3))._repr_png_()
    assert dict(matplotlib.rcParams) == before
    if "matplotlib.pyplot" in sys.modules:
        assert not sys.modules["matplotlib.pyplot"].get_fignums()


def test_ax_is_drawn_into():
    from matplotlib.figure import Figure

    figure = Figure()
    axis = figure.subplots()
    assert plot_heads(np.eye(2), ax=axis) is figure
    assert axis.images
    with pytest.raises(ValueError, match="^ax: "):
        plot_heads({"a": np.eye(2), "b": np.eye(2)}, ax=axis)


# --- lines


def lines(figure):
    """The curves of a picture, without the marks."""
    return [line for line in figure.axes[0].get_lines() if not line.get_label().startswith("_")]


def test_lines_are_the_values_and_the_legend_their_names():
    figure = plot_lines({"a": [1.0, 2.0, float("nan")], "$b$": torch.tensor([3, 1, 2])}, [10, 20, 40], x_name="step")
    assert [line.get_label() for line in lines(figure)] == ["a", "$b$"]
    np.testing.assert_allclose(lines(figure)[0].get_ydata(), [1, 2, np.nan])
    np.testing.assert_allclose(lines(figure)[1].get_xdata(), [10, 20, 40])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "$b$"]
    assert not any(text.get_parse_math() for text in figure.legends[0].get_texts())
    assert figure.axes[0].get_xlabel() == "step"
    figure._repr_png_()


def test_curves_differ_in_colour_and_in_dashes():
    drawn = lines(plot_lines({str(i): [i, i + 1] for i in range(6)}))
    assert len({line.get_color() for line in drawn}) == 6
    assert len({str(line._dash_pattern) for line in drawn}) == 6


def test_lines_start_at_zero_unless_some_value_is_below():
    assert plot_lines({"a": [3, 4]}).axes[0].get_ylim()[0] == 0
    assert plot_lines({"a": [3, 4], "b": [-1, 0]}).axes[0].get_ylim()[0] < -1


def test_a_legend_of_long_names_is_no_wider_than_the_picture():
    text = "without the heads that look at the token before, and the others"
    for names in (["a", "b"], [text[:30], text[-30:]], [text, "b"], [text[:31], "b"]):
        figure = plot_lines({name: [1, 2] for name in names})
        figure.canvas.draw()
        assert figure.legends[0].get_window_extent().width <= figure.get_size_inches()[0] * figure.dpi


def test_marks_stand_at_their_place():
    figure = plot_lines({"a": np.arange(5)}, marks={"first": 0, "second": 2.5})
    marks = [line for line in figure.axes[0].get_lines() if line not in lines(figure)]
    assert [line.get_xdata()[0] for line in marks] == [0, 2.5]
    assert [text.get_text() for text in figure.axes[0].texts] == ["first", "second"]


def test_rows_of_a_residual_map_can_be_something_else_than_layers():
    for down in ("x", "y"):
        figure = plot_residual(np.ones((2, 3)), "abc", row_labels=["a0.0", "a0.1"], row_name="head", tokens_on=down)
        names = {figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()}
        assert "head" in names and "layer" not in names


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plot_lines({}), "curves: expected 1 to 6 curves by name, got 0"),
        (lambda: plot_lines([1, 2]), "curves: expected 1 to 6 curves by name, got list"),
        (lambda: plot_lines({str(i): [1] for i in range(7)}), "curves: expected 1 to 6 curves by name, got 7"),
        (lambda: plot_lines({"a": [1, 2], "b": [1]}), "curves: expected 2 values for 'b', one for each x, got 1"),
        (lambda: plot_lines({"a": [[1, 2]]}), r"curves: expected a row of numbers, got shape \[1, 2\]"),
        (lambda: plot_lines({"a": [1, np.inf]}), "curves: expected finite numbers or NaN, got an infinite one"),
        (lambda: plot_lines({"a": [1, 2]}, [1]), "curves: expected 1 values for 'a', one for each x, got 2"),
        (lambda: plot_residual(np.ones(3), "abc"), r"matrix: expected \[layer, pos\], got shape \[3\]"),
        (lambda: plot_residual(np.ones((2, 3)), "ab"), "labels: expected one for each of 3 positions, got 2"),
        (
            lambda: plot_residual(np.ones((2, 3)), "abc", row_labels=["x"]),
            "row_labels: expected one for each of 2 rows, got 1",
        ),
        (lambda: plot_residual(np.ones((2, 3)), "abc", tokens_on="z"), "tokens_on: expected"),
        (lambda: plot_residual({}, "abc"), "matrix: expected at least one"),
        (
            lambda: plot_residual({"a": np.ones((2, 3)), "b": np.ones((1, 3))}, "abc"),
            "matrix: expected matrices of one shape",
        ),
        (
            lambda: plot_heads(np.array([[1, np.inf]])),
            r"matrix: expected finite values or NaN, got an infinite one at \[0, 1\]",
        ),
        (lambda: plot_heads(np.ones((0, 3))), "matrix: expected"),
        (lambda: plot_heads(np.ones((2, 3)), limit=0), "limit: expected a positive number"),
        (lambda: set_attention_mode("live"), "mode: expected one of"),
    ],
)
def test_bad_input_is_one_line(call, message):
    with pytest.raises(ValueError, match="^" + message) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        ("\n", "⏎"),
        (" size", "·size"),
        ("a b", "a b"),
        ("\n    ", "⏎····"),
        ("         ", "·×9"),
        ("", "∅"),
        ("\t", "⇥"),
        ("\x00", "\\x00"),
    ],
)
def test_visible(token, shown):
    assert visible(token) == shown


@given(st.text())
def test_visible_is_short_printable_and_never_empty(token):
    shown = visible(token)
    assert 0 < len(shown) <= 14
    assert shown.isprintable()
    assert shown == shown.strip()


def test_plotting_loads_neither_torch_nor_matplotlib():
    code = "import sys, circuitlib.plotting; sys.exit(any(m in sys.modules for m in ('torch', 'matplotlib', 'transformer_lens')))"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        ).returncode
        == 0
    )


# --- attention


class Page(html.parser.HTMLParser):
    """What a browser would find: open tags, attributes of the drawn element, text and scripts."""

    def __init__(self, text: str):
        super().__init__()
        self.open, self.views, self.tags, self.text, self.scripts = [], [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.tags.append(tag)
        if dict(attrs).get("class") == "circuitlib-attention":
            self.views.append(dict(attrs))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        (self.scripts if self.open and self.open[-1] == "script" else self.text).append(data)


def test_attention_is_the_models_own(model):
    tokens = torch.tensor([3, 1, 4, 1, 5])
    view = plot_attention(model, tokens, ["a1.2", "a0.0"], labels=list("abcde"))
    _, cache = model.run_with_cache(tokens[None])
    for index, (layer, head) in enumerate([(1, 2), (0, 0)]):
        np.testing.assert_allclose(
            view.pattern[index], cache[f"blocks.{layer}.attn.hook_pattern"][0, head].detach().numpy(), atol=1e-6
        )
    props = json.loads(Page(view.html()).views[0]["data-props"])
    assert props["attentionHeadNames"] == ["a1.2", "a0.0"]
    assert props["tokens"] == list("abcde")
    np.testing.assert_allclose(props["attention"], view.pattern, atol=5.1e-4)


def test_attention_leaves_no_hook_and_no_gradient(model):
    view = plot_attention(model, [1, 2, 3], "a0.1", labels=list("abc"))
    assert view.heads == ("a0.1",)
    assert not any(hook.fwd_hooks for hook in model.hook_dict.values())


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(max_size=6), min_size=1, max_size=8))
def test_any_tokens_survive_the_way_through_html(tokens):
    n = len(tokens)
    view = AttentionView(("a0.0",), tuple(tokens), np.tril(np.ones((1, n, n))) / n)
    page = Page(view.html())
    assert page.open == []  # every element is closed
    assert page.tags == ["div", "details", "summary", "p", "ul", "li", "b", "script"]
    assert json.loads(page.views[0]["data-props"])["tokens"] == tokens


def test_hostile_tokens_add_no_tag_to_the_text_alternative():
    n = len(HOSTILE)
    view = AttentionView(("a0.0",), tuple(HOSTILE), np.tril(np.ones((1, n, n))) / np.arange(1, n + 1)[:, None])
    text = view.html()
    assert not re.search(r"<b>[^a]|</script>.", text)
    assert "\u2028" not in text.split("<details")[0]
    assert text.count("</script>") == 1


def test_html_is_deterministic_and_small_and_differs_with_content():
    pattern = np.tril(np.random.default_rng(0).random((2, 40, 40)))
    view = AttentionView(("a0.0", "a0.1"), ("x",) * 40, pattern)
    again = AttentionView(("a0.0", "a0.1"), ("x",) * 40, pattern + 1e-9)
    other = AttentionView(("a0.0", "a0.1"), ("x",) * 40, pattern * 0.5)
    assert view.html() == again.html()
    assert len(view.html()) < 25_000
    assert Page(view.html()).views[0]["id"] != Page(other.html()).views[0]["id"]
    assert re.fullmatch(r"[a-z][\w-]+", Page(view.html()).views[0]["id"])  # CircuitsVis looks it up as a CSS selector


def test_text_alternative_lists_the_strongest_pairs():
    pattern = np.zeros((1, 4, 4))
    pattern[0] = [[1, 0, 0, 0], [0.9, 0.1, 0, 0], [0.02, 0.98, 0, 0], [0.5, 0.25, 0.25, 0]]
    view = AttentionView(("a2.1",), ("<s>", "def", "load", "("), pattern)
    assert view.strongest("a2.1", 2) == [(2, 1, 0.98), (3, 1, 0.25)]
    text = "".join(Page(view.html()).text)
    assert "load (2) → def (1) 0.98; ( (3) → def (1) 0.25" in text
    assert "On the first token, on average 0.47." in text
    with pytest.raises(ValueError, match="^head: expected one of a2.1, got 'a0.0'"):
        view.strongest("a0.0")


def test_modes(monkeypatch, model):
    view = plot_attention(model, [1, 2, 3], ["a0.0"], labels=list("abc"))
    assert view._repr_mimebundle_().keys() == {"text/plain", "text/html"}
    assert view._repr_mimebundle_()["text/html"] == view.html()
    assert view._repr_mimebundle_()["text/plain"] == "AttentionView(a0.0; 3 tokens)"

    set_attention_mode("static")
    assert view._repr_mimebundle_()["image/png"][:4] == b"\x89PNG"
    assert "text/html" not in view._repr_mimebundle_()

    set_attention_mode("inline")
    text = view._repr_mimebundle_()["text/html"]
    assert len(text) > 1_000_000
    assert text.count("</script>") == 2
    assert "sourceMappingURL" not in text
    assert Page(text).open == []

    set_attention_mode("auto")
    monkeypatch.setitem(sys.modules, "google.colab", object())
    assert len(view._repr_mimebundle_()["text/html"]) > 1_000_000
    set_attention_mode("book")
    assert view._repr_mimebundle_()["text/html"] == view.html()


@pytest.mark.parametrize(
    ("variables", "environment", "mode"),
    [({}, None, "book"), ({"__vsc_ipynb_file__": "x"}, None, "inline"), ({}, "x", "inline")],
)
def test_a_live_notebook_is_recognised(monkeypatch, variables, environment, mode):
    ipython = type("IPython", (), {"get_ipython": staticmethod(lambda: type("Shell", (), {"user_ns": variables}))})
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    if environment:
        monkeypatch.setenv("JPY_SESSION_NAME", environment)
    assert plotting._host_mode() == mode


@pytest.mark.parametrize("heads", [["a2.0"], ["a0.3"], ["m0"], ["0.1"], [(0, 1)], "a9.9", [], ["a0.0", "a-1.0"]])
def test_a_head_that_does_not_exist_is_one_error(model, heads):
    with pytest.raises(ValueError, match="^heads: .*expected"):
        plot_attention(model, [1, 2], heads, labels=["a", "b"])


@pytest.mark.parametrize("tokens", [[[1, 2], [3, 4]], [], [[[1]]], [0.5, 1.5]])
def test_tokens_of_another_shape_are_refused(model, tokens):
    with pytest.raises(ValueError, match="^tokens: expected the token ids of one prompt"):
        plot_attention(model, tokens, ["a0.0"])


def test_labels_must_fit(model):
    with pytest.raises(ValueError, match="^labels: expected one for each of 2 tokens, got 3"):
        plot_attention(model, [1, 2], ["a0.0"], labels=list("abc"))


def test_the_static_picture_shows_only_the_past():
    view = AttentionView(("a0.0", "a0.1"), ("a", "b", "c"), np.tril(np.ones((2, 3, 3))))
    image = view.figure().axes[0].images[0].get_array()
    assert image.mask.tolist() == [[False, True, True], [False, False, True], [False, False, False]]


# --- circuits ---------------------------------------------------------------------------------------------------------

SMALL = cl.Graph.from_shape(3, 2, False)


def arrows_of(figure) -> list:
    return [patch for patch in figure.axes[0].patches if type(patch).__name__ == "FancyArrowPatch"]


def words_of(figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def bytes_of(figure) -> bytes:
    return figure._repr_png_()


def test_a_circuit_has_a_box_for_each_node_and_an_arrow_for_each_edge():
    circuit = cl.Circuit(
        SMALL, ["embed→a0.0.v", "a0.0→a1.1.q", "a0.0→a2.0.k", "embed→a2.0.v", "a1.1→a2.0.q", "a2.0→logits"]
    )
    weights = {edge: 0.1 * (i + 1) for i, edge in enumerate(circuit)} | {"embed→logits": 5.0}
    figure = plotting.plot_circuit(circuit, weights, "a title", roles={"mover": ["a2.0", "a9.9"]})
    words = words_of(figure)
    assert {"embed", "a0.0", "a1.1", "a2.0", "logits", "mover"} <= set(words) and "a9.9" not in words
    assert len(arrows_of(figure)) == 6
    assert sorted(word for word in words if word.startswith(".")) == [".10", ".20", ".30", ".40", ".50", ".60"]
    by_width = sorted(arrow.get_linewidth() for arrow in arrows_of(figure))
    assert len(set(by_width)) == 6  # the width says the weight; a weight outside of the circuit says nothing
    assert figure.axes[0].get_title(loc="left") == "a title"
    legend = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert legend == ["query", "key", "value", "logits"]


def test_layers_are_rows_and_nothing_overlaps():
    for seed in range(8):
        circuit = cl.random_circuit(cl.Graph.from_shape(4, 5, seed % 2 == 1), 12 + 6 * seed, seed)
        arrows = plotting._arrows(circuit, None)
        boxes = plotting._lay_out(plotting._boxes(circuit, {}, 0.54), arrows)
        for a in boxes:
            assert a.x - a.width / 2 > -1e-9
            for b in boxes:
                if a is not b and a.row == b.row:
                    assert abs(a.x - b.x) >= (a.width + b.width) / 2 - 1e-9
        for arrow in arrows:
            assert [box.row for box in arrow.way] == list(range(arrow.way[0].row, arrow.end.row + 1))
            assert (arrow.way[0].name, arrow.end.name) == (arrow.sender, arrow.receiver)
            assert abs(arrow.tip - arrow.end.x) <= arrow.end.width / 2  # it ends on its box
            assert all(box.bend for box in arrow.way[1:-1])  # and crosses no other
        order = [name for name in (*circuit.graph.senders, "logits") if name in circuit.nodes()]
        rows = {box.name: box.row for box in boxes if not box.bend}
        assert [rows[name] for name in order] == sorted(rows.values())


def test_query_key_and_value_arrive_side_by_side_in_their_colours():
    circuit = cl.Circuit(SMALL, ["embed→a1.0.q", "embed→a1.0.k", "embed→a1.0.v", "a1.0→logits"])
    arrows = plotting._arrows(circuit, None)
    plotting._lay_out(plotting._boxes(circuit, {}, 0.54), arrows)
    tips = {arrow.part: arrow.tip for arrow in arrows}
    assert tips["q"] < tips["k"] < tips["v"]
    figure = plotting.plot_circuit(circuit)
    colours = [matplotlib.colors.to_hex(arrow.get_edgecolor()) for arrow in arrows_of(figure)]
    assert colours == [plotting.PART_COLOURS[arrow.part] for arrow in arrows] and len(set(colours)) == 4
    assert not any(word[:1] in ".−0123456789" for word in words_of(figure))  # no weights, no numbers


def test_a_negative_weight_is_dashed_and_says_so():
    circuit = cl.Circuit(SMALL, ["embed→a0.0.v", "a0.0→logits"])
    figure = plotting.plot_circuit(circuit, {"embed→a0.0.v": -0.5, "a0.0→logits": 1.0})
    dashed = [arrow.get_linestyle() != "solid" and arrow.get_linestyle() != "-" for arrow in arrows_of(figure)]
    assert dashed == [True, False]
    assert "−.50" in words_of(figure)
    assert "negative" in [text.get_text() for text in figure.axes[0].get_legend().get_texts()]


def test_edges_with_positions_are_one_arrow_as_strong_as_the_strongest():
    graph = cl.Graph.from_shape(1, 1, False, n_pos=4)
    circuit = cl.Circuit(graph, ["embed→a0.0.v@1", "embed→a0.0.v@2", "a0.0→logits@3"])
    figure = plotting.plot_circuit(circuit, dict(zip(circuit.edges, [0.2, -0.7, 1.0], strict=True)))
    assert len(arrows_of(figure)) == 2 and "−.70" in words_of(figure)


@pytest.mark.parametrize("size", [1, 30, 300])
def test_any_circuit_can_be_drawn_and_two_drawings_are_the_same(size):
    circuit = cl.random_circuit(cl.Graph.from_shape(4, 8, True), size, 5)
    pictures = [
        plotting.plot_circuit(cl.Circuit(circuit.graph, edges)) for edges in (circuit.edges, circuit.edges[::-1])
    ]
    assert bytes_of(pictures[0]) == bytes_of(pictures[1])
    assert pictures[0].get_size_inches()[0] < 10  # a picture of 4.6 inches is 390 pixels wide on a phone


def test_small_circuits_fit_a_phone():
    known = cl.known_circuit("handmade-docstring", ablation="zero")
    figure = plotting.plot_circuit(known, cl.known_effects("handmade-docstring", "zero"))
    assert figure.get_size_inches()[0] <= 4.6


def test_a_circuit_on_a_given_axis():
    from matplotlib.figure import Figure

    axis = Figure().subplots()
    assert plotting.plot_circuit(cl.random_circuit(SMALL, 5), ax=axis) is axis.figure
    assert len(arrows_of(axis.figure)) == 5


def test_drawing_leaves_the_circuit_and_the_style_alone():
    before = dict(matplotlib.rcParams)
    circuit = cl.random_circuit(SMALL, 9, 2)
    edges = circuit.edges
    plotting.plot_circuit(circuit, dict.fromkeys(edges, 1.0), limit=2.0)
    assert circuit.edges == edges and dict(matplotlib.rcParams) == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((["embed→logits"],), "circuit: expected a Circuit, got list"),
        ((cl.Circuit(SMALL, []),), "circuit: expected at least one edge"),
        ((cl.Circuit(SMALL, ["embed→logits"]), {}), "weights: expected one for each edge of the circuit, got none for embed→logits"),
        ((cl.Circuit(SMALL, ["embed→logits"]), {"embed→logits": float("nan")}), "weights: expected finite numbers, got nan"),
        ((cl.Circuit(SMALL, ["embed→logits"]), {"embed->": 1.0}), "edge 'embed->'"),
    ],
)  # fmt: skip
def test_circuits_that_cannot_be_drawn(arguments, said):
    with pytest.raises(ValueError, match=said) as error:
        plotting.plot_circuit(*arguments)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="limit: expected a positive number"):
        plotting.plot_circuit(cl.random_circuit(SMALL, 3), limit=0)


# --- curves that judge ----------------------------------------------------------------------------------------------


def a_roc(level="edge", points=((0.0, 0.4), (0.2, 0.6), (0.5, 0.5))) -> Roc:
    fpr, tpr = zip(*points, strict=True)
    return Roc(fpr, tpr, tuple(range(1, 1 + len(fpr))), (None,) * len(fpr), level, 10, 20)


def legend_of(figure) -> tuple[str, list[str]]:
    box = figure.axes[0].get_legend()
    return box.get_title().get_text(), [text.get_text() for text in box.get_texts()]


def test_roc_draws_the_envelope_every_point_and_the_area_that_is_drawn():
    figure = plotting.plot_roc({"EAP": a_roc(), "b_": a_roc(points=[(0.0, 1.0)])}, title="ROC")
    curve, points, *_ = figure.axes[0].lines
    np.testing.assert_allclose(curve.get_xydata(), [(0, 0), (0, 0.4), (0.2, 0.6), (1, 1)])
    np.testing.assert_allclose(points.get_xydata(), [(0, 0.4), (0.2, 0.6), (0.5, 0.5)])
    assert curve.get_drawstyle() == "steps-post"
    assert legend_of(figure) == ("AUC (pessimistic)", [".560  EAP", "1.000  b_"])
    assert figure.axes[0].get_xlabel() == "false positive rate (edges)"

    figure = plotting.plot_roc(a_roc("node"), convention="trapezoid")
    assert figure.axes[0].lines[0].get_drawstyle() == "default"
    assert legend_of(figure) == ("AUC (trapezoid)", [".740"])
    assert figure.axes[0].get_ylabel() == "true positive rate (nodes)"
    assert len(plotting.plot_roc(a_roc(points=[(i / 100, i / 100) for i in range(100)])).axes[0].lines) == 2


def test_faithfulness_is_drawn_against_the_share_of_edges():
    curve = Curve((0, 2, 50, 200), (0.0, 0.5, 1.2, 1.0), 200)
    figure = plotting.plot_faithfulness({"EAP": curve})
    axis = figure.axes[0]
    np.testing.assert_allclose(axis.lines[0].get_xydata(), [(1, 0.5), (25, 1.2), (100, 1)])
    assert axis.get_xscale() == "log" and axis.get_xlabel() == "edges kept (% of all)"
    title, (label,) = legend_of(figure)
    assert title == "CPR  CMD" and label == f"{cl.cpr(curve):.3f}  {cl.cmd(curve):.3f}  EAP".replace("0.", ".")
    linear = plotting.plot_faithfulness(curve, log=False).axes[0]
    np.testing.assert_allclose(linear.lines[0].get_xydata(), [(0, 0), (1, 0.5), (25, 1.2), (100, 1)])


def test_several_curves_share_an_axis_that_is_given_and_leave_the_style_alone():
    from matplotlib.figure import Figure

    before = dict(matplotlib.rcParams)
    axes = Figure().subplots(1, 2)
    figure = plotting.plot_roc(a_roc(), ax=axes[0])
    assert figure is plotting.plot_faithfulness(Curve((5,), (-0.2,), 10), ax=axes[1]) is axes[0].figure
    assert dict(matplotlib.rcParams) == before
    strokes = {(line.get_color(), line.get_linestyle()) for line in plotting.plot_roc({str(i): a_roc() for i in range(6)}).axes[0].lines if line.get_linestyle() != "None"}  # fmt: skip
    assert len(strokes) == 7


@pytest.mark.parametrize(
    ("draw", "given", "said"),
    [
        (plotting.plot_roc, {}, "points: expected 1 to 6 curves by name, got 0"),
        (plotting.plot_roc, {str(i): a_roc() for i in range(7)}, "points: expected 1 to 6 curves by name, got 7"),
        (plotting.plot_roc, [(0.1, 0.2)], "points: expected a Roc or a dict of them, got list"),
        (plotting.plot_roc, {"a": a_roc(), "b": a_roc("node")}, "points: expected ROC curves of one level"),
        (plotting.plot_faithfulness, a_roc(), "curve: expected a Curve or a dict of them, got Roc"),
        (plotting.plot_faithfulness, Curve((), (), 9), "curve: expected at least one point"),
    ],
)
def test_curves_that_cannot_be_drawn(draw, given, said):
    with pytest.raises(ValueError, match=said) as error:
        draw(given)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="convention: expected"):
        plotting.plot_roc(a_roc(), convention="optimistic")


def a_comparison(n_seeds=2, **columns) -> pd.DataFrame:
    runs = itertools.product(["or", "$x$"], ["EAP", "exact"], ["task", "kl"], range(n_seeds))
    table = pd.DataFrame(runs, columns=["task", "method", "metric", "seed"])
    table["auc_pessimistic_edge"] = np.arange(len(table)) / 20
    table.loc[(table["method"] == "EAP") & (table["metric"] == "kl"), "auc_pessimistic_edge"] = np.nan
    return table.assign(**columns)


def test_a_comparison_has_a_panel_for_each_task_and_a_dot_for_each_seed():
    table = a_comparison()
    figure = plotting.plot_compare(table, title="AUC")
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["or", "$x$"]
    assert figure.axes[1].get_xlabel() == "auc_pessimistic_edge"
    for axis, task in zip(figure.axes, ["or", "$x$"], strict=True):
        assert tick_labels(axis.yaxis) == ["EAP", "exact"]
        dots = {tuple(np.round(line.get_xdata(), 6)): line for line in axis.lines if line.get_marker() == "o"}
        means = sorted(float(line.get_xdata()[0]) for line in axis.lines if line.get_marker() == "|")
        groups = table[table["task"] == task].dropna().groupby(["method", "metric"])["auc_pessimistic_edge"]
        assert set(dots) == {tuple(round(v, 6) for v in values) for _, values in groups} and len(dots) == 3
        assert means == pytest.approx(sorted(groups.mean()))
        for (method, metric), values in groups:
            line = dots[tuple(round(v, 6) for v in values)]
            assert round(line.get_ydata()[0]) == ["EAP", "exact"].index(method)
            assert line.get_color() == plotting.CURVES[["task", "kl"].index(metric)][0]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["task", "kl"]
    assert not plotting.plot_compare(table[table["metric"] == "task"]).legends


def test_a_comparison_can_be_laid_out(recwarn):
    for table in (a_comparison(), a_comparison(1), a_comparison()[:4]):
        plotting.plot_compare(table)._repr_png_()
        plotting.plot_compare(table, title="T")._repr_png_()
    assert not recwarn.list


def test_comparisons_that_cannot_be_drawn():
    table = a_comparison()
    for call, said in [
        (lambda: plotting.plot_compare(table, "cpr"), "table: expected what cl.compare returns, got one without the column 'cpr'"),
        (lambda: plotting.plot_compare([1, 2]), "table: expected what cl.compare returns, got one without the column 'task'"),
        (lambda: plotting.plot_compare(table, "task"), "value: expected a column of numbers, 'task' holds none"),
        (lambda: plotting.plot_compare(table.assign(cpr=np.nan), "cpr"), "value: expected a column of numbers, 'cpr' holds none"),
        (lambda: plotting.plot_compare(a_comparison(metric=list("abcdefgh") * 2)), "table: expected at most 6 metrics, got 8"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=re.escape(said)) as error:
            call()
        assert "\n" not in str(error.value)


def test_curves_in_axes_of_ones_own_have_their_own_legend():
    figure = Figure()
    axes = figure.subplots(1, 2)
    cl.plot_lines({"a": [1, 2, 3]}, ax=axes[0], marks={"here": 1})
    cl.plot_lines({"a": [1, 2, 3], "_b": [3, 4, 5]}, ax=axes[1])
    said = [[text.get_text() for text in axis.get_legend().get_texts()] for axis in axes]
    assert said == [["a"], ["a", "_b"]] and not figure.legends
    alone = cl.plot_lines({"_loss": [1, 2, 3]})
    assert [text.get_text() for text in alone.legends[0].get_texts()] == ["_loss"]


def test_a_curve_with_nothing_to_draw_and_axes_of_a_part_of_a_figure():
    with pytest.raises(ValueError, match="^curve: expected at least one size above 0"):
        cl.plot_faithfulness(Curve((0,), (0.0,), 10))
    figure = Figure(layout="constrained")
    part = figure.subfigures(1, 2)[0]
    cl.plot_heads(torch.rand(2, 3), ax=part.subplots())
    figure.canvas.draw()
