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

from .words import NAMES, NOUNS, VERBS

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
    return _boot(shape, space, weights)


def handmade_docstring():
    """Three layers, two heads each: which argument does the next ``:param`` line name? After Heimersheim & Janiak (2023).

    - ``a0.0`` is a fuzzy previous-token head: it attends to the two tokens before, .49 each, and copies names, and the marks of
      ``:param`` and of a comma. It has two jobs. At an argument of the signature, ``B, C``, it brings the argument before,
      from beyond the comma. At the colon after a documented name, ``:param B:``, it brings the name and the mark of ``:param``.
    - ``a1.0`` is an induction head: from ``:param`` it looks for the latest place with the mark of ``:param`` near it, which is the
      colon of the line above, and copies the name that ``a0.0`` brought there into ``current``. Each token of lateness makes
      a place weigh 49 times as much, and the mark as much as eight tokens, more than there are after that colon.
    - ``a2.0`` is the mover: its query is ``current``, B; its key is the name that ``a0.0`` brought; it attends to the argument that
      comes after B in the signature, C, and copies it into ``answer``. Three other places have B near them: a query
      bias favours places with a comma near them, which the two in the docstring lack, and avoids commas, the third.
    - ``a0.1``, ``a1.1`` and ``a2.1`` are bystanders: they look at the first token.

    Returns:
        the bridge; its tokenizer has every word and sign of the docstring task as one token.
    """
    signs = ("\n", "\n    ", "\n\n    ", "def", "(", "self", ",", "):", '"""', ":param", ":")
    names = tuple(f" {name}" for name in NAMES)
    vocabulary = (BOS, UNKNOWN, *signs, *names, *(f" {noun}" for noun in NOUNS), *VERBS)
    n, n_ctx = len(names), 48
    space = _Subspaces(
        name=n, param=1, comma=1, position=n_ctx, previous=n, after_param=1, after_comma=1, current=n, answer=n, aside=1
    )
    shape = _Shape(n_layers=3, n_heads=2, d_head=n + 2, n_ctx=n_ctx, vocabulary=vocabulary)

    fuzzy_previous = _Head(space, shape)
    fuzzy_previous.attend_by_position(steps_back=(1, 2))
    # Each of the two tokens before has .49; enlarged so that what arrives is 1.
    fuzzy_previous.copy("name", "previous", times=2 / ATTENTION)
    fuzzy_previous.copy("param", "after_param", times=2 / ATTENTION)
    fuzzy_previous.copy("comma", "after_comma", times=2 / ATTENTION)

    induction = _Head(space, shape)
    induction.match("param", "after_param", score=8 * math.log(ODDS))
    induction.match("param", "position", score=math.log(ODDS), key_weights=torch.arange(float(n_ctx))[None, :])
    induction.copy("previous", "current")

    mover = _Head(space, shape)
    # Three groups of rivals get a third of the remaining .02 each: 6 places after a comma that is not B's, 2 near B but far
    # from a comma, and B's own comma.
    mover.match("current", "previous", score=math.log(3 * ODDS * 6) / ATTENTION)
    mover.prefer("after_comma", score=math.log(3 * ODDS * 2))
    mover.prefer("comma", score=-math.log(3 * ODDS))
    mover.copy("name", "answer")

    bystander = _Head(space, shape)
    bystander.attend_to_first()
    bystander.copy("comma", "aside")

    index = {word: i for i, word in enumerate(vocabulary)}
    is_name = torch.zeros(len(vocabulary), n)
    is_name[[index[name] for name in names], range(n)] = 1
    one = torch.eye(len(vocabulary))
    weights = _embedding(
        space,
        shape,
        {"name": is_name, "param": one[:, [index[":param"]]], "comma": one[:, [index[","]]]},
    )
    weights["unembed.weight"][:, space["answer"]] = LOGIT * is_name
    for layer, head in enumerate((fuzzy_previous, induction, mover)):
        _put_head(weights, layer, 0, head)
        _put_head(weights, layer, 1, bystander)
    return _boot(shape, space, weights, r':param|"""|\):|\n+ *| ?\w+|[^\w\s]')


def handmade_or():
    """One layer, two heads, an MLP: the logit of "1" above "0" is a OR b for the prompt ``a b =``.

    - The embedding writes 1 into ``bit`` for the token "1" and 0 for every other token.
    - ``a0.0`` attends from "=" to a, ``a0.1`` from "=" to b, both by position alone. What they write into ``sum`` is linear in the
      embedding: .98 of their own input and .02 / 3 of the other one, divided by the total, so that ``sum`` is a + b.
    - Two ReLU neurons read ``sum``: OR = relu(sum) − relu(sum − 1), with ``sum`` raised by a millionth: at 0 a ReLU has a
      kink, where autograd takes the slope to be 0 and a step upward finds 1.
    - The unembedding gives "1" the logit of the gate and "0" the logit 0.

    Returns:
        the bridge.
    """
    return _gate(thresholds=(-1e-6, 1 - 1e-6), signs=(1.0, -1.0))


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

    def match(self, query: str, key: str, score: float, key_weights: Tensor | None = None) -> None:
        """Add ``score`` × (query · key): dimension by dimension, or with the key mapped to the query's size first."""
        size = self.space.size(query)
        at = self._for_scores(size)
        self.q[at, self.space[query]] = (
            torch.eye(size) * score * math.sqrt(self.shape.d_head)
        )  # the softmax divides by it
        self.k[at, self.space[key]] = torch.eye(size) if key_weights is None else key_weights

    def prefer(self, key: str, score: float) -> None:
        """Add ``score`` × key for every query: a bias."""
        at = self._for_scores(1)
        self.q_bias[at] = score * math.sqrt(self.shape.d_head)
        self.k[at, self.space[key]] = 1.0

    def attend_by_position(self, steps_back: Sequence[int]) -> None:
        """Attend to the positions ``steps_back`` before, with .98 altogether, as far as they exist."""
        n = self.shape.n_ctx
        targets = torch.stack(
            [torch.eye(n).roll(-step, 1).tril(-step) if step else torch.eye(n) for step in steps_back]
        ).sum(0)
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
        scores = torch.where(
            (n_targets > 0) & (others > 0), (ODDS * others / n_targets.clamp(min=1)).clamp(min=1e-9).log(), 0.0
        )
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


def _gate(thresholds: tuple[float, ...], signs: tuple[float, ...]):
    """A gate of two inputs: Σ sign · relu(a + b − threshold)."""
    vocabulary = (BOS, UNKNOWN, "0", "1", "=")
    space = _Subspaces(bit=1, position=4, sum=1, gate=1)
    shape = _Shape(n_layers=1, n_heads=2, d_head=4, n_ctx=4, vocabulary=vocabulary, d_mlp=len(thresholds))
    weights = _embedding(space, shape, {"bit": torch.tensor([[float(word == "1")] for word in vocabulary])})
    for number, steps_back in enumerate((2, 1)):  # from "=" to a, and to b
        head = _Head(space, shape)
        head.attend_by_position((steps_back,))
        head.copy("bit", "sum", times=1 / (ATTENTION + (1 - ATTENTION) / 3))  # 3 other keys share the rest
        _put_head(weights, 0, number, head)
    weights["blocks.0.mlp.in.weight"][:, space["sum"]] = 1.0
    weights["blocks.0.mlp.in.bias"][:] = -torch.tensor(thresholds)
    weights["blocks.0.mlp.out.weight"][space["gate"]] = torch.tensor([signs])
    weights["unembed.weight"][vocabulary.index("1"), space["gate"]] = 1.0
    weights["unembed.bias"][[vocabulary.index(word) for word in (BOS, UNKNOWN, "=")]] = -1.0  # below both answers
    return _boot(shape, space, weights)


def _embedding(space: _Subspaces, shape: _Shape, tokens: dict[str, Float[Tensor, "d_vocab size"]]) -> dict[str, Tensor]:
    """A native bridge's state with every weight zero but the embeddings: ``tokens``, and one dimension per position."""
    n, d, d_qkv = len(shape.vocabulary), space.d_model, shape.n_heads * shape.d_head
    weights = {"embed.weight": torch.zeros(n, d), "pos_embed.weight": torch.zeros(shape.n_ctx, d)}
    for layer in range(shape.n_layers):
        for name, (rows, columns) in {"q": (d_qkv, d), "k": (d_qkv, d), "v": (d_qkv, d), "o": (d, d_qkv)}.items():
            weights[f"blocks.{layer}.attn.{name}.weight"] = torch.zeros(rows, columns)
            weights[f"blocks.{layer}.attn.{name}.bias"] = torch.zeros(rows)
        if shape.d_mlp:
            for name, (rows, columns) in {"in": (shape.d_mlp, d), "out": (d, shape.d_mlp)}.items():
                weights[f"blocks.{layer}.mlp.{name}.weight"] = torch.zeros(rows, columns)
                weights[f"blocks.{layer}.mlp.{name}.bias"] = torch.zeros(rows)
    weights |= {"unembed.weight": torch.zeros(n, d), "unembed.bias": torch.zeros(n)}
    weights["pos_embed.weight"][:, space["position"]] = torch.eye(shape.n_ctx)
    for name, values in tokens.items():
        weights["embed.weight"][:, space[name]] = values
    return weights


def _put_head(weights: dict[str, Tensor], layer: int, number: int, head: _Head) -> None:
    at = slice(number * head.shape.d_head, (number + 1) * head.shape.d_head)
    for name, values in (("q", head.q), ("k", head.k), ("v", head.v)):
        weights[f"blocks.{layer}.attn.{name}.weight"][at] = values
    weights[f"blocks.{layer}.attn.q.bias"][at] = head.q_bias
    weights[f"blocks.{layer}.attn.o.weight"][:, at] = head.o


def _boot(shape: _Shape, space: _Subspaces, weights: dict[str, Tensor], pattern: str | None = None):
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge import TransformerBridge

    config = TransformerBridgeConfig(
        n_layers=shape.n_layers,
        n_heads=shape.n_heads,
        d_head=shape.d_head,
        d_model=space.d_model,
        d_mlp=shape.d_mlp or None,
        n_ctx=shape.n_ctx,
        d_vocab=len(shape.vocabulary),
        attn_only=not shape.d_mlp,
        act_fn="relu",
        normalization_type=None,
        seed=0,
    )
    model = TransformerBridge.boot_native(config, tokenizer=_tokenizer(shape.vocabulary, pattern))
    model.load_state_dict(weights, strict=True)
    return model.eval()


def _tokenizer(vocabulary: tuple[str, ...], pattern: str | None):
    """Whole words: ``pattern`` says where a text is cut; None cuts it into its characters and drops white space."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = pre_tokenizers.Split(Regex(pattern or "."), behavior="isolated")
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token=UNKNOWN))
    words.pre_tokenizer = pieces if pattern else pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pieces])
    words.decoder = decoders.Fuse()  # pieces side by side, without a space between
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        name_or_path="local",
        add_bos_token=True,
        bos_token=BOS,
        eos_token=BOS,
        pad_token=BOS,
        unk_token=UNKNOWN,
    )
