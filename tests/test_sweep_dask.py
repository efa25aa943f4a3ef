"""Sweeps on a Dask cluster, on the loopback interface only: the same table as here, whatever is killed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
from test_sweep import OWN, same, toml_file
from test_sweep_faults import PATIENCE, wait_for

from circuitlib.models import Missing
from circuitlib.sweep import Cell, cell, read_grid, run_sweep, store, workers

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[1]
GRID = {
    "grid": [
        {"model": "handmade-docstring", "method": ["acdc", "eap-ig"], "threshold": [0.1, 0.5], "seed": list(range(4)), "n": 20},
        {"model": ["handmade-or", "handmade-and"], "method": ["exact", "eap"], "metric": ["task", "kl"], "top": 4, "n": 2},
    ],
    "circuits": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def local(tmp_path_factory) -> tuple[pd.DataFrame, Path]:
    """The table of the grid, made in this process, and the folder with its circuits."""
    folder = tmp_path_factory.mktemp("local")
    table = run_sweep(GRID, folder, jobs=0)
    assert Counter(table["status"]) == {"done": 22, "refused": 2}
    return table, folder


@pytest.fixture
def cluster():
    """Two processes with one worker each."""
    from dask.distributed import LocalCluster

    address = {"host": "127.0.0.1", "dashboard_address": None}
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, silence_logs=50, **address) as started:
        yield started


def pids(cluster) -> dict[str, int]:
    """The processes of the workers, by address."""
    from dask.distributed import Client

    with Client(cluster.scheduler_address, set_as_default=False) as client:
        return client.run(os.getpid)


def saved(monkeypatch) -> Counter:
    """How often each cell is kept."""
    counts: Counter = Counter()
    real = store.Store.save

    def save(self, one, row, circuits):
        counts[one] += 1
        real(self, one, row, circuits)

    monkeypatch.setattr(store.Store, "save", save)
    return counts


def same_circuits(one: Path, other: Path, table: pd.DataFrame) -> None:
    names = [name for name in table["circuit"] if name]
    assert len(names) == 22
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes()


def test_a_cluster_gives_the_same_table_and_a_worker_loads_a_model_once(tmp_path, cluster, local, monkeypatch):
    from dask.distributed import Client

    table, folder = local
    counts = saved(monkeypatch)
    found = run_sweep(GRID, tmp_path, scheduler=cluster.scheduler_address)
    same(found, table)
    same_circuits(tmp_path, folder, table)
    assert set(counts.values()) == {1} and len(counts) == 24
    with Client(cluster.scheduler_address, set_as_default=False) as client:
        loads = client.run(loaded)
    assert len(loads) == 2
    for names, misses, hits in loads.values():
        assert misses == len(names) <= 3 and hits > 0  # one for each model that the worker had cells of
    # A second sweep on the same workers: nothing is loaded again.
    same(run_sweep(GRID, tmp_path / "again", scheduler=cluster.scheduler_address), table)
    with Client(cluster.scheduler_address, set_as_default=False) as client:
        again = client.run(loaded)
    assert all(misses <= 3 for _, misses, _ in again.values())


def loaded() -> tuple[list[str], int, int]:
    """In a worker: the models that it has, how often one was loaded and how often one was there."""
    import gc

    info = cell.load.cache_info()
    names = {getattr(thing, "circuitlib_name", None) for thing in gc.get_objects() if type(thing).__name__ == "TransformerBridge"}  # fmt: skip
    return sorted(filter(None, names)), info.misses, info.hits


def test_a_worker_killed_in_the_middle_loses_nothing_and_doubles_nothing(tmp_path, cluster, local, monkeypatch):
    table, folder = local
    counts = saved(monkeypatch)
    result = {}
    thread = threading.Thread(
        target=lambda: result.update(table=run_sweep(GRID, tmp_path, scheduler=cluster.scheduler_address))
    )
    before = pids(cluster)
    thread.start()
    wait_for(lambda: sum(counts.values()) >= 4)
    os.kill(next(iter(before.values())), signal.SIGKILL)
    killed_at = sum(counts.values())
    thread.join(PATIENCE)
    assert killed_at < 20, "too late to be in the middle"
    assert set(pids(cluster).values()) != set(before.values())  # it was one of them that died
    same(result["table"], table)
    same_circuits(tmp_path, folder, table)
    assert len(counts) == 24 and set(counts.values()) == {1}


def deadly(one: Cell, file: str | None) -> dict:
    """In the place of ``attempt``: one cell kills the worker that runs it, every time."""
    if one.top == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return {**cell.blank(one), "status": "done"}


def test_a_cell_that_kills_every_worker_fails_and_the_others_are_done(cluster, monkeypatch):
    monkeypatch.setattr(workers, "attempt", deadly)
    cells = [Cell("handmade-or", "gate", "exact", top=top) for top in range(6)]
    rows = list(workers.on_cluster(cells, {}, cluster.scheduler_address))
    assert sorted(one.top for one, _ in rows) == list(range(6))
    assert {one.top: row["error"] for one, row in rows if row["status"] == "failed"} == {2: workers.LOST}


def broken(one: Cell, file: str | None) -> dict:
    """In the place of ``attempt``: a worker whose installation is not whole."""
    raise ModuleNotFoundError("No module named 'circuitlib'")


def test_workers_that_can_t_run_cells_end_the_sweep(tmp_path, cluster, monkeypatch):
    monkeypatch.setattr(workers, "attempt", broken)
    with pytest.raises(Missing, match=r"^scheduler: a worker of tcp://127.0.0.1:\d+ can't run cells \(ModuleNotFoundError: No module"):  # fmt: skip
        run_sweep(GRID, tmp_path, scheduler=cluster.scheduler_address)
    assert not list(tmp_path.glob("*.json"))


def test_an_interrupt_takes_the_cells_back(tmp_path, cluster, local, monkeypatch):
    from dask.distributed import Client

    real, kept = store.Store.save, []

    def save(self, one, row, circuits):
        if len(kept) == 3:
            raise KeyboardInterrupt
        kept.append(one)
        real(self, one, row, circuits)

    monkeypatch.setattr(store.Store, "save", save)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(GRID, tmp_path, scheduler=cluster.scheduler_address)
    assert len(list(tmp_path.glob("*.json"))) == 3
    with Client(cluster.scheduler_address, set_as_default=False) as client:
        wait_for(lambda: not client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)))
    monkeypatch.undo()
    same(run_sweep(GRID, tmp_path, scheduler=cluster.scheduler_address), local[0])


def test_more_cells_than_the_scheduler_hears_of_at_a_time(cluster, monkeypatch):
    monkeypatch.setattr(workers, "attempt", counted)
    monkeypatch.setattr(workers, "AHEAD", 5)
    cells = [Cell("handmade-or", "gate", "exact", top=top) for top in range(40)]
    rows = list(workers.on_cluster(cells, {}, cluster.scheduler_address))
    assert sorted(one.top for one, _ in rows) == list(range(40))
    assert all(row["error"] == str(one.top) for one, row in rows)


def counted(one: Cell, file: str | None) -> dict:
    return cell.failed(one, str(one.top))


# --- a cluster of other programs, as one has it on several machines


@contextlib.contextmanager
def programs(folder: Path, n_workers: int = 2):
    """``dask scheduler`` and ``dask worker``, in a folder that is not the sweep's; yields the address and the processes."""
    environment = {**os.environ, "DASK_DISTRIBUTED__WORKER__DAEMON": "False"}
    where = folder / "scheduler.json"
    where.unlink(missing_ok=True)
    started = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", where]  # fmt: skip
    quiet = {"cwd": folder, "env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    processes = [subprocess.Popen(started, **quiet)]
    try:
        wait_for(where.exists, processes[0])
        worker = [sys.executable, "-m", "distributed.cli.dask_worker", "--scheduler-file", where, "--nthreads", "1", "--no-dashboard"]  # fmt: skip
        processes += [subprocess.Popen(worker, **quiet) for _ in range(n_workers)]
        yield re.search(r"tcp://127\.0\.0\.1:\d+", where.read_text("utf8"))[0], processes
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:  # a worker that still looks for its scheduler
                process.kill()
                process.wait()


def test_the_command_on_a_cluster_and_what_it_says_when_the_scheduler_goes(tmp_path, local):
    table, _ = local
    elsewhere = tmp_path / "elsewhere"  # the workers have the package, and not this folder
    elsewhere.mkdir()
    grid = tmp_path / "grid.toml"
    first, second = GRID["grid"]
    grid.write_text("circuits = true\n" + "".join(_table(one) for one in (first, second)), "utf8")
    command = [sys.executable, "-m", "circuitlib.cli", "sweep", grid, "--cells", tmp_path / "cells", "--quiet"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT}
    with programs(elsewhere) as (address, processes):
        process = subprocess.Popen([*command, "--scheduler", address], **pipes)
        wait_for(lambda: len(list((tmp_path / "cells").glob("*.json"))) >= 4, process)
        processes[0].kill()
        output, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, output) == (3, "")
    assert errors == f"error: scheduler: {address} is gone; the cells that are finished are kept\n"
    kept = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "cells").glob("*.json")}
    assert 4 <= len(kept) < 24

    with programs(elsewhere) as (address, _):
        done = subprocess.run(
            [*command, "--scheduler", address, "--out", tmp_path / "t.csv"], timeout=PATIENCE, **pipes
        )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert {name: (tmp_path / "cells" / name).stat().st_mtime_ns for name in kept} == kept
    same(store.Store(tmp_path / "cells").table(read_grid(grid)), table)


def _table(grid: dict) -> str:
    import json

    return "\n".join(["[[grid]]", *(f"{name} = {json.dumps(value)}" for name, value in grid.items()), ""])


def test_a_task_file_goes_with_its_cells(tmp_path, cluster):
    (tmp_path / "own.jsonl").write_text(OWN, "utf8")
    grid = toml_file(tmp_path, model="handmade-and", task="own.jsonl", method="exact", top=[2, 3], n=2, seed=[0, 1])
    here = run_sweep(grid, tmp_path / "here", jobs=0)
    plan = read_grid(grid)
    (tmp_path / "own.jsonl").unlink()  # what the workers could find
    same(run_sweep(plan, tmp_path / "there", scheduler=cluster.scheduler_address), here)


def test_a_worker_with_several_threads_runs_one_cell_at_a_time(tmp_path, local):
    from dask.distributed import LocalCluster

    address = {"host": "127.0.0.1", "dashboard_address": None}
    with LocalCluster(n_workers=1, threads_per_worker=3, processes=True, silence_logs=50, **address) as cluster:
        same(run_sweep(GRID, tmp_path, scheduler=cluster.scheduler_address), local[0])
