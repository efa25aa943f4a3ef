"""Train a shipped model from nothing: ``python -m circuitlib.models.training docstring-4l``.

A run that was stopped goes on from its last checkpoint when the same command is given again.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def main() -> None:
    from .recipes import RECIPES

    parser = argparse.ArgumentParser(prog="python -m circuitlib.models.training", description=__doc__)
    parser.add_argument("model", choices=sorted(RECIPES))
    parser.add_argument("--out", type=Path, help="folder for the checkpoint and the log (default: training/MODEL)")
    parser.add_argument("--ship", type=Path, help="folder for the finished model (default: its place in the package)")
    parser.add_argument("--seed", type=int, help="default: the seed of the shipped model")
    parser.add_argument(
        "--card-only", action="store_true", help="only measure the shipped model again and write its card"
    )
    args = parser.parse_args()

    from ..registry import info
    from .card import write_card
    from .data import code_stream
    from .export import export
    from .train import train

    recipe = RECIPES[args.model]
    seed = recipe.seed if args.seed is None else args.seed
    run, folder = args.out or Path("training") / args.model, args.ship or info(args.model).folder
    if not args.card_only:
        print("training the tokenizer", flush=True)
        tokenizer = recipe.make_tokenizer(recipe.d_vocab)
        print(f"training {args.model}: {recipe.steps} steps, log in {run / 'log.jsonl'}", flush=True)
        train(recipe, tokenizer, code_stream(tokenizer), run, seed)
        export(recipe, tokenizer, run, folder)
    print("measuring the model", flush=True)
    write_card(args.model, folder)
    print(f"wrote {folder}")


if __name__ == "__main__":
    main()
