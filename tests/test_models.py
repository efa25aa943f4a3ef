"""The registry and the loader: names, damaged files, a Hub that can't be reached."""

from __future__ import annotations

import shutil
import socket
import time

import pytest
import torch

import circuitlib as cl
from circuitlib.models import hub, registry


@pytest.fixture(scope="module")
def model():
    return cl.load_model("docstring-4l")


def test_table_of_models():
    table = cl.models()
    assert list(table.index) == list(registry.REGISTRY)
    row = table.loc["docstring-4l"]
    assert (row["layers"], row["heads"], row["family"]) == (4, 8, "shipped")
    assert "docstring" in row["tasks"]


def test_training_log_is_the_file_and_ends_where_the_shipped_model_stands(model):
    log = cl.training_log("docstring-4l")
    lines = (registry.info("docstring-4l").folder / "training_log.jsonl").read_text("utf8").splitlines()
    assert [row["step"] for row in log] == [int(line.split('"step": ')[1].split(",")[0]) for line in lines]
    assert log[-1]["step"] == 3000 and {row["step"] % 100 for row in log} == {0}
    # The last row was measured on other prompts than these, and rounded; but it is the same model.
    scores = cl.head_scores(model)
    for name in ("previous_token", "induction"):
        assert torch.allclose(torch.tensor(log[-1][name])[:2], scores[name][:2], atol=0.12), name


@pytest.mark.parametrize("name", ["gpt2", "handmade-induction"])
def test_a_model_that_is_not_shipped_has_neither_log_nor_card(name):
    for function, file in ((cl.training_log, "training_log.jsonl"), (cl.model_card, "README.md")):
        with pytest.raises(ValueError, match=f"^name: expected a shipped model, which has a {file}; '{name}' is"):
            function(name)


def test_the_card_is_that_of_the_model():
    card = cl.model_card("docstring-4l")
    assert card.startswith("# docstring-4l\n") and "Declared help" in card


def test_unknown_name_lists_the_names():
    with pytest.raises(ValueError, match=r"^unknown model 'docstring'; choose one of: docstring-4l, .*gpt2") as error:
        cl.load_model("docstring")
    assert "\n" not in str(error.value)


def test_shipped_model_is_raw_and_ready(model):
    assert not model.training
    assert not any(p.requires_grad for p in model.parameters())
    assert (model.cfg.n_layers, model.cfg.n_heads, model.cfg.attn_only) == (4, 8, True)
    # not folded: the LayerNorms still have weights of their own
    assert model.state_dict()["blocks.0.ln1.weight"].std() > 0


def test_shipped_weights_are_small_and_safe():
    folder = registry.info("docstring-4l").folder
    assert sum(f.stat().st_size for f in folder.iterdir()) < 20e6
    assert not [f for f in folder.iterdir() if f.suffix in (".pt", ".pth", ".bin", ".pkl")]


def test_the_bridge_computes_what_was_trained(model):
    from circuitlib.models.training.transformer import Transformer

    cfg = model.cfg
    plain = Transformer(cfg.n_layers, cfg.n_heads, cfg.d_model, cfg.d_head, cfg.d_vocab, cfg.n_ctx)
    plain.load_state_dict(model.state_dict())
    tokens = torch.randint(3, cfg.d_vocab, (3, 40))
    with torch.no_grad():
        assert torch.allclose(plain(tokens), model(tokens), atol=2e-4)


@pytest.fixture
def copy_of_shipped(tmp_path, monkeypatch):
    shutil.copytree(registry.SHIPPED, tmp_path / "shipped")
    monkeypatch.setattr(registry, "SHIPPED", tmp_path / "shipped")
    return tmp_path / "shipped" / "docstring-4l"


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_damaged_file_is_named_with_both_hashes(copy_of_shipped, name):
    path = copy_of_shipped / name
    recorded = next(
        line.split()[0] for line in (copy_of_shipped / "SHA256SUMS").read_text().splitlines() if line.endswith(name)
    )
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError) as error:
        cl.load_model("docstring-4l")
    message = str(error.value)
    assert name in message and recorded in message and "\n" not in message
    assert len([word for word in message.replace(",", " ").replace(";", " ").split() if len(word) == 64]) == 2


def test_every_shipped_file_is_hashed():
    for entry in registry.REGISTRY.values():
        if entry.family == "shipped":
            named = {line.split()[1] for line in (entry.folder / "SHA256SUMS").read_text().splitlines()}
            assert named == {f.name for f in entry.folder.iterdir()} - {"README.md", "SHA256SUMS"}


@pytest.fixture
def no_cached_model(monkeypatch, tmp_path):
    monkeypatch.delenv("CIRCUITLIB_MODELS", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))


@pytest.mark.parametrize("name", ["gpt2", "attn-only-4l"])
def test_no_hub_is_one_clear_error_soon(no_cached_model, monkeypatch, name):
    def refuse(*args, **kwargs):
        raise OSError("no network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    began = time.monotonic()
    with pytest.raises(ConnectionError, match=f"model '{name}' is downloaded from the Hugging Face Hub") as error:
        cl.load_model(name)
    assert time.monotonic() - began < 10 and "\n" not in str(error.value)


def test_a_hub_that_never_answers_is_no_hang(no_cached_model, monkeypatch):
    monkeypatch.setattr(hub, "HUB_SECONDS", 0.5)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: time.sleep(30))
    began = time.monotonic()
    with pytest.raises(ConnectionError, match="can't be reached"):
        cl.load_model("gpt2")
    assert time.monotonic() - began < 10


def test_models_is_a_table_and_a_package():
    import circuitlib.models

    assert circuitlib.models.info("gpt2").n_layers == 12
    assert len(cl.models()) == len(registry.REGISTRY)
