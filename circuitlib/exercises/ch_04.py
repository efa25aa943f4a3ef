"""The checks of chapter 04, mover heads."""

from __future__ import annotations

from collections.abc import Callable

from .checking import exercise
from .compare import compare


@exercise(
    "04.1",
    hint="do to this one vector what the last LayerNorm does to the whole stream, with the scale that you are given.",
)
def _direct_attribution(answer: Callable) -> str:
    """``direct_attribution(written [n, d], scale [n], weight [d], W_U [d, d_vocab], answers [n], wrong [n]) -> [n]``."""
    import torch

    def expected(written, scale, weight, W_U, answers, wrong):
        found = []
        for x, s, a, w in zip(written.tolist(), scale.tolist(), answers.tolist(), wrong.tolist(), strict=True):
            normed = [(v - sum(x) / len(x)) / s * g for v, g in zip(x, weight.tolist(), strict=True)]
            found.append(sum(v * (row[a] - row[w]) for v, row in zip(normed, W_U.tolist(), strict=True)))
        return found

    W_U = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]])

    def small(written, scale, weight):
        tokens = (torch.tensor([0]), torch.tensor([1]))
        return (torch.tensor([written]), torch.tensor([scale]), torch.tensor(weight), W_U, *tokens)

    compare(answer, small([1.0, -1.0], 1.0, [1.0, 1.0]), expected, "for written [[1, −1]], scale 1 and weight [1, 1]")
    compare(answer, small([1.0, -1.0], 2.0, [1.0, 1.0]), expected, "where the LayerNorm divides by a scale of 2")
    compare(answer, small([1.0, -1.0], 1.0, [3.0, 1.0]), expected, "where the LayerNorm's weight is [3, 1]")
    compare(answer, small([5.0, 5.0], 1.0, [1.0, 1.0]), expected, "for a head that writes 5 into every dimension")
    generator = torch.Generator().manual_seed(41)
    for n, d, d_vocab in ((4, 3, 6), (5, 8, 11)):
        order = torch.stack([torch.randperm(d_vocab, generator=generator) for _ in range(n)])
        vectors = torch.randn(n, d, generator=generator), torch.rand(n, generator=generator) + 0.5
        matrices = torch.randn(d, generator=generator), torch.randn(d, d_vocab, generator=generator)
        case = (*vectors, *matrices, order[:, 0], order[:, 1])
        compare(answer, case, expected, f"for {n} random prompts of width {d}")
    return "what a head adds to the logit difference, with the LayerNorm's scale held fixed."


@exercise("04.2", hint="of the last two axes, the first is where the head stands and the second is where it looks.")
def _attention_to(answer: Callable) -> str:
    """``attention_to(pattern [n, head, query, key], query, keys) -> [head]``."""
    import torch

    def expected(pattern, query, keys):
        rows = pattern.tolist()
        return [
            sum(prompt[head][query][key] for prompt in rows for key in keys) / len(rows) for head in range(len(rows[0]))
        ]

    small = torch.tensor([[1.0, 0.0, 0.0], [0.25, 0.75, 0.0], [0.1, 0.2, 0.7]])[None, None]
    compare(answer, (small, 2, [1]), expected, "for one prompt and one head, query 2 and keys [1]")
    compare(answer, (small, 2, [0, 1]), expected, "for two keys, [0, 1]")
    compare(answer, (torch.cat([small, small.flip(-1)]), 2, [0]), expected, "for two prompts")
    generator = torch.Generator().manual_seed(42)
    for n, n_heads, n_pos, query, keys in ((3, 2, 5, 4, [0, 2]), (4, 8, 7, 5, [3])):
        pattern = torch.randn(n, n_heads, n_pos, n_pos, generator=generator).softmax(-1)
        where = f"for {n} prompts, {n_heads} heads and {n_pos} positions"
        compare(answer, (pattern, query, keys), expected, where)
    return "attention summed over the keys, a mean over prompts, head by head."


@exercise("04.3", hint="a row of the table is a token that is looked at, a column a logit; where is each row largest?")
def _copying_score(answer: Callable) -> str:
    """``copying_score(W_E [d_vocab, d], W_V [d, d_head], W_O [d_head, d], W_U [d, d_vocab]) -> number``."""
    import torch

    def expected(W_E, W_V, W_O, W_U):
        right = 0
        for token, x in enumerate(W_E):
            logits = (((x @ W_V) @ W_O) @ W_U).tolist()
            right += logits.index(max(logits)) == token
        return right / len(W_E)

    eye = torch.eye(4)
    compare(answer, (eye, eye, eye[[0, 1, 3, 2]], eye), expected, "for a head that takes tokens 2 and 3 for each other")
    one_way = torch.eye(4)
    one_way[:, 3] = torch.tensor([5.0, 5.0, 5.0, 6.0])
    compare(answer, (eye, eye, one_way, eye), expected, "for a head that raises token 3 most, wherever it looks")
    compare(answer, (eye, eye, -eye, eye), expected, "for a head that lowers the token it looks at")
    generator = torch.Generator().manual_seed(43)
    for d_vocab, d, d_head in ((9, 6, 3), (30, 12, 8)):
        W_E = torch.randn(d_vocab, d, generator=generator)
        W_V, noise = (torch.randn(d, d_head, generator=generator) for _ in range(2))
        case = (W_E, W_V, W_V.T + 0.3 * noise.T, W_E.T.clone())
        compare(answer, case, expected, f"for random matrices, {d_vocab} tokens and a head of width {d_head}")
    return "the share of tokens whose own logit a head raises most."


@exercise("04.4", hint="what is left was divided by the old scale; now it is divided by the new one.")
def _after_removal(answer: Callable) -> str:
    """``after_removal(parts [n, part], removed, scale [n], new_scale [n]) -> [n]``."""
    import torch

    def expected(parts, removed, scale, new_scale):
        left = [sum(v for i, v in enumerate(row) if i not in removed) for row in parts.tolist()]
        return [v * old / new for v, old, new in zip(left, scale.tolist(), new_scale.tolist(), strict=True)]

    parts, two = torch.tensor([[5.0, 2.0, 1.0]]), torch.tensor([2.0])
    compare(answer, (parts, [0], two, two), expected, "for parts [[5, 2, 1]] without part 0, where the scale stays")
    compare(answer, (parts, [0], two, torch.tensor([1.0])), expected, "where the scale falls from 2 to 1")
    compare(answer, (parts, [0, 2], two, two), expected, "without parts 0 and 2, where the scale stays")
    generator = torch.Generator().manual_seed(44)
    for n, n_parts, removed in ((4, 5, [1]), (3, 8, [0, 5, 6])):
        scales = (torch.rand(n, generator=generator) + 0.5 for _ in range(2))
        case = (torch.randn(n, n_parts, generator=generator), removed, *scales)
        compare(answer, case, expected, f"for {n} prompts and {n_parts} parts")
    return "what is left, under the new scale."
