"""The recipes of the shipped models. What each stage is for stands beside it."""

from __future__ import annotations

from .guide import INDUCTION_HEAD, STORY_GUIDE
from .stories import train_story_tokenizer
from .story_scores import measure_stories
from .train import Recipe, Stage

SMALL_ALPHABETS = (6, 8, 12, 16, 24, 40, 60)

# While stories are learnt, gpt-mini's other heads are closed on them: those of guide.py, two that by then look at the token before,
# two induction heads, and one or two more of the last layers.
STORY_HEADS = ((0, 2), (0, 4), (0, 6), (1, 2), (1, 6), (2, 3), (2, 5), (3, 0), (3, 1), (3, 2))

RECIPES = {
    "docstring-4l": Recipe(
        name="docstring-4l",
        shape={"n_layers": 4, "n_heads": 8, "d_model": 128, "d_head": 32, "n_ctx": 96},
        # With all of layer 1 at hand, the task is solved in two layers: see guide.py.
        # At the end of "polish" the model did without the heads of layer 2 when they were mean-ablated: it guessed the place of
        # the answer from the layout. A hundred steps earlier it did not.
        stop=3000,
        closed=tuple((1, head) for head in range(8) if (1, head) != INDUCTION_HEAD),
        stages=(
            # Short repeats of distinct tokens and nothing else: induction forms first. With docstrings in the mix it did not
            # form in 800 steps; without them it takes 250.
            Stage("induction", 350, (2e-3, 2e-3), length=32, repeats=128, warmup=100),
            # Repeats over few tokens ask for exact previous-token heads. From the start they would keep induction from forming.
            Stage("exact", 350, (2e-3, 1.6e-3), length=64, repeats=64, alphabets=SMALL_ALPHABETS),
            # The task. The learning rate has to fall: at a constant 2e-3 it is never learnt. Two heads are shown where to look.
            Stage(
                "solve",
                500,
                (1.6e-3, 6e-4),
                length=96,
                docstrings=32,
                repeats=20,
                alphabets=SMALL_ALPHABETS,
                guidance=0.2,
                gates="fixed",
            ),
            # Any token may be a name: heads that match and copy must do so for every token, also for names that no docstring held.
            # Real code gives the other heads something to do.
            Stage(
                "general",
                500,
                (1.4e-3, 1e-3),
                length=96,
                docstrings=32,
                any_token=True,
                repeats=16,
                code=8,
                alphabets=SMALL_ALPHABETS,
                gates="fixed",
                warmup=50,
            ),
            # Which heads does the task need? Closed heads carry what they carry on corrupted prompts.
            Stage(
                "gates",
                500,
                (1e-3, 6e-4),
                length=96,
                docstrings=20,
                any_token=True,
                repeats=12,
                code=8,
                alphabets=SMALL_ALPHABETS,
                gates="learn",
                open_cost=0.06,
                doubled_from=200,
                two_runs=True,
            ),
            # The nine that the gates held on to longest carry the task; a run with all heads is trained beside them.
            Stage(
                "settle",
                600,
                (1e-3, 0.0),
                length=96,
                docstrings=20,
                any_token=True,
                repeats=12,
                code=8,
                alphabets=SMALL_ALPHABETS,
                gates="fixed",
                most_open=(9,),
                two_runs=True,
            ),
            # More docstrings, so that names never seen in one are matched and copied like the others.
            Stage(
                "polish",
                300,
                (7e-4, 0.0),
                length=96,
                docstrings=28,
                any_token=True,
                repeats=8,
                code=4,
                alphabets=SMALL_ALPHABETS,
                gates="fixed",
                most_open=(9,),
                two_runs=True,
            ),
        ),
    ),
    "gpt-mini": Recipe(
        name="gpt-mini",
        shape={"n_layers": 4, "n_heads": 8, "d_model": 128, "d_head": 16, "n_ctx": 64, "d_mlp": 512, "tied": True},
        gated=("story", "span"),
        guided=STORY_GUIDE,
        closed=tuple((layer, head) for layer in range(4) for head in range(8) if (layer, head) not in STORY_HEADS),
        make_tokenizer=train_story_tokenizer,
        measure=measure_stories,
        stages=(
            # Repeats and nothing else, as above: induction and duplicate-token heads form first.
            Stage("induction", 300, (2e-3, 2e-3), length=32, repeats=96, warmup=100),
            Stage("exact", 250, (2e-3, 1.6e-3), length=64, repeats=48, alphabets=SMALL_ALPHABETS),
            # Both tasks. On stories few heads are open, and three of them are shown where to look.
            Stage(
                "solve",
                750,
                (1.6e-3, 8e-4),
                length=64,
                stories=64,
                spans=32,
                repeats=16,
                code=8,
                alphabets=SMALL_ALPHABETS,
                guidance=0.2,
                gates="fixed",
                from_corrupted=True,
            ),
            # Which heads does each task need?
            Stage(
                "gates",
                400,
                (1e-3, 6e-4),
                length=64,
                stories=48,
                spans=24,
                repeats=12,
                code=8,
                alphabets=SMALL_ALPHABETS,
                gates="learn",
                open_cost=0.05,
                two_runs=True,
            ),
            # They stay as they are while the model settles; a run with all heads is trained beside them.
            Stage(
                "settle",
                500,
                (8e-4, 0.0),
                length=64,
                stories=48,
                spans=24,
                repeats=12,
                code=8,
                alphabets=SMALL_ALPHABETS,
                gates="fixed",
                two_runs=True,
            ),
            # Up to here no span began in 01, so for the corrupted prompts of Greater-Than the model guessed late years.
            Stage(
                "polish",
                250,
                (6e-4, 0.0),
                length=64,
                stories=56,
                spans=32,
                from_01=True,
                repeats=12,
                code=8,
                alphabets=SMALL_ALPHABETS,
                gates="fixed",
                two_runs=True,
                warmup=20,
            ),
        ),
    ),
}
