"""The same jobs from a terminal: ``circuitlib models``, ``discover``, ``evaluate``, ``compare``, ``sweep``, ``export``, ``train``,
``reproduce``, ``download``, ``manifest``, ``doctor``.

Results go to stdout or to ``--out`` (written whole or not at all), everything else to stderr. Exit codes: 0 done; 1 a check
found something wrong; 2 unusable input; 3 something outside is missing (network, memory, a place to write); 130 interrupted.

Nothing heavy is imported above the functions: ``circuitlib --help`` and a misspelt name answer at once.
"""

from __future__ import annotations

from typing import Annotated

import typer

from .. import __version__
from . import compare, discover, doctor, download, evaluate, export, models, reproduce, sweep, train

app = typer.Typer(
    help="Find circuits in transformers.", no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False
)


def _say_version(asked: bool) -> None:
    if asked:
        print(f"circuitlib {__version__}")
        raise typer.Exit


# In the order in which --help lists them. A command is a function with ``@common.answers`` in a module of its own.
@app.callback()
def _(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_say_version, help="Print the version and end.")
    ] = False,
) -> None:
    pass


for command in (
    models.models,
    discover.discover,
    evaluate.evaluate,
    compare.compare,
    sweep.sweep,
    export.export,
    train.train,
    reproduce.reproduce,
    download.download,
    download.manifest,
    doctor.doctor,
):
    app.command()(command)
