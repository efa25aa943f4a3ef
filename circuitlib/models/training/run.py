"""One run from nothing to a finished model: tokenizer, training, export, measuring."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def make(
    name: str,
    run: Path,
    folder: Path,
    *,
    seed: int | None = None,
    stop_at: int | None = None,
    say: Callable[[str], None] = print,
) -> bool:
    """Train ``name`` from the newest checkpoint in ``run``, and write the finished model into ``folder``.

    Args:
        seed: None for that of the shipped model. A run goes on with the seed that it was begun with.
        stop_at: stop after this many steps.
        say: is told what is being done.

    Returns:
        whether the run has come to its end; else there is a checkpoint and no model yet.

    Raises:
        ValueError: ``run`` holds a run with another seed.
    """
    from .data import code_stream
    from .export import export
    from .recipes import RECIPES
    from .train import train

    recipe = RECIPES[name]
    seed = recipe.seed if seed is None else seed
    _check_seed(run, seed)
    say("training the tokenizer")
    tokenizer = recipe.make_tokenizer(recipe.d_vocab)
    say(f"training {name}: {recipe.steps} steps, log in {run / 'log.jsonl'}")
    train(recipe, tokenizer, code_stream(tokenizer), run, seed, stop_at)
    if stop_at is not None and stop_at < recipe.steps:
        return False
    export(recipe, tokenizer, run, folder)
    return True


def measured(name: str, folder: Path, seed: int | None = None) -> list:
    """Measure the model in ``folder``, write its card, and return the bars. ``seed``: if it is not that of the shipped model."""
    from .card import write_card

    return write_card(name, folder, seed)


def seed_of(run: Path) -> int:
    """The seed that a run was begun with."""
    return int((run / "seed").read_text("utf8"))


def _check_seed(run: Path, seed: int) -> None:
    """A run is one seed's from its first step on: text of another would make it nobody's."""
    path = run / "seed"
    run.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.write_text(f"{seed}\n", "utf8")
    elif (found := " ".join(path.read_text("utf8", "replace").split())) != str(seed):
        raise ValueError(f"seed: {run} holds a run with seed {found[:20]}, got {seed}")
