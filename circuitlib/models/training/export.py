"""From a finished run to a shipped folder: weights, tokenizer, configuration, log, card and hashes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from .train import Recipe


def export(recipe: Recipe, tokenizer, run: Path, folder: Path) -> None:
    """Write the shipped files of a run into ``folder``; nothing there changes until all of them are ready."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        new = Path(scratch) / "new"
        new.mkdir()
        state = load_file(run / "checkpoint.safetensors")
        weights = {name[6:]: value for name, value in state.items() if name.startswith("model.")}
        write = write_gpt2 if "d_mlp" in recipe.shape else write_native
        write(recipe, tokenizer, weights, new)
        tokenizer.save_pretrained(new)
        shutil.copy(run / "log.jsonl", new / "training_log.jsonl")
        write_hashes(new)
        old = Path(scratch) / "old"
        if folder.exists():
            folder.rename(old)
        try:
            os.replace(new, folder)
        except OSError:
            if old.exists():
                old.rename(folder)
            raise


def write_native(recipe: Recipe, tokenizer, weights: dict[str, Tensor], folder: Path) -> None:
    """An attention-only model: weights and configuration of a native ``TransformerBridge``."""
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = recipe.shape | {
        "d_vocab": len(tokenizer),
        "attn_only": True,
        "normalization_type": "LN",
        "act_fn": "gelu",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf8")


def write_gpt2(recipe: Recipe, tokenizer, weights: dict[str, Tensor], folder: Path) -> None:
    """A model with MLPs: an ordinary Hugging Face GPT-2, with tied embeddings."""
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = recipe.shape
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=shape["n_ctx"],
        n_embd=shape["d_model"],
        n_layer=shape["n_layers"],
        n_head=shape["n_heads"],
        n_inner=shape["d_mlp"],
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    model = GPT2LMHeadModel(config)
    model.load_state_dict(gpt2_weights(weights, shape["n_layers"]), strict=True)
    model.save_pretrained(folder)


def gpt2_weights(weights: dict[str, Tensor], n_layers: int) -> dict[str, Tensor]:
    """The same weights under GPT-2's names: q, k and v side by side, and matrices as [in, out]."""
    new = {"lm_head.weight": weights["embed.weight"]}
    for name, target in (("embed", "wte"), ("pos_embed", "wpe")):
        new[f"transformer.{target}.weight"] = weights[f"{name}.weight"]
    for part in ("weight", "bias"):
        new[f"transformer.ln_f.{part}"] = weights[f"ln_final.{part}"]
        for layer in range(n_layers):
            ours, theirs = f"blocks.{layer}", f"transformer.h.{layer}"
            joined = torch.cat([weights[f"{ours}.attn.{x}.{part}"] for x in "qkv"])
            for name, target in (("attn.o", "attn.c_proj"), ("mlp.in", "mlp.c_fc"), ("mlp.out", "mlp.c_proj")):
                new[f"{theirs}.{target}.{part}"] = weights[f"{ours}.{name}.{part}"]
            new[f"{theirs}.attn.c_attn.{part}"] = joined
            for norm in (1, 2):
                new[f"{theirs}.ln_{norm}.{part}"] = weights[f"{ours}.ln{norm}.{part}"]
    matrices = (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")
    return {name: (value.T if name.endswith(matrices) else value).contiguous() for name, value in new.items()}


def write_hashes(folder: Path) -> None:
    """``SHA256SUMS`` of all files but the card, in the format that ``sha256sum --check`` reads."""
    names = sorted(file.name for file in folder.iterdir() if file.name not in ("README.md", "SHA256SUMS"))
    lines = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    (folder / "SHA256SUMS").write_text("".join(lines), "utf8")
