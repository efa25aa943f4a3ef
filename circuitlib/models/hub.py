"""Models of the Hugging Face Hub: found on this computer or downloaded, then booted with raw weights.

They are looked for in the folder that the environment variable CIRCUITLIB_MODELS names, and nowhere else if it is set:
for a classroom, where thirty people can't each download half a gigabyte. Else in the Hub's own cache, and then on the Hub.
Both folders are laid out alike. The classroom's has a file SHA256SUMS beside the models, against which each file is checked.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import threading
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

from .errors import Missing, NoNetwork
from .registry import ModelInfo, info

log = logging.getLogger(__name__)

HUB_SECONDS = 6.0
MANIFEST = "SHA256SUMS"
MAX_MANIFEST_BYTES = 2**20
REVISION = re.compile(r"\w[\w-]{0,99}")
LINE = re.compile(r"([0-9a-f]{64}) [ *](\S.*)")
TOKENIZER_FILES = ("tokenizer*.json", "special_tokens_map.json", "vocab.json", "merges.txt")
# Of a repository only what is named here is downloaded; of the patterns in NEEDED each must match a file.
NEEDED = {
    "legacy": ("config.json", "*final.pth"),
    "transformers": ("config.json", "model.safetensors", "tokenizer.json"),
}
# Memory that loading and one engine take, as a multiple of the file of weights. Measured: 2.7 and 1.7.
TIMES_THE_FILE = {"legacy": 3.0, "transformers": 2.0}
CONTAINER = Path("/sys/fs/cgroup")


def load_from_hub(entry: ModelInfo):
    """Boot a model of the Hub: ``attn-only-4l`` from its legacy checkpoint, others through transformers.

    Raises:
        Missing: the Hub can't be reached, a download is incomplete or damaged, or there is too little memory.
    """
    kind = kind_of(entry)
    folder = snapshot(entry.name, entry.repo, NEEDED[kind], TOKENIZER_FILES if kind == "transformers" else ())
    weights = next(folder.glob(NEEDED[kind][1]))
    require_memory(entry.name, TIMES_THE_FILE[kind] * weights.stat().st_size)
    boot = boot_legacy if kind == "legacy" else boot_transformers
    try:
        model = boot(entry, folder)
    except Missing:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise Missing(f"model {entry.name!r} does not fit into the memory of this computer") from None
        raise Missing(
            f"model {entry.name!r} can't be read from {folder} ({_one_line(error)}); delete that folder and load it again"
        ) from error
    model.circuitlib_revision = folder.name
    return model


def kind_of(entry: ModelInfo) -> str:
    """ "legacy" for a checkpoint in TransformerLens's old format, else "transformers"."""
    return "legacy" if entry.repo.startswith("NeelNanda/") else "transformers"


# Booting -----------------------------------------------------------------------------------------


def boot_transformers(entry: ModelInfo, folder: Path):
    """Boot an ordinary Hugging Face directory."""
    from transformer_lens.model_bridge import TransformerBridge

    return TransformerBridge.boot_transformers(str(folder), device="cpu")


def boot_legacy(entry: ModelInfo, folder: Path):
    """Boot a legacy TransformerLens checkpoint.

    TransformerLens's own ``boot_tl_legacy`` asks the Hub for a list of files even when all of them are here. This does the same
    with the files at hand: its converter, its native model.
    """
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import AutoTokenizer

    stated = json.loads((folder / "config.json").read_text("utf8"))
    sizes = ("d_model", "n_layers", "d_mlp", "d_head", "n_heads", "n_ctx", "d_vocab", "act_fn", "attn_only")
    config = TransformerBridgeConfig(
        **{name: stated[name] for name in sizes},
        normalization_type=stated.get("normalization", stated.get("normalization_type")),
        final_rms=stated.get("final_rms", False),
        positional_embedding_type="standard",
        tokenizer_name=stated["tokenizer_name"],
        architecture="TransformerLensNative",
        seed=0,
    )
    words = snapshot(entry.name, stated["tokenizer_name"], ("tokenizer.json",), TOKENIZER_FILES)
    tokenizer = AutoTokenizer.from_pretrained(words)
    model = TransformerBridge.boot_native(config, tokenizer=tokenizer, model_name=entry.name)
    model.load_state_dict(legacy_weights(entry, folder, config), strict=True)
    return model


def legacy_weights(entry: ModelInfo, folder: Path, config) -> dict:
    """The checkpoint's weights under the names that a native model has; converted once, then read from a cache.

    A checkpoint is a pickle, which may run code when it is read; ``weights_only`` lets it hold tensors alone. What is kept is
    a safetensors file, named by the checkpoint's hash and by the version of TransformerLens, which may name weights anew.
    """
    import torch
    from safetensors.torch import load_file
    from transformer_lens.utilities.tl_checkpoint_conversion import convert_tl_checkpoint

    checkpoint = next(folder.glob(NEEDED["legacy"][1]))
    converter = metadata.version("transformer-lens").partition("+")[0]
    kept = cache_folder() / f"{entry.name}-{sha256(checkpoint)[:16]}-{converter}.safetensors"
    if kept.exists():
        try:
            return load_file(kept)
        except Exception as error:
            log.warning("%s can't be read (%s); it is made again", kept, _one_line(error))
    loaded = torch.load(checkpoint, map_location="cpu", weights_only=True)
    weights = convert_tl_checkpoint({name: tensor.float() for name, tensor in loaded.items()}, config)
    weights.setdefault("unembed.bias", torch.zeros(config.d_vocab))  # some of these checkpoints have none
    weights = {name: tensor.contiguous() for name, tensor in weights.items()}
    keep_weights(kept, weights)
    return weights


def keep_weights(path: Path, weights: dict) -> None:
    """Write a safetensors file, whole or not at all; a cache that can't be written is no obstacle."""
    from safetensors.torch import save_file

    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(weights, temporary)
        temporary.replace(path)
    except Exception as error:
        log.warning("converted weights can't be kept in %s (%s)", path.parent, _one_line(error))
        with contextlib.suppress(OSError):
            temporary.unlink()


def cache_folder() -> Path:
    """Where converted weights are kept: CIRCUITLIB_CACHE, or ``circuitlib`` in the user's cache folder."""
    if named := os.environ.get("CIRCUITLIB_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "circuitlib"


# Finding and downloading -------------------------------------------------------------------------


def models_folder() -> Path | None:
    """The folder that CIRCUITLIB_MODELS names, or None."""
    named = os.environ.get("CIRCUITLIB_MODELS")
    return Path(named) if named else None


def snapshot(name: str, repo: str, needed: Sequence[str], also: Sequence[str] = ()) -> Path:
    """The folder with the files of a repository: those on this computer if they are complete, else downloaded.

    Args:
        name: the model that they are for, for messages.
        needed: patterns of file names, each of which must match one.
        also: patterns of files that are fetched if there are any.
    """
    classroom = models_folder()
    found, lacking = find_snapshot(classroom or hub_cache(), repo, needed)
    if lacking is None:
        if classroom:
            check_manifest(classroom, [file for pattern in (*needed, *also) for file in found.glob(pattern)])
        return found
    if classroom:
        raise Missing(
            f"model {name!r}: {lacking} of {repo} is missing in {classroom} (CIRCUITLIB_MODELS); copy the folder again, or "
            f"unset CIRCUITLIB_MODELS to download the model"
        )
    require_hub(name, repo, f"{lacking} of an earlier download is missing" if found else None)
    return download_snapshot(name, repo, hub_cache(), needed, also)


def find_snapshot(cache: Path, repo: str, needed: Sequence[str]) -> tuple[Path | None, str | None]:
    """The snapshot of ``repo`` in a folder laid out like the Hub's cache, and the first pattern that nothing in it matches."""
    stored = cache / f"models--{repo.replace('/', '--')}"
    try:
        revision = (stored / "refs" / "main").read_bytes()[:200].decode("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None, needed[0]
    if not REVISION.fullmatch(revision):  # a path would lead out of the folder
        return None, needed[0]
    folder = stored / "snapshots" / revision
    for pattern in needed:
        if not any(file.is_file() and file.stat().st_size for file in folder.glob(pattern)):
            return folder, pattern
    return folder, None


def hub_cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def download_snapshot(name: str, repo: str, cache: Path, needed: Sequence[str], also: Sequence[str] = ()) -> Path:
    """Download the named files of a repository; a ``Missing`` if it breaks off, after which what has arrived is kept."""
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(repo, cache_dir=cache, allow_patterns=[*needed, *also]))
    except Exception as error:  # whatever stands between here and the Hub
        raise NoNetwork(
            f"model {name!r}: the download of {repo} broke off ({_one_line(error)}); load it again, what has arrived is kept"
        ) from error
    if lacking := next((pattern for pattern in needed if not list(folder.glob(pattern))), None):
        raise Missing(f"model {name!r}: {repo} has no file {lacking} on the Hub")
    return folder


def require_hub(name: str, repo: str, besides: str | None = None) -> None:
    """Return if the Hub answers; else one ``NoNetwork``, before any long retry."""
    from huggingface_hub import HfApi

    problem: list = [TimeoutError()]

    def ask():
        try:
            HfApi().model_info(repo, timeout=HUB_SECONDS)
            problem[:] = [None]
        except Exception as error:
            problem[:] = [error]

    # In a thread, because looking up a host name has no time-out of its own.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(HUB_SECONDS)
    if problem[0] is not None:
        raise NoNetwork(
            f"model {name!r} is downloaded from the Hugging Face Hub ({repo}), which can't be reached "
            f"({type(problem[0]).__name__}){f'; {besides}' if besides else ''}; shipped models such as 'docstring-4l' need no network"
        )


# A folder for a classroom ------------------------------------------------------------------------


def download_models(names: Iterable[str], folder: str | Path) -> Path:
    """Download models into a folder for ``CIRCUITLIB_MODELS``, with its manifest. Returns the manifest's path.

    Raises:
        ValueError: a name that is no model of the Hub.
        Missing: the Hub can't be reached, or a download broke off.
    """
    entries = [info(name) for name in ([names] if isinstance(names, str) else names)]
    for entry in entries:
        if entry.repo is None:
            raise ValueError(f"names: {entry.name!r} is not a model of the Hub, so there is nothing to download")
    for entry in entries:
        kind = kind_of(entry)
        require_hub(entry.name, entry.repo)
        files = download_snapshot(
            entry.name, entry.repo, Path(folder), NEEDED[kind], TOKENIZER_FILES if kind == "transformers" else ()
        )
        if kind == "legacy":
            tokenizer = json.loads((files / "config.json").read_text("utf8"))["tokenizer_name"]
            download_snapshot(entry.name, tokenizer, Path(folder), ("tokenizer.json",), TOKENIZER_FILES)
    return write_manifest(folder)


def write_manifest(folder: str | Path) -> Path:
    """Write the SHA-256 of every model file in ``folder`` into its file SHA256SUMS, which ``sha256sum -c`` reads too.

    Raises:
        ValueError: no folder, or one without a snapshot of a model.
    """
    folder = Path(folder)
    files = sorted(file for file in folder.glob("models--*/snapshots/**/*") if file.is_file())
    if not files:
        raise ValueError(
            f"folder: expected one laid out like the Hub's cache, with models--*/snapshots/ in it, got {folder}"
        )
    lines = [f"{sha256(file)}  {file.relative_to(folder).as_posix()}\n" for file in files]
    temporary = folder / f"{MANIFEST}.{os.getpid()}.tmp"
    try:
        temporary.write_text("".join(lines), "utf8")
        temporary.replace(folder / MANIFEST)
    finally:
        temporary.unlink(missing_ok=True)
    return folder / MANIFEST


def check_manifest(folder: Path, files: Iterable[Path]) -> None:
    """Compare files with the folder's manifest; a ``Missing`` that names the first one that differs."""
    try:
        with (folder / MANIFEST).open("rb") as file:
            content = file.read(MAX_MANIFEST_BYTES + 1)
    except OSError:
        raise Missing(
            f"{folder} (CIRCUITLIB_MODELS) has no {MANIFEST}; whoever made the folder writes it with 'circuitlib manifest {folder}'"
        ) from None
    recorded = _recorded(folder / MANIFEST, content)
    for file in files:
        expected = recorded.get(file.relative_to(folder).as_posix())
        if expected is None:
            raise Missing(f"{file} is not in {folder / MANIFEST}; copy the folder again")
        if (found := sha256(file)) != expected:
            raise Missing(f"{file} is damaged: its SHA-256 is {found}, expected {expected}; copy the folder again")


def _recorded(path: Path, content: bytes) -> dict[str, str]:
    """File → SHA-256, as ``sha256sum`` writes them; a ``Missing`` if ``content`` is anything else."""
    recorded = {}
    for i, line in enumerate(content.decode("utf8", "replace").split("\n"), start=1):
        found = LINE.fullmatch(line.rstrip("\r"))
        if found is None and line.strip() or len(content) > MAX_MANIFEST_BYTES:
            raise Missing(f"{path}, line {i}: expected a SHA-256 and the name of a file; copy the folder again")
        if found is not None:
            recorded[found[2]] = found[1]
    return recorded


def sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


# Memory ------------------------------------------------------------------------------------------


def require_memory(name: str, n_bytes: float) -> None:
    """A ``Missing`` if loading would take more memory than there is; better than a kernel that dies without a word."""
    available = available_memory()
    if available is not None and available < n_bytes:
        raise Missing(
            f"model {name!r} needs about {n_bytes / 1e9:.1f} GB of memory to load, and {available / 1e9:.1f} GB are free; "
            "close other programs and notebooks, or use a shipped model such as 'docstring-4l'"
        )


def is_out_of_memory(error: Exception) -> bool:
    """What Python, PyTorch and the system say when memory runs out."""
    said = ("allocate memory", "not enough memory")
    return isinstance(error, MemoryError) or any(text in str(error) for text in said)


def available_memory() -> int | None:
    """Bytes that this process can still have: of the machine, or less inside a container. None where nothing tells."""
    try:
        import psutil

        available = psutil.virtual_memory().available
    except ImportError:
        return None
    try:
        limit, used = (int((CONTAINER / name).read_text("utf8")) for name in ("memory.max", "memory.current"))
        words = (CONTAINER / "memory.stat").read_text("utf8").split()
        cached = int(words[words.index("file") + 1])  # copies of files, which make room when asked
        return min(available, limit - used + cached)
    except (OSError, ValueError):  # no container, or one without a limit
        return available


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    text = text if len(text) <= 160 else text[:159] + "…"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
