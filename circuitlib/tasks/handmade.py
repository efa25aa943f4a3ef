"""The task of the hand-made gates: is the answer to ``a b =`` a 1?"""

from __future__ import annotations

from .base import Task
from .tokens import check_count, one_token, same_length


def gate(model, n: int = 50, seed: int = 0) -> Task:
    """Both inputs 1 in the clean prompt, ``11=``, and 0 in the corrupted one, ``00=``.

    There is only this one pair of prompts; it is repeated ``n`` times, so that a gate can stand wherever a task can.

    Metric: logit of "1" minus logit of "0" at the last position, which is the gate's output: 1 on clean, 0 on corrupted.
    """
    check_count(n)
    if model.tokenizer.unk_token_id is not None and model.tokenizer.unk_token_id in same_length(model, ["10="]):
        raise ValueError("model: expected one that knows the tokens '0', '1' and '=', such as 'handmade-or'")
    return Task(
        name="gate",
        clean=same_length(model, ["11="] * n),
        corrupted=same_length(model, ["00="] * n),
        answers=one_token(model, ["1"] * n),
        distractors=one_token(model, [["0"]] * n),
        positions={"a": 1, "b": 2, "equals": 3},
        read_positions=(3,),
        labels=("BOS", "a", "b", "="),
        meta={"seed": seed},
    )
