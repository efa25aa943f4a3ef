"""Transformers whose weights are written by hand, so that their circuit is known edge by edge.

All are native ``TransformerBridge`` models without LayerNorm. The residual stream is cut into named subspaces; a head
reads some of them and writes to another one that nobody else writes to. Where a head has found its target, it attends to
it with .98, not 1: the softmax is not saturated, so gradients are those of a living model.

Every model with several heads also has bystanders: heads that attend and write, into a subspace that nothing reads.
"""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..tasks.words import NAMES, NOUNS, VERBS

ATTENTION = 0.98
ODDS = ATTENTION / (1 - ATTENTION)  # 49: how much more the target must weigh than all other keys together
LOGIT = 10.0  # the logit of a token that was copied whole

BOS, UNKNOWN = "<BOS>", "<UNK>"
LETTERS = tuple(string.ascii_lowercase + string.ascii_uppercase)


def handmade_induction():
    """Two layers, two heads each: ``… A B … A`` → ``B`` (Elhage et al., "A mathematical framework for transformer circuits", 2021).

    - ``a0.0`` is a previous-token head. Its query and key read the position alone: the query of position i meets the key of
      position i − 1. Its value copies the token, into the subspace ``previous``.
    - ``a1.0`` is the induction head. Its query is the token at hand, its key is what ``a0.0`` wrote: it attends to a
      position that comes after an earlier copy of the token at hand. Its value copies the token there, into ``answer``.
    - The unembedding reads ``answer`` alone, ten times enlarged.
    - ``a0.1`` and ``a1.1`` are bystanders: they look at the first token.

    The scores are set so that the target weighs 49 times as much as all other keys together: for ``a0.0`` at every
    position, as its query may depend on the position; for ``a1.0`` with 39 other keys (20 letters, twice), above .98 with fewer.

    Returns:
        the bridge; its tokenizer knows 52 letters, each one token.
    """
    vocabulary = (BOS, UNKNOWN, *LETTERS)
    n, n_ctx = len(vocabulary), 64
    space = _Subspaces(token=n, position=n_ctx, previous=n, answer=n, aside=n)
    shape = _Shape(n_layers=2, n_heads=2, d_head=n_ctx, n_ctx=n_ctx, vocabulary=vocabulary)

    previous_token = _Head(space, shape)
    previous_token.attend_by_position(steps_back=(1,))
    previous_token.copy("token", "previous")

    induction = _Head(space, shape)
    # What a0.0 wrote is .98 of the token, so the score of a match is .98 of what is set here.
    induction.match("token", "previous", score=math.log(ODDS * 39) / ATTENTION)
    induction.copy("token", "answer")

    bystander = _Head(space, shape)
    bystander.attend_to_first()
    bystander.copy("token", "aside")

    weights = _embedding(space, shape, {"token": torch.eye(n)})
    _put_head(weights, 0, 0, previous_token)
    _put_head(weights, 0, 1, bystander)
    _put_head(weights, 1, 0, induction)
    _put_head(weights, 1, 1, bystander)
    weights["unembed.weight"][:, space["answer"]] = LOGIT * torch.eye(n)
    return _boot(shape, space, weights, r"\w|\S")


def handmade_docstring():
    """Three layers, two heads each: which argument does the next ``:param`` line name? After Heimersheim & Janiak (2023).

    - ``a0.0`` is a fuzzy previous-token head: it attends to the two tokens before, .49 each, and copies names and ``:param``
      into ``previous``. It has two jobs. At an argument of the signature, ``B, C``, it brings the argument before (the comma
      between is no name). At the colon after a documented name, ``:param B:``, it brings both ``:param`` and the name.
    - ``a1.0`` is an induction head: from ``:param`` it looks for a colon that has ``:param`` in ``previous``, the latest one, and
      copies the name in ``previous`` there into ``current``. A docstring line has six tokens; the later of two lines
      weighs 49 times the earlier, so each token of lateness adds log(49)/6 to the score.
    - ``a2.0`` is the mover: its query is ``current``, B; its key is ``previous``; among names it finds the one after B in the
      signature, C, and copies it into ``answer``. That a key is a name adds to its score, through a query bias, because
      the comma after B has B in ``previous`` too.
    - ``a0.1``, ``a1.1`` and ``a2.1`` are bystanders: they look at the first token.

    Returns:
        the bridge; its tokenizer has every word and sign of the docstring task as one token.
    """
    signs = ("\n", "\n    ", "\n\n    ", "def", "(", "self", ",", "):", '"""', ":param", ":")
    names = tuple(f" {name}" for name in NAMES)
    vocabulary = (BOS, UNKNOWN, *signs, *names, *(f" {noun}" for noun in NOUNS), *VERBS)
    n, n_ctx = len(names), 48
    space = _Subspaces(name=n, param=1, colon=1, is_name=1, position=n_ctx, previous=n, after_param=1, current=n, answer=n, aside=1)
    shape = _Shape(n_layers=3, n_heads=2, d_head=n + 2, n_ctx=n_ctx, vocabulary=vocabulary)
    line = 6  # tokens of a docstring line: ":param", name, ":", two words, newline

    fuzzy_previous = _Head(space, shape)
    fuzzy_previous.attend_by_position(steps_back=(1, 2))
    # Each of the two tokens before has .49; enlarged so that what arrives is 1.
    fuzzy_previous.copy("name", "previous", times=2 / ATTENTION)
    fuzzy_previous.copy("param", "after_param", times=2 / ATTENTION)

    induction = _Head(space, shape)
    lateness = torch.arange(n_ctx)[None, :] * math.log(ODDS) / line
    # 12 each for the two marks of a good place: more than all the lateness that a bad place can gain in a line, and much more than nothing.
    induction.match("param", "after_param", score=12.0)
    induction.match("param", "colon", score=12.0)
    induction.match("param", "position", score=1.0, key=lateness)
    induction.copy("previous", "current")

    mover = _Head(space, shape)
    # A name after B beats the 8 names that are not, and the 3 places after B that are no names; each group gets half of the rest.
    mover.match("current", "previous", score=math.log(2 * ODDS * 8) / ATTENTION)
    mover.prefer("is_name", score=math.log(2 * ODDS * 3))
    mover.copy("name", "answer")

    bystander = _Head(space, shape)
    bystander.attend_to_first()
    bystander.copy("is_name", "aside")

    index = {word: i for i, word in enumerate(vocabulary)}
    is_name = torch.zeros(len(vocabulary), n)
    is_name[[index[name] for name in names], range(n)] = 1
    one = torch.eye(len(vocabulary))
    weights = _embedding(
        space,
        shape,
        {
            "name": is_name,
            "is_name": is_name.sum(1, keepdim=True),
            "param": one[:, [index[":param"]]],
            "colon": one[:, [index[":"]]],
        },
    )
    for layer, head in enumerate((fuzzy_previous, induction, mover)):
        _put_head(weights, layer, 0, head)
        _put_head(weights, layer, 1, bystander)
    weights["unembed.weight"][:, space["answer"]] = LOGIT * is_name
    return _boot(shape, space, weights, r':param|"""|\):|\n+ *| ?\w+|[^\w\s]')


def handmade_or():
    """One layer, two heads, an MLP: the logit of "1" above "0" is a OR b for the prompt ``a b =``.

    - The embedding writes 1 into ``bit`` for the token "1" and 0 for every other token.
    - ``a0.0`` attends from "=" to a, ``a0.1`` from "=" to b, both by position alone. What they write into ``sum`` is linear in the
      embedding: .98 of their own input and .02 / 3 of the other one, divided by the total, so that ``sum`` is a + b.
    - Two ReLU neurons read ``sum``: OR = relu(sum) − relu(sum − 1).
    - The unembedding gives "1" the logit of the gate and "0" the logit 0.

    Returns:
        the bridge.
    """
    return _gate(thresholds=(0.0, 1.0), signs=(1.0, -1.0))


def handmade_and():
    """As ``handmade_or``, with one neuron: AND = relu(sum − 1)."""
    return _gate(thresholds=(1.0,), signs=(1.0,))


BUILDERS = {
    "handmade-induction": handmade_induction,
    "handmade-docstring": handmade_docstring,
    "handmade-or": handmade_or,
    "handmade-and": handmade_and,
}


def build(name: str):
    """The hand-made model of that name, as a bridge; a ValueError that lists the names if there is none."""
    if name not in BUILDERS:
        raise ValueError(f"name: {name!r} is not a hand-made model; choose one of: {', '.join(BUILDERS)}")
    return BUILDERS[name]()


# --- how the weights are put together -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Shape:
    n_layers: int
    n_heads: int
    d_head: int
    n_ctx: int
    vocabulary: tuple[str, ...]
    d_mlp: int = 0


class _Subspaces:
    """Names for disjoint stretches of the residual stream."""

    def __init__(self, **sizes: int):
        ends = torch.tensor(list(sizes.values())).cumsum(0).tolist()
        self.slices = {name: slice(end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)}
        self.d_model = ends[-1]

    def __getitem__(self, name: str) -> slice:
        return self.slices[name]

    def size(self, name: str) -> int:
        return self.slices[name].stop - self.slices[name].start


class _Head:
    """The weights of one head, filled a few dimensions at a time: each call takes unused dimensions of ``d_head``."""

    def __init__(self, space: _Subspaces, shape: _Shape):
        self.space, self.shape = space, shape
        self.q, self.k, self.v = (torch.zeros(shape.d_head, space.d_model) for _ in range(3))
        self.q_bias = torch.zeros(shape.d_head)
        self.o = torch.zeros(space.d_model, shape.d_head)
        self.used_for_scores = self.used_for_values = 0

    def match(self, query: str, key: str, score: float, key_weights: Tensor | None = None, **given) -> None:
        """Add ``score`` × (query · key): both subspaces have the same meaning, dimension by dimension."""
        key_map = given.get("key")
        size = self.space.size(query)
        at = self._for_scores(size)
        self.q[at, self.space[query]] = torch.eye(size) * score * math.sqrt(self.shape.d_head)  # the softmax divides by it
        self.k[at, self.space[key]] = torch.eye(size) if key_map is None else key_map

    def prefer(self, key: str, score: float) -> None:
        """Add ``score`` × key for every query: a bias."""
        at = self._for_scores(1)
        self.q_bias[at] = score * math.sqrt(self.shape.d_head)
        self.k[at, self.space[key]] = 1.0

    def attend_by_position(self, steps_back: Sequence[int]) -> None:
        """Attend to the positions ``steps_back`` before, with .98 altogether, as far as they exist."""
        n = self.shape.n_ctx
        targets = torch.stack([torch.eye(n).roll(-step, 1).tril(-step) if step else torch.eye(n) for step in steps_back]).sum(0)
        self._attend_to(targets)

    def attend_to_first(self) -> None:
        """Attend to position 0, with .98."""
        targets = torch.zeros(self.shape.n_ctx, self.shape.n_ctx)
        targets[:, 0] = 1
        self._attend_to(targets)

    def _attend_to(self, targets: Float[Tensor, "query key"]) -> None:
        """Attend to the positions marked 1. Query i has one dimension of its own, and the score that gives .98 there."""
        n_targets = targets.tril().sum(1)
        others = torch.arange(1, len(targets) + 1) - n_targets
        scores = torch.where((n_targets > 0) & (others > 0), (ODDS * others / n_targets.clamp(min=1)).clamp(min=1e-9).log(), 0.0)
        at = self._for_scores(len(targets))
        self.q[at, self.space["position"]] = scores.diag() * math.sqrt(self.shape.d_head)
        self.k[at, self.space["position"]] = targets

    def copy(self, source: str, destination: str, times: float = 1.0) -> None:
        """Write ``source`` at the attended position into ``destination``."""
        size = self.space.size(source)
        at = slice(self.used_for_values, self.used_for_values + size)
        self.used_for_values = at.stop
        self.v[at, self.space[source]] = torch.eye(size)
        self.o[self.space[destination], at] = times * torch.eye(size)

    def _for_scores(self, size: int) -> slice:
        at = slice(self.used_for_scores, self.used_for_scores + size)
        self.used_for_scores = at.stop
        if at.stop > self.shape.d_head:
            raise ValueError(f"d_head: expected at least {at.stop}, got {self.shape.d_head}")
        return at
