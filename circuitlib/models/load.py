"""``load_model``: one door to every model of the book. Raw weights: nothing is folded or centred."""

from __future__ import annotations

import hashlib
import json
from contextlib import contextmanager
from pathlib import Path

from .errors import Missing
from .folder import load_folder
from .hub import load_from_hub
from .registry import ModelInfo, info


def load_model(name: str | Path, device: str = "cpu"):
    """Load a model as a TransformerLens ``TransformerBridge``, in eval mode, with raw weights.

    Args:
        name: a name of ``cl.models()``; or the folder of a model that ``circuitlib train`` wrote, or of a GPT-2 that
            transformers' ``save_pretrained`` wrote: config.json, model.safetensors and the tokenizer's files. Nothing in a folder
            is run, and if it has a file SHA256SUMS, what is read is compared with that.
        device: where to put it: "cpu", on which the book's numbers are made, "cuda", "cuda:1", "mps"; or "auto" for a GPU
            if there is one that TransformerLens trusts (it does not trust MPS unless TRANSFORMERLENS_ALLOW_MPS=1 is set).
            Tasks and engines follow the model. Everything stays in float32.

    Raises:
        ValueError: an unknown name (the message lists the names), a shipped file that is damaged
            (the message names the file and both hashes), or a folder that can't be used.
        Missing: a Hub model that is not on this computer while the Hub can't be reached (then also a ConnectionError; within
            10 seconds), whose files are incomplete or damaged, or that needs more memory than there is; a device that this
            computer does not have.
    """
    loaders = {"shipped": load_shipped, "hand-made": load_handmade, "hub": load_from_hub, "folder": load_folder}
    entry = info(name)
    if device != "cpu":  # which is always there; asking loads torch, and a model that can't be had needs no torch
        device = device_named(device)
    # ``to``, even if nothing moves: where there is a GPU, a native model's configuration names it while the weights are on the CPU.
    model = loaders[entry.family](entry).eval().to(device, print_details=False)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    name = (
        str(entry.folder.absolute()) if entry.family == "folder" else entry.name
    )  # whatever the current folder becomes
    model.circuitlib_name = name
    return model


def device_named(device: str) -> str:
    """``device``, or what "auto" stands for here, after a look whether this computer has it."""
    import torch
    from transformer_lens.utilities.devices import get_device

    device = get_device() if device == "auto" else str(device)
    try:
        known = torch.device(device).type != "meta"  # a device that holds no numbers
    except RuntimeError:
        known = False
    if not known:
        raise ValueError(f"device: expected 'cpu', 'cuda', 'cuda:1', 'mps' or 'auto', got {device!r}")
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise Missing(f"device {device!r} is not there, or PyTorch was built without it; 'cpu' always is") from None
    return device


def load_shipped(entry: ModelInfo, folder: Path | None = None):
    """Boot a bridge from the files in ``folder`` (default: the entry's), after checking their hashes.

    A folder is an ordinary Hugging Face directory, or holds the weights of a native, attention-only bridge.
    """
    from safetensors.torch import load_file
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import AutoTokenizer

    folder = entry.folder if folder is None else folder
    check_files(folder)
    config = json.loads((folder / "config.json").read_text("utf8"))
    if "model_type" in config:
        with no_progress_bar():
            return TransformerBridge.boot_transformers(str(folder), device="cpu")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = TransformerBridge.boot_native(TransformerBridgeConfig(**config, seed=0), tokenizer=tokenizer)
    model.load_state_dict(load_file(folder / "model.safetensors"), strict=True)
    return model


@contextmanager
def no_progress_bar():
    """Without the bar that transformers draws while it reads a file of a second."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def load_handmade(entry: ModelInfo):
    """Build the weights: they are a function, not a file."""
    from .handmade import build

    return build(entry.name)


def check_files(folder: Path) -> None:
    """Compare every file named in ``SHA256SUMS`` with the hash that stands there."""
    for line in (folder / "SHA256SUMS").read_text("utf8").splitlines():
        recorded, name = line.split(maxsplit=1)
        found = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        if found != recorded:
            raise ValueError(
                f"{folder / name} is damaged: its SHA-256 is {found}, expected {recorded}; install circuitlib again"
            )
