"""The same seed gives the same bytes; threads, batches and a last digit of noise change no circuit and no printed number."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from test_mutations import CHAPTERS, Mutation, broken_copy, nbval

from circuitlib.engine import Engine

ROOT = Path(__file__).resolve().parents[1]

# --- the same bytes -------------------------------------------------------------------------------------------------------

# What is measured: every method on every shipped model, on few prompts. Scores come out as bytes, circuits as text.
MEASURE = """
import hashlib, json, sys
import torch
import circuitlib as cl

def measure(name, n, methods, **more):
    model = cl.load_model(name)
    engine = cl.Engine(model, cl.default_task(model, n=n, seed=0), **more)
    limit = max(1.0, abs(float(engine.values(engine.all).mean())))
    found = {"limit": limit, "logits": engine.run(engine.all)}
    for method in methods:
        if method == "acdc":
            found["acdc"] = [str(edge) for edge in cl.acdc(engine, threshold=0.05 * limit)]
        else:
            scores = {"eap": cl.eap, "eap-ig": cl.eap_ig, "exact": cl.exact}[method](engine)
            found[method], found[method + " top"] = scores.values, [str(edge) for edge in scores.top(60)] if scores.graph.n_edges > 99 else []
    return found

def digest(found):
    said = {}
    for name, value in found.items():
        raw = value.contiguous().numpy().tobytes() if isinstance(value, torch.Tensor) else json.dumps(value).encode()
        said[name] = hashlib.sha256(raw).hexdigest()
    return said
"""
FAST = {"docstring-4l": (4, ("eap", "eap-ig")), "gpt-mini": (4, ("eap",)), "handmade-docstring": (4, ("exact", "acdc"))}
WHOLE = {"docstring-4l": (12, ("eap", "eap-ig", "exact", "acdc")), "gpt-mini": (8, ("eap", "eap-ig"))}
TOLERANCE = 1e-5  # of the metric (or of 1, if it is smaller); float32 has 6e-8, and a run adds up a few hundred numbers


def elsewhere(code: str, threads: int = 1, hash_seed: str = "0", timeout: int = 900) -> str:
    """What code prints in a Python of its own."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", MEASURE + code], env=env, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def digests(hash_seed: str, what=FAST) -> dict:
    calls = ", ".join(f"{name!r}: digest(measure({name!r}, {n}, {methods}))" for name, (n, methods) in what.items())
    return json.loads(elsewhere(f"print(json.dumps({{{calls}}}))", hash_seed=hash_seed).splitlines()[-1])


def test_two_processes_give_the_same_bytes():
    one, other = digests("1"), digests("2")
    assert one == other and sum(map(len, one.values())) > 10
    # A digest that is the same whatever is measured would be no proof: other prompts give others.
    assert len({said["logits"] for said in one.values()}) == len(one)


@pytest.mark.slow
def test_two_processes_give_the_same_bytes_by_every_method():
    assert digests("1", WHOLE) == digests("2", WHOLE)


# --- threads and batches ----------------------------------------------------------------------------------------------------


def near(one: dict, other: dict) -> None:
    """Scores within the tolerance; circuits the same, where no two edges at their border are as near as that."""
    limit = TOLERANCE * one["limit"]
    assert one.keys() == other.keys()
    for name, value in one.items():
        if isinstance(value, torch.Tensor):
            assert float((value - other[name]).abs().max()) <= limit * (10 if name == "logits" else 1), name
        elif isinstance(value, list):
            assert value == other[name], (name, {*value} ^ {*other[name]})


@pytest.mark.slow
def test_threads_change_no_circuit_and_no_score_beyond_the_tolerance(tmp_path):
    calls = ", ".join(f"{name!r}: measure({name!r}, {n}, {methods})" for name, (n, methods) in WHOLE.items())
    for threads in (1, 2):
        elsewhere(
            f"torch.set_num_threads({threads}); torch.save({{{calls}}}, {str(tmp_path / str(threads))!r})", threads
        )
    one, two = (torch.load(tmp_path / str(threads), weights_only=True) for threads in (1, 2))
    for name in WHOLE:
        near(one[name], two[name])


@functools.cache
def measure():
    names: dict = {}
    exec(compile(MEASURE, "measure", "exec"), names)
    return names["measure"]


@pytest.mark.parametrize(("name", "n", "methods"), [("handmade-docstring", 6, ("eap", "eap-ig", "exact", "acdc")), ("docstring-4l", 4, ("eap", "eap-ig"))])  # fmt: skip
def test_batches_change_no_circuit_and_no_score_beyond_the_tolerance(name, n, methods, monkeypatch):
    sizes, forward = set(), Engine.forward

    def watched(self, keep, **more):
        logits = forward(self, keep, **more)
        sizes.add(logits.shape[:2].numel())
        return logits

    monkeypatch.setattr(Engine, "forward", watched)
    whole, large = measure()(name, n, methods), max(sizes)
    sizes.clear()
    near(whole, measure()(name, n, methods, memory_mb=1))
    assert max(sizes) < large or large == 1


@pytest.mark.slow
def test_batches_change_no_circuit_of_a_trained_model(monkeypatch):
    whole = measure()("docstring-4l", *WHOLE["docstring-4l"])
    near(whole, measure()("docstring-4l", *WHOLE["docstring-4l"], memory_mb=16))


def test_a_difference_would_be_seen():
    found = {"limit": 2.0, "eap": torch.zeros(3), "eap top": ["a", "b"]}
    near(found, {**found, "eap": torch.tensor([0, 0, 1e-5])})
    for change in ({"eap": torch.tensor([0, 0, 3e-5])}, {"eap top": ["a", "c"]}):
        with pytest.raises(AssertionError):
            near(found, {**found, **change})


# --- a last digit of noise ------------------------------------------------------------------------------------------------

# Every activation that something reads is off by a part in a million, up or down: what other kernels, another processor
# or another order of additions might make of it, and more.
NOISE = """
import functools

import torch

RELATIVE = 1e-6
NOISE = torch.rand(1_000_003, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2 - 1


def shaken(x):
    if not x.is_floating_point() or x.numel() == 0:
        return x
    return x * factors(x.dtype, -(-x.numel() // len(NOISE)))[: x.numel()].view(x.shape)


@functools.cache
def factors(dtype, times):
    return (1 + RELATIVE * NOISE).to(dtype).repeat(times)


def shake(model):
    # On the modules below TransformerLens, so that its own hooks are as they were.
    for block in model.blocks:
        block.register_forward_hook(lambda module, given, out: (shaken(out[0]), *out[1:]) if isinstance(out, tuple) else shaken(out))
    return model
"""
PLACES = {
    "engine.py": ("    return x if weights.eps is None else F.layer_norm(x, x.shape[-1:], *(affine or (None, None)), weights.eps)\n", "    from .noise import shaken\n\n    return shaken(x if weights.eps is None else F.layer_norm(x, x.shape[-1:], *(affine or (None, None)), weights.eps))\n"),
    "models/load.py": ("    model.circuitlib_name = name\n", "    model.circuitlib_name = name\n    from ..noise import shake\n\n    shake(model)\n"),
}  # fmt: skip


def noisy_copy(folder: Path) -> Path:
    """The package with noise in every activation: in the engine, and in the runs of TransformerLens."""
    (first, (old, new)), *others = PLACES.items()
    broken_copy(folder, Mutation(first, old, new, ""))
    for file, (old, new) in others:
        path = folder / "circuitlib" / file
        source = path.read_text("utf8")
        assert source.count(old) == 1, f"{file} no longer has {old!r} just once"
        path.write_text(source.replace(old, new), "utf8")
    (folder / "circuitlib" / "noise.py").write_text(NOISE, "utf8")
    return folder


LOOK = """
import circuitlib, torch
import circuitlib as cl
print(circuitlib.__file__)
model = cl.load_model("docstring-4l")
task = cl.default_task(model, n=4)
engine = cl.Engine(model, task)
print(model(task.clean).double().norm().item(), engine.run(engine.all, full=True).double().norm().item(), float((model(task.clean) - engine.run(engine.all, full=True)).abs().max()))
"""


def test_the_noise_is_there(tmp_path):
    """In both ways to run a model, and no more of it than was said."""
    (tmp_path / "noisy").mkdir()
    runs = []
    for library in (ROOT, noisy_copy(tmp_path / "noisy")):
        env = os.environ | {"PYTHONPATH": str(library), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-c", LOOK], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stderr[-2000:]
        where, numbers = done.stdout.splitlines()[-2:]
        assert Path(where).is_relative_to(library)
        runs.append([float(number) for number in numbers.split()])
    for clean, noisy in zip(runs[0][:2], runs[1][:2], strict=True):
        assert 0 < abs(noisy / clean - 1) < 1e-5
    assert runs[1][2] != runs[0][2]


# What a live view draws from is a picture as numbers: thousands of them, with as many digits as a screen shows. Pictures are not
# compared, here as elsewhere. What stands beside a view as text is.
VIEWS = """
[attention]
regex: data-props='[^']*'
replace: PICTURE

[attention's name]
regex: cv-[0-9a-f]{12}
replace: NAME

[explorer]
regex: <script type="application/json">[^<]*</script>
replace: PICTURE
"""


@pytest.mark.slow
@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_noise_changes_no_printed_digit(chapter, tmp_path):
    sanitize = tmp_path / "sanitize.cfg"
    sanitize.write_text((ROOT / "tests" / "nbval_sanitize.cfg").read_text("utf8") + VIEWS, "utf8")
    done = nbval(chapter, noisy_copy(tmp_path), sanitize)
    changed = re.findall(r"^(?:FAILED|_+) .*$", done.stdout, flags=re.M)
    assert done.returncode == 0, "\n".join([*changed, done.stdout[-3000:]])
