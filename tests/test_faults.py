"""Killed without a word, a full disk, a folder that only reads: what was finished is kept, what was there stays, and it goes on.

Sweeps have their own tests (test_sweep_faults.py), and so has ``make book`` (test_make_book.py).
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

import circuitlib as cl
from circuitlib import cli
from circuitlib.discovery import longwork

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = os.environ | {
    "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
    "OMP_NUM_THREADS": "1",
    "TQDM_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
}


def start(code: str, *arguments: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", code, *arguments], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip


def finish(code: str, *arguments: str) -> None:
    process = start(code, *arguments)
    _, stderr = process.communicate(timeout=600)
    assert process.returncode == 0, stderr[-2000:]


def kill_when(process: subprocess.Popen, there) -> None:
    """Kill -9 as soon as ``there()`` says so; the process must still be at work then."""
    until = time.monotonic() + 300
    while not there():
        assert process.poll() is None, process.communicate()[1][-2000:]
        assert time.monotonic() < until
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


# --- training -------------------------------------------------------------------------------------------------------------

TRAIN = """
import sys
from pathlib import Path
import numpy as np
from test_training import TINY
import circuitlib as cl
from circuitlib.models.training.train import train
train(TINY, cl.load_model("docstring-4l").tokenizer, np.arange(5, 2000, dtype=np.uint16), Path(sys.argv[1]), 3)
"""


@pytest.mark.slow
def test_a_training_that_is_killed_ends_with_the_same_weights(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(TRAIN, str(whole))
    rows = [json.loads(line)["step"] for line in (whole / "log.jsonl").read_text().splitlines()]
    assert rows == [2, 4, 6, 8, 9]
    for least in (1, 3):  # killed twice, each time after another checkpoint
        log = killed / "log.jsonl"
        kill_when(start(TRAIN, str(killed)), lambda log=log, least=least: log.exists() and len(log.read_text().splitlines()) >= least)  # fmt: skip
    finish(TRAIN, str(killed))
    one, other = (load_file(folder / "checkpoint.safetensors") for folder in (whole, killed))
    assert one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)
    logged = {}
    for line in (killed / "log.jsonl").read_text().splitlines():
        logged[json.loads(line)["step"]] = {**json.loads(line), "seconds": 0}
    expected = {json.loads(line)["step"]: {**json.loads(line), "seconds": 0} for line in (whole / "log.jsonl").read_text().splitlines()}  # fmt: skip
    assert all(logged[step] == expected[step] for step in logged) and {*logged} >= {2, 9}
    assert not (killed / "checkpoint.tmp").exists()


# --- exact and ACDC with a checkpoint ------------------------------------------------------------------------------------------

SEARCH = """
import sys
from pathlib import Path
import torch
import circuitlib as cl
from circuitlib.discovery import longwork
longwork.EVERY_SECONDS = 0.0
model = cl.load_model("docstring-4l")
engine = cl.Engine(model, cl.default_task(model, n=4))
method, kept, out = sys.argv[1:]
if method == "exact":
    torch.save(cl.exact(engine, checkpoint=kept).values, out)
else:
    found = cl.acdc(engine, threshold=0.3, lookahead=0 if method == "acdc, one edge at a time" else 32, checkpoint=kept)
    torch.save([[str(d.edge), d.removed, d.tested] for d in found.trace], out)
"""


def size_of(path: Path) -> int:
    """How much a checkpoint holds: it is whole whenever it is read."""
    if not path.exists():
        return 0
    state = json.loads(path.read_text("utf8"))["state"]
    return len(state["effects"] if "effects" in state else state["decisions"])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["exact", "acdc"])
def test_a_search_that_is_killed_ends_with_the_same_result(method, tmp_path):
    import torch

    whole, killed, kept = tmp_path / "whole.pt", tmp_path / "killed.pt", tmp_path / "kept.json"
    finish(SEARCH, method, str(tmp_path / "other.json"), str(whole))
    seen = 0
    for more in (5, 10):
        kill_when(
            start(SEARCH, method, str(kept), str(killed)), lambda seen=seen, more=more: size_of(kept) >= seen + more
        )
        seen = size_of(kept)
    assert not killed.exists() and 15 <= seen < size_of(tmp_path / "other.json")
    finish(SEARCH, method, str(kept), str(killed))
    one, other = (torch.load(path, weights_only=True) for path in (whole, killed))
    assert one.equal(other) if method == "exact" else one == other
    left = {path.name for path in tmp_path.iterdir()}
    assert {name for name in left if not name.endswith(".tmp")} == {"whole.pt", "killed.pt", "kept.json", "other.json"}


# --- a disk that is full, a folder that only reads --------------------------------------------------------------------------------

DISCOVER = ["discover", "--model", "handmade-and", "--n", "8", "--quiet", "--method"]


def run(*arguments: str):
    result = CliRunner().invoke(cli.app, list(arguments))
    assert isinstance(result.exception, SystemExit | None), repr(result.exception)
    return result


@pytest.fixture
def full(monkeypatch):
    """After ``full(n)`` the disk takes n characters more; what does not fit is cut, as on a real one."""

    def fill(room: int = 0) -> None:
        def write(self, text, *args, **kwargs):
            data = text if isinstance(text, bytes) else text.encode()
            with open(self, "wb") as file:
                file.write(data[:room])
            if len(data) > room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))

        monkeypatch.setattr(Path, "write_text", write)
        monkeypatch.setattr(Path, "write_bytes", write)

    return fill


def engine():
    model = cl.load_model("handmade-and")
    return cl.Engine(model, cl.default_task(model, n=8))


WRITTEN = {
    "discover --out": ([*DISCOVER, "eap", "--top", "3", "--out", "file.json"], "file.json"),
    "discover --scores": ([*DISCOVER, "eap", "--top", "3", "--scores", "file.csv", "--out", "c2.json"], "file.csv"),
    "evaluate --out": (["evaluate", "c.json", "--model", "handmade-and", "--n", "8", "--quiet", "--random", "0", "--out", "file.csv"], "file.csv"),
    "compare --out": (["compare", "--model", "handmade-and", "--n", "8", "--quiet", "--method", "eap", "--out", "file.csv"], "file.csv"),
    "export .dot": (["export", "c.json", "--quiet", "--out", "file.dot"], "file.dot"),
    "export .html": (["export", "c.json", "--quiet", "--out", "file.html"], "file.html"),
    "export .json": (["export", "c.json", "--quiet", "--out", "file.json"], "file.json"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("room", [0, 20])
def test_a_full_disk_leaves_the_old_file(name, room, full, tmp_path, monkeypatch):
    arguments, file = WRITTEN[name]
    monkeypatch.chdir(tmp_path)
    cl.known_circuit("handmade-and").save("c.json")
    Path(file).write_text("old")
    before = {path.name for path in tmp_path.iterdir()}
    full(room)
    result = run(*arguments)
    assert result.exit_code == 3 and "No space left on device" in result.stderr and len(result.stderr.splitlines()) == 1
    assert Path(file).read_text() == "old" and {path.name for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("file", "save"),
    [
        ("c.json", lambda e, path: cl.known_circuit("handmade-and").save(path)),
        ("c.graphml", lambda e, path: cl.known_circuit("handmade-and").to_graphml(path)),
        ("t.jsonl", lambda e, path: cl.save_task(e.model, e.task, path)),
        ("v.html", lambda e, path: cl.explore(cl.known_circuit("handmade-and")).save(path)),
    ],
)
def test_what_the_library_saves_is_whole_or_not_there(file, save, full, tmp_path):
    it, path = engine(), tmp_path / file
    save(it, path)
    before = path.read_bytes()
    full(10)
    for place, expected in ((path, before), (tmp_path / f"new-{file}", None)):
        with pytest.raises((OSError, ValueError), match="No space left"):
            save(it, place)
        assert place.read_bytes() == expected if expected else not place.exists()
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("method", ["exact", "acdc"])
def test_a_disk_that_fills_up_on_the_way_keeps_the_checkpoint(method, full, tmp_path, monkeypatch):
    """The last whole checkpoint stays, the error is one line, and with room again the search goes on from there."""
    it, path = engine(), tmp_path / "kept.json"
    search = (lambda **more: cl.exact(it, **more)) if method == "exact" else (lambda **more: cl.acdc(it, threshold=0.1, **more))  # fmt: skip
    whole = search()
    monkeypatch.setattr(longwork, "EVERY_SECONDS", 0.0)
    save, saved = longwork.Checkpoint.save, []

    def save_and_fill(self, state, now=True):
        if len(saved) == 3:
            full(30)
        saved.append(1)
        save(self, state, now)

    monkeypatch.setattr(longwork.Checkpoint, "save", save_and_fill)
    with pytest.raises(ValueError, match="^checkpoint: .*can't be written .No space left on device.") as error:
        search(checkpoint=path)
    assert "\n" not in str(error.value) and 0 < size_of(path) and [*tmp_path.iterdir()] == [path]
    monkeypatch.undo()
    found = search(checkpoint=path)
    assert found.values.equal(whole.values) if method == "exact" else found == whole


@pytest.fixture
def read_only(tmp_path, monkeypatch):
    """A folder in which nothing can be made; also for root, whom permissions don't stop."""
    folder = tmp_path / "locked"
    folder.mkdir()
    cl.known_circuit("handmade-and").save(folder / "c.json")
    folder.chmod(0o500)
    access, opened = os.access, open

    def may(path, mode, **more):
        return access(path, mode, **more) and not (mode & os.W_OK and Path(path).absolute().is_relative_to(folder))

    def refused(self, *args, **kwargs):
        if self.absolute().is_relative_to(folder):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))
        with opened(self, "wb") as file:
            file.write(args[0] if isinstance(args[0], bytes) else args[0].encode())

    monkeypatch.setattr(os, "access", may)
    monkeypatch.setattr(Path, "write_text", refused)
    monkeypatch.setattr(Path, "write_bytes", refused)
    monkeypatch.chdir(folder)
    yield folder
    folder.chmod(0o700)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_folder_that_only_reads_is_known_before_the_work(name, read_only, monkeypatch):
    monkeypatch.setattr("circuitlib.cli.common.load", lambda *_: pytest.fail("the model was loaded first"))
    result = run(*WRITTEN[name][0])
    assert result.exit_code == 3 and "can't be written to" in result.stderr and len(result.stderr.splitlines()) == 1
    assert [path.name for path in read_only.iterdir()] == ["c.json"]


def test_a_checkpoint_in_a_folder_that_only_reads(read_only, monkeypatch):
    result = run(*DISCOVER, "exact", "--top", "3", "--checkpoint", "kept.json")
    assert result.exit_code == 3 and "can't be written to" in result.stderr
    with pytest.raises(ValueError, match="^checkpoint: kept.json can't be written .Permission denied.") as error:
        cl.acdc(engine(), threshold=0.1, checkpoint="kept.json")
    assert "\n" not in str(error.value) and [path.name for path in read_only.iterdir()] == ["c.json"]
