"""The checks of chapter 04: each wrong answer is turned down with a line that points at the mistake."""

from __future__ import annotations

import pytest
import torch
from printed import exercises

from circuitlib.exercises import check

direct_attribution, attention_to, copying_score, after_removal = (exercises()[f"04.{i}"][1] for i in range(1, 5))


def not_centred(written, scale, weight, W_U, answers, wrong):
    return (written / scale[:, None] * weight * (W_U[:, answers] - W_U[:, wrong]).T).sum(-1)


def own_scale(written, scale, weight, W_U, answers, wrong):
    normed = torch.nn.functional.layer_norm(written, written.shape[-1:]) * weight
    return (normed * (W_U[:, answers] - W_U[:, wrong]).T).sum(-1)


def answer_only(written, scale, weight, W_U, answers, wrong):
    return direct_attribution(written, scale, weight, W_U, answers, wrong) + direct_attribution(
        written, scale, weight, W_U, wrong, torch.zeros_like(wrong)
    )


def swapped(written, scale, weight, W_U, answers, wrong):
    return direct_attribution(written, scale, weight, W_U, wrong, answers)


def no_weight(written, scale, weight, W_U, answers, wrong):
    return direct_attribution(written, scale, torch.ones_like(weight), W_U, answers, wrong)


def no_scale(written, scale, weight, W_U, answers, wrong):
    return direct_attribution(written, torch.ones_like(scale), weight, W_U, answers, wrong)


def multiplied_by_the_scale(written, scale, weight, W_U, answers, wrong):
    return direct_attribution(written, 1 / scale, weight, W_U, answers, wrong)


def table(W_E, W_V, W_O, W_U):
    return W_E @ W_V @ W_O @ W_U


def is_own(best):
    return (best == torch.arange(len(best))).float().mean()


def left(parts, removed):
    return parts.sum(-1) - parts[:, removed].sum(-1)


WRONG = [
    ("04.1", not_centred, "for a head that writes 5 into every dimension, expected 0, got 5"),
    ("04.1", own_scale, "where the LayerNorm divides by a scale of 2, expected 1.5, got 3"),
    ("04.1", no_scale, "where the LayerNorm divides by a scale of 2, expected 1.5, got 3"),
    ("04.1", multiplied_by_the_scale, "where the LayerNorm divides by a scale of 2, expected 1.5, got 6"),
    ("04.1", no_weight, "where the LayerNorm's weight is [3, 1], expected 7, got 3"),
    ("04.1", swapped, "expected 3, got -3"),
    ("04.1", answer_only, "expected 3, got 0"),
    ("04.1", lambda *a: direct_attribution(*a).mean(), "expected shape [1], got shape []"),
    ("04.2", lambda p, query, keys: attention_to(p.mT, query, keys), "query 2 and keys [1], expected 0.2, got 0"),
    (
        "04.2",
        lambda p, query, keys: p[:, :, query, keys].mean(-1).mean(0),
        "for two keys, [0, 1], expected 0.3, got 0.15",
    ),
    ("04.2", lambda p, query, keys: p[:, :, query, keys[0]].mean(0), "for two keys, [0, 1], expected 0.3, got 0.1"),
    ("04.2", lambda p, query, keys: p[:, :, query, keys].sum(-1).sum(0), "for two prompts, expected 0.4, got 0.8"),
    ("04.2", lambda p, query, keys: p[0, :, query, keys].sum(-1), "for two prompts, expected 0.4, got 0.1"),
    ("04.2", lambda p, query, keys: attention_to(p, query - 1, keys), "expected 0.2, got 0.75"),
    ("04.2", lambda p, query, keys: p[:, :, query, keys].sum(-1), "expected shape [1], got shape [1, 1]"),
    ("04.3", lambda *a: is_own(table(*a).argmax(0)), "raises token 3 most, wherever it looks, expected 0.25, got 1"),
    ("04.3", lambda *a: (table(*a).diag() > 0).float().mean(), "wherever it looks, expected 0.25, got 1"),
    ("04.3", lambda *a: is_own(table(*a).argmin(-1)), "takes tokens 2 and 3 for each other, expected 0.5, got 0"),
    ("04.3", lambda W_E, W_V, W_O, W_U: is_own((W_E @ W_U).argmax(-1)), "for each other, expected 0.5, got 1"),
    (
        "04.3",
        lambda E, V, W_O, U: is_own(table(E, W_O.T, V.T, U).argmax(-1)),
        "wherever it looks, expected 0.25, got 1",
    ),
    ("04.3", lambda *a: is_own(table(*a).argmax(-1)) * len(a[0]), "expected 0.5, got 2"),
    ("04.3", lambda *a: is_own(table(*a).abs().argmax(-1)), "lowers the token it looks at, expected 0, got 1"),
    ("04.4", lambda parts, removed, scale, new: left(parts, removed), "the scale falls from 2 to 1, expected 6, got 3"),
    ("04.4", lambda p, removed, scale, new: left(p, removed) * new / scale, "from 2 to 1, expected 6, got 1.5"),
    ("04.4", lambda p, removed, scale, new: left(p, removed) / new, "where the scale stays, expected 3, got 1.5"),
    ("04.4", lambda p, removed, scale, new: p[:, removed].sum(-1) * scale / new, "expected 3, got 5"),
    ("04.4", lambda p, removed, scale, new: left(p, removed[:1]) * scale / new, "without parts 0 and 2"),
    ("04.4", lambda p, removed, scale, new: (left(p, removed) * scale / new).mean(), "got shape []"),
]


@pytest.mark.parametrize(("number", "answer", "message"), WRONG)
def test_a_typical_wrong_answer_gets_a_useful_line(number, answer, message):
    result = check(number, answer)
    assert not result
    assert message in result.message


def test_other_ways_to_write_a_right_answer_pass():
    def by_logits(written, scale, weight, W_U, answers, wrong):
        logits = (written - written.mean(1, keepdim=True)) / scale.view(-1, 1) * weight @ W_U
        return logits.gather(1, answers[:, None])[:, 0] - logits.gather(1, wrong[:, None])[:, 0]

    assert check("04.1", by_logits)
    assert check("04.2", lambda pattern, query, keys: sum(pattern[:, :, query, key] for key in keys).mean(0).tolist())
    assert check("04.3", lambda *a: sum(int(row.argmax()) == i for i, row in enumerate(table(*a))) / len(a[0]))

    def masked(parts, removed, scale, new_scale):
        keep = torch.ones(parts.shape[1])
        keep[removed] = 0
        return (parts * keep * (scale / new_scale)[:, None]).sum(1)

    assert check("04.4", masked)
