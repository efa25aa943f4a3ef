"""The published circuits on the models that they were found in, measured here, beside the figures that were published.

Nothing heavy is imported above the functions: a model that can't be had is said before torch is loaded.
"""

from __future__ import annotations

import base64
import html
import io
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from .models import load_model, words

MODELS = {"docstring": "attn-only-4l", "ioi": "gpt2", "greater-than": "gpt2"}
METHODS = ("eap", "eap-ig", "acdc")
# ACDC tests up to 1,281 edges of attn-only-4l at a threshold, and up to 32,491 of gpt2: there only when asked for.
USUAL_METHODS = {"docstring": METHODS, "ioi": METHODS[:2], "greater-than": METHODS[:2]}
THRESHOLDS = {"docstring": {"kl": (0.005, 0.02, 0.095, 0.3), "task": (0.02, 0.067, 0.3)}}
THRESHOLDS |= {name: {"kl": (0.02, 0.1, 0.3)} for name in ("ioi", "greater-than")}
METRICS = {"docstring": "logit difference", "ioi": "logit difference", "greater-than": "probability difference"}
LABELS = {"eap": "EAP", "eap-ig": "EAP-IG", "acdc": "ACDC"}
PAPER = "https://arxiv.org/abs/2304.14997"

# Conmy et al. 2023: for a circuit or a method what they measured, with the table or appendix. Edges in their count.
PUBLISHED: dict[str, dict[str, tuple[str, dict[str, float]]]] = {
    "docstring": {
        "full model": ("Table 4", {"logit difference": 0.48, "KL": 0.0, "edges": 1377}),
        "8 heads, all connections": ("Table 4", {"logit difference": -0.62, "KL": 0.83, "edges": 464}),
        "published circuit": ("Table 4", {"logit difference": -1.6, "KL": 1.1, "edges": 37}),
        "ACDC, KL, τ = 0.005": ("Table 4", {"logit difference": 0.58, "KL": 0.33, "edges": 258}),
        "ACDC, KL, τ = 0.095": ("Table 4", {"logit difference": -1.7, "KL": 1.2, "edges": 34}),
        "ACDC, logit difference, τ = 0.067": ("Table 4", {"logit difference": 0.32, "KL": 0.67, "edges": 98}),
        "ACDC, KL": ("Table 2", {"AUC": 0.982}),
        "ACDC, logit difference": ("Table 2", {"AUC": 0.972}),
    },
    "ioi": {
        "full model": ("App. F.2", {"logit difference": 4.11}),
        "published circuit": ("App. F.2", {"logit difference": 3.24, "KL": 0.44, "edges": 1041}),
        "ACDC, KL": ("Table 2", {"AUC": 0.869}),
    },
    "greater-than": {
        "full model": ("App. G", {"probability difference": 0.84}),
        "published circuit": ("App. G", {"probability difference": 0.72, "KL": 0.078, "edges": 262}),
        "ACDC, KL": ("Table 2", {"AUC": 0.853}),
    },
}


@dataclass(frozen=True)
class Row:
    """One number: of what, which quantity, what was published and where, what was measured here. None where there is none."""

    what: str
    quantity: str
    published: float | None
    here: float | None
    source: str = ""


@dataclass(frozen=True, eq=False)
class Reproduction:
    """What ``reproduce`` measured.

    Args:
        name: the circuit.
        rows: the numbers.
        notes: sentences that a reader of the numbers should know.
        facts: versions, date, model, settings, passes.
        figures: title → matplotlib figure.
    """

    name: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    facts: Mapping[str, str]
    figures: Mapping[str, object] = field(default_factory=dict, repr=False)

    def to_pandas(self):
        """The numbers as a table."""
        import pandas as pd

        return pd.DataFrame([vars(row) for row in self.rows]).set_index(["what", "quantity"])

    def to_markdown(self) -> str:
        """The numbers and notes as Markdown."""
        lines = ["| of | quantity | published | here | source |", "| --- | --- | ---: | ---: | --- |"]
        lines += [f"| {' | '.join(map(_markdown, _cells(row)))} |" for row in self.rows]
        return "\n".join([f"# {self._title()}", "", *lines, "", *map(_markdown, self.notes)])

    def to_html(self) -> str:
        """One page that needs nothing else: numbers, notes, figures, versions, date."""
        table = [_html_row("th", ("of", "quantity", "published", "here", "source"))]
        table += [_html_row("td", _cells(row)) for row in self.rows]
        facts = [_html_row("td", fact) for fact in self.facts.items()]
        pictures = [f"<h2>{html.escape(title)}</h2>\n{_picture(title, f)}" for title, f in self.figures.items()]
        notes = [f"<p>{html.escape(note)}</p>" for note in self.notes]
        title = html.escape(self._title())
        parts = [f"<h1>{title}</h1>", *_table(table), *notes, *pictures, "<h2>How it was made</h2>", *_table(facts)]
        return "\n".join([_HEAD.format(title=title), *parts, "</body></html>"])

    def write(self, path: str | Path) -> Path:
        """Write the page, whole or not at all."""
        from .graph import _write

        _write(path, self.to_html())
        return Path(path)

    def _title(self) -> str:
        return f"The {self.name} circuit in {MODELS[self.name]}: published and measured"


def reproduce(
    name: str,
    *,
    n: int = 50,
    seed: int = 0,
    methods: Sequence[str] | None = None,
    thresholds: Mapping[str, Sequence[float]] | None = None,
    prompts: str | Path | None = None,
    device: str = "cpu",
    progress: bool = False,
) -> Reproduction:
    """Measure a published circuit, and what methods find, on the model that it was found in.

    Args:
        name: "docstring", "ioi" or "greater-than".
        n: how many prompts; the paper takes 50 for docstring.
        methods: some of "eap", "eap-ig" and "acdc"; by default all for docstring, and the first two for the others.
        thresholds: for ACDC, metric ("kl" or "task") → thresholds.
        prompts: a file of prompts; by default the book's own (see ``prompts_from``).
        device: as for ``load_model``.
        progress: show how far ACDC is, on stderr.

    Raises:
        ValueError: a bad argument or prompts file; one line.
        Missing: the model is not on this computer and the Hub can't be reached, and the like; before anything else.
    """
    name = _name(name)
    methods = _check(name, methods)
    model = load_model(MODELS[name], device)
    from .engine import Engine

    task = make_task(model, name, n, seed) if prompts is None else prompts_from(model, prompts, name, n)
    engine = Engine(model, task)
    found = find(engine, methods, thresholds or THRESHOLDS[name], progress)
    measured = {**measure(engine, circuits_of(engine, name), name), **judge(engine, found, name)}
    notes = (_NOTE_FILE if prompts else _NOTE_OWN, *_words_left_out(model, name, prompts), _NOTE_COUNT, _NOTE_AUC)
    settings = {"prompts": f"{len(task)}, seed {seed}" if prompts is None else f"{len(task)} of a file"}
    settings |= {f"cost of {what}": _cost_of(results) for what, results in found.items()}
    return Reproduction(name, _rows(name, measured), notes, _facts(model, settings), _figures(name, found))


def published_figures(name: str):
    """What Conmy et al. 2023 measured: a table of circuits and methods, with the table or appendix that each row is from.

    Logit or probability difference and KL at the last position, in nats; edges in their own count; AUC of edges, pessimistic.

    Raises:
        ValueError: another name than "docstring", "ioi" and "greater-than".
    """
    import pandas as pd

    name = _name(name)
    rows = {what: {**numbers, "source": source} for what, (source, numbers) in PUBLISHED[name].items()}
    table = pd.DataFrame.from_dict(rows, orient="index", columns=[METRICS[name], "KL", "edges", "AUC", "source"])
    return table.rename_axis("of").astype({"edges": "Int64"})


def make_task(model, name: str, n: int = 50, seed: int = 0):
    """The book's own prompts for a published circuit's task, in the layout and with the corruption that the circuit is judged by."""
    from . import tasks

    return {"docstring": tasks.docstring, "ioi": tasks.ioi, "greater-than": tasks.greater_than}[name](
        model, n=n, seed=seed
    )


def prompts_from(model, path: str | Path, name: str, n: int = 50):
    """The first ``n`` prompts of a JSON file in the format of the auto-circuit repository (UFO-101/auto-circuit, ``datasets/``).

    It holds ``{"prompts": [{"clean": text, "corrupt": text, "answers": [text, …], "wrong_answers": [text, …]}, …]}``. Metric and
    place of reading are those of the task ``name``: the last position.

    Raises:
        ValueError: the file is not of this format, has fewer prompts, or its prompts are not token-aligned.
    """
    from .graph import _keys, _read_json
    from .tasks import Task
    from .tasks.tokens import one_token, same_length

    content = _read_json(path)
    try:
        _keys(content, "file", {"prompts"})
        listed = content["prompts"]
        if not isinstance(listed, list):
            raise ValueError(f"prompts: expected a list, got {type(listed).__name__}")
        if not 1 <= n <= len(listed):
            raise ValueError(f"prompts: {n} asked for, the file has {len(listed)}")
        for number, prompt in enumerate(listed[:n]):
            _check_prompt(prompt, f"prompt {number}")
        listed = listed[:n]
        tokens = same_length(model, [prompt[side] for side in ("clean", "corrupt") for prompt in listed])
        answers, wrong = (
            [one_token(model, prompt[key]).tolist() for prompt in listed] for key in ("answers", "wrong_answers")
        )
    except ValueError as error:
        said = str(error)  # it may quote a word of any length
        said = said if len(said) <= 300 else f"{said[:299]}…"
        raise ValueError(f"{path}: not a file of prompts for this model: {said}") from None
    probability = METRICS[name] == "probability difference"
    if not probability and len({len(row) for row in wrong}) > 1:
        raise ValueError(
            f"{path}: wrong_answers: expected as many for each prompt, got {min(map(len, wrong))} to {max(map(len, wrong))}"
        )
    return Task(
        name=name.replace("-", "_"),
        clean=tokens[: len(listed)],
        corrupted=tokens[len(listed) :],
        answers=_padded(answers) if probability else _padded([row[:1] for row in answers])[:, 0],
        distractors=_padded(wrong),
        positions={"end": tokens.shape[1] - 1},
        read_positions=(tokens.shape[1] - 1,),
        metric_name="prob_diff" if probability else "logit_diff",
        meta={"file": Path(path).name},
    )


# Measuring ---------------------------------------------------------------------------------------


def circuits_of(engine, name: str) -> dict:
    """The circuits that are measured beside the published one, and a random one of its size as a control."""
    from .graph import random_circuit
    from .published import published_circuit

    truth = published_circuit(name)
    circuits = {"full model": engine.all}
    if name == "docstring":
        circuits["8 heads, all connections"] = published_circuit(name, "heads")
    circuits["published circuit"] = truth
    if name == "ioi":
        circuits["published circuit, as in auto-circuit"] = published_circuit(name, "auto-circuit")
    return {**circuits, "random circuit of that size": random_circuit(engine.graph, len(truth)), "no edge": engine.none}


def measure(engine, circuits: Mapping, name: str) -> dict[tuple[str, str], float]:
    """(circuit, quantity) → the task's metric, faithfulness, KL to the whole model in nats, edges in ACDC's count.

    There is no faithfulness where the model can't be told from the empty circuit.
    """
    from .evaluation.faithfulness import denominator
    from .published import acdc_edge_count

    listed = list(circuits.values())
    values = engine.values([*listed, engine.all, engine.none])
    kl = (-engine.metric(listed, "kl")).clamp(min=0).tolist()
    try:
        faithful = ((values[:-2].mean(-1) - values[-1].mean()) / denominator(values[-2], values[-1])).tolist()
    except ValueError:
        faithful = [None] * len(listed)
    numbers: dict[tuple[str, str], float] = {}
    for i, (what, circuit) in enumerate(circuits.items()):
        numbers |= {(what, METRICS[name]): float(values[i].mean()), (what, "KL"): kl[i]}
        numbers |= {} if faithful[i] is None else {(what, "faithfulness"): faithful[i]}
        numbers[what, "edges"] = circuit.graph.edge_count("acdc") if circuit == engine.all else acdc_edge_count(circuit)
    return numbers


def find(engine, methods: Sequence[str], thresholds: Mapping[str, Sequence[float]], progress: bool = False) -> dict:
    """What each method finds: scores, or for ACDC the circuits of a sweep, by the name in the table."""
    from .discovery import acdc_sweep, eap, eap_ig

    found = {}
    if "eap" in methods:
        found["EAP"] = eap(engine)
    if "eap-ig" in methods:
        found["EAP-IG"] = eap_ig(engine)
    if "acdc" in methods:
        for metric, taus in thresholds.items():
            used = None if metric == "task" else metric
            label = f"ACDC, {'KL' if metric == 'kl' else _quantity(engine.task)}"
            found[label] = acdc_sweep(engine, sorted(taus), metric=used, progress=progress)
    return found


def judge(engine, found: Mapping, name: str) -> dict[tuple[str, str], float]:
    """(method, "AUC") → area under its ROC curve; and what each of ACDC's circuits measures."""
    from .evaluation import auc, roc
    from .published import published_circuit

    truth, numbers = published_circuit(name), {}
    for what, result in found.items():
        if isinstance(result, list):
            numbers |= measure(engine, {f"{what}, τ = {circuit.threshold:g}": circuit for circuit in result}, name)
        numbers[what, "AUC"] = auc(roc(result, truth))
    return numbers


def _quantity(task) -> str:
    return "probability difference" if task.metric_name == "prob_diff" else "logit difference"


# The report --------------------------------------------------------------------------------------

_NOTE_OWN = "The prompts are our own: the same layout and corruption, other words. So the numbers need not agree to the last digit."
_NOTE_FILE = "The prompts are those of the file that was given."
_NOTE_COUNT = (
    "Edges are in the count of Conmy et al. 2023: one more for each query, key and value input in use. For the 8 heads we count "
    "all edges among them; the paper's larger count must hold others too."
)
_NOTE_AUC = (
    "AUC is that of edges, pessimistic convention. ACDC has one point for each threshold tried here, fewer than in the paper: that "
    "can only lower its area. The EAP paper prints no areas."
)


def _rows(name: str, measured: Mapping[tuple[str, str], float]) -> tuple[Row, ...]:
    """Every number that was measured, and after them what was published and not measured."""
    stated = {(what, q): (value, source) for what, (source, of) in PUBLISHED[name].items() for q, value in of.items()}
    rows = []
    for key in dict.fromkeys([*measured, *stated]):
        value, source = stated.get(key, (None, ""))
        rows.append(Row(*key, value, measured.get(key), source))
    return tuple(rows)


def _words_left_out(model, name: str, prompts) -> tuple[str, ...]:
    """How many words of each list are single tokens of this model."""
    from .tasks.tokens import encode

    counts = []
    for what, listed, prefix in () if prompts else _LISTS[name]:
        known = sum(len(encode(model, prefix + word)) == 1 for word in listed)
        counts.append(f"{known} of {len(listed)} {what}")
    return (f"Words that are single tokens of this model, and so in use: {', '.join(counts)}.",) if counts else ()


_LISTS = {
    "docstring": (
        ("argument names", words.NAMES, " "),
        ("description words", words.NOUNS, " "),
        ("first words", words.VERBS, ""),
    ),
    "ioi": (("people", words.PEOPLE, " "), ("places", words.PLACES, " "), ("things", words.THINGS, " ")),
    "greater-than": (("events", words.EVENTS, " "),),
}


def _facts(model, settings: Mapping[str, str]) -> dict[str, str]:
    """Date, model and versions."""
    from . import __version__

    packages = {name: version(name) for name in ("torch", "transformers", "transformer-lens")}
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "model": f"{model.circuitlib_name}, revision {model.circuitlib_revision}",
        **settings,
        "circuitlib": __version__,
        **packages,
        "Python": platform.python_version(),
        "published figures": f"Conmy et al. 2023, {PAPER}",
    }


def _cost_of(result) -> str:
    costs = [circuit.cost for circuit in result] if isinstance(result, list) else [result.cost]
    forwards, backwards = sum(cost.forwards for cost in costs), sum(cost.backwards for cost in costs)
    return f"{forwards:,} forward and {backwards:,} backward passes, {sum(cost.seconds for cost in costs):.0f} s"


def _figures(name: str, found: Mapping) -> dict[str, object]:
    from .evaluation import roc
    from .plotting import plot_circuit, plot_roc
    from .published import published_circuit

    truth, figures = published_circuit(name), {}
    if found:
        figures["Which edges the methods find"] = plot_roc({what: roc(result, truth) for what, result in found.items()})
    if name == "docstring":  # the others have too many edges for a picture
        figures["The published circuit"] = plot_circuit(truth, roles=truth.roles)
    return figures


def _name(name: str) -> str:
    """The name as it stands in ``MODELS``; tasks are called by Python's names too, "greater_than"."""
    known = name.replace("_", "-") if isinstance(name, str) else name
    if known not in MODELS:
        raise ValueError(f"name: expected one of {', '.join(MODELS)}, got {name!r}")
    return known


def _check(name: str, methods: Sequence[str] | None) -> tuple[str, ...]:
    methods = USUAL_METHODS[name] if methods is None else (methods,) if isinstance(methods, str) else tuple(methods)
    for method in methods:
        if method not in METHODS:
            raise ValueError(f"methods: expected some of {', '.join(METHODS)}, got {method!r}")
    return methods


def _check_prompt(prompt, where: str) -> None:
    from .graph import _keys

    _keys(prompt, where, {"clean", "corrupt", "answers", "wrong_answers"})
    for key in ("clean", "corrupt"):
        if not isinstance(prompt[key], str):
            raise ValueError(f"{where}: {key} must be text, got {type(prompt[key]).__name__}")
    for key in ("answers", "wrong_answers"):
        if not (isinstance(prompt[key], list) and prompt[key] and all(isinstance(word, str) for word in prompt[key])):
            raise ValueError(f"{where}: {key} must be a list of texts, at least one")


def _padded(rows: list[list[int]]):
    import torch

    return torch.nn.utils.rnn.pad_sequence(list(map(torch.tensor, rows)), batch_first=True, padding_value=-1)


_HEAD = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font-family: sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; line-height: 1.5; }}
table {{ border-collapse: collapse; display: block; overflow-x: auto; }}
th, td {{ border-bottom: 1px solid #ccc; padding: .25rem .75rem; text-align: left; }}
img {{ max-width: 100%; }}
</style></head><body>"""


def _cells(row: Row) -> tuple[str, ...]:
    return row.what, row.quantity, _number(row, row.published), _number(row, row.here), row.source


def _number(row: Row, value: float | None) -> str:
    if value is None:
        return "—"
    return f"{value:,.0f}" if row.quantity == "edges" else f"{value:.3f}".replace("-", "−")


def _markdown(text: str) -> str:
    """Text in a line of Markdown, where a tag would be one, and a bar would end the cell."""
    return re.sub(r"([\\<|])", r"\\\1", " ".join(text.split()))


def _html_row(kind: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{kind}>{html.escape(cell)}</{kind}>" for cell in cells) + "</tr>"


def _table(rows: list[str]) -> list[str]:
    return ["<table>", *rows, "</table>"]


def _picture(title: str, figure) -> str:
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=120)
    code = base64.b64encode(image.getvalue()).decode("ascii")
    return f'<img alt="{html.escape(title)}" src="data:image/png;base64,{code}">'
