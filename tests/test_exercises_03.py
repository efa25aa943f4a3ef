"""The checks of chapter 03: typical wrong answers are turned away, and told where to look."""

from __future__ import annotations

import pytest
import torch
from printed import exercises

from circuitlib.exercises import CHECKS, check

previous_token_score, induction_score, k_composition, loss_by_position = (
    exercises()[number][1] for number in ("03.1", "03.2", "03.3", "03.4")
)


def norms(first, second):
    return (first @ second).norm() / (first.norm() * second.norm())


WRONG = [
    # The first query counted, with nothing to look at.
    (
        "03.1",
        lambda p: p.diagonal(-1).sum() / len(p),
        "looks at nothing but the token before (4 positions), expected 1, got 0.75",
    ),
    # The token after, which nobody can see; rows and columns swapped come to the same.
    ("03.1", lambda p: p.diagonal(1).mean(), "nothing but the token before (4 positions), expected 1, got 0"),
    ("03.1", lambda p: p.T.diagonal(-1).mean(), "nothing but the token before (4 positions), expected 1, got 0"),
    # Two back.
    ("03.1", lambda p: p.diagonal(-2).mean(), "nothing but the token before (4 positions), expected 1, got 0"),
    ("03.1", lambda p: p.diagonal().mean(), "expected 1, got 0.25"),
    # One number for each query.
    ("03.1", lambda p: p.diagonal(-1), "expected a number, got shape [3]"),
    # A count of hits, not their attention.
    ("03.1", lambda p: (p.diagonal(-1) > 0.5).float().mean(), "for a random pattern of 5 positions"),
    # Off by one either way: the earlier copy itself, and two tokens on.
    ("03.2", lambda p, n: sum(p[q, q - n] for q in range(n + 1, 2 * n + 1)) / n, "for a perfect induction head"),
    ("03.2", lambda p, n: sum(p[q, q - n + 2] for q in range(n + 1, 2 * n + 1)) / n, "for a perfect induction head"),
    # The whole diagonal, which starts in the first copy.
    (
        "03.2",
        lambda p, n: p.diagonal(1 - n).mean(),
        "for a perfect induction head (BOS and 3 tokens, twice), expected 1, got 0.8",
    ),
    # The same, without the first of the two.
    ("03.2", lambda p, n: p.diagonal(1 - n)[1:].mean(), "expected 1, got 0.75"),
    # Rows and columns swapped.
    (
        "03.2",
        lambda p, n: induction_score(p.T, n),
        "for a perfect induction head (BOS and 3 tokens, twice), expected 1, got 0.",
    ),
    # Divided by all positions.
    ("03.2", lambda p, n: induction_score(p, n) * n / len(p), "expected 1, got 0.4286"),
    ("03.2", lambda p, n: previous_token_score(p), "for a perfect induction head"),
    # The query reads, not the key: that is Q-composition.
    (
        "03.3",
        lambda V, out, Q, K: norms(V @ out, Q @ K.T),
        "for a key that reads just what the early head writes, expected 0.7071, got 0",
    ),
    # Not divided.
    ("03.3", lambda V, out, Q, K: (V @ out @ K @ Q.T).norm(), "expected 0.7071, got 1.414"),
    # Divided by one of the two alone.
    ("03.3", lambda V, out, Q, K: (V @ out @ K @ Q.T).norm() / (V @ out).norm(), "expected 0.7071, got 1"),
    # The late head before the early one.
    ("03.3", lambda V, out, Q, K: norms(K @ Q.T, V @ out), "for random weights"),
    # The early head without its output matrix.
    (
        "03.3",
        lambda V, out, Q, K: norms(V @ K.T, K @ Q.T),
        "where the query, not the key, reads what is written, expected 0, got 0.7071",
    ),
    # The largest stretch instead of the root of all squares.
    (
        "03.3",
        lambda V, out, Q, K: (
            torch.linalg.matrix_norm(V @ out @ K @ Q.T, 2)
            / (torch.linalg.matrix_norm(V @ out, 2) * torch.linalg.matrix_norm(K @ Q.T, 2))
        ),
        "expected 0.7071, got 1",
    ),
    # Each position's own token.
    (
        "03.4",
        lambda x, t: -x[:, 1:].log_softmax(-1).gather(-1, t[:, 1:, None])[..., 0].mean(0),
        "sure of each next token, and right",
    ),
    # The token before.
    (
        "03.4",
        lambda x, t: -x[:, 1:].log_softmax(-1).gather(-1, t[:, :-1, None])[..., 0].mean(0),
        "sure of each next token, and right",
    ),
    # The sign.
    ("03.4", lambda x, t: -loss_by_position(x, t), "3 tokens equally likely, expected 1.099 at [0], got -1.099"),
    # Logits taken for log-probabilities.
    (
        "03.4",
        lambda x, t: -x[:, :-1].gather(-1, t[:, 1:, None])[..., 0].mean(0),
        "sure of each next token, and right, expected",
    ),
    # Bits.
    ("03.4", lambda x, t: loss_by_position(x, t) / torch.tensor(2.0).log(), "expected 1.099 at [0], got 1.585"),
    # Averaged over positions, or over everything.
    (
        "03.4",
        lambda x, t: -x[:, :-1].log_softmax(-1).gather(-1, t[:, 1:, None])[..., 0].mean(1),
        "expected shape [3], got shape [1]",
    ),
    ("03.4", lambda x, t: loss_by_position(x, t).mean(), "expected shape [3], got shape []"),
    # Softmax over positions.
    (
        "03.4",
        lambda x, t: -x[:, :-1].log_softmax(1).gather(-1, t[:, 1:, None])[..., 0].mean(0),
        "sure of each next token, and right, expected",
    ),
]


@pytest.mark.parametrize(("number", "answer", "message"), WRONG)
def test_a_typical_wrong_answer_gets_a_useful_line(number, answer, message):
    result = check(number, answer)
    assert not result
    assert message in result.message
    assert result.hint == CHECKS[number].hint
    assert "\n" not in repr(result)


@pytest.mark.parametrize("number", ["03.1", "03.2", "03.3", "03.4"])
def test_stub_and_printed_solution(number):
    stub, solution = exercises()[number]
    assert "returned None" in check(number, stub).message
    assert check(number, solution)


def test_other_ways_to_write_a_right_answer_pass():
    assert check("03.1", lambda p: [p[i, i - 1] for i in range(1, len(p))] and p.roll(1, 1).diagonal()[1:].mean())
    assert check("03.2", lambda p, n: p.diagonal(1 - n)[2:].mean().item())
    assert check("03.3", lambda V, out, Q, K: norms(V @ out, (Q @ K.T).T).numpy())
    nll = torch.nn.functional.cross_entropy
    assert check("03.4", lambda x, t: nll(x[:, :-1].mT, t[:, 1:], reduction="none").mean(0))


def test_the_solutions_say_what_the_library_says():
    """Each of the first three exercises is what a function of circuitlib measures for every head."""
    import circuitlib as cl
    from circuitlib.heads import attention_patterns

    model = cl.load_model("handmade-induction")
    scores = cl.head_scores(model, n=4, period=6, seed=3)
    patterns = attention_patterns(model, cl.repeated_tokens(model, 4, 6, 3))
    for layer in (0, 1):
        found = torch.stack([induction_score(pattern, 6) for pattern in patterns[layer][:, 0]]).mean()
        assert torch.isclose(found, scores["induction"][layer, 0], atol=1e-6)
    assert previous_token_score(patterns[0][0, 0]) == pytest.approx(0.98, abs=0.01)
    early, late = (model.blocks[layer].attn for layer in (0, 1))
    assert torch.isclose(
        k_composition(early.W_V[0], early.W_O[0], late.W_Q[0], late.W_K[0]), cl.composition(model, "K")[0, 0, 1, 0]
    )
