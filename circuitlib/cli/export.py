"""``circuitlib export``: a circuit for other programs, or a shipped model as a Hugging Face folder."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Annotated

import typer

from ..files import read_text, whole
from . import common

FORMATS = {
    ".csv": "a table of edges",
    ".graphml": "for Gephi, Cytoscape, yEd",
    ".dot": "for Graphviz",
    ".svg": "a picture",
    ".png": "a picture",
    ".pdf": "a picture",
    ".html": "a page to explore it, with --scores all edges",
    ".json": "the graph of the EAP-IG repository",
}
PICTURES = (".svg", ".png", ".pdf")
MAX_SCORES_BYTES = 64 * 2**20


@common.answers
def export(
    circuit: Annotated[Path | None, typer.Argument(help="A circuit file; none with --model.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help=f"The ending says what it becomes: {'; '.join(f'{k} {v}' for k, v in FORMATS.items())}."),
    ] = None,  # fmt: skip
    scores: Annotated[
        Path | None,
        typer.Option(help="A CSV file with a score for each edge, as `circuitlib discover --scores` writes."),
    ] = None,  # fmt: skip
    truth: Annotated[Path | None, typer.Option(help="A known circuit to compare with; for .html.")] = None,
    model: Annotated[
        str | None,
        typer.Option(help="A shipped model of the GPT-2 kind, such as gpt-mini; --out is then a new folder."),
    ] = None,  # fmt: skip
    title: Annotated[str | None, typer.Option(help="A line above a picture or a page.")] = None,
    d_model: Annotated[
        int | None,
        typer.Option(min=1, help="The model's width, for .json; by default that of the book's model of this shape."),
    ] = None,
    quiet: common.Quiet = False,
) -> None:
    """Write a circuit in a form that other programs read; or a model as a folder for transformers' `from_pretrained`.

    Examples:

    circuitlib export c.json --out c.graphml

    circuitlib export c.json --scores scores.csv --out c.html

    circuitlib export --model gpt-mini --out gpt-mini
    """
    if (circuit is None) == (model is None):
        raise ValueError("CIRCUIT: expected a circuit file, or --model, and not both")
    if out is None:
        raise ValueError("--out: expected the name of a file, or with --model of a folder")
    if model is not None:
        if scores is not None or truth is not None or title is not None:
            raise ValueError("--scores, --truth, --title: are about a circuit; expected none of them with --model")
        _export_model(model, out)
    else:
        common.check_apart(CIRCUIT=circuit, out=out, scores=scores)
        _check(out, scores, truth, title)
        if d_model is not None and out.suffix != ".json":
            raise ValueError(f"--d-model: is for .json, got a name that ends in {out.suffix}")
        _export_circuit(circuit, out, scores, truth, title, d_model, quiet)
    common.say(f"written: {out}", quiet)


def _check(out: Path, scores: Path | None, truth: Path | None, title: str | None) -> None:
    if out.suffix not in FORMATS:
        raise ValueError(f"--out: expected a name that ends in {', '.join(FORMATS)}, got {out.name!r}")
    if truth is not None and out.suffix != ".html":
        raise ValueError(f"--truth: is for .html, got a name that ends in {out.suffix}")
    if title is not None and out.suffix not in (".html", *PICTURES):
        raise ValueError(f"--title: is for {', '.join((*PICTURES, '.html'))}, got a name that ends in {out.suffix}")
    common.check_place(out)


def _export_circuit(
    path: Path, out: Path, scores: Path | None, truth: Path | None, title: str | None, d_model: int | None, quiet: bool
) -> None:
    from ..graph import Circuit

    circuit = Circuit.load(path)
    known = None if truth is None else Circuit.load(truth)
    values = None if scores is None else read_scores(scores, circuit.graph)
    if out.suffix == ".html":
        common.emit(_page(circuit, values, known, title), out)
    elif out.suffix in PICTURES:
        _picture(circuit, values, title, out)
    elif out.suffix == ".json":
        _eap_ig(circuit, values, out, d_model, quiet)
    else:
        write = {".csv": _csv, ".graphml": _graphml, ".dot": _dot}[out.suffix]
        common.emit(write(circuit, values or {}), out)


def read_scores(path: Path, graph) -> dict:
    """Edge → score of a CSV file with the columns ``edge`` and ``score``; one row for each edge of the graph, in any order.

    Raises:
        ValueError: the file is not such a table; one line that names the file, the line and what is wrong.
    """
    text = read_text(path, MAX_SCORES_BYTES)
    try:
        return _scores_of(path, csv.DictReader(io.StringIO(text, newline="")), graph)
    except csv.Error as error:
        raise ValueError(f"{path}: not a CSV file ({error})") from None


def _scores_of(path: Path, reader: csv.DictReader, graph) -> dict:
    if not {"edge", "score"} <= {*(reader.fieldnames or ())}:
        raise ValueError(
            f"{path}, line 1: expected the columns edge and score, got {', '.join(reader.fieldnames or ())[:80]!r}"
        )
    found = {}
    for row in reader:
        try:
            edge, score = graph.edge(row["edge"] or ""), _number(row["score"] or "")
            if not math.isfinite(score):
                raise ValueError(f"score: expected a finite number, got {score}")
            if edge in found:
                raise ValueError(f"edge {str(edge)!r} is repeated")
        except ValueError as error:
            raise ValueError(f"{path}, line {reader.line_num}: {error}") from None
        found[edge] = score
    if len(found) != graph.n_edges:
        raise ValueError(f"{path}: {len(found):,} edges, expected the {graph.n_edges:,} of {graph!r}")
    return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"score: expected a number, got {text[:60]!r}") from None


# Forms -------------------------------------------------------------------------------------------


def _csv(circuit, scores: dict) -> str:
    import pandas as pd

    rows = [{"edge": str(edge), "sender": edge.sender, "receiver": edge.receiver, "position": edge.position, "score": scores.get(edge)} for edge in circuit]  # fmt: skip
    columns = ["edge", "sender", "receiver", *["position"] * circuit.graph.per_position, *["score"] * bool(scores)]
    return pd.DataFrame(rows, columns=columns).to_csv(index=False, lineterminator="\n")


def _graphml(circuit, scores: dict) -> str:
    from ..graph import graphml

    graph = circuit.to_networkx()
    if scores:
        names = {str(edge): score for edge, score in scores.items()}
        for _, _, key, content in graph.edges(keys=True, data=True):
            content["score"] = names[key]
    return graphml(graph)


def _dot(circuit, scores: dict) -> str:
    """Graphviz: the embedding at the bottom, one node for each head and MLP. Names of nodes are letters, digits and dots."""
    graph = circuit.to_networkx()
    names = {str(edge): score for edge, score in scores.items()}
    lines = ["digraph circuit {", "  rankdir=BT;", "  node [shape=box];"]
    lines += [f'  "{name}";' for name in graph.nodes]
    for sender, receiver, key, content in graph.edges(keys=True, data=True):
        position = f"@{content['position']}" if "position" in content else ""
        weight = f', weight={abs(names[key]):.6g}, tooltip="{names[key]:.6g}"' if scores else ""
        lines.append(f'  "{sender}" -> "{receiver}" [label="{content["input"]}{position}"{weight}];')
    return "\n".join([*lines, "}"])


def _page(circuit, scores: dict | None, truth, title: str | None) -> str:
    from ..explorer import MOST, explore

    if circuit.graph.per_position:
        raise ValueError("CIRCUIT: has edges with positions; a page to explore needs one without")
    most = max(MOST, len(circuit))
    if scores is None:
        return explore(circuit, truth, title=title, size=len(circuit), most=most).page
    import torch

    from ..discovery import EdgeScores

    values = torch.zeros(circuit.graph.edge_mask.shape, dtype=torch.float64)
    for edge, score in scores.items():
        values[circuit.graph.index(edge)] = score
    named = {
        "scores": EdgeScores(circuit.graph, values, "scores", task=circuit.task, ablation=circuit.ablation),
        "circuit": circuit,
    }
    return explore(named, truth, title=title, size=len(circuit), most=most).page


def _picture(circuit, scores: dict | None, title: str | None, out: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    # The same circuit gives the same file: no date in it, no ids drawn at random.
    matplotlib.rcParams["svg.hashsalt"] = "circuitlib"
    from ..plotting import plot_circuit

    figure = plot_circuit(circuit, scores, title)
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(out.suffix, {})
    with whole(out) as temporary:
        figure.savefig(temporary, metadata=undated)


def _eap_ig(circuit, scores: dict | None, out: Path, d_model: int | None, quiet: bool) -> None:
    if circuit.graph.mlps and d_model is None:
        d_model = _usual_width(circuit.graph)
        common.say(f"d_model: {d_model}, the width of the book's model of this shape; --d-model says another", quiet)
    with whole(out) as temporary:
        circuit.to_eap_ig(temporary, scores, d_model=d_model)


def _usual_width(graph) -> int:
    from ..models.registry import REGISTRY

    shape = (graph.n_layers, graph.n_heads, graph.mlps)
    widths = {model.d_model for model in REGISTRY.values() if (model.n_layers, model.n_heads, model.mlps) == shape}
    if len(widths) != 1:
        raise ValueError(f"--d-model: expected the model's width, for {graph!r} is of no model of the book")
    return widths.pop()


def _export_model(name: str, folder: Path) -> None:
    """A shipped model that is an ordinary Hugging Face directory already; checked, and copied whole or not at all."""
    import json
    import shutil
    import tempfile

    from ..models import info
    from ..models.load import check_files

    entry = info(name)
    if entry.family == "folder" and entry.mlps:
        raise ValueError(f"--model: {name} is a folder that transformers reads as it is; expected gpt-mini")
    if entry.family != "shipped" or "model_type" not in json.loads((entry.folder / "config.json").read_text("utf8")):
        raise ValueError(f"--model: {name} has no form that transformers knows; expected gpt-mini")
    if folder.exists():
        raise ValueError(f"--out: {folder} is there; expected a new folder")
    if not folder.absolute().parent.is_dir():
        raise ValueError(f"--out: expected a new folder in one that exists, got {folder}")
    check_files(entry.folder)
    with tempfile.TemporaryDirectory(dir=folder.absolute().parent) as scratch:
        shutil.copytree(entry.folder, Path(scratch) / "new")
        (Path(scratch) / "new").replace(folder)
