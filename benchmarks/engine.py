"""How fast the engine is next to TransformerLens on the same tokens, and how much memory it takes.

    python -m benchmarks.engine

Prints, for one run on this machine:

1. a random half of the edges of a GPT-2 small shape against the plain forward pass (aim: at most 2 times as long);
2. all exact effects of ``docstring-4l`` against one forward pass for each edge through hooks, extrapolated from 300
   edges (aim: at least 8 times faster);
3. peak memory, and how a batch of circuits is split under a limit.

Times are CPU seconds of one thread, so that other work on the machine disturbs them little.
"""

from __future__ import annotations

import random
import resource
import sys
import time

import torch

from circuitlib.engine import Engine
from circuitlib.graph import Edge, random_circuit
from circuitlib.tasks.base import Task


def main() -> None:
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, 1 thread, memory limit 256 MB for a pass")
    memory()  # first: a process's peak only grows
    half_of_gpt2()
    exact_effects()
    print(f"peak memory of this process: {peak_mb():,.0f} MB")


def half_of_gpt2() -> None:
    """A random half of 32,491 edges against the model's own forward pass: 8 prompts of 20 tokens."""
    model = random_gpt2(12, 12, 768, 50257)
    task = random_task(model, 8, 20)
    engine = Engine(model, task)
    circuit = random_circuit(engine.graph, engine.graph.n_edges // 2)
    engine_s, model_s = best_of(5, lambda: engine.values(circuit), lambda: model(task.clean))
    print(
        f"1. half of {engine.graph.n_edges:,} edges, 12 × 12 × 768, 8 × 20 tokens: {engine_s:.2f} s, model {model_s:.2f} s,"
    )
    print(f"   ratio {engine_s / model_s:.2f} (aim: at most 2)")


def exact_effects() -> None:
    """All 1,281 exact effects of docstring-4l on 20 prompts, against one hooked forward pass for each edge."""
    model, task = docstring_4l()
    engine = Engine(model, task)
    edges = engine.graph.edges
    sample = random.Random(0).sample(range(len(edges)), 300)
    hooked = HookedEdges(model, task)
    start = time.process_time()
    slow = torch.stack([hooked.values_without(edges[i]) for i in sample])
    hooks_s = (time.process_time() - start) * len(edges) / len(sample)
    start = time.process_time()
    fast = engine.values_without(engine.all, edges)
    engine_s = time.process_time() - start
    n, n_pos = task.clean.shape
    print(
        f"2. {len(edges):,} exact effects, {task.name} on {model.cfg.n_layers} × {model.cfg.n_heads} × {model.cfg.d_model}, {n} × {n_pos} tokens:"
    )
    print(f"   {engine_s:.1f} s, hooks {hooks_s:.1f} s, ratio {hooks_s / engine_s:.1f} (aim: at least 8);")
    print(f"   largest difference between the two {float((fast[sample] - slow).abs().max()):.1e}")


def memory() -> None:
    """What a list of circuits adds to the peak under a limit: it is split into passes."""
    model = random_gpt2(4, 8, 512, 1000)
    task = random_task(model, 50, 40)
    for limit in (64, 256):
        engine = Engine(model, task, memory_mb=limit)
        circuits = [random_circuit(engine.graph, 200, seed) for seed in range(4)]
        before = peak_mb()
        engine.values(circuits)
        print(
            f"3. 4 circuits, 4 × 8 × 512, 50 × 40 tokens, limit {limit} MB: the peak grew by {peak_mb() - before:,.0f} MB"
        )


class HookedEdges:
    """One exact effect at a time, as a reader would write it with TransformerLens: cut the edge in a hook, run the model."""

    def __init__(self, model, task: Task):
        self.model, self.task = model, task
        _, clean = model.run_with_cache(task.clean)
        _, corrupted = model.run_with_cache(task.corrupted)
        self.change = {
            "embed": (clean["hook_embed"] + clean["hook_pos_embed"])
            - (corrupted["hook_embed"] + corrupted["hook_pos_embed"])
        }
        for layer in range(model.cfg.n_layers):
            z = clean[f"blocks.{layer}.attn.hook_z"] - corrupted[f"blocks.{layer}.attn.hook_z"]
            for head in range(model.cfg.n_heads):
                self.change[f"a{layer}.{head}"] = z[:, :, head] @ model.blocks[layer].attn.W_O[head]
        self.resid = [clean[f"blocks.{layer}.hook_resid_pre"] for layer in range(model.cfg.n_layers)]

    def values_without(self, edge: Edge) -> torch.Tensor:
        change = self.change[edge.sender]
        if edge.receiver == "logits":

            def cut(x, hook):
                return x - change

            return self._metric("ln_final.hook_in", cut)
        layer, head, part = int(edge.receiver[1:].split(".")[0]), int(edge.receiver.split(".")[1]), edge.receiver[-1]
        block = self.model.blocks[layer]
        x = block.ln1(self.resid[layer] - change)
        new = x @ getattr(block.attn, f"W_{part.upper()}")[head] + getattr(block.attn, f"b_{part.upper()}")[head]

        def replace(value, hook):
            value = value.clone()
            value[:, :, head] = new
            return value

        return self._metric(f"blocks.{layer}.attn.hook_{part}", replace)

    def _metric(self, name, hook) -> torch.Tensor:
        with torch.no_grad():
            return self.task.metric(self.model.run_with_hooks(self.task.clean, fwd_hooks=[(name, hook)]))


def docstring_4l():
    """The shipped model and its task; while its weights are not there, its shape with random weights."""
    from circuitlib.models import info, load_model
    from circuitlib.tasks import docstring

    if (info("docstring-4l").folder / "model.safetensors").is_file():
        model = load_model("docstring-4l")
        return model, docstring(model, n=20)
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge import TransformerBridge

    shape = dict(n_layers=4, n_heads=8, d_model=128, d_head=32, n_ctx=96, d_vocab=1000)
    model = TransformerBridge.boot_native(
        TransformerBridgeConfig(**shape, attn_only=True, act_fn="gelu", seed=0)
    ).eval()
    return model, random_task(model, 20, 60)


def random_gpt2(n_layers: int, n_heads: int, d_model: int, d_vocab: int):
    from tokenizers import Tokenizer, models
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=n_layers,
        n_head=n_heads,
        n_embd=d_model,
        vocab_size=d_vocab,
        n_positions=64,
        bos_token_id=0,
        eos_token_id=0,
    )
    vocab = {f"t{i}": i for i in range(d_vocab)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocab, unk_token="t0")),
        name_or_path="local",
        bos_token="t0",
        eos_token="t0",
        pad_token="t0",
        add_bos_token=True,
    )
    return TransformerBridge.boot_transformers(
        "gpt2", hf_model=GPT2LMHeadModel(config).eval(), tokenizer=tokenizer, device="cpu"
    ).eval()


def random_task(model, n: int, n_pos: int) -> Task:
    generator = torch.Generator().manual_seed(0)
    clean, corrupted = torch.randint(model.cfg.d_vocab, (2, n, n_pos), generator=generator)
    answers, distractors = (torch.randint(model.cfg.d_vocab, shape, generator=generator) for shape in ((n,), (n, 5)))
    return Task("random prompts", clean, corrupted, answers, distractors, {"end": n_pos - 1}, (n_pos - 1,))


def best_of(n: int, *functions) -> list[float]:
    """The shortest of ``n`` times of each function, in turns, so that a busy machine is busy for all of them."""
    best = [float("inf")] * len(functions)
    for function in functions:
        function()
    for _ in range(n):
        for i, function in enumerate(functions):
            start = time.process_time()
            with torch.no_grad():
                function()
            best[i] = min(best[i], time.process_time() - start)
    return best


def peak_mb() -> float:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


if __name__ == "__main__":
    main()
