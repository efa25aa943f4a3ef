"""Real models, by stand-ins: random weights in the same shapes, in a folder laid out like the Hub's cache, and no network."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import socket
from importlib import metadata
from pathlib import Path

import psutil
import pytest
import torch
from standin import REVISION, TOKENIZER_REPO, put_attn_only, put_models, snapshot_folder, tokenizer

import circuitlib as cl
from circuitlib.models import hub
from circuitlib.models.errors import Missing, NoNetwork
from circuitlib.models.registry import info

NAMES = ("attn-only-4l", "gpt2")
WEIGHTS = {"attn-only-4l": "model_final.pth", "gpt2": "model.safetensors"}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("hub")
    put_models(folder)
    return folder


@pytest.fixture
def folder(made, tmp_path, monkeypatch) -> Path:
    """A copy to break, named by CIRCUITLIB_MODELS; whoever asks the network fails the test."""
    copy = tmp_path / "models"
    shutil.copytree(made, copy)
    monkeypatch.setenv("CIRCUITLIB_MODELS", str(copy))
    monkeypatch.setenv("CIRCUITLIB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "nothing here"))
    monkeypatch.setattr(socket.socket, "connect", no_network)
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    return copy


def no_network(*args, **kwargs):
    raise OSError("no network")


def files_of(folder: Path, name: str) -> Path:
    return snapshot_folder(folder, info(name).repo)


# --- booting ------------------------------------------------------------------------------------------------------


def test_the_legacy_checkpoint_loads_as_transformer_lens_loads_it(folder, monkeypatch):
    from transformer_lens.model_bridge import TransformerBridge

    files = files_of(folder, "attn-only-4l")
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda repo, name: str(files / name))
    monkeypatch.setattr("huggingface_hub.HfApi.list_repo_files", lambda self, repo: os.listdir(files))
    theirs = TransformerBridge.boot_tl_legacy(info("attn-only-4l").repo, tokenizer=tokenizer())
    ours = cl.load_model("attn-only-4l")
    expected = theirs.state_dict()
    assert ours.state_dict().keys() == expected.keys()
    for key, value in ours.state_dict().items():
        assert torch.equal(value, expected[key]), key
    for name in (
        "act_fn",
        "attn_only",
        "d_head",
        "d_mlp",
        "d_vocab",
        "eps",
        "n_ctx",
        "normalization_type",
        "tokenizer_name",
    ):
        assert getattr(ours.cfg, name) == getattr(theirs.cfg, name), name
    tokens = torch.randint(3, ours.cfg.d_vocab, (2, 9))
    with torch.no_grad():
        assert torch.equal(ours(tokens), theirs.eval()(tokens))


def test_gpt2_is_what_transformers_loads(folder):
    from transformers import GPT2LMHeadModel

    model = cl.load_model("gpt2")
    plain = GPT2LMHeadModel.from_pretrained(files_of(folder, "gpt2")).eval()
    tokens = torch.randint(3, model.cfg.d_vocab, (2, 9))
    with torch.no_grad():
        assert torch.allclose(model(tokens), plain(tokens).logits, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_a_real_model_is_raw_ready_and_known(folder, name):
    model = cl.load_model(name)
    assert not model.training and not any(parameter.requires_grad for parameter in model.parameters())
    assert (model.circuitlib_name, model.circuitlib_revision) == (name, REVISION)
    assert len(model.tokenizer) == len(tokenizer()) and model.tokenizer.bos_token_id is not None
    if name == "attn-only-4l":  # not folded: random LayerNorm weights are still there
        assert model.state_dict()["blocks.0.ln1.weight"].std() > 0


@pytest.mark.parametrize(("name", "counts"), [("attn-only-4l", (1281, 1377)), ("gpt2", (32_491, 32_923))])
def test_the_engine_runs_it_on_every_task_of_its(folder, name, counts):
    model = cl.load_model(name)
    graph = cl.Graph(model)
    assert (graph.n_edges, graph.edge_count("acdc")) == counts
    assert all(cl.published_circuit(task).graph == graph for task in PUBLISHED[name])
    for make in TASKS[name]:
        task = make(model)
        engine = cl.Engine(model, task)
        assert (engine.run(engine.all) - model(task.clean)[:, list(task.read_positions)]).abs().max() < 1e-4
        assert (engine.run(engine.none) - model(task.corrupted)[:, list(task.read_positions)]).abs().max() < 1e-4


PUBLISHED = {"attn-only-4l": ("docstring",), "gpt2": ("ioi", "greater-than")}
TASKS = {
    "attn-only-4l": (lambda model: cl.docstring(model, n=3), lambda model: cl.induction(model, n=3, period=6)),
    "gpt2": (lambda model: cl.induction(model, n=2, period=6),),
}


def test_words_that_are_not_single_tokens_are_left_out_and_counted(folder, caplog):
    model = cl.load_model("attn-only-4l")
    with caplog.at_level(logging.WARNING):
        task = cl.docstring(model, n=40)
    assert "left out 2 of 112 words that are not single tokens of this model" in caplog.text
    left_out = [f" {word}" for word in ("header", "cookie")]
    assert all(len(model.tokenizer.encode(word, add_special_tokens=False)) > 1 for word in left_out)
    text = " ".join(model.tokenizer.decode(row) for row in task.clean)
    assert not any(word in text for word in left_out) and " size" in text


# Random weights in exactly the real configurations; what is in the folder above is narrower.


def test_attn_only_4l_in_its_real_size():
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge import TransformerBridge

    sizes = {"n_layers": 4, "d_model": 512, "n_heads": 8, "d_head": 64, "d_mlp": 2048, "n_ctx": 1024, "d_vocab": 48262}
    config = TransformerBridgeConfig(
        **sizes,
        act_fn="attn_only",
        attn_only=True,
        normalization_type="LN",
        architecture="TransformerLensNative",
        seed=0,
    )
    model = TransformerBridge.boot_native(config, tokenizer=tokenizer()).eval()
    assert 1281 == cl.Graph(model).n_edges == cl.published_circuit("docstring").graph.n_edges
    agrees(model, cl.docstring(model, n=2))


@pytest.mark.slow
def test_gpt2_in_its_real_size():
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import GPT2Config, GPT2LMHeadModel

    with torch.random.fork_rng():
        torch.manual_seed(0)
        plain = GPT2LMHeadModel(GPT2Config()).eval()
    model = TransformerBridge.boot_transformers("gpt2", hf_model=plain, tokenizer=tokenizer(), device="cpu").eval()
    assert 32_491 == cl.Graph(model).n_edges == cl.published_circuit("ioi").graph.n_edges
    agrees(model, cl.induction(model, n=2, period=5))


def agrees(model, task) -> None:
    engine = cl.Engine(model, task)
    with torch.no_grad():
        clean, corrupted = (model(tokens)[:, list(task.read_positions)] for tokens in (task.clean, task.corrupted))
    assert (clean - corrupted).abs().max() > 1e-2
    assert (engine.run(engine.all) - clean).abs().max() < 1e-4
    assert (engine.run(engine.none) - corrupted).abs().max() < 1e-4


# --- the checkpoint is a pickle -----------------------------------------------------------------------------------


def test_a_checkpoint_is_converted_once(folder, tmp_path, monkeypatch):
    first = cl.load_model("attn-only-4l").state_dict()
    (kept,) = (tmp_path / "cache").iterdir()
    checkpoint = files_of(folder, "attn-only-4l") / "model_final.pth"
    assert (
        kept.name
        == f"attn-only-4l-{hashlib.sha256(checkpoint.read_bytes()).hexdigest()[:16]}-{metadata.version('transformer-lens')}.safetensors"
    )
    with monkeypatch.context() as patch:
        patch.setattr(torch, "load", lambda *args, **kwargs: pytest.fail("the pickle is read again"))
        again = cl.load_model("attn-only-4l").state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    kept.write_bytes(kept.read_bytes()[:-1000])  # an interrupted copy is no trap
    again = cl.load_model("attn-only-4l").state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    put_attn_only(folder, d_model=32, n_ctx=128, seed=1)  # other weights under the same name
    hub.write_manifest(folder)
    other = cl.load_model("attn-only-4l").state_dict()
    assert not torch.equal(first["embed.weight"], other["embed.weight"])
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_a_cache_that_can_not_be_written_is_no_obstacle(folder, tmp_path, monkeypatch, caplog):
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("CIRCUITLIB_CACHE", str(tmp_path / "a file"))
    assert cl.load_model("attn-only-4l").cfg.n_layers == 4
    assert "can't be kept in" in caplog.text


class Code:
    """A pickle that does something when it is read."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_code_in_a_checkpoint_is_not_run(folder, tmp_path):
    trace = tmp_path / "ran"
    checkpoint = files_of(folder, "attn-only-4l") / "model_final.pth"
    torch.save({"embed.W_E": torch.zeros(2), "evil": Code(trace)}, checkpoint)
    hub.write_manifest(folder)
    with pytest.raises(Missing, match="^model 'attn-only-4l' can't be read from ") as error:
        cl.load_model("attn-only-4l")
    assert not trace.exists() and "\n" not in str(error.value)
    torch.load(checkpoint, weights_only=False)  # it would have
    assert trace.exists()


# --- what can be missing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_file_is_found_by_the_manifest(folder, name):
    path = files_of(folder, name) / WEIGHTS[name]
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    after = hashlib.sha256(data).hexdigest()
    with pytest.raises(Missing) as error:
        cl.load_model(name)
    assert str(error.value) == f"{path} is damaged: its SHA-256 is {after}, expected {before}; copy the folder again"


def test_a_damaged_tokenizer_is_found_too(folder):
    (snapshot_folder(folder, TOKENIZER_REPO) / "tokenizer_config.json").write_text("{}")
    with pytest.raises(Missing, match="tokenizer_config.json is damaged"):
        cl.load_model("attn-only-4l")


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_is_not_there_is_named(folder, name):
    (files_of(folder, name) / WEIGHTS[name]).unlink()
    with pytest.raises(Missing) as error:
        cl.load_model(name)
    assert str(error.value) == (
        f"model {name!r}: {hub.NEEDED[hub.kind_of(info(name))][1]} of {info(name).repo} is missing in {folder} "
        "(CIRCUITLIB_MODELS); copy the folder again, or unset CIRCUITLIB_MODELS to download the model"
    )


def test_a_folder_without_a_manifest(folder):
    (folder / hub.MANIFEST).unlink()
    with pytest.raises(
        Missing, match=f"has no SHA256SUMS; whoever made the folder writes it with 'circuitlib manifest {folder}'"
    ):
        cl.load_model("gpt2")


def test_a_file_that_the_manifest_does_not_know(folder):
    lines = (folder / hub.MANIFEST).read_text().splitlines(keepends=True)
    (folder / hub.MANIFEST).write_text("".join(line for line in lines if "config.json" not in line))
    with pytest.raises(Missing, match="config.json is not in .*SHA256SUMS; copy the folder again"):
        cl.load_model("gpt2")


def test_a_folder_that_is_not_there(folder, monkeypatch):
    monkeypatch.setenv("CIRCUITLIB_MODELS", str(folder / "typo"))
    with pytest.raises(Missing, match="config.json of openai-community/gpt2 is missing in .*typo"):
        cl.load_model("gpt2")


def in_the_cache(folder: Path, monkeypatch) -> None:
    """The same files as the Hub's own cache."""
    monkeypatch.delenv("CIRCUITLIB_MODELS")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder))
    (folder / hub.MANIFEST).unlink()


@pytest.mark.parametrize("name", NAMES)
def test_what_is_in_the_cache_needs_no_network(folder, monkeypatch, name):
    in_the_cache(folder, monkeypatch)
    assert cl.load_model(name).circuitlib_name == name


@pytest.mark.parametrize("name", NAMES)
def test_a_partial_download_without_network(folder, monkeypatch, name):
    in_the_cache(folder, monkeypatch)
    weights = files_of(folder, name) / WEIGHTS[name]
    weights.rename(weights.with_suffix(".incomplete"))
    with pytest.raises(NoNetwork) as error:
        cl.load_model(name)
    message = str(error.value)
    assert message.startswith(
        f"model {name!r} is downloaded from the Hugging Face Hub ({info(name).repo}), which can't be "
    )
    assert (
        f"{hub.NEEDED[hub.kind_of(info(name))][1]} of an earlier download is missing" in message and "\n" not in message
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("left", [0.9, 0.01])
def test_a_file_cut_short_without_a_manifest(folder, monkeypatch, name, left):
    in_the_cache(folder, monkeypatch)
    path = files_of(folder, name) / WEIGHTS[name]
    path.write_bytes(path.read_bytes()[: int(left * path.stat().st_size)])
    with pytest.raises(
        Missing, match=f"^model '{name}' can't be read from .*; delete that folder and load it again$"
    ) as error:
        cl.load_model(name)
    assert "\n" not in str(error.value) and len(str(error.value)) < 500


def test_a_download_that_breaks_off(folder, monkeypatch):
    in_the_cache(folder, monkeypatch)
    shutil.rmtree(folder)
    monkeypatch.setattr(hub, "require_hub", lambda *args: None)

    def breaks_off(*args, **kwargs):
        raise ConnectionResetError("Connection reset by peer\nafter 3 of 5 files")

    monkeypatch.setattr("huggingface_hub.snapshot_download", breaks_off)
    with pytest.raises(NoNetwork) as error:
        cl.load_model("gpt2")
    assert str(error.value) == (
        "model 'gpt2': the download of openai-community/gpt2 broke off (ConnectionResetError: Connection reset by peer after "
        "3 of 5 files); load it again, what has arrived is kept"
    )


def test_what_is_missing_lies_outside_and_a_missing_network_is_a_connection_error():
    assert issubclass(Missing, OSError) and issubclass(NoNetwork, Missing) and issubclass(NoNetwork, ConnectionError)
    assert str(NoNetwork("one line")) == "one line"


# --- memory -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_too_little_memory_is_said_before_loading(folder, monkeypatch, name):
    monkeypatch.setattr(hub, "available_memory", lambda: 10_000)
    monkeypatch.setattr(hub, "boot_legacy", pytest.fail)
    monkeypatch.setattr(hub, "boot_transformers", pytest.fail)
    with pytest.raises(
        Missing, match=f"^model '{name}' needs about 0.0 GB of memory to load, and 0.0 GB are free; close "
    ):
        cl.load_model(name)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory: you tried to"),
    ],
)
def test_memory_that_runs_out_while_loading(folder, monkeypatch, error):
    def boot(*args):
        raise error

    monkeypatch.setattr(hub, "boot_transformers", boot)
    with pytest.raises(Missing, match="^model 'gpt2' does not fit into the memory of this computer$"):
        cl.load_model("gpt2")


def test_available_memory_is_that_of_the_machine_or_of_the_container(tmp_path, monkeypatch):
    monkeypatch.setattr(hub, "CONTAINER", tmp_path)
    total = psutil.virtual_memory().total
    assert 0 < hub.available_memory() <= total
    for name, text in {"memory.max": "max", "memory.current": "700", "memory.stat": "anon 500\nfile 200\n"}.items():
        (tmp_path / name).write_text(text + "\n")
    assert hub.available_memory() > 1000
    (tmp_path / "memory.max").write_text("1000\n")
    assert hub.available_memory() == 1000 - 700 + 200


# --- a folder for a classroom -------------------------------------------------------------------------------------


def test_a_manifest_holds_every_file_as_sha256sum_writes_it(folder):
    lines = dict(reversed(line.split("  ")) for line in (folder / hub.MANIFEST).read_text().splitlines())
    on_disk = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    expected = {name for name in on_disk if "/snapshots/" in name}
    assert set(lines) == expected and len(lines) >= 7
    for name, recorded in lines.items():
        assert hashlib.sha256(on_disk[name].read_bytes()).hexdigest() == recorded
    assert list(lines) == sorted(lines)


def test_writing_a_manifest_again_changes_nothing(folder):
    before = (folder / hub.MANIFEST).read_bytes()
    assert hub.write_manifest(str(folder)) == folder / hub.MANIFEST
    assert (folder / hub.MANIFEST).read_bytes() == before
    assert not list(folder.glob("*.tmp"))


@pytest.mark.parametrize("where", ["empty", "nowhere"])
def test_a_manifest_of_nothing(tmp_path, where):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="^folder: expected one laid out like the Hub's cache, with models--"):
        hub.write_manifest(tmp_path / where)


def test_models_are_downloaded_into_a_folder_with_its_manifest(folder, tmp_path, monkeypatch):
    """With a Hub that serves the stand-ins."""
    asked = []

    def serve(repo, *, cache_dir, allow_patterns):
        asked.append((repo, allow_patterns))
        source = snapshot_folder(folder, repo)
        target = snapshot_folder(Path(cache_dir), repo)
        for pattern in allow_patterns:
            for file in source.glob(pattern):
                shutil.copy(file, target / file.name)
        return str(target)

    monkeypatch.setattr("huggingface_hub.snapshot_download", serve)
    monkeypatch.setattr(hub, "require_hub", lambda *args: None)
    target = tmp_path / "usb"
    assert hub.download_models(NAMES, target) == target / hub.MANIFEST
    assert [repo for repo, _ in asked] == [info("attn-only-4l").repo, TOKENIZER_REPO, info("gpt2").repo]
    assert not any(
        "*" in (p, p.strip("*")) or p == "*.pth" for _, patterns in asked for p in patterns
    )  # not everything
    monkeypatch.setenv("CIRCUITLIB_MODELS", str(target))
    for name in NAMES:
        assert cl.load_model(name).circuitlib_name == name


def test_a_shipped_model_is_not_downloaded(tmp_path):
    with pytest.raises(
        ValueError, match="^names: 'docstring-4l' is not a model of the Hub, so there is nothing to download$"
    ):
        hub.download_models(["docstring-4l"], tmp_path)


def test_a_repository_without_the_file_that_is_needed(folder, monkeypatch, tmp_path):
    empty = snapshot_folder(tmp_path / "hub", "openai-community/gpt2")
    (empty / "config.json").write_text(json.dumps({}))
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *args, **kwargs: str(empty))
    with pytest.raises(Missing, match="^model 'gpt2': openai-community/gpt2 has no file model.safetensors on the Hub$"):
        hub.download_snapshot("gpt2", "openai-community/gpt2", tmp_path, hub.NEEDED["transformers"])
