"""The widgets: what they show is compared with runs by hand, and every control is turned, with a kernel and without."""

from __future__ import annotations

import base64
import functools
import html.parser
import io
import itertools
import json
import re
from dataclasses import replace
from pathlib import Path

import ipywidgets as ipw
import matplotlib.image
import numpy as np
import pytest
import torch
from ipywidgets.embed import dependency_state

import circuitlib as cl
from circuitlib import widgets

ROOT = Path(__file__).resolve().parents[1]
HOSTILE = "</script><img src=x onerror=alert(1)>"
CHAPTERS = ("01_activation_patching", "03_induction_heads", "04_mover_heads")


@pytest.fixture(scope="module")
def model():
    return cl.load_model("docstring-4l")


@pytest.fixture(scope="module")
def task(model):
    return cl.docstring(model, n=4, seed=0)


@pytest.fixture(scope="module")
def pair(model, task):
    """The first prompts of the task as a reader would type them: clean, corrupted, answer, wrong answers."""
    clean, corrupted = (model.tokenizer.decode(tokens[0, 1:]) for tokens in (task.clean, task.corrupted))
    wrong = [model.tokenizer.decode([token]).strip() for token in task.distractors[0]]
    return clean, corrupted, model.tokenizer.decode(task.answers[:1]).strip(), wrong


# Nine tokens where the chapter has 41: a map of them takes a fifth of the time.
SHORT = ("def link(self, count, city", "def link(self, route, city", "item", ["group", "source"])


# --- reading a widget ---------------------------------------------------------------------------------------------


def inside(widget: ipw.Widget) -> list[ipw.Widget]:
    """A widget and all widgets in it."""
    found = [widget]
    for child in getattr(widget, "children", ()):
        found += inside(child)
    return found


def control(widget: ipw.Widget, name: str) -> ipw.Widget:
    """The control that a reader finds under this name: its label, or the text of one of its options."""
    (found,) = {
        id(w): w
        for w in inside(widget)
        if getattr(w, "description", "") == name or name in getattr(w, "_options_labels", ())
    }.values()
    return found


def chosen_by(stack: ipw.Stack) -> ipw.Widget:
    """The control that a page links a stack to."""
    links = [w for w in ipw.widgets.widget._instances.values() if type(w).__name__ == "DirectionalLink"]
    (source,) = [link.source for link in links if link.target == (stack, "selected_index")]
    assert source[1] == "index"
    return source[0]


def picture(widget: ipw.Widget) -> str:
    """The HTML that a reader sees: without a kernel, what the links of the page lead to."""

    def follow(part: ipw.Widget) -> ipw.Widget:
        return follow(part.children[chosen_by(part).index]) if isinstance(part, ipw.Stack) else part

    shown = [follow(part) for part in widget.children]
    return "".join(part.value for part in shown if isinstance(part, ipw.HTML) and "run the chapter's" not in part.value)


class Reader(html.parser.HTMLParser):
    """The elements of some HTML, its text, and the cells of its tables."""

    def __init__(self, text: str):
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.text = ""
        self.rows: list[list[str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag == "table":
            self.in_table = True

    def handle_endtag(self, tag):
        self.in_table = getattr(self, "in_table", False) and tag != "table"

    def handle_data(self, data):
        self.text += data
        if getattr(self, "in_table", False) and self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


def number(text: str) -> float:
    return float(text.replace("−", "-").strip() or 0)


def read(widget: ipw.Widget) -> Reader:
    return Reader(picture(widget))


# --- edit_prompts -------------------------------------------------------------------------------------------------


def patched_by_hand(model, task, layer: int, position: int, mode: str) -> float:
    """The metric with one vector of the residual stream taken from the other run."""
    into, source = (task.clean, task.corrupted) if mode == "noising" else (task.corrupted, task.clean)
    name = f"blocks.{layer}.hook_resid_pre"
    with torch.no_grad():
        _, cache = model.run_with_cache(source, names_filter=name)

        def put(resid, hook):
            resid = resid.clone()
            resid[:, position] = cache[name][:, position]
            return resid

        return float(task.metric(model.run_with_hooks(into, fwd_hooks=[(name, put)])).mean())


def one_prompt(task):
    return replace(
        task,
        clean=task.clean[:1],
        corrupted=task.corrupted[:1],
        answers=task.answers[:1],
        distractors=task.distractors[:1],
    )


@pytest.mark.parametrize("mode", ["noising", "denoising"])
def test_the_map_shows_what_patching_by_hand_does(model, task, pair, mode):
    clean, corrupted, answer, wrong = pair
    shown = read(cl.edit_prompts(model, clean, corrupted, answer, wrong, mode, live=False))
    one = one_prompt(task)
    base = float(one.metric(model(one.clean if mode == "noising" else one.corrupted)).mean())
    first = int((one.clean != one.corrupted)[0].nonzero()[0])
    assert [row[0] for row in shown.rows[1:]] == [str(i) for i in range(first, task.clean.shape[1])]
    for row in shown.rows[1::4]:
        position = int(row[0])
        for layer, cell in enumerate(row[3:]):
            expected = patched_by_hand(model, one, layer, position, mode) - base
            assert number(cell) == pytest.approx(expected, abs=0.051), (layer, position)
    assert any(
        number(cell) < -5 if mode == "noising" else number(cell) > 5 for row in shown.rows[1:] for cell in row[3:]
    )


def test_the_line_above_says_what_both_runs_say(model, task, pair):
    shown = read(cl.edit_prompts(model, *pair, live=False))
    one = one_prompt(task)
    with torch.no_grad():
        runs = [model(tokens) for tokens in (one.clean, one.corrupted)]
    values = [float(one.metric(logits)) for logits in runs]
    found = re.search(
        r"clean (−?[\d.]+), corrupted (−?[\d.]+)\. First guess: clean ·(\w+), corrupted ·(\w+)", shown.text
    )
    assert [number(text) for text in found.groups()[:2]] == pytest.approx(values, abs=0.051)
    guesses = [model.tokenizer.decode([int(logits[0, -1].argmax())]).strip() for logits in runs]
    assert list(found.groups()[2:]) == guesses


def test_without_a_kernel_the_page_switches_between_the_examples(model):
    clean, corrupted, answer, wrong = SHORT
    half = clean.replace("city", "route")
    widget = cl.edit_prompts(model, clean, {"all": corrupted, "one": half}, answer, wrong, live=False)
    alone = [picture(cl.edit_prompts(model, clean, text, answer, wrong, live=False)) for text in (corrupted, half)]
    assert picture(widget) == alone[0] != alone[1]
    control(widget, "Corrupted prompt").index = 1
    assert picture(widget) == alone[1]


def test_with_a_kernel_the_reader_edits(model):
    clean, corrupted, answer, wrong = SHORT
    other = clean.replace("city", "route")
    widget = cl.edit_prompts(model, clean, {"all": corrupted, "one": other}, answer, wrong, live=True)
    without_kernel = {
        (text, mode): picture(cl.edit_prompts(model, clean, text, answer, wrong, mode, live=False))
        for text in (corrupted, other)
        for mode in ("noising", "denoising")
    }
    assert picture(widget) == without_kernel[corrupted, "noising"]
    control(widget, "Patch").value = "denoising"
    assert picture(widget) == without_kernel[corrupted, "denoising"]
    control(widget, "Corrupted").value = other
    assert picture(widget) == without_kernel[corrupted, "denoising"]  # nothing happens before the button
    control(widget, "Patch every place").click()
    assert picture(widget) == without_kernel[other, "denoising"]
    control(widget, "Corrupted prompt").value = "all"
    control(widget, "Corrupted prompt").value = "one"
    assert control(widget, "Corrupted").value == other
    assert picture(widget) == without_kernel[other, "denoising"]


WRONG_INPUT = {
    "no clean prompt": ({"Clean": "  \n "}, "clean: expected some text, got none"),
    "no corrupted prompt": ({"Corrupted": ""}, "corrupted: expected some text, got none"),
    "the same prompts": ({"Corrupted": None}, "corrupted: expected another prompt than clean"),
    "a word too many": (
        {"Corrupted": lambda clean: clean.replace("count,", "count list,")},
        r"corrupted: expected the 9 tokens that clean has, got 10; at position 7 clean has nothing and corrupted has '·list'",
    ),
    "a word of several tokens": (
        {"Corrupted": lambda clean: clean.replace("count,", "xylophone,")},
        r"corrupted: expected the 9 tokens that clean has, got \d+; at position 6 clean has '·count' and corrupted has '·x' ",
    ),
    "a prompt that is too long": ({"Clean": "count " * 200}, r"clean: expected at most 96 tokens, .* got \d+"),
    "no answer": ({"Answer": " "}, "answer: expected a word, got none"),
    "an answer of several tokens": (
        {"Answer": "xylophone"},
        r"answer: expected one token each, got 'xylophone', which is \d",
    ),
    "no wrong answer": ({"Wrong answers": " , "}, "wrong answers: expected at least one word, got none"),
    "a wrong answer of several tokens": (
        {"Wrong answers": "group xylophone"},
        "wrong answers: expected one token each",
    ),
    "a wrong answer that is right": (
        {"Wrong answers": "group, item"},
        "wrong answers: expected words other than the answer",
    ),
    "code": ({"Answer": HOSTILE}, r"answer: expected one token each, got '</script><img src=x onerror=alert"),
}


@pytest.mark.parametrize("case", WRONG_INPUT)
def test_what_is_wrong_with_the_input_is_said_in_one_line(model, case):
    typed, message = WRONG_INPUT[case]
    widget = cl.edit_prompts(model, *SHORT, live=True)
    right = picture(widget)
    before = {name: control(widget, name).value for name in typed}
    for name, text in typed.items():
        control(widget, name).value = SHORT[0] if text is None else text(SHORT[0]) if callable(text) else text
    control(widget, "Patch every place").click()
    shown = read(widget)
    assert re.fullmatch(f"{message}.*", shown.text), shown.text
    assert [tag for tag, _ in shown.elements] == ["p"]
    assert "Traceback" not in shown.text and "\n" not in shown.text

    for name, text in before.items():
        control(widget, name).value = text
    control(widget, "Patch every place").click()
    assert picture(widget) == right


def test_words_that_a_model_does_not_know_are_named():
    model = cl.load_model("handmade-induction")
    widget = cl.edit_prompts(model, "abcab", "xbcab", "c", ["a"], live=True)
    control(widget, "Clean").value = "abcaé"
    control(widget, "Patch every place").click()
    assert read(widget).text == "clean: expected words that this model knows, got 'abcaé'"
    control(widget, "Clean").value = "abcab"
    control(widget, "Answer").value = "é"
    control(widget, "Patch every place").click()
    assert read(widget).text == "answer: expected words that this model knows, got 'é'"


def test_an_error_that_nobody_foresaw_is_one_line_too(model, monkeypatch):
    widget = cl.edit_prompts(model, *SHORT, live=True)

    def fail(*_, **__):
        raise RuntimeError("out of memory\nframe 1\nframe 2")

    monkeypatch.setattr(widgets, "activation_patching", fail)
    control(widget, "Patch every place").click()
    assert read(widget).text == "This could not be computed (RuntimeError: out of memory)."


def test_the_answer_s_space_may_be_left_out(model):
    clean, corrupted, answer, wrong = SHORT
    spaced = cl.edit_prompts(model, clean, corrupted, f" {answer}", [f" {word}" for word in wrong], live=False)
    assert picture(spaced) == picture(cl.edit_prompts(model, *SHORT, live=False))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"corrupted": {}}, "corrupted: expected at least one prompt, got none"),
        ({"mode": "both"}, "mode: expected 'noising' or 'denoising', got 'both'"),
        ({"clean": ""}, "clean: expected some text"),
        ({"wrong": []}, "wrong answers: expected at least one word"),
    ],
    ids=lambda value: next(iter(value), None) if isinstance(value, dict) else None,
)
@pytest.mark.parametrize("live", [False, True])
def test_whoever_calls_with_bad_arguments_gets_an_error(model, change, message, live):
    arguments = dict(zip(("clean", "corrupted", "answer", "wrong"), SHORT, strict=True)) | change
    with pytest.raises(ValueError, match=message):
        cl.edit_prompts(model, **arguments, live=live)


def test_every_number_can_be_read_on_its_colour():
    """WCAG 2: a contrast of at least 4.5, here over the whole scale."""

    def light(colour: str) -> float:
        colour = "#" + "".join(2 * c for c in colour[1:]) if len(colour) == 4 else colour
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    inks = set()
    for value in np.linspace(-1, 1, 401):
        found = re.search(r"background:(#\w+);color:(#\w+)", widgets._heat_cell(float(value), 1.0))
        if found:
            dark, bright = sorted(map(light, found.groups()))
            assert (bright + 0.05) / (dark + 0.05) >= 4.5, value
            inks.add(found[2])
    assert inks == {"#000", "#fff"}


# --- view_attention -----------------------------------------------------------------------------------------------


def levels(shown: Reader) -> np.ndarray:
    """The pattern [query, key] that the picture shows, read back from its colours; NaN where it is grey."""
    (image,) = [attributes for tag, attributes in shown.elements if tag == "img"]
    colours = matplotlib.image.imread(io.BytesIO(base64.b64decode(image["src"].partition(",")[2])))[..., :3]
    scale = matplotlib.colormaps["Blues"](np.linspace(0, 1, 1001))[:, :3]
    distance = ((colours[:, :, None] - scale) ** 2).sum(-1)
    return np.where(distance.min(-1) < 1e-3, distance.argmin(-1) / 1000, np.nan)


@pytest.mark.parametrize("live", [False, True])
def test_the_pattern_is_the_one_of_the_chosen_head_and_prompt(model, task, live):
    prompts = {"clean": task.clean[0], "corrupted": task.corrupted[0]}
    widget = cl.view_attention(model, prompts, labels=task.labels, start="a3.6", live=live)
    patterns = {}
    for name, tokens in prompts.items():
        with torch.no_grad():
            patterns[name] = model.run_with_cache(tokens[None])[1]
    for name, layer, head in itertools.product(prompts, (0, 3), (0, 5, 7)):
        control(widget, "Prompt").value = name
        control(widget, "Layer").value, control(widget, "Head").value = layer, head
        shown = read(widget)
        pattern = patterns[name]["pattern", layer][0, head].numpy()
        found = levels(shown)
        past = np.tril(np.ones(pattern.shape, dtype=bool))
        assert np.isnan(found[~past]).all()
        np.testing.assert_allclose(found[past], pattern[past], atol=1 / 31)
        assert shown.text.startswith(f"a{layer}.{head}, {name}. From the last position: ")
        best = int(pattern[-1].argmax())
        assert f"{widgets.visible(task.labels[best])} ({best}) {pattern[-1, best]:.2f}" in shown.text


def test_the_first_head_is_the_one_that_was_asked_for(model, task):
    for live in (False, True):
        assert read(cl.view_attention(model, task.clean[0], start="a3.6", live=live)).text.startswith("a3.6, ")


def test_first_and_last_head_and_a_prompt_of_one_token(model):
    widget = cl.view_attention(model, torch.tensor([model.tokenizer.bos_token_id]), live=False)
    for layer, head in ((0, 0), (0, 7), (3, 0), (3, 7)):
        control(widget, "Layer").index, control(widget, "Head").index = layer, head
        shown = read(widget)
        assert shown.text.startswith(f"a{layer}.{head}, ") and "first position: none" in shown.text
        assert levels(shown) == pytest.approx(np.ones((1, 1)), abs=0.01)


def test_a_reader_looks_at_a_prompt_of_their_own(model, task):
    widget = cl.view_attention(model, {"clean": task.clean[0]}, labels=task.labels, start="a1.4", live=True)
    for text in ("def f(a, b", "def g(count"):
        control(widget, "Your prompt").value = text
        assert control(widget, "Prompt").value == "your prompt"
        tokens = [model.tokenizer.bos_token_id, *model.tokenizer.encode(text, add_special_tokens=False)]
        alone = cl.view_attention(model, {"your prompt": torch.tensor(tokens)}, start="a1.4", live=False)
        assert picture(widget) == picture(alone)
    seen = picture(widget)
    for text, message in (
        (" ", "your prompt: expected some text, got none"),
        ("a " * 200, "your prompt: expected at most 96"),
    ):
        control(widget, "Your prompt").value = text
        assert message in read(widget).text and seen in picture(widget)
    control(widget, "Your prompt").value = "def g(count"
    assert picture(widget) == seen  # the message is gone
    control(widget, "Prompt").value = "clean"
    assert ", clean. From" in read(widget).text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompts": {}}, "prompts: expected at least one prompt"),
        ({"prompts": torch.zeros(2, 3, dtype=torch.long)}, "tokens: expected the token ids of one prompt"),
        ({"prompts": torch.tensor([1, 2, 3]), "start": "a4.0"}, "start: expected a head from a0.0 to a3.7, got 'a4.0'"),
        ({"prompts": torch.tensor([1, 2, 3]), "labels": ["a"]}, "labels: expected one for each of 3 tokens, got 1"),
    ],
    ids=["no prompt", "two prompts", "head", "labels"],
)
def test_attention_refuses_bad_arguments(model, arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        cl.view_attention(model, **arguments)


# --- ablate_heads -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def repeats(model):
    return cl.induction(model, n=4, period=8, seed=0)


def ablated_by_hand(model, task, removed: list[str], ablation: str) -> tuple[float, float]:
    """Metric and accuracy with TransformerLens's hooks: what a head writes is replaced before its output matrix."""
    with torch.no_grad():
        _, cache = model.run_with_cache(task.corrupted)

    def replaced(z, hook, layer, head):
        instead = {
            "zero": torch.zeros_like(z[:, :, head]),
            "mean": cache["z", layer][:, :, head].mean(0, keepdim=True),
            "corrupted": cache["z", layer][:, :, head],
        }[ablation]
        z = z.clone()
        z[:, :, head] = instead
        return z

    places = [tuple(map(int, name[1:].split("."))) for name in removed]
    hooks = [
        (f"blocks.{layer}.attn.hook_z", functools.partial(replaced, layer=layer, head=head)) for layer, head in places
    ]
    with torch.no_grad():
        logits = model.run_with_hooks(task.clean, fwd_hooks=hooks)
    return float(task.metric(logits).mean()), float(task.accuracy(logits).mean())


def measured(shown: Reader) -> list[tuple[float, float]]:
    return [(number(row[1]), number(row[2])) for row in shown.rows if row[0].startswith(("whole", "without"))]


@pytest.mark.parametrize("live", [False, True])
def test_what_is_left_is_what_hooks_leave(model, repeats, live):
    heads = ["a0.4", "a0.5", "a1.4"]
    widget = cl.ablate_heads(model, repeats, heads, live=live)
    whole = ablated_by_hand(model, repeats, [], "zero")
    changed = False
    for ablation, *gone in itertools.product(("zero", "mean", "corrupted"), *[(False, True)] * 3):
        control(widget, "Ablation").value = ablation
        for name, out in zip(heads, gone, strict=True):
            control(widget, name).value = out
        removed = [name for name, out in zip(heads, gone, strict=True) if out]
        found = measured(read(widget))
        expected = [whole, ablated_by_hand(model, repeats, removed, ablation)] if removed else [whole]
        assert np.array(found) == pytest.approx(np.array(expected), abs=0.0051), (ablation, removed)
        assert f"Removed: {', '.join(removed) or 'nothing'}" in read(widget).text
        changed |= found[-1] != found[0]
    assert changed


def test_all_heads_of_a_model_and_none(model, repeats):
    widget = cl.ablate_heads(model, repeats, live=True)
    boxes = [w for w in inside(widget) if isinstance(w, ipw.Checkbox)]
    assert [box.description for box in boxes] == [f"a{layer}.{head}" for layer in range(4) for head in range(8)]
    for box in boxes:
        box.value = True
    everything = ablated_by_hand(model, repeats, [box.description for box in boxes], "mean")
    assert measured(read(widget))[1] == pytest.approx(everything, abs=0.0051)
    control(widget, "Put all back").click()
    assert not any(box.value for box in boxes)
    assert len(measured(read(widget))) == 1 and "Removed: nothing" in read(widget).text


def test_putting_all_back_measures_nothing_in_between(model, repeats, monkeypatch):
    widget = cl.ablate_heads(model, repeats, ["a0.0", "a0.1", "a0.2"], live=True)
    for head in ("a0.0", "a0.1", "a0.2"):
        control(widget, head).value = True
    runs = []
    monkeypatch.setattr(cl.Engine, "run", lambda *_, **__: runs.append(1))
    control(widget, "Put all back").click()
    assert runs == [] and "Removed: nothing" in read(widget).text


def test_too_many_heads_for_a_page_without_a_kernel(model, repeats):
    """The page then has one picture, and says what it needs."""
    widget = cl.ablate_heads(model, repeats, live=False)
    assert all(w.disabled for w in inside(widget) if isinstance(w, ipw.Checkbox | ipw.Dropdown))
    assert len(measured(read(widget))) == 1
    assert "The controls need a kernel" in widget.children[-1].value
    assert not any(isinstance(w, ipw.Stack) for w in inside(widget))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"heads": []}, "heads: expected different heads such as 'a0.4', got []"),
        ({"heads": ["a0.1", "a0.1"]}, "heads: expected different heads"),
        ({"heads": ["a0.1", "a9.9"]}, "heads: expected heads from a0.0 to a3.7, got 'a9.9'"),
        ({"heads": ["m0"]}, "heads: expected heads from a0.0 to a3.7, got 'm0'"),
        ({"ablation": "noise"}, "ablation: expected one of"),
    ],
    ids=["none", "twice", "absent", "no head", "ablation"],
)
def test_ablation_refuses_bad_arguments(model, repeats, arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        cl.ablate_heads(model, repeats, **arguments, live=False)


def test_other_metrics_are_named(model, repeats):
    shown = read(cl.ablate_heads(model, replace(repeats, metric_name="logprob"), ["a0.0"], live=False))
    assert "log-probability of the answer" in shown.text and measured(shown)[0][0] < 0


def test_a_live_error_while_measuring_is_one_line(model, repeats, monkeypatch):
    widget = cl.ablate_heads(model, repeats, ["a0.0"], live=True)
    monkeypatch.setattr(cl.Engine, "run", lambda *_, **__: 1 / 0)
    control(widget, "a0.0").value = True
    assert read(widget).text == "This could not be computed (ZeroDivisionError: division by zero)."


# --- all of them --------------------------------------------------------------------------------------------------


def every_widget(model, task, repeats, live: bool | None) -> dict[str, ipw.Widget]:
    return {
        "edit_prompts": cl.edit_prompts(
            model, SHORT[0], {"all": SHORT[1], "one": SHORT[0].replace("city", "route")}, *SHORT[2:], live=live
        ),
        "view_attention": cl.view_attention(model, {"clean": task.clean[0]}, live=live),
        "ablate_heads": cl.ablate_heads(model, repeats, ["a0.4", "a0.5"], live=live),
    }


def test_where_there_is_a_live_notebook_the_widgets_are_live(model, task, repeats, monkeypatch):
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    batch = every_widget(model, task, repeats, live=None)
    assert any(isinstance(w, ipw.Stack) for w in inside(batch["ablate_heads"]))
    assert not any(isinstance(w, ipw.Text) for widget in batch.values() for w in inside(widget))
    monkeypatch.setattr(widgets, "_host_mode", lambda: "inline")
    for widget in every_widget(model, task, repeats, live=None).values():
        assert not any(isinstance(w, ipw.Stack) for w in inside(widget))
        assert any(isinstance(w, ipw.Text | ipw.Checkbox) for w in inside(widget))


@pytest.mark.parametrize("live", [False, True])
def test_every_control_has_a_name_and_every_image_a_text(model, task, repeats, live):
    for widget in every_widget(model, task, repeats, live).values():
        # Without names of their own, two groups of radio buttons would be one for the arrow keys.
        assert sum(isinstance(part, ipw.RadioButtons) for part in inside(widget)) <= 1
        for part in inside(widget):
            if isinstance(part, ipw.RadioButtons):
                # The group's label is not theirs: each option has to say by itself what it is.
                assert part.description in ("Prompt", "Corrupted prompt")
            elif isinstance(part, ipw.Dropdown | ipw.Text | ipw.Textarea | ipw.Checkbox | ipw.Button):
                assert part.description
            elif isinstance(part, ipw.HTML):
                for tag, attributes in Reader(part.value).elements:
                    assert tag != "img" or len(attributes["alt"].split()) > 3
                    assert "overflow-x" not in attributes.get("style", "") or attributes["tabindex"] == "0"
                    assert attributes.get("role") != "region" or attributes["aria-label"]


def only_what_the_widgets_make(text: str) -> None:
    for tag, attributes in Reader(text).elements:
        assert tag in {"div", "p", "b", "table", "tr", "th", "td", "caption", "span", "img"}, tag
        assert not any(name.startswith("on") for name in attributes), attributes
        assert attributes.get("src", "data:image/png;base64,").startswith("data:image/png;base64,")


def test_what_a_prompt_holds_is_never_markup(model, task):
    clean, corrupted, answer, wrong = SHORT
    shown = [
        picture(cl.edit_prompts(model, clean + HOSTILE, corrupted + HOSTILE, answer, wrong, live=False)),
        picture(cl.view_attention(model, {HOSTILE: task.clean[0]}, labels=[HOSTILE] * task.clean.shape[1], live=False)),
        widgets._row(0, HOSTILE, "<b>other</b>", np.array([1.0]), 1.0),
        widgets._message(HOSTILE),
    ]
    for text in shown:
        only_what_the_widgets_make(f"<table>{text}</table>" if text.startswith("<tr") else text)
        assert "<img src=x" not in text and "</script" not in text
        assert "&lt;" in text
    assert Reader(shown[1]).text.startswith(f"a0.0, {HOSTILE}. ")


def test_an_error_message_is_never_markup(model):
    widget = cl.edit_prompts(model, *SHORT, live=True)
    control(widget, "Corrupted").value = SHORT[0] + HOSTILE
    control(widget, "Patch every place").click()
    assert re.search(r"at position 9 clean has nothing and corrupted has '</?' ", read(widget).text), read(widget).text
    only_what_the_widgets_make(picture(widget))


def test_the_same_call_gives_the_same_page(model, task, repeats):
    """Byte for byte, once the random names of the widgets are left out: chapters are committed with their widgets."""

    def content(widget: ipw.Widget) -> list[str]:
        models = [json.dumps(model, sort_keys=True) for model in dependency_state([widget]).values()]
        return sorted(re.sub(r"IPY_MODEL_\w+", "", model) for model in models)

    first, second = (every_widget(model, task, repeats, live=False) for _ in range(2))
    for name in first:
        assert content(first[name]) == content(second[name])


@pytest.mark.parametrize("name", CHAPTERS)
def test_the_chapters_carry_one_small_widget_each(name):
    notebook = json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text("utf8"))
    kind = "application/vnd.jupyter.widget-view+json"
    shown = [cell for cell in notebook["cells"] for output in cell.get("outputs", []) if kind in output.get("data", {})]
    ignored = [cell for cell in notebook["cells"] if "nbval-ignore-output" in cell["metadata"].get("tags", [])]
    assert len(shown) == 1 and shown == ignored
    state = notebook["metadata"]["widgets"]["application/vnd.jupyter.widget-state+json"]
    assert len(json.dumps(state, indent=1, ensure_ascii=False).encode()) < 300_000
    for model in state["state"].values():
        if model["model_name"] == "HTMLModel":
            only_what_the_widgets_make(model["state"]["value"])
