"""Repeated random tokens: can a model go on with a sequence it has seen once?"""

from __future__ import annotations

import numpy as np
import torch

from .base import Task
from .tokens import check_count, device_of


def induction(model, n: int = 50, period: int = 20, seed: int = 0) -> Task:
    """BOS, ``period`` different random tokens, and the same again up to the last but one; the answer is the last.

    Olsson et al., "In-context learning and induction heads" (2022). The corrupted prompt has other random tokens in its
    first copy, so nothing in it foretells the answer.

    Metric: logit of the answer minus the largest logit of the other ``period − 1`` tokens of the sequence, at the last position.
    """
    special = set(model.tokenizer.all_special_ids)
    ordinary = np.array([i for i in range(len(model.tokenizer)) if i not in special])
    check_count(n)
    if not 2 <= period <= min(len(ordinary) // 2, model.cfg.n_ctx // 2):
        raise ValueError(
            f"period: expected 2 to {min(len(ordinary) // 2, model.cfg.n_ctx // 2)} for this model, got {period}"
        )
    rng = np.random.default_rng(seed)
    draws = torch.from_numpy(np.stack([rng.choice(ordinary, 2 * period, replace=False) for _ in range(n)]))
    sequence, other = draws.to(device_of(model)).split(period, 1)
    bos = torch.full_like(sequence[:, :1], model.tokenizer.bos_token_id)
    clean = torch.cat([bos, sequence, sequence[:, :-1]], 1)
    corrupted = torch.cat([bos, other, sequence[:, :-1]], 1)
    last = clean.shape[1] - 1
    return Task(
        name="induction",
        clean=clean,
        corrupted=corrupted,
        answers=sequence[:, -1],
        distractors=sequence[:, :-1],
        positions={"before_answer": period - 1, "answer": period, "end": last},
        read_positions=(last,),
        roles={"previous_token": (("answer", "before_answer"),), "induction": (("end", "answer"),)},
        labels=("BOS", *(f"x{i}" for i in range(period)), *(f"x{i}" for i in range(period - 1))),
        meta={"seed": seed, "period": period},
    )
