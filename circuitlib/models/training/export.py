"""From a finished run to a shipped folder: weights, tokenizer, configuration, log, card and hashes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

from safetensors.torch import load_file, save_file

from .train import Recipe

HASHED = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "training_log.jsonl")


def export(recipe: Recipe, tokenizer, run: Path, folder: Path) -> None:
    """Write the shipped files of a run into ``folder``; nothing there changes until all of them are ready."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        new = Path(scratch) / "new"
        new.mkdir()
        state = load_file(run / "checkpoint.safetensors")
        weights = {name[6:]: value for name, value in state.items() if name.startswith("model.")}
        save_file(weights, new / "model.safetensors", metadata={"format": "pt"})
        config = recipe.shape | {
            "d_vocab": len(tokenizer),
            "attn_only": True,
            "normalization_type": "LN",
            "act_fn": "gelu",
        }
        (new / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf8")
        tokenizer.save_pretrained(new)
        shutil.copy(run / "log.jsonl", new / "training_log.jsonl")
        write_hashes(new)
        if folder.exists():
            folder.rename(Path(scratch) / "old")
        os.replace(new, folder)


def write_hashes(folder: Path) -> None:
    """``SHA256SUMS``, in the format that ``sha256sum --check`` reads."""
    lines = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in HASHED]
    (folder / "SHA256SUMS").write_text("".join(lines), "utf8")
