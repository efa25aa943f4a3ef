"""The folder of a model: what ``circuitlib train`` writes, or any GPT-2 that transformers' ``save_pretrained`` wrote.

A folder is somebody else's word until it is checked. Nothing in it is run: weights are read from safetensors alone, the
configuration is made of numbers that were looked at one by one, and a file of weights must hold the tensors that the
configuration asks for, of these shapes, before any memory is taken for them.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import Missing
from .hub import (
    MANIFEST,
    MAX_MANIFEST_BYTES,
    TIMES_THE_FILE,
    TOKENIZER_FILES,
    _one_line,
    _recorded,
    is_out_of_memory,
    require_memory,
    sha256,
)
from .registry import REGISTRY, ModelInfo, shown

CONFIG, WEIGHTS = "config.json", "model.safetensors"
MAX_CONFIG_BYTES = 2**20
MAX_TOKENIZER_BYTES = 64 * 2**20
TASKS = {True: ("ioi", "greater_than", "induction"), False: ("docstring", "induction")}  # by whether it has MLPs
FLOATS = ("F32", "F16", "BF16", "F64")
SHOWN = 60  # characters of a wrong value in a message

# Sizes by the name that each of the two kinds of config.json gives them, and the most that is believed.
SIZES = {
    "native": {"n_layers": 512, "n_heads": 512, "d_model": 2**16, "d_head": 2**16, "n_ctx": 2**16, "d_vocab": 2**22},
    "gpt2": {"n_layer": 512, "n_head": 512, "n_embd": 2**16, "n_positions": 2**16, "vocab_size": 2**22},
}
# Of what ``circuitlib train`` writes the rest is always the same.
NATIVE = {"attn_only": True, "normalization_type": "LN", "act_fn": "gelu"}
GPT2_SWITCHES = {"tie_word_embeddings": True, "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "reorder_and_upcast_attn": False, "add_cross_attention": False}  # fmt: skip


def describe(name: str) -> ModelInfo | None:
    """The entry of a folder of a model, from its config.json; None if there is no such folder. Loads no torch.

    Raises:
        ValueError: a folder that holds no model, or one that can't be used; one line.
    """
    if not os.path.isdir(name):
        return None
    if not name.isprintable():
        raise ValueError(f"unknown model {shown(name)}: expected a folder whose name can be printed")
    folder = Path(name)
    _check_has_model(name, folder)
    config = read_config(folder)
    if "model_type" in config:
        return ModelInfo(name, "folder", config["n_layer"], config["n_head"], config["n_embd"], True, TASKS[True])
    return ModelInfo(name, "folder", config["n_layers"], config["n_heads"], config["d_model"], False, TASKS[False])


def read_config(folder: Path) -> dict[str, Any]:
    """What the folder's config.json says, as far as it is needed to build the model; checked.

    Returns:
        for a GPT-2 ``model_type`` and arguments of ``GPT2Config``; else those of a native ``TransformerBridgeConfig``.
    """
    path = folder / CONFIG
    stated = _read_json(path, MAX_CONFIG_BYTES)
    _refuse_code(path, stated)
    if "model_type" not in stated:
        return _native(path, stated)
    if stated["model_type"] != "gpt2":
        raise ValueError(
            f"{path}: model_type is {_shown(stated['model_type'])}, expected 'gpt2', the one kind of Hugging Face model that "
            "cl.Engine runs, or what `circuitlib train` writes"
        )
    return _gpt2(path, stated)


def load_folder(entry: ModelInfo):
    """Boot a bridge from the folder of a model, with raw weights in float32.

    Raises:
        ValueError: a file that is damaged, or that does not fit the others; one line.
        Missing: the weights need more memory than there is.
    """
    folder = entry.folder.absolute()
    check_sums(folder)
    config = read_config(folder)
    try:
        expected = _shapes(config)
    except Exception as error:
        raise ValueError(f"{folder / CONFIG}: no such model can be built ({_one_line(error)})") from error
    weights = read_weights(entry.name, folder / WEIGHTS, expected, config.get("tie_word_embeddings", False))
    d_vocab = config["vocab_size" if "model_type" in config else "d_vocab"]
    tokenizer = load_tokenizer(folder, d_vocab, "model_type" in config)
    boot = _boot_gpt2 if "model_type" in config else _boot_native
    try:
        return boot(folder, config, weights, tokenizer)
    except Exception as error:
        if is_out_of_memory(error):
            raise Missing(f"model {shown(entry.name)} does not fit into the memory of this computer") from None
        raise ValueError(f"{folder}: the model can't be built ({_one_line(error)})") from error


def fingerprint(folder: Path) -> tuple[str, str]:
    """SHA-256 of the file of weights; and of all else that makes the model, configuration and tokenizer."""
    rest = hashlib.sha256()
    for file in (folder / CONFIG, *_tokenizer_files(folder)):
        rest.update(f"{file.name} {sha256(_ordinary(file))}\n".encode())
    return sha256(_ordinary(folder / WEIGHTS)), rest.hexdigest()


# What must be there ------------------------------------------------------------------------------


def _check_has_model(name: str, folder: Path) -> None:
    if not os.path.isfile(folder / CONFIG):
        inside = next((one for one in REGISTRY if os.path.isfile(folder / one / CONFIG)), None)
        hint = f"; did you mean {shown(str(folder / inside))}?" if inside else ""
        raise ValueError(
            f"unknown model {shown(name)}: the folder has no {CONFIG}, expected one that `circuitlib train` or transformers' "
            f"save_pretrained wrote{hint}"
        )
    if os.path.isfile(folder / WEIGHTS):
        return
    if os.path.isfile(folder / f"{WEIGHTS}.index.json"):
        raise ValueError(
            f"unknown model {shown(name)}: its weights are in several files, expected one, {WEIGHTS}; save it again with a larger max_shard_size"
        )
    if pickles := sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern)):
        raise ValueError(
            f"unknown model {shown(name)}: {_shown(pickles[0])} is a pickle, which may run code when it is read, expected "
            f"{WEIGHTS}; save it again with transformers' save_pretrained"
        )
    raise ValueError(f"unknown model {shown(name)}: the folder has no {WEIGHTS}")


def check_sums(folder: Path) -> None:
    """Compare what is read with the folder's SHA256SUMS, if it has one."""
    path = folder / MANIFEST
    if not os.path.lexists(path):
        return
    try:
        recorded = _recorded(path, _read(path, MAX_MANIFEST_BYTES))
    except Missing as error:
        raise ValueError(str(error)) from None
    recorded = {file.removeprefix("./"): digest for file, digest in recorded.items()}
    for file in (folder / CONFIG, folder / WEIGHTS, *_tokenizer_files(folder)):
        if (expected := recorded.get(file.name)) is None:
            raise ValueError(f"{file} is not in {MANIFEST}; copy the folder again, or delete that file")
        if (found := sha256(_ordinary(file))) != expected:
            raise ValueError(
                f"{file} is damaged: its SHA-256 is {found}, expected {expected}; copy the folder again, or train the model again"
            )


def _tokenizer_files(folder: Path) -> list[Path]:
    return sorted({file for pattern in (*TOKENIZER_FILES, "added_tokens.json") for file in folder.glob(pattern)})


# config.json -------------------------------------------------------------------------------------


def _native(path: Path, stated: Mapping[str, Any]) -> dict[str, Any]:
    sizes = _sizes(path, stated, SIZES["native"])
    for key, expected in NATIVE.items():
        if stated.get(key) != expected:
            raise ValueError(f"{path}: {key}: expected {expected!r}, got {_shown(stated.get(key))}")
    if unknown := set(stated) - set(sizes) - set(NATIVE):
        raise ValueError(f"{path}: {_shown(min(unknown))} is unknown, expected what `circuitlib train` writes")
    return sizes | NATIVE


def _gpt2(path: Path, stated: Mapping[str, Any]) -> dict[str, Any]:
    config = {"model_type": "gpt2", **_sizes(path, stated, SIZES["gpt2"])}
    if config["n_embd"] % config["n_head"]:
        raise ValueError(f"{path}: n_embd: expected a multiple of n_head, {config['n_head']}, got {config['n_embd']}")
    inner = stated.get("n_inner")
    config |= {"n_inner": None} if inner is None else _sizes(path, stated, {"n_inner": 2**20})
    for key, usual in GPT2_SWITCHES.items():
        if type(value := stated.get(key, usual)) is not bool:
            raise ValueError(f"{path}: {key}: expected true or false, got {_shown(value)}")
        config[key] = value
    if config.pop("add_cross_attention"):
        raise ValueError(f"{path}: add_cross_attention: expected false, a language model alone")
    config["activation_function"] = stated.get("activation_function", "gelu_new")
    if not isinstance(config["activation_function"], str):
        raise ValueError(f"{path}: activation_function: expected a name, got {_shown(config['activation_function'])}")
    config["layer_norm_epsilon"] = epsilon = stated.get("layer_norm_epsilon", 1e-5)
    if type(epsilon) not in (int, float) or not (math.isfinite(epsilon) and 0 < epsilon <= 1):
        raise ValueError(f"{path}: layer_norm_epsilon: expected a number between 0 and 1, got {_shown(epsilon)}")
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        known = type(stated.get(key)) is int and 0 <= stated[key] < config["vocab_size"]
        config[key] = stated[key] if known else None
    return config


def _sizes(path: Path, stated: Mapping[str, Any], most: Mapping[str, int]) -> dict[str, int]:
    for key, limit in most.items():
        if type(value := stated.get(key)) is not int or not 1 <= value <= limit:
            got = _shown(value) if key in stated else "nothing"
            raise ValueError(f"{path}: {key}: expected an integer from 1 to {limit:,}, got {got}")
    return {key: stated[key] for key in most}


def _refuse_code(path: Path, stated: Mapping[str, Any]) -> None:
    if "auto_map" in stated:
        raise ValueError(f"{path}: auto_map names code that the model brings along, which is never run; expected none")


# Weights and tokenizer ---------------------------------------------------------------------------


def _shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Tensors of such a model, by the names in its file."""
    if "model_type" not in config:
        return _native_shapes(**{name: config[name] for name in SIZES["native"]})
    import torch
    from transformers import GPT2LMHeadModel

    with torch.device("meta"):  # shapes alone
        model = GPT2LMHeadModel(_gpt2_config(config))
    return {_plain(name): tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def _native_shapes(n_layers: int, n_heads: int, d_model: int, d_head: int, n_ctx: int, d_vocab: int) -> dict:
    inner, norm = n_heads * d_head, {"weight": (d_model,), "bias": (d_model,)}
    parts = {"embed": {"weight": (d_vocab, d_model)}, "pos_embed": {"weight": (n_ctx, d_model)}, "ln_final": norm}
    parts["unembed"] = {"weight": (d_vocab, d_model), "bias": (d_vocab,)}
    for layer in range(n_layers):
        parts[f"blocks.{layer}.ln1"] = norm
        parts |= {f"blocks.{layer}.attn.{x}": {"weight": (inner, d_model), "bias": (inner,)} for x in "qkv"}
        parts[f"blocks.{layer}.attn.o"] = {"weight": (d_model, inner), "bias": (d_model,)}
    return {f"{part}.{name}": shape for part, tensors in parts.items() for name, shape in tensors.items()}


def read_weights(name: str, path: Path, expected: Mapping[str, tuple[int, ...]], tied: bool) -> dict:
    """The tensors of a safetensors file, in float32: all that are expected, of these shapes, and no others.

    Args:
        tied: whether the unembedding is the embedding, and may be left out.
    """
    from safetensors import safe_open
    from safetensors.torch import load_file

    try:
        with safe_open(_ordinary(path), "pt") as file:
            stored = {key: file.get_slice(key) for key in file.keys()}
            found = {key: (tuple(one.get_shape()), one.get_dtype()) for key, one in stored.items() if not _is_mask(key)}
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"{path}: not a safetensors file ({_one_line(error)})") from None
    _check_tensors(path, found, expected, tied)
    require_memory(name, TIMES_THE_FILE["transformers"] * 4 * sum(math.prod(shape) for shape, _ in found.values()))
    return {_plain(key): tensor.float() for key, tensor in load_file(path).items() if key in found}


def _check_tensors(path: Path, found: Mapping[str, tuple], expected: Mapping[str, tuple], tied: bool) -> None:
    shapes = {_plain(key): shape for key, (shape, _) in found.items()}
    for key, (_, dtype) in found.items():
        if dtype not in FLOATS:
            raise ValueError(f"{path}: {_shown(key)} is of the type {dtype}, expected one of {', '.join(FLOATS)}")
    for key, shape in expected.items():
        if key not in shapes and not (tied and key == "lm_head.weight"):
            raise ValueError(f"{path}: has no tensor {key!r}, which {CONFIG} asks for")
        if shapes.get(key, shape) != shape:
            raise ValueError(f"{path}: {key!r} has the shape {list(shapes[key])}, {CONFIG} asks for {list(shape)}")
    if len(shapes) < len(found):
        raise ValueError(f"{path}: has a tensor twice, with and without 'transformer.' before its name")
    if unknown := sorted(shapes.keys() - expected.keys()):
        raise ValueError(f"{path}: has a tensor {_shown(unknown[0])}, which such a model does not have")


def _plain(key: str) -> str:
    """Older files leave out GPT-2's "transformer."."""
    return key.removeprefix("transformer.")


def _is_mask(key: str) -> bool:
    """What older GPT-2 files hold besides weights: which positions a position may look at."""
    return _plain(key).startswith("h.") and key.endswith((".attn.bias", ".attn.masked_bias"))


def load_tokenizer(folder: Path, d_vocab: int, gpt2: bool):
    """The folder's tokenizer: its files alone, and no code of its own."""
    from transformers import AutoTokenizer

    files = _tokenizer_files(folder)
    for file in files:
        _read(file, MAX_TOKENIZER_BYTES)
    names = {file.name for file in files}
    if "tokenizer.json" not in names and not {"vocab.json", "merges.txt"} <= names:
        raise ValueError(f"{folder}: has no tokenizer.json, nor vocab.json with merges.txt")
    if "tokenizer_config.json" in names:
        path = folder / "tokenizer_config.json"
        _refuse_code(path, _read_json(path, MAX_TOKENIZER_BYTES))
    # TransformerLens asks for BOS where it loads a GPT-2's tokenizer itself.
    asked = {"add_bos_token": True} if gpt2 else {}
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **asked)
    except Exception as error:
        raise ValueError(f"{folder}: the tokenizer can't be read ({_one_line(error)})") from error
    if tokenizer.bos_token_id is None:
        raise ValueError(f"{folder}: the tokenizer has no BOS token, with which every prompt begins")
    if len(tokenizer) > d_vocab:
        raise ValueError(f"{folder}: the tokenizer has {len(tokenizer):,} tokens, {CONFIG} says {d_vocab:,}")
    return tokenizer


# Booting -----------------------------------------------------------------------------------------


def _boot_native(folder: Path, config: Mapping[str, Any], weights: dict, tokenizer):
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge import TransformerBridge

    model = TransformerBridge.boot_native(TransformerBridgeConfig(**config, seed=0), tokenizer=tokenizer)
    model.load_state_dict(weights, strict=True)
    return model


def _boot_gpt2(folder: Path, config: Mapping[str, Any], weights: dict, tokenizer):
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import GPT2LMHeadModel

    from .load import no_progress_bar

    with no_progress_bar():
        plain = GPT2LMHeadModel.from_pretrained(None, config=_gpt2_config(config), state_dict=weights)
    return TransformerBridge.boot_transformers(str(folder), hf_model=plain, tokenizer=tokenizer, device="cpu")


def _gpt2_config(config: Mapping[str, Any]):
    from transformers import GPT2Config

    return GPT2Config(**{key: value for key, value in config.items() if key != "model_type"})


# Reading -----------------------------------------------------------------------------------------


def _read_json(path: Path, most: int) -> dict[str, Any]:
    try:
        content = json.loads(_read(path, most).decode("utf8"))
    except RecursionError:
        raise ValueError(f"{path}: not valid JSON (nested too deep)") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected an object, got {type(content).__name__}")
    return content


def _read(path: Path, most: int) -> bytes:
    """An ordinary file of at most ``most`` bytes."""
    with _ordinary(path).open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"{path}: more than {most:,} bytes, expected at most that")
    return content


def _ordinary(path: Path) -> Path:
    """The path, if it is that of a file that can be read: a pipe would keep whoever reads it waiting."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ValueError(f"{path}: can't be read (not an ordinary file)")
        with path.open("rb"):
            return path
    except OSError as error:
        raise ValueError(f"{path}: can't be read ({error.strerror or type(error).__name__})") from None


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
