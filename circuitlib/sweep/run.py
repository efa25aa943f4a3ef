"""A sweep from beginning to end: what is finished is left alone, the rest is run, and all of it becomes a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from ..models.errors import Missing
from . import workers
from .cell import PROVENANCE, Cell, versions
from .grid import Plan, read_grid
from .store import Store, check_out, write_table


def run_sweep(
    grid: str | Path | Mapping[str, Any] | Plan,
    cells: str | Path,
    out: str | Path | None = None,
    *,
    jobs: int | None = None,
    scheduler: str | None = None,
    retry_failed: bool = False,
    progress: bool = False,
):
    """Run the cells of a grid that are not finished yet, and make the table of all of them.

    A cell that fails is a row that says so, and the others go on. Whatever ends a sweep, what it finished is kept: run it again
    and it goes on from there. A cell counts as finished as long as its parameters, the model's weights, the task file, the versions
    and the code are the same.

    Args:
        grid: a TOML file (see ``read_grid``), or what such a file holds.
        cells: the folder that keeps finished cells; made if it is not there. Two grids may share one, two sweeps at a time can't.
        out: where the table is written: .csv, or .parquet.
        jobs: how many processes; by default one for each core, or fewer where ``threads`` is more than one. 0 for this process.
        scheduler: the address of a Dask scheduler, such as "tcp://127.0.0.1:8786", to run the cells on its workers instead.
        retry_failed: run cells again that failed.
        progress: show a bar on stderr.

    Returns:
        The table, a row for each cell in the order of the grid: parameters; ``status`` ("done", "refused" by the method, "skipped"
        because the model or the task does not know what is asked, "failed", or "pending") and ``error``; ``edges``, ``edges_pruned``, ``heads``,
        ``faithfulness``, ``task_metric``, ``kl``, ``precision`` and ``recall`` of the cell's circuit, as in ``cl.evaluate``; areas and
        passes of its method, as in ``cl.compare``; the circuit's file in ``cells``; versions and hashes; seconds of the method and
        of the whole cell, the only columns in which two runs differ.

    Raises:
        ValueError: a grid or an argument that can't be used; one line.
        Missing: a model, the folder, the scheduler or memory can't be had; what is finished is kept.
    """
    check(out, jobs, scheduler)
    plan = grid if isinstance(grid, Plan) else read_grid(grid)
    store = Store(cells)
    with store.locked():
        rest = to_do(plan, store, retry_failed)
        if rest:
            _run(plan, store, rest, jobs, scheduler, progress)
        table = store.table(plan)
        if out is not None:
            write_table(table, Path(out))
    return table


def check(out: str | Path | None, jobs: int | None, scheduler: str | None) -> None:
    """What can be said before the grid is read."""
    if jobs is not None and scheduler is not None:
        raise ValueError("jobs: the workers of a scheduler are what they are; expected either jobs or scheduler")
    if jobs is not None and (type(jobs) is not int or not 0 <= jobs <= 1024):
        raise ValueError(f"jobs: expected an integer from 0 to 1,024, got {jobs!r}")
    if scheduler is not None:
        workers.check_scheduler(scheduler)
    if out is not None:
        check_out(Path(out))


def to_do(plan: Plan, store: Store, retry_failed: bool) -> list[Cell]:
    """The cells that have to be run."""
    rows = {cell: store.row(cell, plan.circuits) for cell in plan.cells if cell not in plan.skipped}
    return [cell for cell, row in rows.items() if row is None or (retry_failed and row["status"] == "failed")]


def _run(plan: Plan, store: Store, cells: Sequence[Cell], jobs, scheduler, progress: bool) -> None:
    from tqdm.auto import tqdm

    if unknown := sorted({cell.model for cell in cells if not cell.weights}):
        raise ValueError(
            f"plan: the weights of {unknown[0]} are not known, so no row could be checked; expected a plan made with fetch=True"
        )

    off = {} if progress else {"disable": True}  # given explicitly, disable=False would win over TQDM_DISABLE
    with closing(_rows(plan, cells, jobs, scheduler)) as rows, tqdm(total=len(cells), desc="sweep", unit=" cells", **off) as bar:  # fmt: skip
        failures = 0
        for cell, row in rows:
            _check_same(cell, row)
            store.save(cell, row, plan.circuits)
            bar.update()
            if row["status"] == "failed":
                failures += 1
                bar.set_postfix_str(f"{failures} failed")


def _rows(plan: Plan, cells: Sequence[Cell], jobs: int | None, scheduler: str | None) -> workers.Rows:
    if scheduler is not None:
        return workers.on_cluster(cells, plan.files, scheduler)
    if jobs == 0:
        return workers.in_this_process(cells, plan.files)
    if jobs is None:
        jobs = max(1, workers.cores() // max(cell.threads for cell in cells))
    return workers.in_processes(cells, plan.files, jobs)


def _check_same(cell: Cell, row: Mapping[str, Any]) -> None:
    """A worker elsewhere may have other versions or weights: its numbers would be others than the table says."""
    for name in PROVENANCE:
        expected = cell.weights if name == "weights" else versions()[name]
        if row[name] != expected:
            raise Missing(
                f"{name}: a worker has {str(row[name])[:16]}, this machine {expected[:16]}; expected the same on all, and while a sweep runs"
            )
