"""Devices: every job on a tensor that lies elsewhere, against the same job on the CPU; and on a GPU where there is one."""

from __future__ import annotations

import math

import pytest
import torch
from elsewhere import NAME, Elsewhere, There

import circuitlib as cl
from circuitlib.models.load import device_named

# name → what is made of (model, task, engine): tensors, circuits, tables, anything with numbers in it.
JOBS = {
    "run": lambda model, task, engine: engine.run([engine.all, engine.none]),
    "kl": lambda model, task, engine: engine.metric(engine.none, "kl"),
    "zero": lambda model, task, engine: cl.Engine(model, task, "zero").metric(engine.none),
    "denoising": lambda model, task, engine: cl.Engine(model, task, "mean", "denoising").metric(engine.none),
    "eap": lambda model, task, engine: cl.eap(engine),
    "eap by position": lambda model, task, engine: cl.eap(engine, per_position=True),
    "eap-ig": lambda model, task, engine: cl.eap_ig(engine, steps=2),
    "eap-ig activations": lambda model, task, engine: cl.eap_ig(engine, steps=1, variant="activations"),
    "exact": lambda model, task, engine: cl.exact(engine, level="node" if engine.graph.n_edges > 999 else "edge"),
    "acdc": lambda model, task, engine: cl.acdc(engine, threshold=0.1, start=cl.eap(engine).top(60)),
    "faithfulness": lambda model, task, engine: cl.faithfulness(engine, cl.eap(engine).top(20)),
    "evaluate": lambda model, task, engine: cl.evaluate(engine, cl.eap(engine).top(20)),
    "completeness": lambda model, task, engine: cl.completeness(engine, cl.eap(engine).top(20), n_sets=2),
    "minimality": lambda model, task, engine: cl.minimality(engine, cl.eap(engine).top(5)),
    "random baseline": lambda model, task, engine: cl.random_baseline(engine, 20, n=3),
    "stability": lambda model, task, engine: cl.stability(engine, cl.eap, n=2, k=20).to_pandas(),
    "random scores": lambda model, task, engine: cl.random_scores(engine),
    "examine": lambda model, task, engine: cl.examine(model, task),
    "head scores": lambda model, task, engine: list(cl.head_scores(model, n=3, period=2).values()),
    "head effects": lambda model, task, engine: cl.head_effects(engine),
    "roles": lambda model, task, engine: cl.roles(model, task),
    "composition": lambda model, task, engine: cl.composition(model, "K"),
    "copying": lambda model, task, engine: cl.ov_copying(model, torch.arange(20), after=["a0.0"]),
    "attribution": lambda model, task, engine: vars(cl.direct_logit_attribution(model, task)),
    "attribution of a head": lambda model, task, engine: vars(cl.head_attribution(model, task, "a1.1")),
    "self-repair": lambda model, task, engine: vars(cl.self_repair(engine, ["a1.1"])),
    "patching": lambda model, task, engine: cl.activation_patching(model, task),
    "patching of heads": lambda model, task, engine: cl.activation_patching(model, task, "z", "denoising"),
    "path patching": lambda model, task, engine: cl.path_patching(engine, ["embed"], ["logits"], via=["a1.1"]),
    "path patching sweep": lambda model, task, engine: cl.path_patching_sweep(engine, ["logits"]),
    "input effects": lambda model, task, engine: vars(cl.input_effects(engine, "logits")),
}
MODELS = ("handmade-docstring", "gpt-mini")


def plain(result):
    """Numbers and names, wherever they are."""
    if isinstance(result, torch.Tensor):
        return result.cpu().tolist()
    if isinstance(result, dict):
        return {key: plain(value) for key, value in result.items()}
    if isinstance(result, list | tuple):
        return [plain(one) for one in result]
    if isinstance(result, cl.Circuit):
        return list(map(str, result))
    if isinstance(result, cl.EdgeScores):
        return plain(result.values)
    if hasattr(result, "to_csv"):
        return result.reset_index().to_dict("list")
    if hasattr(result, "items"):
        return plain(dict(result.items()))
    assert isinstance(result, float | int | str), type(result)
    return result


def same(a, b, tolerance: float = 0.0) -> bool:
    """Whether two plain results agree, names and shapes exactly, numbers to ``tolerance``."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key], tolerance) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(same(x, y, tolerance) for x, y in zip(a, b, strict=True))
    if isinstance(a, float):
        return math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance) or (math.isnan(a) and math.isnan(b))
    return type(a) is type(b) and a == b


@pytest.fixture(scope="module", params=MODELS)
def here(request):
    return setting(request.param, "cpu")


def setting(name: str, device: str):
    model = cl.load_model(name, device=device)
    task = cl.default_task(model, n=8)
    return model, task, cl.Engine(model, task)


@pytest.fixture(scope="module")
def there(here):
    with Elsewhere():
        return setting(here[0].circuitlib_name, NAME)


@pytest.mark.parametrize("job", JOBS)
def test_what_runs_here_runs_elsewhere_and_gives_the_same(job, here, there):
    expected = plain(JOBS[job](*here))
    with Elsewhere():
        assert same(plain(JOBS[job](*there)), expected)


def test_tasks_lie_beside_the_model(tmp_path):
    with Elsewhere():
        model, task, _ = setting("handmade-docstring", NAME)
        cl.save_task(model, task, tmp_path / "t.jsonl")
        induction = cl.induction(cl.load_model("handmade-induction", device=NAME), n=3, period=4)
        words = cl.template_task(
            cl.load_model("docstring-4l", NAME), " {A} {B}", " {A} {C}", " {A}", [], n=3, metric_name="logprob"
        )
        for one in (task, cl.load_task(model, tmp_path / "t.jsonl"), induction, words):
            for tensor in (one.clean, one.corrupted, one.answers, one.distractors):
                assert isinstance(tensor, There), one


def test_a_scores_file_and_a_circuit_do_not_remember_the_device(there):
    with Elsewhere():
        scores = cl.eap(there[2])
    assert scores.values.device.type == "cpu" and scores.top(3).mask.device.type == "cpu"


def test_elsewhere_is_as_strict_as_a_gpu():
    with Elsewhere():
        x, y = torch.ones(3, device=NAME), torch.ones(3)
        for mixed in (lambda: x + y, lambda: torch.cat([x, y]), lambda: y[x.long()], lambda: x.copy_(y).add_(y)):
            with pytest.raises(RuntimeError, match="cpu"):
                mixed()
        with pytest.raises(TypeError, match="numpy"):
            x.numpy()
        assert (x + torch.tensor(1.0)).tolist() == [2, 2, 2] and x.cpu().device.type == "cpu"
        x[torch.tensor([0])] = 5.0
        assert x.tolist() == [5, 1, 1]


@pytest.mark.parametrize(
    ("device", "error", "said"),
    [
        ("gpu", ValueError, "device: expected 'cpu', 'cuda', 'cuda:1', 'mps' or 'auto', got 'gpu'"),
        ("meta", ValueError, "device: expected 'cpu'"),
        ("", ValueError, "device: expected 'cpu'"),
        (NAME, OSError, "device 'xla:0' is not there, or PyTorch was built without it; 'cpu' always is"),
        ("cuda:99", OSError, "device 'cuda:99' is not there"),
    ],
)
def test_a_device_that_is_not_there(device, error, said):
    with pytest.raises(error) as raised:
        cl.load_model("handmade-or", device=device)
    assert said in str(raised.value) and "\n" not in str(raised.value)


def test_auto_is_the_gpu_if_there_is_one(monkeypatch):
    assert device_named("auto") == ("cuda" if torch.cuda.is_available() else "cpu")
    monkeypatch.setattr("transformer_lens.utilities.devices.get_device", lambda: NAME)
    with Elsewhere():
        assert device_named("auto") == NAME


def test_by_default_a_model_lies_on_the_cpu_and_says_so(monkeypatch):
    """A native model's configuration names the GPU where there is one, though its weights are here."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for model in (cl.load_model("docstring-4l"), cl.load_model("handmade-or"), cl.untrained_model("attn-only-4l", 8)):
        assert model.cfg.device == "cpu" == model.W_E.device.type


GPU = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else None


@pytest.mark.skipif(GPU is None, reason="this computer has no GPU")
@pytest.mark.parametrize("job", JOBS)
def test_a_gpu_agrees_with_the_cpu(job, here):
    """To 1e-3: a GPU adds up in another order. What is chosen is the same."""
    there = setting(here[0].circuitlib_name, GPU)
    assert same(plain(JOBS[job](*there)), plain(JOBS[job](*here)), tolerance=1e-3)
