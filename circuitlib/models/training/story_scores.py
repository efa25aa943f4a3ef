"""What is measured while ``gpt-mini`` trains: both tasks, and what its heads look like."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ...tasks import Task, greater_than, ioi
from .data import repeats_batch
from .scores import attention_patterns, head_names, repeat_scores, rounded
from .stories import is_held_out_couple, is_held_out_scene, is_held_out_span

TEMPLATES = ((0, "ABBA"), (3, "BABA"), (5, "ABBA"), (8, "BABA"))


def held_out_ioi(model, n: int, seed: int, template: int, order: str, new_couple: bool) -> Task:
    """Stories of a couple that was in no training story, or of a thing that was given away at this place in none."""
    return ioi(
        model,
        n=n,
        seed=seed,
        template=template,
        order=order,
        accept=lambda s: (
            is_held_out_couple(s.io, s.s) == new_couple and (new_couple or is_held_out_scene(s.place, s.thing))
        ),
    )


def held_out_spans(model, n: int, seed: int, template: int = 0) -> Task:
    """Spans that no training text has: event, century and year together are new."""
    return greater_than(
        model, n=n, seed=seed, template=template, accept=lambda s: is_held_out_span(s.event, s.century, s.year)
    )


def measure_stories(model, tokenizer, open_heads: Float[Tensor, "kind layer head"] | None, n: int = 32) -> dict:
    """Accuracy and logit difference, probability difference, repeat loss and all head scores, as one row for the log.

    With ``open_heads`` also what is left when all other heads carry what they carry on corrupted prompts.
    """
    known = SimpleNamespace(tokenizer=tokenizer)
    stories = [
        held_out_ioi(known, n, 1, template, order, new_couple=bool(i % 2))
        for i, (template, order) in enumerate(TEMPLATES)
    ]
    spans = [held_out_spans(known, n, 1, template) for template in range(3)]
    with torch.no_grad():
        row = task_scores(model, stories, spans)
        if open_heads is not None:
            row |= {f"{key}_gated": value for key, value in task_scores(model, stories, spans, open_heads).items()}
            row |= {"open_story": head_names(open_heads[0]), "open_span": head_names(open_heads[1])}
        row |= repeat_scores(model, tokenizer, 64)
        row["duplicate_token"] = duplicate_scores(model, tokenizer, 64)
        for task in (stories[0], spans[0]):
            patterns = list(attention_patterns(model, task.clean))
            for role, ((query, key),) in task.roles.items():
                at = (slice(None), slice(None), task.positions[query], task.positions[key])
                row[f"{task.name}_{role}"] = rounded([pattern[at].mean(0) for pattern in patterns])
    return row


def task_scores(model, stories, spans, open_heads=None) -> dict[str, float]:
    """IOI accuracy (over the whole vocabulary) and logit difference, Greater-Than probability difference."""

    def logits(task: Task, kind: int):
        if open_heads is None:
            return model(task.clean)
        n, other = len(task), model.run(task.corrupted)[1]
        return model(task.clean, open_heads[kind].repeat(n, 1, 1), torch.arange(n), other)

    story_logits = [logits(task, 0) for task in stories]
    each = {
        "ioi_accuracy": [task.accuracy(x) for task, x in zip(stories, story_logits, strict=True)],
        "ioi_logit_diff": [task.metric(x) for task, x in zip(stories, story_logits, strict=True)],
        "years_prob_diff": [task.metric(logits(task, 1)) for task in spans],
    }
    return {name: round(torch.cat(values).mean().item(), 4) for name, values in each.items()}


def duplicate_scores(model, tokenizer, n: int) -> list:
    """Mean attention to this token's last occurrence on repeated random tokens, per head."""
    batch = repeats_batch(tokenizer, np.random.default_rng(7), n, 61)
    period = int((batch.weight[0] < 1).sum()) - 2
    return rounded([p.diagonal(-period, 2, 3)[..., 1:].mean((0, 2)) for p in attention_patterns(model, batch.tokens)])
