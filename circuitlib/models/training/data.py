"""What the shipped models read while they train: docstrings, repeated tokens and real code.

Each function makes one :class:`Batch` from a random generator, so the batch of a step depends on
seed and step alone and a killed run goes on where it stopped. ``weight`` says how much each position
counts as a *target*: 1 where the token can be predicted, ``FILLER`` where it can't (a random word).
Without these weights the gradient is mostly noise from unpredictable words, and nothing is learnt.
"""

from __future__ import annotations

import itertools
import random
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..words import HELD_OUT_NAMES, NAMES, NOUNS, VERBS
from .guide import Lookups

FILLER = 0.02
TRAINED_NAMES = tuple(name for name in NAMES if name not in HELD_OUT_NAMES)


@dataclass(frozen=True)
class Spread:
    """Targets that are no single token: at position ``pos`` of row ``row`` the next token has these probabilities."""

    row: Int[Tensor, "target"]
    pos: Int[Tensor, "target"]
    probability: Float[Tensor, "target d_vocab"]


@dataclass(frozen=True)
class Batch:
    """Equally long rows. Rows of one group share a layout, so a head's output can be swapped between them.

    Docstrings and stories also have ``lookups``, where the heads of guide.py should look, and docstrings have
    ``corrupted``: rows of the same layout with other names, in which the docstring names no argument of the function. Stories and
    spans of years (stories.py) also have ``corrupted``; spans have ``spread`` targets.
    """

    tokens: Int[Tensor, "row pos"]
    weight: Float[Tensor, "row pos"]
    group: Int[Tensor, "row"]
    lookups: Lookups | None = None
    corrupted: Int[Tensor, "row pos"] | None = None
    spread: Spread | None = None


# Docstrings -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """How many arguments and words: all rows of one layout have the same number of tokens."""

    prefix: int
    matching: int
    suffix: int
    summary_words: int
    words: int


def sample_layout(rng: random.Random) -> Layout:
    return Layout(rng.randint(0, 4), rng.randint(2, 5), rng.randint(0, 2), rng.randint(2, 4), rng.randint(1, 5))


def is_held_out_pair(first: str, second: str) -> bool:
    """Whether these two names never stand side by side in training (a tenth of all ordered pairs)."""
    return (NAMES.index(first) * 31 + NAMES.index(second) * 17) % 10 == 0


def docstring_pieces(layout: Layout, rng: random.Random, corrupted: bool = False) -> list[tuple[str, float]]:
    """A function with its docstring, as (text, weight) pieces. ``corrupted``: the docstring names other arguments."""
    n_names = 1 + layout.prefix + layout.matching + layout.suffix
    names = rng.sample(TRAINED_NAMES, n_names)
    while any(is_held_out_pair(a, b) for a, b in itertools.pairwise(names)):
        names = rng.sample(TRAINED_NAMES, n_names)
    method, *args = names
    # A description may hold any name, the function's own arguments above all. So neither what a word is nor how far
    # back it stands tells which argument was documented last: a head has to find the word after the last ":param".
    words = [*NOUNS, *TRAINED_NAMES, *args * 6]
    pieces = [("\ndef", 0.1), (f" {method}", FILLER), ("(self", 0.2)]
    for arg in args:
        pieces += [(",", 0.1), (f" {arg}", FILLER)]
    summary = " ".join([rng.choice(VERBS), *rng.choices(words, k=layout.summary_words - 1)])
    pieces += [('):\n    """', 0.2), (summary, FILLER), ("\n\n    :param", 0.2)]
    documented = args[layout.prefix : layout.prefix + layout.matching]
    if corrupted:
        documented = rng.sample([name for name in TRAINED_NAMES if name not in names], layout.matching)
    for i, arg in enumerate(documented):
        description = "".join(f" {word}" for word in rng.choices(words, k=layout.words))
        pieces += [
            ("\n    :param" if i else "", 0.2),
            (f" {arg}", 1.0 if i else FILLER),
            (":", 0.2),
            (description, FILLER),
        ]
    return pieces


def docstring_batch(
    tokenizer, rng: random.Random, layouts: Sequence[Layout], rows_each: int, length: int, any_token: bool = False
) -> Batch:
    """``rows_each`` functions of each layout. With ``any_token``, every second one has other tokens for its names."""

    def make(corrupted: bool) -> tuple[list[list[int]], list[list[float]]]:
        tokens, weights = [], []
        for number, layout in enumerate(layout for layout in layouts for _ in range(rows_each)):
            row, weight = encode_pieces(tokenizer, docstring_pieces(layout, rng, corrupted))
            tokens.append((rename(tokenizer, row, rng) if any_token and number % 2 else row)[:length])
            weights.append(weight[:length])
        return tokens, weights

    tokens, weights = make(corrupted=False)
    corrupted, _ = make(corrupted=True)
    lookups = find_lookups(tokenizer, tokens)
    group = torch.arange(len(layouts)).repeat_interleave(rows_each)
    tokens, corrupted = (padded(rows, tokenizer.eos_token_id) for rows in (tokens, corrupted))
    return Batch(tokens, padded(weights, 0.0), group, lookups, corrupted)


def padded(rows: list[list], value) -> Tensor:
    """The rows as one tensor, the short ones filled up at their end."""
    longest = max(map(len, rows))
    return torch.tensor([row + [value] * (longest - len(row)) for row in rows])


def rename(tokenizer, row: list[int], rng: random.Random) -> list[int]:
    """The same row with another token for each name: any token that is not special, not in the row, and no held-out name."""
    names = {token for token in row if tokenizer.decode([token]).strip() in TRAINED_NAMES}
    held_out = {tokenizer.encode(f" {name}", add_special_tokens=False)[0] for name in HELD_OUT_NAMES}
    free = sorted(set(range(len(tokenizer.all_special_ids), len(tokenizer))) - set(row) - held_out)
    new = dict(zip(sorted(names), rng.sample(free, len(names)), strict=True))
    return [new.get(token, token) for token in row]


def find_lookups(tokenizer, tokens: list[list[int]]) -> Lookups:
    """For each documented argument after the first: from the ":param" before it to the last one, and to its place in ``def``."""
    (param,) = tokenizer.encode("param", add_special_tokens=False)
    found = []
    for number, row in enumerate(tokens):
        params = [i for i, token in enumerate(row[:-1]) if token == param]
        found += [(number, here, last + 1, row.index(row[here + 1])) for last, here in itertools.pairwise(params)]
    found = torch.tensor(found).view(-1, 4)
    return {"induction": found[:, :3], "mover": found[:, [0, 1, 3]]}


def encode_pieces(tokenizer, pieces: list[tuple[str, float]]) -> tuple[list[int], list[float]]:
    """Token ids with BOS in front, and for each token the weight of the text it ends in."""
    by_char = [weight for text, weight in pieces for _ in text]
    encoding = tokenizer.backend_tokenizer.encode("".join(text for text, _ in pieces), add_special_tokens=False)
    return [tokenizer.bos_token_id, *encoding.ids], [0.0, *(by_char[end - 1] for _, end in encoding.offsets)]


# Repeated random tokens ---------------------------------------------------------------------------


def repeats_batch(
    tokenizer, rng: np.random.Generator, rows: int, length: int, alphabets: Sequence[int] | None = None
) -> Batch:
    """BOS, then a random sequence again and again, one period a batch.

    ``alphabets=None``: the tokens of a row are distinct. Otherwise they are drawn from a few tokens (how many
    is drawn from ``alphabets``), so that one token stands before many others, and only a head that knows
    *exactly* which token came before, and before that, can predict the next.
    """
    ordinary = np.arange(len(tokenizer.all_special_ids), len(tokenizer))
    period = int(rng.integers(6, length // 2))
    tokens = np.empty((rows, length), dtype=np.int64)
    for row in tokens:
        if alphabets is None:
            once = rng.choice(ordinary, period, replace=False)
        else:
            once = rng.choice(rng.choice(ordinary, rng.choice(alphabets), replace=False), period)
        row[0] = tokenizer.bos_token_id
        row[1:] = np.resize(once, length - 1)
    weight = torch.ones(rows, length)
    weight[:, : period + 2] = FILLER  # the first copy, and the token that starts the second
    return Batch(torch.from_numpy(tokens), weight, torch.zeros(rows, dtype=torch.long))


# Real code ----------------------------------------------------------------------------------------


def standard_library() -> Iterator[str]:
    """Sources of the running Python's standard library, without its tests, in a fixed order."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        if not {"site-packages", "test", "tests", "idle_test"} & set(path.relative_to(root).parts):
            try:
                yield path.read_text("utf8")
            except UnicodeDecodeError:
                continue


def code_stream(tokenizer) -> np.ndarray:
    """All of the standard library as one row of tokens."""
    encodings = tokenizer.backend_tokenizer.encode_batch(list(standard_library()), add_special_tokens=False)
    return np.concatenate([np.array(encoding.ids, dtype=np.uint16) for encoding in encodings])


def code_batch(tokenizer, stream: np.ndarray, rng: np.random.Generator, rows: int, length: int) -> Batch:
    """BOS, then a window at a random place of the stream."""
    starts = rng.integers(0, len(stream) - length, rows)
    tokens = np.stack([[tokenizer.bos_token_id, *stream[s : s + length - 1]] for s in starts]).astype(np.int64)
    return Batch(torch.from_numpy(tokens), torch.ones(rows, length), torch.arange(rows))


# The tokenizer ------------------------------------------------------------------------------------


def train_tokenizer(d_vocab: int, seed: int = 0):
    """Byte-level BPE on the standard library and generated docstrings; every word of the lists is one token."""
    from tokenizers import pre_tokenizers

    rng = random.Random(seed)

    def corpus():
        yield from standard_library()
        # Often enough that each word is merged before the vocabulary is full.
        yield from ["".join(f" {word}" for word in (*NAMES, *NOUNS))] * 20_000
        yield from ["\n".join(VERBS)] * 20_000
        yield from ("".join(text for text, _ in docstring_pieces(sample_layout(rng), rng)) for _ in range(5_000))

    return byte_level_bpe(d_vocab, corpus(), pre_tokenizers.ByteLevel(add_prefix_space=False))


def byte_level_bpe(d_vocab: int, corpus: Iterable[str], pre_tokenizer):
    """Train a byte-level BPE with the three special tokens of the shipped models."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bos, eos, pad = special = ["<|BOS|>", "<|EOS|>", "<|PAD|>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=d_vocab, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        name_or_path="circuitlib",
        add_bos_token=True,
        bos_token=bos,
        eos_token=eos,
        pad_token=pad,
    )
