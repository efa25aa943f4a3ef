"""The widgets where readers meet them: in a page without a kernel, by keyboard, and with a kernel that answers.

Pages are opened in Chromium with the scripts that ``book/tools/vendor.py`` fetched. Skipped where one of these is missing.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import ipywidgets as ipw
import pytest
from ipywidgets.embed import dependency_state

import circuitlib as cl

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
VENDOR = ROOT / "book" / "_static" / "vendor"
SCRIPTS = [VENDOR / "requirejs" / "require.js", VENDOR / "html-manager" / "embed-amd.js"]
AXE = ROOT / "book" / "tools" / "node_modules" / "axe-core" / "axe.min.js"
HOSTILE = "</script><img src=x onerror=alert(1)>"

PAGE = """<!doctype html><html lang="en"><head><meta charset="utf8"><title>A widget</title>
<meta name="viewport" content="width=device-width"><script src="{}"></script>
<script src="{}" data-jupyter-widgets-cdn-only="false"></script></head><body><main><h1>A widget</h1>
<script type="application/vnd.jupyter.widget-state+json">{}</script>
<script type="application/vnd.jupyter.widget-view+json">{}</script></main></body></html>"""

# The widget manager's own: its schema, and the icon font of its style sheet, which no widget of the book uses.
HARMLESS = ("strict mode: use allowUnionTypes", "fa-solid-900", "fa-regular-400", "fa-v4compatibility", "fa-brands-400")


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    found = [path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))]
    if not found:
        pytest.skip("Chromium is not installed")
    if missing := [path.name for path in SCRIPTS if not path.exists()]:
        pytest.skip(f"{missing[0]} was not fetched: run book/tools/vendor.py")
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=found[0], args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


@pytest.fixture
def show(browser, tmp_path):
    """Opens a widget in a page as the book does; at the end sees that nothing failed and nothing was asked of the network."""
    contexts, said, asked = [], [], []

    def opened(widget: ipw.Widget, width: int = 900):
        state = json.dumps({"version_major": 2, "version_minor": 0, "state": dependency_state([widget])})
        view = json.dumps({"version_major": 2, "version_minor": 0, "model_id": widget.model_id})
        file = tmp_path / f"page{len(contexts)}.html"
        scripts = [path.as_uri() for path in SCRIPTS]
        file.write_text(PAGE.format(*scripts, state.replace("</", "<\\/"), view), "utf8")
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}))
        page = contexts[-1].new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: (said.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(file.as_uri())
        page.wait_for_selector(".widget-html-content >> text=run the chapter")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert [text for text in said if not any(known in text for known in HARMLESS)] == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:", "about:"))] == []


@pytest.fixture(scope="module")
def model():
    return cl.load_model("docstring-4l")


def seen(page) -> str:
    """The text of the picture that is on the page, and of no other."""
    contents = page.locator(".widget-html-content")
    assert contents.count() == 2  # the picture and the line below it
    return contents.first.inner_text()


def press_until(page, key: str, text: str) -> str:
    """Press a key, and wait until the picture says ``text``."""
    page.keyboard.press(key)
    page.wait_for_function("text => document.querySelector('.widget-html-content').innerText.includes(text)", arg=text)
    return seen(page)


def test_prompts_are_chosen_by_keyboard(show, model):
    clean = "def link(self, count, city"
    others = {word: clean.replace("count", word) for word in ("route", "buffer", "group")}
    page = show(cl.edit_prompts(model, clean, others, "item", ["source"], live=False))
    assert "·route" in seen(page)
    page.keyboard.press("Tab")
    for word in ("buffer", "group"):
        text = press_until(page, "ArrowDown", f"·{word}")
        assert not any(f"·{other}" in text for other in others if other != word)
    press_until(page, "ArrowDown", "·route")  # from the last to the first


def test_heads_are_chosen_by_keyboard(show, model):
    task = cl.docstring(model, n=1, seed=0)
    prompts = {"clean prompt": task.clean[0], "corrupted prompt": task.corrupted[0]}
    page = show(cl.view_attention(model, prompts, labels=task.labels, start="a3.6", live=False))
    assert seen(page).startswith("a3.6, clean prompt.")
    first = page.locator("img").get_attribute("src")
    page.keyboard.press("Tab")
    press_until(page, "ArrowDown", "a3.6, corrupted prompt.")
    page.keyboard.press("Tab")
    press_until(page, "ArrowUp", "a2.6, corrupted prompt.")
    page.keyboard.press("Tab")
    press_until(page, "End", "a2.7, corrupted prompt.")
    press_until(page, "Home", "a2.0, corrupted prompt.")
    page.keyboard.press("ArrowUp")  # nothing lies before the first head
    assert seen(page).startswith("a2.0, corrupted prompt.")
    assert page.locator("img").count() == 1 and page.locator("img").get_attribute("src") != first
    assert page.locator("img").evaluate("image => image.naturalWidth") == task.clean.shape[1]


def test_heads_are_taken_away_by_keyboard(show, model):
    task = cl.induction(model, n=2, period=8, seed=0)
    page = show(cl.ablate_heads(model, task, ["a0.4", "a0.5"], ablation="zero", live=False))
    assert "Removed: nothing" in seen(page)
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")  # the mean, which is not seen before a head is gone
    page.keyboard.press("Tab")
    press_until(page, "ArrowDown", "Removed: a0.4 (ablation: mean)")
    page.keyboard.press("Tab")
    press_until(page, "ArrowDown", "Removed: a0.4, a0.5 (ablation: mean)")
    page.keyboard.press("Shift+Tab")
    press_until(page, "ArrowUp", "Removed: a0.5 (ablation: mean)")
    page.get_by_label("Ablation").select_option("corrupted")
    press_until(page, "Tab", "Removed: a0.5 (ablation: corrupted)")
    alone = cl.ablate_heads(model, task, ["a0.5"], ablation="corrupted", live=False)
    left = next(w.value for w in every(alone) if isinstance(w, ipw.HTML) and "Removed: a0.5 (ablation: cor" in w.value)
    for value in re.findall(r"text-align:right'>(−?[\d.]+)<", left):
        assert value in seen(page)


def every(widget: ipw.Widget) -> list[ipw.Widget]:
    return [widget, *(part for child in getattr(widget, "children", ()) for part in every(child))]


def one_of_each(model) -> list[ipw.Widget]:
    task = cl.docstring(model, n=1, seed=0)
    labels = [HOSTILE, *task.labels[1:]]
    clean = f"def link(self, count{HOSTILE}"
    hostile = {HOSTILE: clean.replace("count", "route"), "<b>two</b>": clean.replace("count", "buffer")}
    return [
        cl.edit_prompts(model, clean, hostile, "item", ["source"], live=False),
        cl.view_attention(model, dict.fromkeys(hostile, task.clean[0]), labels=labels, live=False),
        cl.ablate_heads(model, cl.induction(model, n=2, period=8), ["a0.4", "a0.5"], live=False),
    ]


def test_what_comes_from_outside_is_shown_as_text(show, model):
    for widget in one_of_each(model)[:2]:
        page = show(widget)
        assert page.get_by_label(HOSTILE).count() == 1 and page.get_by_label("<b>two</b>").count() == 1
        assert page.locator("img[src=x], .widget-html-content b:text('two')").count() == 0
        assert "<" in seen(page)


@pytest.mark.skipif(not AXE.exists(), reason="axe-core was not fetched: run book/tools/vendor.py")
def test_pages_with_widgets_are_accessible(show, model):
    for widget in one_of_each(model):
        page = show(widget)
        page.add_script_tag(path=AXE)
        rules = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}
        found = page.evaluate("rules => axe.run(document, rules)", rules)
        assert [(rule["id"], rule["nodes"][0]["html"][:200]) for rule in found["violations"]] == []
        assert len(found["passes"]) > 5


def test_a_phone_does_not_scroll_sideways(show, model):
    long = {"a name that is much longer than a phone is wide, with many words": "f( route", "other": "f( buffer"}
    for widget in (*one_of_each(model), cl.edit_prompts(model, "f( count", long, "item", ["source"], live=False)):
        page = show(widget, width=390)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_kernel_answers():
    """What a notebook does: a kernel in a process of its own makes the widget, and hears of each change over the wire."""
    manager = pytest.importorskip("jupyter_client.manager", reason="jupyter_client is not installed")
    kernel, client = manager.start_new_kernel(kernel_name="python3", startup_timeout=180, cwd=str(ROOT))
    try:
        code = """
            import ipywidgets as ipw, circuitlib as cl
            model = cl.load_model("docstring-4l")
            task = cl.induction(model, n=2, period=8)
            shown = cl.ablate_heads(model, task, live=True)
            edit = cl.edit_prompts(model, "f( count", "f( route", "item", ["group"], live=True)
            boxes = {box.description: box.model_id for box in shown.children[1].children}
            print(boxes["a0.4"], shown.children[-1].model_id, shown.children[0].model_id)
            print(*[edit.children[i].model_id for i in (1, -2, -1)], edit.children[1].description)
        """
        printed = "".join(_run(client, "\n".join(line.strip() for line in code.splitlines())))
        (box, picture, ablation), (corrupted, button, patched, name) = map(str.split, printed.strip().splitlines())
        assert name == "Corrupted"
        assert "Removed: a0.4 (ablation: mean)" in _change(client, box, {"value": True}, picture)
        assert "Removed: a0.4 (ablation: zero)" in _change(client, ablation, {"index": 1}, picture)
        assert "Removed: nothing" in _change(client, box, {"value": False}, picture)
        _send(client, corrupted, {"method": "update", "state": {"value": "f( xylophone"}, "buffer_paths": []})
        click = {"method": "custom", "content": {"event": "click"}}
        assert "corrupted: expected the 4 tokens that clean has, got 9" in _answer(client, button, click, patched)
        _send(client, corrupted, {"method": "update", "state": {"value": "f( buffer"}, "buffer_paths": []})
        assert "·buffer" in _answer(client, button, click, patched)
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)


def _run(client, code: str) -> list[str]:
    """Run code in the kernel; what it prints."""
    printed = []

    def output(message: dict) -> None:
        if message["msg_type"] == "stream":
            printed.append(message["content"]["text"])

    reply = client.execute_interactive(code, timeout=300, output_hook=output)
    assert reply["content"]["status"] == "ok", reply["content"]
    return printed


def _send(client, comm: str, data: dict) -> str:
    message = client.session.msg("comm_msg", {"comm_id": comm, "data": data})
    client.shell_channel.send(message)
    return message["header"]["msg_id"]


def _answer(client, comm: str, data: dict, picture: str) -> str:
    """Send a message to a widget, and wait until the kernel is idle again; the picture's last value."""
    sent, value = _send(client, comm, data), None
    while True:
        message = client.get_iopub_msg(timeout=120)
        if message["parent_header"].get("msg_id") != sent:
            continue
        content = message["content"]
        assert message["msg_type"] not in ("error", "stream"), content
        if message["msg_type"] == "comm_msg" and content["comm_id"] == picture:
            value = content["data"].get("state", {}).get("value", value)
        if message["msg_type"] == "status" and content["execution_state"] == "idle":
            return value


def _change(client, comm: str, state: dict, picture: str) -> str:
    return _answer(client, comm, {"method": "update", "state": state, "buffer_paths": []}, picture)
