"""The checks of chapter 01, activation patching."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .checking import exercise
from .compare import compare


@exercise(
    "01.1",
    hint="each prompt has one right name and a list of wrong ones; which of the wrong ones is the hardest to beat?",
)
def _logit_difference(answer: Callable) -> str:
    """``logit_difference(logits [n, d_vocab], answers [n], distractors [n, n_wrong]) -> [n]``."""
    import torch

    def expected(logits, answers, distractors):
        return [
            float(row[a]) - max(float(row[d]) for d in wrong)
            for row, a, wrong in zip(logits.tolist(), answers.tolist(), distractors.tolist(), strict=True)
        ]

    small = (torch.tensor([[1.0, 5.0, 2.0, 3.0]]), torch.tensor([1]), torch.tensor([[0, 3]]))
    compare(answer, small, expected, "for logits [[1, 5, 2, 3]], answer 1 and distractors 0 and 3")
    generator = torch.Generator().manual_seed(11)
    for n, d_vocab, n_wrong in ((4, 9, 3), (5, 20, 7)):
        order = torch.stack([torch.randperm(d_vocab, generator=generator) for _ in range(n)])
        case = (torch.randn(n, d_vocab, generator=generator), order[:, 0], order[:, 1 : 1 + n_wrong])
        compare(answer, case, expected, f"for random logits {[n, d_vocab]} and {n_wrong} distractors")
    return "the answer's logit minus the best distractor's, prompt by prompt."


@exercise(
    "01.2", hint="0 must mean that patching did nothing, and the distance from corrupted to clean must count as 1."
)
def _normalise(answer: Callable) -> str:
    """``normalise(patched, base, clean, corrupted)``, each a number or an array."""

    def expected(patched, base, clean, corrupted):
        return np.vectorize(lambda p: (p - base) / (clean - corrupted))(np.asarray(patched))

    compare(answer, (2.0, 4.0, 4.0, -1.0), expected, "for patched 2, base 4, clean 4, corrupted −1 (noising)")
    compare(answer, (2.0, -1.0, 4.0, -1.0), expected, "for patched 2, base −1, clean 4, corrupted −1 (denoising)")
    random = np.random.default_rng(12)
    for shape in ((5,), (3, 4)):
        clean, corrupted = random.normal(3), random.normal(-2)
        for base in (clean, corrupted):
            compare(
                answer,
                (random.normal(size=shape), base, clean, corrupted),
                expected,
                f"for an array of patched values {list(shape)}",
            )
    return "0 where patching did nothing, noising and denoising alike."


@exercise(
    "01.3",
    hint="after the call, is what you were given as it was? And which axis of [n, pos, d_model] is the position's?",
)
def _patch_residual(answer: Callable) -> str:
    """``patch_residual(corrupted_resid [n, pos, d], clean_resid [n, pos, d], position) -> [n, pos, d]``."""
    import torch

    def expected(corrupted, clean, position):
        rows = [
            [b if i == position else a for i, (a, b) in enumerate(zip(*pair, strict=True))]
            for pair in zip(corrupted.tolist(), clean.tolist(), strict=True)
        ]
        return torch.tensor(rows)

    generator = torch.Generator().manual_seed(13)
    for n, n_pos, d, position in ((1, 3, 2, 1), (4, 6, 5, 0), (2, 5, 3, 4)):
        case = (torch.randn(n, n_pos, d, generator=generator), torch.randn(n, n_pos, d, generator=generator), position)
        compare(answer, case, expected, f"for activations {[n, n_pos, d]} and position {position}")
    return "only that position is patched, and what you were given is as it was."
