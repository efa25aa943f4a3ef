"""Where cells run: in this process, in processes of this machine, or on a Dask cluster. The rows are the same.

Each of the three is a generator of (cell, row) in the order in which cells are finished. Closing it ends what it started.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

from ..models.errors import Missing
from .cell import Cell, attempt, failed

Rows = Iterator[tuple[Cell, dict[str, Any]]]
Files = Mapping[str, str]

SCHEDULER = re.compile(r"(tcp|tls|ws|wss|ucx)://[^/\s]+:\d{1,5}")
SECONDS_TO_CONNECT = 5
AHEAD = 256  # cells that a scheduler knows of at a time
LOST = "the process that ran this cell ended without an answer, twice: it was killed, or memory ran out"
# Without these, libraries start a thread for each core, in each of several processes.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")  # fmt: skip


def cores() -> int:
    """How many cores this process may use."""
    from joblib import cpu_count

    return cpu_count()


def in_this_process(cells: Sequence[Cell], files: Files) -> Rows:
    """One after another, here."""
    for cell in cells:
        yield cell, attempt(cell, files.get(cell.task_file))


# Processes ---------------------------------------------------------------------------------------


def in_processes(cells: Sequence[Cell], files: Files, jobs: int) -> Rows:
    """``jobs`` at a time, in processes that load each model once.

    If one of the processes dies, nobody can say which of the cells that were running killed it: each of them is run again, alone.
    """
    waiting = deque(cells)
    while waiting:
        lost: list[Cell] = []
        yield from _in_a_pool(waiting, files, min(jobs, len(waiting)), lost)
        for cell in lost:
            again: list[Cell] = []
            yield from _in_a_pool(deque([cell]), files, 1, again)
            yield from ((cell, failed(cell, LOST)) for cell in again)


def _in_a_pool(waiting: deque[Cell], files: Files, jobs: int, lost: list[Cell]) -> Rows:
    """Run cells until none is waiting or a process dies; then ``lost`` holds those that have no row."""
    from joblib.externals.loky import BrokenProcessPool, ProcessPoolExecutor

    pool = ProcessPoolExecutor(jobs, initializer=_begin, initargs=(os.getpid(),), env=_environment(waiting))
    running: dict[Future, Cell] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                cell = waiting[0]
                running[pool.submit(attempt, cell, files.get(cell.task_file))] = cell
                waiting.popleft()  # after the pool took it
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                row = future.result()
                yield running.pop(future), row
        pool.shutdown()
    except BrokenProcessPool:
        for future, cell in running.items():
            if future.done() and future.exception() is None:
                yield cell, future.result()
            else:
                lost.append(cell)
    finally:
        pool.shutdown(kill_workers=True)


def _environment(cells: Sequence[Cell]) -> dict[str, str]:
    """Of a new process, before it loads anything: as many threads as a cell asks for."""
    threads = str(max(cell.threads for cell in cells))
    return {**dict.fromkeys(THREADS, threads), "TOKENIZERS_PARALLELISM": "false"}


def _begin(parent: int) -> None:
    """In a new process: leave interrupts to the parent, keep off its standard output, and end when it does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)
    tqdm.set_lock(threading.RLock())  # its own is shared between processes, and outlives one that is killed
    if hasattr(os, "fork"):  # elsewhere the number of the parent does not change
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


# A cluster ---------------------------------------------------------------------------------------


def on_cluster(cells: Sequence[Cell], files: Files, scheduler: str) -> Rows:
    """On the workers of a Dask cluster, which must have this circuitlib. Dask runs again what was lost with a worker.

    Raises:
        ValueError: ``scheduler`` is no address.
        Missing: Dask is not installed, the scheduler can't be reached or goes away, or its workers can't run cells.
    """
    check_scheduler(scheduler)
    from dask.distributed import as_completed

    with _client(scheduler) as client:
        waiting, running, suspects = deque(cells), {}, []

        def submit(cell: Cell):
            future = client.submit(attempt, cell, files.get(cell.task_file), pure=False)
            running[future] = cell
            return future

        try:
            finished = as_completed([submit(waiting.popleft()) for _ in cells[:AHEAD]], loop=client.loop)
            for future in finished:
                row = _row_of(future, scheduler)
                cell = running.pop(future)
                if row is None:
                    suspects.append(cell)
                else:
                    yield cell, row
                if waiting:
                    finished.add(submit(waiting.popleft()))
            # Each alone: Dask blames all that a dead worker was to run, and only one of them killed it.
            for cell in suspects:
                yield cell, _row_of(future := submit(cell), scheduler) or failed(cell, LOST)
                del running[future]
        finally:
            if running and client.status == "running":
                client.cancel(list(running), force=True)


def check_scheduler(scheduler: str) -> None:
    """A ValueError for what is no address; a ``Missing`` where Dask is not installed."""
    if not SCHEDULER.fullmatch(scheduler):
        raise ValueError(f"scheduler: expected an address such as tcp://127.0.0.1:8786, got {scheduler[:60]!r}")
    try:
        import dask.distributed  # noqa: F401
    except ImportError:
        raise Missing("scheduler: needs Dask; pip install 'circuitlib[sweep]'") from None


@contextmanager
def _client(scheduler: str):
    from dask.distributed import Client

    with _silent("distributed", "tornado"):
        try:
            client = Client(scheduler, timeout=SECONDS_TO_CONNECT, set_as_default=False, name="circuitlib sweep")
        except (OSError, ValueError) as error:
            raise Missing(f"scheduler: {scheduler} can't be reached ({_reason(error)})") from None
        try:
            yield client
        finally:
            client.close(timeout=SECONDS_TO_CONNECT)


@contextmanager
def _silent(*libraries: str) -> Iterator[None]:
    """Without the log of some libraries: what goes wrong is an error of one line, and not a traceback of theirs before it."""
    loggers = [logging.getLogger(name) for name in logging.root.manager.loggerDict if name.split(".")[0] in libraries]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


def _row_of(future, scheduler: str) -> dict[str, Any] | None:
    """What a worker made of a cell; None if every worker that was to run it died."""
    from dask.distributed import CancelledError, KilledWorker

    try:
        return future.result()  # waits, if the worker has died with the result in the meantime and Dask makes it anew
    except KilledWorker:
        return None
    except (CancelledError, OSError):
        raise Missing(f"scheduler: {scheduler} is gone; the cells that are finished are kept") from None
    except Exception as error:
        raise Missing(f"scheduler: a worker of {scheduler} can't run cells ({_reason(error)})") from None


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())[:160]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
