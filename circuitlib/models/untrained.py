"""Models with the shape of a real one that have learnt nothing: a control, and a way to try code without a download."""

from __future__ import annotations

from .registry import info


def untrained_model(name: str, d_model: int = 48, seed: int = 0):
    """A model with the layers, heads and MLPs of ``name`` and random weights, narrower than the real one.

    It has the same senders, receivers and edges, and the tokenizer of ``docstring-4l``.

    Args:
        name: "attn-only-4l" or "gpt2".
        d_model: its width, a multiple of the number of heads.

    Raises:
        ValueError: another name, or a width that the heads can't share.
    """
    entry = info(name)
    if entry.family != "hub":
        raise ValueError(f"name: expected a model of the Hub, which has no weights here; {name!r} is {entry.family}")
    if type(d_model) is not int or d_model < 1 or d_model % entry.n_heads:
        raise ValueError(f"d_model: expected a multiple of {entry.n_heads}, the number of heads, got {d_model!r}")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(info("docstring-4l").folder)
    model = (_gpt2 if entry.mlps else _attention_only)(entry, d_model, tokenizer, seed).eval()
    model.to("cpu", print_details=False)  # its configuration names a GPU where there is one
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model


def _attention_only(entry, d_model: int, tokenizer, seed: int):
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge import TransformerBridge

    config = TransformerBridgeConfig(
        n_layers=entry.n_layers,
        n_heads=entry.n_heads,
        d_model=d_model,
        d_head=d_model // entry.n_heads,
        n_ctx=128,
        d_vocab=len(tokenizer),
        attn_only=True,
        normalization_type="LN",
        act_fn="gelu",
        seed=seed,
    )
    return TransformerBridge.boot_native(config, tokenizer=tokenizer)


def _gpt2(entry, d_model: int, tokenizer, seed: int):
    import torch
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=entry.n_layers,
        n_head=entry.n_heads,
        n_embd=d_model,
        n_positions=128,
        vocab_size=len(tokenizer),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):  # the bridge draws, too, before it copies the weights
        torch.manual_seed(seed)
        plain = GPT2LMHeadModel(config)
        return TransformerBridge.boot_transformers(entry.repo, hf_model=plain, tokenizer=tokenizer, device="cpu")
