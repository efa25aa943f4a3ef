"""Sweeps in processes of their own: the same numbers, whatever is killed, full or locked meanwhile."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import psutil
import pytest
from test_sweep import same, toml_file

from circuitlib.sweep import Cell, cell, read_grid, run_sweep, store, workers

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[1]
# About half a second a cell, after the model is loaded.
GRID = {
    "model": "handmade-docstring",
    "method": ["acdc", "eap-ig"],
    "threshold": [0.1, 0.5],
    "seed": list(range(6)),
    "n": 10,
}
PATIENCE = 900


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> pd.DataFrame:
    """The table of the grid, cell after cell in this process."""
    table = run_sweep({"grid": GRID}, tmp_path_factory.mktemp("whole"), jobs=0)
    assert set(table["status"]) == {"done"} and len(table) == 24
    return table


def start(folder: Path, *more: str, cells: Path | None = None) -> subprocess.Popen:
    """The sweep from a terminal of its own."""
    grid = toml_file(folder, **GRID)
    command = [sys.executable, "-m", "circuitlib.cli", "sweep", str(grid), "--out", str(folder / "t.csv")]
    command += ["--cells", str(cells or folder / "cells"), "--quiet", *(more or ("--jobs", "2"))]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def wait_for(condition, process: subprocess.Popen | None = None) -> None:
    """Until it holds; a failure if the process ends before that, or it takes too long."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "nothing happened for too long"
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.02)


def finished(folder: Path) -> dict[str, int]:
    """The cells that are there, with the time at which they were written."""
    return {path.name: path.stat().st_mtime_ns for path in (folder / "cells").glob("*.json")}


def workers_of(process: subprocess.Popen) -> list[psutil.Process]:
    """The processes that run cells: those that have torch in memory."""
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if any("libtorch" in mapped.path for mapped in child.memory_maps()):
                found.append(child)
    return found


def family(process: subprocess.Popen) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def all_gone(processes: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(processes, timeout=0.1)[1]


def goes_on_to_the_same_table(folder: Path, whole: pd.DataFrame) -> None:
    """Start it again: what was finished is as it was, and the table is that of a sweep that nothing happened to."""
    before = finished(folder)
    assert 0 < len(before) < 24
    output, errors = (process := start(folder)).communicate(timeout=PATIENCE)
    assert (process.returncode, output, errors) == (0, "", "")
    after = finished(folder)
    assert len(after) == 24 and {name: after[name] for name in before} == before
    same(store.Store(folder / "cells").table(read_grid({"grid": GRID})), whole)
    columns = [name for name in store.COLUMNS if name not in cell.CLOCK]
    expected = folder / "expected.csv"
    store.write_table(whole[columns], expected)
    written = "\n".join(line.rsplit(",", 2)[0] for line in (folder / "t.csv").read_text("utf8").splitlines())
    assert written + "\n" == expected.read_text("utf8")


# --- the same numbers


def test_two_processes_give_the_bytes_of_one(tmp_path, whole):
    same(run_sweep({"grid": GRID}, tmp_path, jobs=2), whole)


def test_other_threads_outside_make_no_difference(tmp_path, whole):
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "PYTHONHASHSEED": "7"}
    grid = toml_file(tmp_path, **{**GRID, "seed": [0, 1]})
    command = [sys.executable, "-m", "circuitlib.cli", "sweep", grid, "--cells", tmp_path / "c", "--jobs", "1", "--quiet"]  # fmt: skip
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL, timeout=PATIENCE)
    table = store.Store(tmp_path / "c").table(read_grid(grid))
    same(table.drop(columns="config"), whole[:8].drop(columns="config"))


def about_the_process(one: Cell, file: str | None) -> dict:
    """In the place of ``attempt``: what a worker is like."""
    print("to stdout, which belongs to the table")
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    return cell.failed(one, f"{os.getpid()} {ignored} {sorted({os.environ[name] for name in workers.THREADS})}")


def test_a_worker_has_the_threads_of_a_cell_and_leaves_stdout_and_interrupts_alone(monkeypatch, capfd):
    monkeypatch.setattr(workers, "attempt", about_the_process)
    cells = [Cell("handmade-or", "gate", "exact", top=top, threads=3) for top in range(8)]
    rows = dict(workers.in_processes(cells, {}, 2))
    said = [row["error"].split(" ", 1) for row in rows.values()]
    assert len(rows) == 8 and {what for _, what in said} == {"True ['3']"}
    assert 1 <= len({pid for pid, _ in said}) <= 2 and str(os.getpid()) not in {pid for pid, _ in said}
    assert capfd.readouterr().out == ""


# --- what is killed


def test_a_sweep_that_is_killed_goes_on_where_it_was(tmp_path, whole):
    process = start(tmp_path)
    wait_for(lambda: len(finished(tmp_path)) >= 5, process)
    children = family(process)
    assert len(workers_of(process)) == 2
    process.kill()
    assert process.wait() == -signal.SIGKILL
    wait_for(lambda: all_gone(children))  # the workers notice
    goes_on_to_the_same_table(tmp_path, whole)


def test_ctrl_c_is_one_word_and_leaves_nothing_running(tmp_path, whole):
    process = start(tmp_path)
    wait_for(lambda: len(finished(tmp_path)) >= 5, process)
    children = family(process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does it: to all of them
    output, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, output, errors) == (130, "", "interrupted\n")
    wait_for(lambda: all_gone(children))
    assert not (tmp_path / "t.csv").exists()
    goes_on_to_the_same_table(tmp_path, whole)


def test_a_worker_that_is_killed_costs_time_and_nothing_else(tmp_path, whole):
    process = start(tmp_path)
    wait_for(lambda: len(finished(tmp_path)) >= 3, process)
    workers_of(process)[0].kill()
    output, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, output, errors) == (0, "", "")
    same(store.Store(tmp_path / "cells").table(read_grid({"grid": GRID})), whole)


def deadly(one: Cell, file: str | None) -> dict:
    """In the place of ``attempt``: some cells kill the process that runs them."""
    if one.top in (2, 5):
        time.sleep(0.2)  # so that other cells are on their way
        os.kill(os.getpid(), signal.SIGKILL)
    return {**cell.blank(one), "status": "done"}


@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_a_cell_that_kills_its_process_fails_and_the_others_are_done(jobs, monkeypatch):
    monkeypatch.setattr(workers, "attempt", deadly)
    cells = [Cell("handmade-or", "gate", "exact", top=top) for top in range(8)]
    rows = list(workers.in_processes(cells, {}, jobs))
    assert sorted(one.top for one, _ in rows) == list(range(8))  # nothing lost, nothing twice
    assert {one.top for one, row in rows if row["status"] == "failed"} == {2, 5}
    assert {row["error"] for one, row in rows if row["status"] == "failed"} == {workers.LOST}


def test_a_second_sweep_in_the_same_folder_is_refused_and_the_first_goes_on(tmp_path, whole):
    first = start(tmp_path)
    wait_for(lambda: len(finished(tmp_path)) >= 2, first)
    first.send_signal(signal.SIGSTOP)  # so that it isn't finished before the second has started
    output, errors = (second := start(tmp_path)).communicate(timeout=PATIENCE)
    first.send_signal(signal.SIGCONT)
    assert (second.returncode, output) == (3, "")
    assert errors == f"error: {tmp_path}/cells: another sweep is at work in it; wait for it, or choose another folder\n"
    output, errors = first.communicate(timeout=PATIENCE)
    assert (first.returncode, output, errors) == (0, "", "")
    same(store.Store(tmp_path / "cells").table(read_grid({"grid": GRID})), whole)


# --- disks


@pytest.fixture
def tiny(tmp_path):
    """A disk of 64 KB: room for a few cells."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip("a disk can't be mounted here")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_a_disk_that_is_full_and_one_that_is_read_only(tiny, tmp_path, whole):
    output, errors = (process := start(tmp_path, cells=tiny / "cells")).communicate(timeout=PATIENCE)
    assert (process.returncode, output) == (3, "")
    assert "can't be written (No space left on device); the cells that are finished are kept in" in errors
    assert len(errors.splitlines()) == 1
    kept = finished(tiny)
    assert 0 < len(kept) < 24 and not list(tiny.rglob("*.tmp"))

    subprocess.run(["mount", "-o", "remount,ro", tiny], check=True)
    output, errors = (process := start(tmp_path, cells=tiny / "cells")).communicate(timeout=PATIENCE)
    assert (process.returncode, output) == (3, "")
    assert errors == f"error: {tiny}/cells: can't be written to (Read-only file system)\n"

    subprocess.run(["mount", "-o", "remount,rw,size=4m", tiny], check=True)
    output, errors = (process := start(tmp_path, cells=tiny / "cells")).communicate(timeout=PATIENCE)
    assert (process.returncode, output, errors) == (0, "", "")
    assert {name: when for name, when in finished(tiny).items() if name in kept} == kept
    same(store.Store(tiny / "cells").table(read_grid({"grid": GRID})), whole)
