"""``circuitlib sweep``: every combination of models, tasks, methods, metrics, thresholds and seeds that a file names."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import common

SHOWN = ["model", "task", "method", "metric", "threshold", "top", "seed", "status", "edges", "faithfulness", "kl", "auc_pessimistic_edge", "cpr", "cmd"]  # fmt: skip
LISTED = ["cell", "status", "model", "task", "method", "metric", "threshold", "top", "steps", "corruption", "ablation", "direction", "n", "seed"]  # fmt: skip


@common.answers
def sweep(
    grid: Annotated[Path, typer.Argument(help="A TOML file that says which.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Write all columns to this .csv or .parquet file instead of printing the main ones."),
    ] = None,
    cells: Annotated[
        Path | None,
        typer.Option(help="The folder that keeps finished cells; by default named after --out, else after GRID."),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=0, help="How many processes; by default one a core. 0: this process.")
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(help="Run on the workers of this Dask scheduler, such as tcp://127.0.0.1:8786.")
    ] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run cells again that failed.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the cells, and run none.")] = False,
    collect: Annotated[
        bool, typer.Option("--collect", help="Make the table of what is finished so far, and run nothing.")
    ] = False,
    as_json: common.Json = False,
    quiet: common.Quiet = False,
) -> None:
    """Run every combination of a grid, and make one table of them. What is finished is kept: run it again to go on.

    Ends with exit code 1 if a cell failed; the column "error" says why, and the others are there all the same.

    Example: circuitlib sweep grid.toml --out table.csv

    The table grid of the file has the keys model, method, and threshold or top; it may have task, metric, seed, n,
    corruption, ablation, direction and steps. Each holds a value or a list.
    """
    from ..sweep import read_grid, run_sweep
    from ..sweep.run import check
    from ..sweep.store import Store, write_table

    check(out, jobs, scheduler)
    _check_modes(out, dry_run, collect, retry_failed, as_json)
    folder = Path(f"{(grid if out is None else out).stem}.cells") if cells is None else cells
    folder = folder if out is None or cells is not None else out.parent / folder
    plan = read_grid(grid, fetch=not (dry_run or collect))
    with common.results_apart():
        if dry_run or collect:
            table = Store(folder).table(plan)
            if out is not None and collect:
                write_table(table, out)
        else:
            common.say(f"{len(plan.cells) - len(plan.skipped):,} cells, kept in {folder}", quiet)
            table = run_sweep(
                plan, folder, out, jobs=jobs, scheduler=scheduler, retry_failed=retry_failed, progress=not quiet
            )
    if out is None:
        _print(table, LISTED if dry_run else SHOWN, as_json)
    counts = table["status"].value_counts()
    common.say(", ".join(f"{counts[status]:,} {status}" for status in counts.index), quiet)
    if counts.get("failed", 0) and not dry_run:
        first = table[table["status"] == "failed"].iloc[0]
        common.stop(
            f"{counts['failed']:,} of {len(table):,} cells failed; the first said: {first['error']}; --retry-failed runs them again",
            common.CHECK_FAILED,
        )


def _check_modes(out: Path | None, dry_run: bool, collect: bool, retry_failed: bool, as_json: bool) -> None:
    if dry_run and collect:
        raise ValueError("--collect: makes a table, and --dry-run a list; expected one of them")
    if dry_run and out is not None:
        raise ValueError("--out: there is no table to write with --dry-run")
    if retry_failed and collect:
        raise ValueError("--retry-failed: --collect runs nothing; expected one of them")
    if as_json and out is not None:
        raise ValueError("--json: with --out nothing is printed; expected one of them")


def _print(table, columns: list[str], as_json: bool) -> None:
    if as_json:
        common.emit(table.to_json(orient="records", indent=1), None)
    else:
        shown = table[columns].astype(object)
        shown = shown.where(shown.notna(), "")
        common.emit(shown.to_string(index=False, float_format="{:.3g}".format), None)
