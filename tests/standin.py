"""A stand-in for the Hub's cache: models in the shapes of attn-only-4l and gpt2, with random weights and a small tokenizer."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path

import torch

from circuitlib.models.registry import info
from circuitlib.models.words import NAMES, NOUNS, VERBS

REVISION = "0" * 40
TOKENIZER_REPO = "NeelNanda/gpt-neox-tokenizer-digits"
SMALL = {"attn-only-4l": {"d_model": 32, "n_ctx": 128}, "gpt2": {"d_model": 48, "n_ctx": 128}}
FULL = {
    "attn-only-4l": {"d_model": 512, "n_ctx": 1024, "d_vocab": 48262},
    "gpt2": {"d_model": 768, "n_ctx": 1024, "d_vocab": 50257},
}


@cache
def tokenizer():
    """Byte-level BPE in which the words of the tasks are single tokens, but for a few; years are pairs of two-digit tokens."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    from circuitlib.models import words

    lists = [list(getattr(words, name, ())) for name in ("PEOPLE", "PLACES", "THINGS", "EVENTS")]
    rng, numbers = random.Random(0), [f"{n:02d}" for n in range(100)]
    spaced = [f" {word}" for word in [*NAMES[:-2], *NOUNS, *sum(lists, []), *numbers]]
    pieces = [*spaced, *VERBS, *numbers]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r" ?\d\d"), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    special = ["<|BOS|>", "<|EOS|>", "<|PAD|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=4000, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator((piece for _ in range(3) for piece in rng.sample(pieces, len(pieces))), trainer)
    named = dict(zip(("bos_token", "eos_token", "pad_token"), special, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=bpe, name_or_path="standin", add_bos_token=True, **named)


def snapshot_folder(cache_folder: Path, repo: str) -> Path:
    """The folder of a repository's only snapshot; made if it is not there."""
    stored = cache_folder / f"models--{repo.replace('/', '--')}"
    (stored / "refs").mkdir(parents=True, exist_ok=True)
    (stored / "refs" / "main").write_text(REVISION)
    folder = stored / "snapshots" / REVISION
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def put_attn_only(cache_folder: Path, d_model: int, n_ctx: int, d_vocab: int | None = None, seed: int = 0) -> Path:
    """A checkpoint in the format of TransformerLens 1.x, with the buffers it had and no unembedding bias.

    The weights are random, but for this: the heads of the first layer together copy what they see, and what was embedded is
    what is unembedded. So tokens of the prompt get larger logits, and the metric differs between clean and corrupted prompts.
    """
    entry = info("attn-only-4l")
    n_layers, n_heads, d_vocab = entry.n_layers, entry.n_heads, d_vocab or len(tokenizer())
    d_head = d_model // n_heads
    folder = snapshot_folder(cache_folder, entry.repo)
    config = {"n_layers": n_layers, "n_heads": n_heads, "d_model": d_model, "d_head": d_head, "d_mlp": 4 * d_model}
    config |= {"n_ctx": n_ctx, "d_vocab": d_vocab, "act_fn": "attn_only", "attn_only": True, "normalization": "LN"}
    (folder / "config.json").write_text(json.dumps({**config, "tokenizer_name": TOKENIZER_REPO}))
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) / d_model**0.5

    weights = {"embed.W_E": draw(d_vocab, d_model), "pos_embed.W_pos": draw(n_ctx, d_model)}
    for layer in range(n_layers):
        block = f"blocks.{layer}."
        weights |= {
            block + "ln1.w": 1 + draw(d_model),
            block + "ln1.b": draw(d_model),
            block + "attn.b_O": draw(d_model),
        }
        weights |= {f"{block}attn.W_{part}": draw(n_heads, d_model, d_head) for part in "QKV"}
        weights |= {f"{block}attn.b_{part}": draw(n_heads, d_head) for part in "QKV"}
        weights |= {block + "attn.W_O": draw(n_heads, d_head, d_model), block + "attn.IGNORE": torch.tensor(-1e5)}
        weights[block + "attn.mask"] = torch.ones(n_ctx, n_ctx, dtype=torch.bool).tril()
    copied = torch.eye(d_model).view(d_model, n_heads, d_head).transpose(0, 1)
    weights |= {"blocks.0.attn.W_V": copied, "blocks.0.attn.W_O": 3 * copied.transpose(1, 2)}
    weights |= {"ln_final.w": 1 + draw(d_model), "ln_final.b": draw(d_model), "unembed.W_U": weights["embed.W_E"].T}
    weights = {name: value.contiguous() for name, value in weights.items()}
    torch.save(weights, folder / "model_final.pth")
    tokenizer().save_pretrained(snapshot_folder(cache_folder, TOKENIZER_REPO))
    return folder


def put_gpt2(cache_folder: Path, d_model: int, n_ctx: int, d_vocab: int | None = None, seed: int = 0) -> Path:
    """A directory that ``save_pretrained`` writes."""
    from transformers import GPT2Config, GPT2LMHeadModel

    entry = info("gpt2")
    ids = {f"{name}_token_id": getattr(tokenizer(), f"{name}_token_id") for name in ("bos", "eos", "pad")}
    shape = {"n_layer": entry.n_layers, "n_head": entry.n_heads, "n_embd": d_model, "n_positions": n_ctx}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = GPT2LMHeadModel(
            GPT2Config(**shape, **ids, vocab_size=d_vocab or len(tokenizer()), initializer_range=0.1)
        )
    folder = snapshot_folder(cache_folder, entry.repo)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def put_models(cache_folder: Path, sizes: dict[str, dict[str, int]] = SMALL) -> None:
    """Both models, with the manifest of a classroom's folder."""
    from circuitlib.models.hub import write_manifest

    put_attn_only(cache_folder, **sizes["attn-only-4l"])
    put_gpt2(cache_folder, **sizes["gpt2"])
    write_manifest(cache_folder)
