"""What a sweep costs beside its cells, and what a second worker gives.

    python -m benchmarks.sweep            # cells of 30 seconds: about ten minutes on two free cores
    python -m benchmarks.sweep --short    # cells of 3 seconds: about two minutes

Prints, for one run on this machine:

1. the overhead of a cell with one worker: what passes between two rows on the clock, less what the cell itself took (under
   5 % at 30 seconds);
2. two workers against one on the same cells, on the clock, with starting up and without (at least 1.7 on two free cores); and
   beside it what two plain processes do against one, before and after: less than 2 if the cores are not free;
3. how long ``circuitlib --help`` takes, without torch.

Cells are exact effects of ``docstring-4l``, as many prompts as the length of a cell asks for.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from circuitlib.sweep import Cell, read_grid, run_cell, workers
from circuitlib.sweep.store import Store

SECONDS, SHORT = 30.0, 3.0
CELLS = 8
SPIN = "import time\nend, n = time.perf_counter() + 4, 0\nwhile time.perf_counter() < end:\n    n += 1\nprint(n)"


def main() -> None:
    seconds = SHORT if "--short" in sys.argv[1:] else SECONDS
    load = os.getloadavg()[0]
    print(f"{workers.cores()} cores, load average {load:.1f}: {'free' if load < 0.5 else 'NOT free, so read the ratios with care'}")  # fmt: skip
    n = prompts_for(seconds)
    before = plain_ratio()
    one, two = (measured(jobs, n) for jobs in (1, 2))
    after = plain_ratio()
    print(f"1. {CELLS} cells of {one.cell:.1f} s (exact effects of docstring-4l, {n} prompts), one worker:")
    print(
        f"   overhead of a cell {1000 * one.overhead:.0f} ms, {100 * one.overhead / one.cell:.2f} % (at most 5 % at 30 s);"
    )
    print(f"   that is {100 * one.overhead / 30:.2f} % of 30 s; starting up took {one.start:.1f} s")
    print(
        f"2. the same cells with one worker {one.whole:.1f} s, with two {two.whole:.1f} s, ratio {one.whole / two.whole:.2f};"
    )
    print(f"   after starting up ratio {two.rate / one.rate:.2f} (at least 1.7 on two free cores);")
    print(
        f"   two plain processes against one: {before:.2f} before, {after:.2f} after; load average {os.getloadavg()[0]:.1f}"
    )
    print(f"3. circuitlib --help: {help_seconds():.2f} s")


@dataclass(frozen=True)
class Measured:
    """One sweep: seconds of the whole, of starting up and loading the model, of a cell (median), beside a cell; cells a second after that."""

    whole: float
    start: float
    cell: float
    overhead: float
    rate: float


def prompts_for(seconds: float) -> int:
    """With how many prompts a cell takes about so long; measured, after a first one that loads the model."""
    for n in (2, 8):
        began = time.perf_counter()
        run_cell(Cell("docstring-4l", "docstring", "exact", top=60, n=n, seed=100))
    return max(1, round(8 * seconds / (time.perf_counter() - began)))


def measured(jobs: int, n: int) -> Measured:
    """The time of each row, as ``run_sweep`` makes and keeps it."""
    plan = read_grid({"grid": {"model": "docstring-4l", "method": "exact", "top": 60, "n": n, "seed": [*range(CELLS)]}})
    arrived, took = [], []
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        began = time.perf_counter()
        with store.locked(), closing(workers.in_processes(plan.cells, plan.files, jobs)) as rows:
            for cell, row in rows:
                assert row["status"] == "done", row["error"]
                store.save(cell, row, plan.circuits)
                arrived.append(time.perf_counter() - began)
                took.append(row["cell_seconds"])
    between = [later - earlier for earlier, later in zip(arrived, arrived[1:], strict=False)]
    beside = [gap - seconds for gap, seconds in zip(between, took[1:], strict=True)]
    whole = time.perf_counter() - began
    rate = (CELLS - jobs) / (arrived[-1] - arrived[jobs - 1])
    cell = statistics.median(took[jobs:])  # the first ones load the model
    return Measured(whole, arrived[0] - cell, cell, statistics.median(beside), rate)


def plain_ratio() -> float:
    """What two processes that only count get done, against one."""

    def counted(how_many: int) -> int:
        spinning = [subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE) for _ in range(how_many)]
        return sum(int(process.communicate()[0]) for process in spinning)

    alone = counted(1)
    return counted(2) / alone


def help_seconds() -> float:
    code = "import sys\nfrom circuitlib.cli import app\ntry:\n    app(['--help'])\nfinally:\n    assert 'torch' not in sys.modules"
    times = []
    for _ in range(3):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=True)
        times.append(time.perf_counter() - began)
    return min(times)


if __name__ == "__main__":
    main()
