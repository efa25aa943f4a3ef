"""Small models with random weights, and small random tasks, for tests. Nothing here is trained."""

from __future__ import annotations

import dataclasses

import torch

from circuitlib.tasks.base import Task


def native(
    n_layers=2,
    n_heads=3,
    d_model=24,
    d_head=8,
    d_vocab=29,
    n_ctx=12,
    attn_only=True,
    norm="LN",
    act="gelu",
    seed=0,
    **more,
):
    """A native ``TransformerBridge``; every weight and bias is random, so that no bias can be forgotten unseen."""
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge import TransformerBridge

    shape = dict(n_layers=n_layers, n_heads=n_heads, d_model=d_model, d_head=d_head, d_vocab=d_vocab, n_ctx=n_ctx)
    config = TransformerBridgeConfig(
        **shape, attn_only=attn_only, normalization_type=norm, act_fn=act, seed=seed, **more
    )
    model = TransformerBridge.boot_native(config).eval()
    return randomize(model, seed)


def gpt2(n_layers=2, n_heads=3, d_model=24, d_vocab=29, n_ctx=12, n_inner=None, tie=True, seed=0, **more):
    """A Hugging Face GPT-2 of any shape behind a ``TransformerBridge``."""
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = dict(
        n_layer=n_layers, n_head=n_heads, n_embd=d_model, vocab_size=d_vocab, n_positions=n_ctx, n_inner=n_inner
    )
    hf_model = GPT2LMHeadModel(
        GPT2Config(**shape, tie_word_embeddings=tie, bos_token_id=0, eos_token_id=0, **more)
    ).eval()
    return randomize(bridge(hf_model, d_vocab), seed)


def gpt2_shell(model):
    """The weights of a native attention-only model in a GPT-2 whose MLPs write zero, where TransformerLens's edge tools work."""
    from transformers import GPT2Config, GPT2LMHeadModel

    c = model.cfg
    assert c.n_heads * c.d_head == c.d_model and c.normalization_type == "LN"
    shape = dict(
        n_layer=c.n_layers, n_head=c.n_heads, n_embd=c.d_model, vocab_size=c.d_vocab, n_positions=c.n_ctx, n_inner=1
    )
    hf_model = GPT2LMHeadModel(GPT2Config(**shape, tie_word_embeddings=False, bos_token_id=0, eos_token_id=0)).eval()
    state, new = model.state_dict(), {}
    for name, target in (("embed", "transformer.wte"), ("pos_embed", "transformer.wpe"), ("unembed", "lm_head")):
        new[f"{target}.weight"] = state[f"{name}.weight"]
    for part in ("weight", "bias"):
        new[f"transformer.ln_f.{part}"] = state[f"ln_final.{part}"]
    for i in range(c.n_layers):
        ours, theirs = f"blocks.{i}", f"transformer.h.{i}"
        for part in ("weight", "bias"):
            new[f"{theirs}.ln_1.{part}"] = state[f"{ours}.ln1.{part}"]
            joined, o = torch.cat([state[f"{ours}.attn.{x}.{part}"] for x in "qkv"]), state[f"{ours}.attn.o.{part}"]
            for target, value in (("c_attn", joined), ("c_proj", o)):  # Conv1D keeps weights as [in, out]
                new[f"{theirs}.attn.{target}.{part}"] = value.T if part == "weight" else value
    for name, value in hf_model.state_dict().items():
        if ".mlp." in name or ".ln_2." in name:
            new[name] = torch.zeros_like(value)
    assert not state["unembed.bias"].any()
    hf_model.load_state_dict(new, strict=True)
    return bridge(hf_model, c.d_vocab)


def bridge(hf_model, d_vocab: int):
    """``hf_model`` behind a ``TransformerBridge``, with a tokenizer of its own so that nothing is looked up on a network."""
    from tokenizers import Tokenizer, models
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedTokenizerFast

    vocab = {f"t{i}": i for i in range(d_vocab)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocab, unk_token="t0")),
        name_or_path="local",
        add_bos_token=True,
        bos_token="t0",
        eos_token="t0",
        pad_token="t0",
    )
    model = TransformerBridge.boot_transformers("gpt2", hf_model=hf_model, tokenizer=tokenizer, device="cpu").eval()
    return model.requires_grad_(False)


def randomize(model, seed: int, scale: float = 0.4):
    """Give every parameter a random value; LayerNorm weights lie around 1. Attention is neither flat nor saturated."""
    generator = torch.Generator().manual_seed(seed + 1)
    seen = set()
    for name, value in model.state_dict(keep_vars=True).items():
        if value.data_ptr() in seen or name == "unembed.bias":
            continue
        seen.add(value.data_ptr())
        width = value.shape[-1] ** 0.5 if value.dim() == 2 and "embed.weight" not in name else 1.0
        noise = torch.randn(value.shape, generator=generator) * scale * (2 / width if value.dim() == 2 else 1)
        with torch.no_grad():
            value.copy_((1 + noise if ".ln" in f".{name}" and name.endswith("weight") else noise).to(value.dtype))
    return model.requires_grad_(False)


def random_task(
    model, n=3, n_pos=6, read=(5,), n_wrong=3, metric_name="logit_diff", seed=0, solved=False, **more
) -> Task:
    """Random prompts that differ in about half of their tokens; random answers and distractors.

    With ``solved``, the answer is the model's own top token on the clean prompt (one read position).
    """
    generator = torch.Generator().manual_seed(seed)

    def tokens(*shape):
        return torch.randint(model.cfg.d_vocab, shape, generator=generator)

    clean = tokens(n, n_pos)
    corrupted = torch.where(torch.rand(n, n_pos, generator=generator) < 0.5, tokens(n, n_pos), clean)
    k = len(read)
    answers, distractors = (tokens(n), tokens(n, n_wrong)) if k == 1 else (tokens(n, k), tokens(n, k, n_wrong))
    if solved:
        answers = model(clean)[:, read[0]].argmax(-1)
        distractors = (answers[:, None] + 1 + torch.arange(n_wrong)) % model.cfg.d_vocab
    return Task("random", clean, corrupted, answers, distractors, {"end": n_pos - 1}, tuple(read), metric_name, **more)


def pick(task: Task, i: int) -> Task:
    """One prompt of a task."""
    rows = {name: getattr(task, name)[i : i + 1] for name in ("clean", "corrupted", "answers", "distractors")}
    return dataclasses.replace(task, **rows)
