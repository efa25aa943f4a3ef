"""The circuit explorer in a real browser: what it draws, how it is used by mouse and by keyboard, and that it is accessible.

Skipped where Playwright or Chromium is missing; what needs axe-core, where ``book/tools/vendor.py`` did not fetch it.
"""

from __future__ import annotations

import html
import shutil
from pathlib import Path

import pytest
import torch

import circuitlib as cl
from circuitlib.discovery.acdc import AcdcCircuit
from circuitlib.evaluation import Curve

pytestmark = pytest.mark.slow

AXE = Path(__file__).resolve().parents[1] / "book" / "tools" / "node_modules" / "axe-core" / "axe.min.js"
DOCSTRING = cl.Graph.from_shape(4, 8, False)
SIZES = (1, 3, 6, 13, 26, 64, 128, 256, 640, 1281)

# What stands in the pictures, read from the elements: (edge as its place in Graph.edges, status) of every line.
LINES = """root => [...root.querySelectorAll("figure")].map(figure => Object.fromEntries(
    [...figure.querySelectorAll(".line")].map(line => [line.means.edge, line.parentElement.getAttribute("class")])))"""


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    found = [path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))]
    if not found:
        pytest.skip("Chromium is not installed")
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=found[0], args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


@pytest.fixture
def show(browser, tmp_path):
    """Opens pages, and at the end sees that none of them failed, said anything in the console or asked for anything."""
    contexts, said, asked = [], [], []

    def opened(text: str, width: int = 900, height: int = 1200, **settings):
        file = tmp_path / f"page{len(contexts)}.html"
        file.write_text(text, "utf8")
        contexts.append(browser.new_context(viewport={"width": width, "height": height}, **settings))
        page = contexts[-1].new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(f"dialog {dialog.message}"))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(file.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert said == []
    assert [url for url in asked if not url.startswith((tmp_path.as_uri(), "about:"))] == []


def random_scores(graph, seed: int) -> cl.EdgeScores:
    values = torch.randn(graph.edge_mask.shape, generator=torch.Generator().manual_seed(seed)) ** 3
    return cl.EdgeScores(graph, values * graph.edge_mask)


def sweep(graph, sizes=(2, 10, 40)) -> list[AcdcCircuit]:
    circuits = []
    for seed, size in enumerate(sizes):
        circuits.append(AcdcCircuit(graph, cl.random_circuit(graph, size, seed)))
        circuits[-1].threshold = 1 / (1 + seed)
    return circuits


TRUTH = cl.reference_circuit("docstring-4l", "docstring")
SCORES = {"EAP": random_scores(DOCSTRING, 1), "EAP-IG": random_scores(DOCSTRING, 2)}
METHODS = {**SCORES, "ACDC": sweep(DOCSTRING)}
CURVES = {
    "EAP": Curve(SIZES, tuple(i / 9 for i in range(10)), 1281),
    "EAP-IG": Curve(SIZES, tuple((i / 9) ** 0.5 for i in range(10)), 1281),
    "ACDC": Curve((2, 10, 40), (0.1, 0.4, 1.2), 1281),
}
VIEW = cl.explore(METHODS, TRUTH, curve=CURVES, title="Three methods")


def root(page):
    return page.locator(".explorer")


def lines(page) -> list[dict[str, str]]:
    return root(page).evaluate(LINES)


def set_size(page, k) -> None:
    page.get_by_label("Edges kept, exactly").fill(str(k))
    page.keyboard.press("Enter")


def open_table(page) -> None:
    page.get_by_text("The edges as a table").click()
    page.locator("table.edges caption:not(:empty)").wait_for()  # filled once the browser tells that it is open


def focus(page):
    """The label of what has the keyboard's focus, or its text."""
    return page.evaluate(
        "() => { const it = document.querySelector('.circuitlib-explorer').shadowRoot.activeElement;"
        "return it && (it.getAttribute('aria-label') || it.textContent); }"
    )


def status_of(circuit, truth) -> dict[str, str]:
    """What each edge should be drawn as; from circuits, and not from what the view was given."""
    place = {edge: str(i) for i, edge in enumerate(circuit.graph.edges)}
    kept = {place[edge]: "hit" if edge in truth else "false" for edge in circuit}
    return {place[edge]: "missed" for edge in truth} | kept


# --- what is drawn ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [0, 1, 28, 29, 300, 1280, 1281])
def test_it_draws_the_edges_that_the_scores_rank_first(show, k):
    page = show(VIEW.page)
    set_size(page, k)
    drawn = lines(page)
    for picture, scores in zip(drawn[:2], SCORES.values(), strict=True):
        assert picture == status_of(scores.top(k), TRUTH)
    nearest = min(METHODS["ACDC"], key=lambda circuit: abs(len(circuit) - k))
    assert drawn[2] == status_of(nearest, TRUTH)


@pytest.mark.parametrize("shape", [(4, 8, False), (2, 3, True), (1, 1, False), (1, 1, True)])
def test_it_names_the_edges_as_the_graph_does(show, shape):
    graph = cl.Graph.from_shape(*shape)
    page = show(cl.explore(random_scores(graph, 1), size=graph.n_edges).page)
    open_table(page)
    rows = page.locator("table.edges tbody tr")
    names = rows.locator("th").all_text_contents()
    assert names == [str(edge) for edge in random_scores(graph, 1).ranked()]
    assert rows.count() == graph.n_edges


@pytest.mark.parametrize("k", [0, 6, 28, 100, 1281])  # at 6, two circuits are equally near
def test_it_counts_what_python_counts(show, k):
    page = show(VIEW.page)
    set_size(page, k)
    heads = page.locator("table.counts thead .long, table.counts thead th:not(:has(span))").all_text_contents()
    assert heads == ["Method", "Edges", "Hits", "Missed", "False", "Precision", "Recall", "Faithfulness"]
    for i, (name, row) in enumerate(VIEW.at(k).iterrows()):
        cells = page.locator("table.counts tbody tr").nth(i).locator("th, td").all_text_contents()
        whole = [f"{int(row[key]):,}" for key in ("edges", "hits", "missed", "false")]
        shares = ["–" if row[key] != row[key] else f"{row[key]:.2f}" for key in ("precision", "recall", "faithfulness")]
        measured = name == "ACDC" or k in (0, *SIZES)
        assert cells == [name, *whole, *shares[:2], ("" if measured else "≈ ") + shares[2]]


def test_true_false_and_missed_differ_in_more_than_colour(show):
    page = show(VIEW.page)
    styles = {}
    for status in ("hit", "false", "missed"):
        line = page.locator(f"figure .{status} .line").first
        styles[status] = line.evaluate(
            "line => getComputedStyle(line).strokeDasharray + getComputedStyle(line).strokeLinecap"
        )
    assert len({*styles.values()}) == 3
    open_table(page)
    cells = {*page.locator("table.edges tbody td:nth-child(4)").all_text_contents()}
    assert cells == {"● hit: kept and true", "✕ false: kept, not true", "○ missed: true, not kept"}


def test_the_table_lists_what_is_kept_the_strongest_first_with_scores(show):
    page = show(VIEW.page)
    set_size(page, 5)
    open_table(page)
    page.get_by_label("Edges of").select_option("EAP-IG")
    rows = page.locator("table.edges tbody tr")
    scores = SCORES["EAP-IG"]
    for i, edge in enumerate(scores.ranked()[:5]):
        rank, name, score, *_ = rows.nth(i).locator("th, td").all_text_contents()
        assert (rank, name) == (str(i + 1), str(edge))
        assert float(score.replace("−", "-")) == pytest.approx(scores[edge], rel=6e-3)
    assert rows.count() == 5 + len(TRUTH - scores.top(5))
    assert page.locator("table.edges caption").inner_text().startswith("EAP-IG: 5 edges kept")
    page.get_by_label("Edges of").select_option("ACDC")
    assert page.locator("table.edges thead th").nth(2).inner_text() == "Kept up to"
    assert rows.first.locator("td").nth(1).inner_text() == "τ = 1"


def test_one_method_can_be_shown_alone_and_lines_be_hidden(show):
    page = show(VIEW.page)
    assert page.locator("figure:visible").count() == 3
    page.get_by_role("radio", name="EAP-IG").check()
    assert page.locator("figure:visible figcaption b").all_inner_texts() == ["EAP-IG"]
    page.get_by_role("radio", name="all").check()
    page.get_by_role("checkbox", name="missed: true, not kept").uncheck()
    assert page.locator(".grid .missed .line:visible").count() == 0
    assert page.locator(".grid .false .line:visible").count() > 0


# --- the slider ---------------------------------------------------------------------------------------------------


def test_the_slider_goes_by_single_edges_to_both_ends(show):
    page = show(VIEW.page)
    slider, size = page.get_by_role("slider", name="Edges kept"), page.get_by_label("Edges kept, exactly")
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert size.input_value() == "29" and slider.get_attribute("aria-valuetext") == "29 edges"
    assert lines(page)[0] == status_of(SCORES["EAP"].top(29), TRUTH)
    for key, k in (("End", 1281), ("ArrowRight", 1281), ("Home", 0), ("ArrowLeft", 0), ("ArrowRight", 1)):
        page.keyboard.press(key)
        assert size.input_value() == str(k)
    page.get_by_role("button", name="more edges").click()
    assert size.input_value() == "2"
    page.get_by_role("button", name="as many as known: 28").click()
    assert size.input_value() == "28"


def test_a_size_that_makes_no_sense_changes_nothing(show):
    page = show(VIEW.page)
    size = page.get_by_label("Edges kept, exactly")
    size.fill("")
    page.keyboard.press("Enter")
    assert size.input_value() == "28"
    for wish, got in (("-5", "0"), ("99999", "1281"), ("12.4", "12")):
        set_size(page, wish)
        assert size.input_value() == got


def test_of_one_row_of_circuits_the_slider_steps_through_the_thresholds(show):
    page = show(cl.explore(METHODS["ACDC"], TRUTH, curve=CURVES["ACDC"]).page)
    slider = page.get_by_role("slider", name="Threshold")
    slider.focus()
    page.keyboard.press("Home")
    for i, circuit in enumerate(METHODS["ACDC"]):
        assert lines(page) == [status_of(circuit, TRUTH)]
        assert slider.get_attribute("aria-valuetext") == f"τ = {circuit.threshold:.3g}, {len(circuit)} edges"
        assert page.locator("table.counts tbody td").last.inner_text() == f"{CURVES['ACDC'].values[i]:.2f}"
        page.keyboard.press("ArrowRight")
    assert page.get_by_label("Edges kept, exactly").count() == 0


def test_a_change_is_said_once_it_has_settled(show):
    page = show(VIEW.page)
    status = page.get_by_role("status")
    assert status.inner_text() == ""
    set_size(page, 3)
    page.wait_for_function(
        "() => document.querySelector('.circuitlib-explorer').shadowRoot.querySelector('[role=status]').textContent"
    )
    hits = len(SCORES["EAP"].top(3) & TRUTH)
    said = status.inner_text()
    assert said.startswith(
        f"EAP: 3 edges, {hits} hit{'' if hits == 1 else 's'}, {28 - hits} missed, {3 - hits} false, faithfulness 0.11."
    )
    assert "ACDC: 2 edges" in said


# --- pointing -----------------------------------------------------------------------------------------------------

MIDDLE = """line => { const at = line.getPointAtLength(line.getTotalLength() / 2), m = line.getScreenCTM();
    return [at.x * m.a + m.e, at.y * m.d + m.f]; }"""


def test_pointing_at_a_line_tells_its_scores_and_roles(show):
    page = show(cl.explore(SCORES, TRUTH, size=3).page)
    edge = SCORES["EAP"].ranked()[0]
    x, y = (
        page.locator("figure").first.locator(f'.line[aria-label^="{edge.sender} to {edge.receiver}:"]').evaluate(MIDDLE)
    )
    page.mouse.move(x, y)
    tip = page.locator(".tip")
    assert str(edge) in tip.inner_text()
    rows = [row.split() for row in tip.locator("tr").all_inner_texts()]
    assert rows[0][0] == "EAP" and rows[0][2:] == ["rank", "1", "kept"]
    assert float(rows[0][1].replace("−", "-")) == pytest.approx(SCORES["EAP"][edge], rel=6e-3)
    assert rows[1][3] == str(SCORES["EAP-IG"].ranked().index(edge) + 1)
    assert page.locator("figure").first.locator(".line.hot").count() == 1
    page.mouse.move(2, 2)
    assert not tip.is_visible() and page.locator(".hot").count() == 0


def test_pointing_at_a_head_tells_its_role_and_what_it_reads(show):
    circuit = cl.Circuit(DOCSTRING, ["a0.5→a1.4.k", "embed→a1.4.q", "a1.4→a2.3.k", "a0.5→logits"])
    page = show(cl.explore(circuit, TRUTH).page)
    page.locator('.node[aria-label^="a1.4"]').hover()
    said = page.locator(".tip").inner_text()
    assert "a1.4 locator" in said and "is read by a2.3.k" in said and "reads embed (q), a0.5 (k)" in said
    assert page.locator('.node[aria-label^="a1.4"]').get_attribute("aria-label") == "a1.4, locator: 2 edges in, 1 out"
    hot = page.locator(".hit .line.hot, .false .line.hot").count()
    assert hot == 3


def test_a_click_keeps_what_is_said_and_escape_lets_go(show):
    page = show(VIEW.page)
    node, tip = page.locator("figure").first.locator('.node[aria-label^="a3.6"]'), page.locator(".tip")
    node.click()
    page.mouse.move(2, 2)
    assert tip.is_visible() and node.get_attribute("aria-pressed") == "true"
    page.keyboard.press("Escape")
    assert not tip.is_visible() and node.get_attribute("aria-pressed") == "false"


# --- the keyboard alone -------------------------------------------------------------------------------------------


def test_the_tab_key_has_few_stops_and_reaches_everything(show):
    page = show(VIEW.page)
    stops = []
    for _ in range(30):
        page.keyboard.press("Tab")
        if focus(page) is None:
            break
        stops.append(focus(page))
    assert stops[:5] == [
        "fewer edges",
        "Edges kept, exactly",
        "more edges",
        "as many as known: 28",
        "",
    ]  # "": the radios
    assert stops[5] == "Edges kept" and stops[6:9] == ["", "", ""]  # three boxes to tick
    lines_and_nodes = stops[9:15]
    assert [" to " in stop for stop in lines_and_nodes] == [True, False] * 3
    assert stops[15:] == ["The edges as a table"]


def test_arrow_keys_go_from_edge_to_edge_the_strongest_first(show):
    page = show(VIEW.page)
    set_size(page, 4)
    ranked = SCORES["EAP"].ranked()
    page.locator("figure").first.locator('.line[tabindex="0"]').focus()
    name = lambda edge: f"{edge.sender} to {edge.receiver}: score"  # noqa: E731
    assert focus(page).startswith(name(ranked[0])) and "rank 1;" in focus(page)
    assert str(ranked[0]) in page.locator(".tip").inner_text()
    page.keyboard.press("ArrowRight")
    assert focus(page).startswith(name(ranked[1]))
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert focus(page).startswith(name(ranked[0]))
    page.keyboard.press("End")
    assert focus(page).split("; ")[1] == "true, not kept"
    page.keyboard.press("Enter")
    assert page.locator(".tip.kept").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator(".tip").is_visible()


def test_arrow_keys_go_from_node_to_node(show):
    page = show(VIEW.page)
    page.locator("figure").first.locator('.node[tabindex="0"]').focus()
    seen = [focus(page).split(":")[0]]
    for key in (
        "ArrowUp",
        "ArrowRight",
        "Home",
        "ArrowUp",
        "End",
        "ArrowRight",
        "ArrowUp",
        "ArrowUp",
        "ArrowUp",
        "ArrowUp",
    ):
        page.keyboard.press(key)
        seen.append(focus(page).split(":")[0].split(",")[0])
    assert seen[:2] in (["embed", "a0.3"], ["embed", "a0.4"])  # the embedding lies below both
    assert seen[3:] == ["a0.0", "a1.0", "a1.7", "a1.7", "a2.7", "a3.7", "logits", "logits"]
    assert page.locator(".tip").inner_text().startswith("logits")


def test_keys_used_here_do_not_reach_the_page(show):
    page = show(VIEW.page)
    page.evaluate(
        "() => { window.got = []; document.addEventListener('keydown', event => window.got.push(event.key)); }"
    )
    page.get_by_role("slider", name="Edges kept").focus()
    for key in ("ArrowRight", "Home", "k"):
        page.keyboard.press(key)
    assert page.evaluate("window.got") == ["k"]


# --- where it stands ----------------------------------------------------------------------------------------------

GROUND = "root => getComputedStyle(root).backgroundColor"
LIGHT, DARK = "rgb(255, 255, 255)", "rgb(21, 25, 30)"


@pytest.mark.parametrize(
    ("scheme", "mark", "ground"),
    [
        ("light", "", LIGHT),
        ("dark", "", DARK),
        ("dark", "document.documentElement.dataset.theme = 'light'", LIGHT),
        ("light", "document.documentElement.dataset.theme = 'dark'", DARK),
        ("light", "document.body.dataset.jpThemeLight = 'false'", DARK),
        ("dark", "document.body.dataset.jpThemeLight = 'true'", LIGHT),
        ("light", "document.documentElement.setAttribute('theme', 'dark')", DARK),
        ("light", "document.body.className = 'vscode-dark'", DARK),
    ],
)
def test_it_follows_the_theme_of_the_page_and_else_that_of_the_system(show, scheme, mark, ground):
    page = show(VIEW.page, color_scheme=scheme)
    page.evaluate(f"() => {{ {mark} }}")
    assert root(page).evaluate(GROUND) == ground


@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_nothing_moves_for_who_does_not_want_it(show, motion):
    page = show(VIEW.page, reduced_motion=motion)
    line = page.locator("figure .line").first
    moves = line.evaluate("line => [getComputedStyle(line).animationName, getComputedStyle(line).transitionDuration]")
    assert moves == (["none", "0s"] if motion == "reduce" else ["come", "0.15s"])


@pytest.mark.parametrize("width", [320, 390, 760, 1280])
def test_it_fits_the_width(show, width):
    page = show(VIEW.page, width=width)
    open_table(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for _ in range(3):
        over = root(page).evaluate(
            "root => [...root.querySelectorAll('figure:not([hidden]) svg, button, .counts, .chart')].map(one => one.getBoundingClientRect().right - root.getBoundingClientRect().right)"
        )
        assert max(over) <= 0
        page.get_by_role("button", name="more edges").click()
    assert page.locator("figure:visible").count() == (1 if width < 560 else 3)


def test_it_follows_a_change_of_the_width(show):
    page = show(VIEW.page, width=1280)
    before = page.locator("figure svg").first.bounding_box()["width"]
    page.set_viewport_size({"width": 500, "height": 900})
    page.wait_for_function(
        f"() => document.querySelector('.circuitlib-explorer').shadowRoot.querySelector('figure svg').getBoundingClientRect().width != {before}"
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= 500


def test_several_on_a_page_do_not_meet(show):
    other = cl.explore(random_scores(cl.Graph.from_shape(2, 3, True), 5), size=4)
    page = show(f"<!doctype html><body>{VIEW.html}{other.html}{VIEW.html}</body>", height=3000)
    assert page.locator(".explorer").count() == 3
    page.get_by_label("Edges kept, exactly").nth(2).fill("7")
    page.keyboard.press("Enter")
    sizes = [page.get_by_label("Edges kept, exactly").nth(i).input_value() for i in range(3)]
    assert sizes == ["28", "4", "7"]
    page.get_by_role("radio", name="EAP-IG").nth(1).check()
    assert page.get_by_role("radio", name="all").nth(0).is_checked()


@pytest.mark.parametrize("sandbox", ["", 'sandbox="allow-scripts"'])
def test_it_works_in_the_frame_of_an_output(show, sandbox):
    inner = html.escape(f"<!doctype html><html><body>{VIEW.html}</body></html>")
    page = show(f'<!doctype html><iframe title="output" {sandbox} width="700" height="2400" srcdoc="{inner}"></iframe>')
    frame = page.frame_locator("iframe")
    frame.get_by_role("slider", name="Edges kept").focus()
    page.keyboard.press("ArrowRight")
    assert frame.get_by_label("Edges kept, exactly").input_value() == "29"


def test_it_is_drawn_when_a_notebook_runs_the_scripts_afterwards(show):
    """JupyterLab and VS Code put the HTML in, in which scripts lie still, and then put a copy in the place of each script."""
    page = show("<!doctype html><body><div id='output'></div></body>")
    page.evaluate(
        """text => { const output = document.getElementById("output"); output.innerHTML = text;
        for (const still of output.querySelectorAll("script")) { const copy = document.createElement("script");
            for (const { name, value } of still.attributes) copy.setAttribute(name, value);
            copy.textContent = still.textContent; still.replaceWith(copy); } }""",
        VIEW.html,
    )
    assert page.locator(".explorer").count() == 1 and lines(page)[0] == status_of(SCORES["EAP"].top(28), TRUTH)


@pytest.mark.parametrize("width", [390, 1280])
def test_it_may_be_hidden_when_it_is_drawn(show, width):
    page = show(f"<!doctype html><body><details><summary>output</summary>{VIEW.html}</details></body>", width=width)
    page.locator("summary", has_text="output").click()
    pictures = page.locator("figure:visible svg")
    pictures.first.wait_for()
    assert pictures.count() == (1 if width == 390 else 3)
    page.wait_for_function(
        f"() => {{ const root = document.querySelector('.circuitlib-explorer').shadowRoot, drawn = root.querySelector('figure svg');"
        f"return Math.abs(root.querySelector('.grid').clientWidth / {1 if width == 390 else 3} - drawn.clientWidth) < 20; }}"
    )
    assert lines(page)[0] == status_of(SCORES["EAP"].top(28), TRUTH)


def test_without_scripts_the_table_stands_there(show):
    page = show(VIEW.page, java_script_enabled=False)
    assert page.locator("td").first.is_visible() and page.locator("tbody tr").count() == 3


# --- what is unusual, and what is hostile -------------------------------------------------------------------------


SMALL, ONE, GPT2 = (cl.Graph.from_shape(*shape) for shape in ((2, 3, True), (1, 1, False), (12, 12, True)))
ZEROS, EMPTY = cl.EdgeScores(SMALL, torch.zeros(SMALL.edge_mask.shape)), cl.Circuit(SMALL, ())
SMALLER = cl.explore({"a": sweep(SMALL, (3, 9)), "b": sweep(SMALL, (6,))}, cl.random_circuit(SMALL, 30), curve={"a": Curve((3, 9), (0.2, 0.7), 75)})  # fmt: skip
UNUSUAL = {
    "zero scores": lambda: cl.explore(ZEROS, cl.Circuit(SMALL, ["a0.0→logits"]), curve=Curve((75,), (1.0,), 75)),
    "no edge": lambda: cl.explore(EMPTY, EMPTY),
    "an empty truth": lambda: cl.explore(ZEROS, EMPTY, size=0),
    "no truth, no curve": lambda: cl.explore(random_scores(SMALL, 1)),
    "one layer, one head": lambda: cl.explore(random_scores(ONE, 1), cl.Circuit(ONE, ["embed→logits"])),
    "one edge": lambda: cl.explore(cl.Circuit(ONE, ["embed→logits"]), curve=Curve((1,), (0.5,), 5)),
    "circuits of one size": lambda: cl.explore(sweep(SMALL, (4, 4, 4)), curve=Curve((4, 4, 4), (0.0, 0.1, 0.2), 75)),
    "some with a threshold": lambda: cl.explore([*sweep(SMALL, (3, 8)), cl.random_circuit(SMALL, 5)]),
    "two rows of circuits": lambda: cl.explore({"a": sweep(SMALL, (0, 9)), "b": sweep(SMALL, (3,))}, EMPTY),
    "beyond 0 and 1": lambda: cl.explore(random_scores(SMALL, 1), curve=Curve((5, 9), (-30.0, 40.0), 75)),
    "GPT-2's shape": lambda: cl.explore({"a": random_scores(GPT2, 1), "b": sweep(GPT2)}, cl.random_circuit(GPT2, 30)),
    "circuits that are all smaller than the truth": lambda: SMALLER,
    "circuits of more edges than a ranking may have": lambda: cl.explore(
        {"a": [cl.random_circuit(SMALL, 40)], "b": [cl.random_circuit(SMALL, 45)]},
        cl.random_circuit(SMALL, 60),
        most=30,
    ),
    "six methods": lambda: cl.explore({str(i): random_scores(SMALL, i) for i in range(6)}),
}


@pytest.mark.parametrize("name", UNUSUAL)
@pytest.mark.parametrize("width", [390, 1280])
def test_what_is_unusual_does_not_break_it(show, name, width):
    page = show(UNUSUAL[name]().page, width=width, height=800)
    slider = page.get_by_role("slider")
    slider.focus()
    for key in ("Home", "ArrowLeft", "End", "ArrowRight", "PageUp"):
        page.keyboard.press(key)
    open_table(page)
    page.locator(".node").nth(1).hover()
    assert "NaN" not in root(page).inner_text() and "undefined" not in root(page).inner_text()
    assert "Infinity" not in root(page).inner_text()
    assert "NaN" not in root(page).evaluate("root => root.innerHTML")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_what_is_larger_than_every_circuit_stands_at_the_right_end(show):
    page = show(SMALLER.page)
    dot, chart = page.locator(".chart circle").last, page.locator(".chart")
    assert page.get_by_label("Edges kept, exactly").input_value() == "30"
    assert float(dot.get_attribute("cx")) > 0.9 * float(chart.get_attribute("width"))


def test_of_a_large_graph_it_says_that_not_all_is_here(show):
    page = show(UNUSUAL["GPT-2's shape"]().page)
    assert "only the strongest 2,000 of 32,491 edges are here, and the true ones" in page.locator(".notes").inner_text()
    page.get_by_role("slider").focus()
    page.keyboard.press("End")
    assert page.get_by_label("Edges kept, exactly").input_value() == "2000"


def test_names_that_look_like_html_are_shown_as_text(show):
    name = '</script><img src=x onerror="alert(1)">'
    hostile = cl.explore({name: SCORES["EAP"], "b": METHODS["ACDC"]}, TRUTH, roles={name: ["a0.5"]}, title=name)
    page = show(hostile.page)
    open_table(page)
    page.locator("figure").first.locator('.node[aria-label^="a0.5"]').hover()
    assert page.locator("img").count() == 0
    for place in (".title, h1", "figcaption b", "table.counts tbody th", ".roles", "fieldset", ".tip"):
        assert name in page.locator(place).first.inner_text(), place


# --- accessibility ------------------------------------------------------------------------------------------------


VIEWS = {
    "methods": lambda: VIEW,
    "steps": lambda: cl.explore(METHODS["ACDC"], TRUTH, curve=CURVES["ACDC"]),
    "plain": UNUSUAL["no truth, no curve"],
    "large": lambda: cl.explore(sweep(GPT2), size=40),
}


@pytest.mark.parametrize(
    ("name", "scheme", "width"),
    [
        ("methods", "light", 1280),
        ("methods", "dark", 1280),
        ("methods", "light", 390),
        ("methods", "dark", 390),
        ("steps", "dark", 760),
        ("plain", "light", 390),
        ("large", "light", 390),
    ],
)
def test_axe_finds_nothing(show, name, scheme, width):
    if not AXE.exists():
        pytest.skip("axe-core is not there: book/tools/vendor.py fetches it")
    page = show(VIEWS[name]().page, width=width, color_scheme=scheme, reduced_motion="reduce")
    open_table(page)
    page.locator(".node").nth(1).click()
    page.evaluate(AXE.read_text("utf8"))
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
    found = page.evaluate("tags => axe.run(document, {runOnly: tags})", tags)
    assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found["violations"]] == []
    assert len(found["passes"]) > 10
