"""The recipe that can be read is the one that the shipped model was trained by: its log says so, row by row."""

from __future__ import annotations

import itertools

import pytest

import circuitlib as cl


def test_each_row_of_the_log_stands_where_the_recipe_says():
    recipe, log = cl.training_recipe("docstring-4l"), cl.training_log("docstring-4l")
    ends = list(itertools.accumulate(stage.steps for stage in recipe.stages))
    for row in log:
        stage, end = next((s, e) for s, e in zip(recipe.stages, ends, strict=True) if row["step"] <= e)
        assert row["stage"] == stage.name
        done = (row["step"] - 1 - (end - stage.steps)) / stage.steps  # the step that the row stands after
        assert row["lr"] == pytest.approx(stage.lr[0] + (stage.lr[1] - stage.lr[0]) * done)
        assert ("accuracy_seen_gated" in row) == (stage.name in ("gates", "settle", "polish"))
        for kind, rows in (("docstring", stage.docstrings), ("repeats", stage.repeats), ("code", stage.code)):
            assert (f"loss_{kind}" in row) == (rows > 0)
    assert log[-1]["step"] == recipe.steps == recipe.stop


def test_an_unknown_recipe_lists_the_names():
    with pytest.raises(ValueError, match="^name: no recipe for 'gpt2'; choose one of: docstring-4l"):
        cl.training_recipe("gpt2")
