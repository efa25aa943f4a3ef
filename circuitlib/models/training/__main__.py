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
    from .run import make, measured

    run, folder = args.out or Path("training") / args.model, args.ship or info(args.model).folder
    if not args.card_only:
        make(args.model, run, folder, seed=args.seed, say=lambda text: print(text, flush=True))
    print("measuring the model", flush=True)
    measured(args.model, folder)
    print(f"wrote {folder}")


if __name__ == "__main__":
    main()
