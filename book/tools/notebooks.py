"""Run the chapters and write them in one canonical form, so that two runs give byte-identical files.

    python book/tools/notebooks.py execute                 # run every chapter, then write it
    python book/tools/notebooks.py canonical FILE …        # rewrite without running
    python book/tools/notebooks.py check                   # is every chapter in canonical form? exit 1 if not

A notebook that was run twice differs in time stamps, random widget ids, the order of widget models and the way
a stream was cut into pieces. None of that says anything, so none of it is kept.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import copy
import hashlib
import json
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"
SETUP_CELL = Path(__file__).with_name("setup_cell.ipy")

WIDGET_STATE = "application/vnd.jupyter.widget-state+json"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
CELL_METADATA = ("mystnb", "slideshow", "tags")
SKIP_TAG = "nbval-skip"
PICTURE_TAG = "readme-picture"
README_PICTURE = ROOT / "book" / "_static" / "residual_stream.png"

# What a run must not depend on: progress bars, threads, the order of sets, the network.
RUN_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",
    "WANDB_MODE": "disabled",
}


def chapters(folder: Path = NOTEBOOKS) -> list[Path]:
    """The notebooks of the book in order; FileNotFoundError if there are none."""
    found = sorted(folder.glob("*.ipynb"))
    if not found:
        raise FileNotFoundError(f"{folder.name}/ holds no notebook: expected at least 01_activation_patching.ipynb")
    return found


def read(path: Path) -> dict:
    return json.loads(path.read_text("utf8"))


def execute(notebook: dict, folder: Path, timeout: int = 900) -> dict:
    """Run every cell in a fresh kernel that starts in ``folder``; a new notebook comes back.

    Raises nbclient's CellExecutionError if a cell fails that is not tagged ``raises-exception``.
    """
    import nbformat
    from nbclient import NotebookClient

    os.environ.update(RUN_ENVIRONMENT)
    running = nbformat.reads(json.dumps(notebook), as_version=4)
    running.metadata.pop("widgets", None)
    client = NotebookClient(
        running,
        timeout=timeout,
        startup_timeout=180,
        kernel_name="python3",
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(folder)}},
        skip_cells_with_tag=SKIP_TAG,
        record_timing=False,
        store_widget_state=True,
    )
    asyncio.run(client.async_execute())
    return running


def canonical(notebook: dict) -> dict:
    """The same notebook with everything removed that differs from one run to the next.

    Kept: sources, tags, ``mystnb`` settings, execution counts, outputs, and the widget models that a cell shows.
    """
    cells = [_cell(cell) for cell in notebook["cells"]]
    _name_cells(cells)
    metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python", "pygments_lexer": "ipython3"},
    }
    state = notebook["metadata"].get("widgets", {}).get(WIDGET_STATE, {}).get("state", {})
    models = _widgets(cells, state)
    if models:
        metadata["widgets"] = {WIDGET_STATE: {"state": models, "version_major": 2, "version_minor": 0}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def dumps(notebook: dict) -> str:
    """The bytes of a canonical notebook as text: keys sorted, one space of indentation, a newline at the end."""
    return json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _text(source: str | list[str]) -> str:
    return source if isinstance(source, str) else "".join(source)


def _lines(text: str | list[str]) -> list[str]:
    return _text(text).splitlines(keepends=True)


def _cell(cell: dict) -> dict:
    kept = {
        "cell_type": cell["cell_type"],
        "metadata": {key: cell["metadata"][key] for key in CELL_METADATA if cell["metadata"].get(key)},
        "source": _lines(_text(cell["source"]).rstrip("\n")),
    }
    if cell.get("attachments"):
        kept["attachments"] = cell["attachments"]
    if cell["cell_type"] == "code":
        kept["execution_count"] = cell.get("execution_count")
        kept["outputs"] = _outputs(cell.get("outputs", []))
    return kept


def _outputs(outputs: list[dict]) -> list[dict]:
    """Outputs in order; pieces of one stream joined; a traceback, which holds paths, cut to its last line."""
    kept: list[dict] = []
    for output in outputs:
        kind = output["output_type"]
        if kind == "stream":
            if kept and kept[-1]["output_type"] == "stream" and kept[-1]["name"] == output["name"]:
                kept[-1]["text"] = _lines(_text(kept[-1]["text"]) + _text(output["text"]))
            else:
                kept.append({"name": output["name"], "output_type": kind, "text": _lines(output["text"])})
        elif kind == "error":
            last = f"{output['ename']}: {output['evalue']}"
            kept.append(
                {"ename": output["ename"], "evalue": output["evalue"], "output_type": kind, "traceback": [last]}
            )
        else:
            item = {"data": _data(output["data"]), "metadata": output.get("metadata", {}), "output_type": kind}
            if kind == "execute_result":
                item["execution_count"] = output["execution_count"]
            kept.append(item)
    return kept


def _data(data: dict) -> dict:
    """Text as a list of lines, pictures as one string without a newline at its end, JSON as it is."""
    kept = {}
    for mime, value in data.items():
        if not isinstance(value, str | list):
            kept[mime] = copy.deepcopy(value)
        elif mime.startswith("image/") and mime != "image/svg+xml":
            kept[mime] = _text(value).strip()
        else:
            kept[mime] = _lines(value)
    return kept


def _name_cells(cells: list[dict]) -> None:
    """An id from what the cell says: it stays when another cell is added, and is the same on every machine."""
    seen: dict[str, int] = {}
    for cell in cells:
        name = hashlib.sha256(f"{cell['cell_type']}\n{_text(cell['source'])}".encode()).hexdigest()[:12]
        seen[name] = seen.get(name, 0) + 1
        cell["id"] = name if seen[name] == 1 else f"{name}-{seen[name]}"


def _widgets(cells: list[dict], state: dict) -> dict:
    """The models that the cells show, renamed in the order in which they are met; views are renamed in place."""
    order: list[str] = []

    def visit(model: str) -> None:
        if model in state and model not in order:
            order.append(model)
            for reference in _references(state[model]):
                visit(reference)

    views = [
        output["data"][WIDGET_VIEW]
        for cell in cells
        for output in cell.get("outputs", [])
        if WIDGET_VIEW in output.get("data", {})
    ]
    for view in views:
        visit(view["model_id"])
    for model in _links(state, order):
        visit(model)

    names = {model: hashlib.sha256(f"widget {i}".encode()).hexdigest()[:32] for i, model in enumerate(order)}
    for view in views:
        view["model_id"] = names.get(view["model_id"], view["model_id"])
    if not order:
        return {}
    pattern = re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))))
    renamed = {
        names[model]: json.loads(pattern.sub(lambda m: names[m[0]], json.dumps(state[model]))) for model in order
    }
    for model in renamed.values():
        if model.get("model_name") == "OutputModel":
            model["state"]["msg_id"] = ""
            model["state"]["outputs"] = _outputs(model["state"].get("outputs", []))
    return renamed


def _references(model: dict) -> list[str]:
    return re.findall(r"IPY_MODEL_([\w-]+)", json.dumps(model, sort_keys=True))


def _links(state: dict, shown: list[str]) -> list[str]:
    """Links between widgets that are shown. Nothing shows a link itself, so no walk from the cells finds it."""
    position = {model: i for i, model in enumerate(shown)}
    links = []
    for name, model in state.items():
        ends = _references(model)
        if "LinkModel" in model.get("model_name", "") and ends and all(end in position for end in ends):
            links.append(([position[end] for end in ends], model["model_name"], name))
    return [name for *_, name in sorted(links)]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run the chapters and write them in canonical form.")
    parser.add_argument("job", choices=["execute", "canonical", "check"])
    parser.add_argument("files", nargs="*", type=Path, help="notebooks; default: all of notebooks/")
    options = parser.parse_args(arguments)
    try:
        files = options.files or chapters()
        return {"execute": _execute, "canonical": _rewrite, "check": _check}[options.job](files)
    except (FileNotFoundError, json.JSONDecodeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _execute(files: list[Path]) -> int:
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    for path in files:
        print(f"running {path.name}", flush=True)
        try:
            _write(path, execute(read(path), path.resolve().parent))
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            print(f"error: {path.name} is left as it was, because a cell failed:\n{error}", file=sys.stderr)
            return 1
    return 0


def _rewrite(files: list[Path]) -> int:
    for path in files:
        _write(path, read(path))
    return 0


def _check(files: list[Path]) -> int:
    wrong = [path for path in files if dumps(canonical(read(path))) != path.read_text("utf8")]
    for path in wrong:
        print(f"error: {path.name} is not in canonical form: run 'make execute'", file=sys.stderr)
    return 1 if wrong else 0


def _write(path: Path, notebook: dict) -> None:
    """Write through a neighbouring file, so that an interrupted run never leaves half a notebook."""
    text = dumps(canonical(notebook))
    print(f"{path.name}: {'unchanged' if text == path.read_text('utf8') else 'written'}", flush=True)
    part = path.with_suffix(".part")
    part.write_text(text, "utf8")
    part.replace(path)
    if path.resolve().parent == NOTEBOOKS:
        write_readme_picture(notebook)


def readme_picture(notebook: dict) -> bytes | None:
    """The picture of the cell tagged ``readme-picture``, if the notebook has one."""
    for cell in notebook["cells"]:
        if PICTURE_TAG in cell["metadata"].get("tags", []):
            shown = [output["data"] for output in cell["outputs"] if "image/png" in output.get("data", {})]
            return base64.b64decode(_text(shown[0]["image/png"])) if shown else None
    return None


def write_readme_picture(notebook: dict) -> None:
    """The README shows a picture of a chapter: the same bytes, so that it can't get out of step."""
    picture = readme_picture(notebook)
    if picture is not None:
        README_PICTURE.write_bytes(picture)


if __name__ == "__main__":
    sys.exit(main())
