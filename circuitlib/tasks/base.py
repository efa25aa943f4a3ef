"""What a task is: pairs of prompts, the right answer, the wrong ones, and a number that says how well a model does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from jaxtyping import Float, Int
from torch import Tensor

Metric = Callable[[Tensor], Tensor]
METRICS = ("logit_diff", "logprob", "prob_diff")


@dataclass(frozen=True, eq=False)
class Task:
    """Clean and corrupted prompts, token-aligned, with answers and distractors.

    Args:
        name: what the task is called in tables.
        clean, corrupted: ``[n, pos]``, the two prompts of each pair; same shape.
        answers: ``[n]``, the token that is right after the clean prompt. With several read positions ``[n, k]``. For "prob_diff"
            all right tokens, ``[n, n_right]`` (``[n, k, n_right]``), shorter rows filled up with −1.
        distractors: ``[n, n_wrong]`` wrong tokens (``[n, k, n_wrong]``); empty for a task whose metric is the answer's log-probability.
            For "prob_diff" shorter rows are filled up with −1.
        positions: name → position in the prompt, for the places that the text talks about.
        read_positions: where the model's output is read (``k`` of them); in order.
        metric_name: "logit_diff" (answer minus best distractor), "logprob" (log-probability of the answer, in nats) or "prob_diff"
            (sum of the probabilities of all answers minus the same of all distractors, from −1 to 1).
        roles: role → the (query, key) positions between which a head of that role attends, by name.
        labels: one string per position, to draw a prompt's axis with.
        meta: how the prompts were made (corruption, seed), for records.
    """

    name: str
    clean: Int[Tensor, "n pos"]
    corrupted: Int[Tensor, "n pos"]
    answers: Int[Tensor, "n"]
    distractors: Int[Tensor, "n n_wrong"]
    positions: dict[str, int]
    read_positions: tuple[int, ...]
    metric_name: str = "logit_diff"
    roles: dict[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    meta: dict = field(default_factory=dict)

    def __post_init__(self):
        for name in ("clean", "corrupted", "answers", "distractors"):
            ids = getattr(self, name)
            if not isinstance(ids, Tensor) or ids.is_floating_point():
                raise ValueError(
                    f"{name}: expected a tensor of token ids, got {getattr(ids, 'dtype', type(ids).__name__)}"
                )
        if isinstance(self.read_positions, int):
            raise ValueError(
                f"read_positions: expected a tuple such as ({self.read_positions},), got {self.read_positions}"
            )
        n, n_pos = self.clean.shape if self.clean.dim() == 2 else (0, 0)
        if n == 0 or n_pos == 0:
            raise ValueError(
                f"clean: expected token ids [n, pos] with at least one prompt, got shape {list(self.clean.shape)}"
            )
        if self.corrupted.shape != self.clean.shape:
            raise ValueError(f"corrupted: expected the shape of clean, {[n, n_pos]}, got {list(self.corrupted.shape)}")
        if len(self.answers) != n or len(self.distractors) != n:
            raise ValueError(
                f"answers, distractors: expected one row for each of {n} prompts, got {len(self.answers)} and {len(self.distractors)}"
            )
        if self.metric_name not in METRICS:
            raise ValueError(f"metric_name: expected one of {', '.join(METRICS)}, got {self.metric_name!r}")
        self._check_shapes(n, len(self.read_positions))
        for name, position in {**self.positions, **{f"read position {p}": p for p in self.read_positions}}.items():
            if not 0 <= position < n_pos:
                raise ValueError(f"positions: {name!r} is {position}, expected 0 to {n_pos - 1}")

    def _check_shapes(self, n: int, k: int) -> None:
        if not k:
            raise ValueError("read_positions: expected at least one position at which the model is read, got none")
        places = [n] if k == 1 else [n, k]
        several = self.metric_name == "prob_diff"
        for name, ids, more in (("answers", self.answers, several), ("distractors", self.distractors, True)):
            shape = list(ids.shape)
            if shape[: len(places)] != places or len(shape) != len(places) + more:
                expected = [*places, "n_right" if name == "answers" else "n_wrong"] if more else places
                raise ValueError(f"{name}: expected token ids {expected} for {k} read positions, got shape {shape}")
            if not several and ids.numel() and int(ids.min()) < 0:
                raise ValueError(
                    f"{name}: expected token ids from 0, got {int(ids.min())}; only prob_diff may fill rows up with −1"
                )
            if more and not shape[-1] and (several or self.metric_name == "logit_diff"):
                raise ValueError(
                    f"{name}: expected at least one for each prompt; only the metric logprob needs no distractors"
                )

    def __len__(self) -> int:
        return len(self.clean)

    def __repr__(self) -> str:
        return f"Task({self.name!r}, {len(self)} prompts of {self.clean.shape[1]} tokens, metric {self.metric_name})"

    def position(self, name: str) -> int:
        """The position called ``name``; a ValueError that lists the names if there is none."""
        if name not in self.positions:
            raise ValueError(
                f"position {name!r} does not exist in task {self.name!r}; choose one of: {', '.join(self.positions)}"
            )
        return self.positions[name]

    def metric(self, logits: Float[Tensor, "n k d_vocab"] | Float[Tensor, "n pos d_vocab"]) -> Float[Tensor, "n"]:
        """How well the model does on each prompt; higher is better.

        ``logits`` come at the read positions, or at all positions of the prompt. Several read positions are averaged.
        """
        logits = self._read(logits)
        answers = self._tokens(self.answers, logits)
        if self.metric_name == "prob_diff":
            p = logits.softmax(-1)
            return (_sum_at(p, answers) - _sum_at(p, self._tokens(self.distractors, logits))).mean(-1)
        right = logits.gather(-1, answers).squeeze(-1)
        if self.metric_name == "logprob":
            return (right - logits.logsumexp(-1)).mean(-1)
        return (right - logits.gather(-1, self._tokens(self.distractors, logits)).max(-1).values).mean(-1)

    def accuracy(self, logits: Float[Tensor, "n k d_vocab"]) -> Float[Tensor, "n"]:
        """1 where the top token of the whole vocabulary is the answer (or one of the answers), else 0, averaged over read positions."""
        logits = self._read(logits)
        top = logits.argmax(-1, keepdim=True)
        return (top == self._tokens(self.answers, logits)).any(-1).float().mean(-1)

    def success(self, logits: Float[Tensor, "n k d_vocab"]) -> Float[Tensor, "n"]:
        """1 where the answer is above every distractor, else 0. For "prob_diff": where the answers together are above the distractors.

        Of a task without distractors: where the answer is above all other tokens, the same as ``accuracy``.
        """
        if not self.distractors.shape[-1]:
            return self.accuracy(logits)
        logits = self._read(logits)
        answers, distractors = (self._tokens(kind, logits) for kind in (self.answers, self.distractors))
        if self.metric_name == "prob_diff":
            p = logits.softmax(-1)
            return (_sum_at(p, answers) > _sum_at(p, distractors)).float().mean(-1)
        wrong = logits.gather(-1, distractors).max(-1).values
        return (logits.gather(-1, answers).squeeze(-1) > wrong).float().mean(-1)

    def _tokens(self, ids: Int[Tensor, "n ..."], logits: Tensor) -> Int[Tensor, "n k token"]:
        """Answers or distractors with an axis for read positions, where the logits are."""
        return ids.view(*logits.shape[:2], -1).to(logits.device)

    def _read(self, logits: Tensor) -> Tensor:
        n, n_pos, k = len(self), self.clean.shape[1], len(self.read_positions)
        if logits.dim() != 3 or len(logits) != n or logits.shape[1] not in (k, n_pos):
            raise ValueError(
                f"logits: expected [{n}, {k}, d_vocab] or [{n}, {n_pos}, d_vocab], got {list(logits.shape)}"
            )
        return logits if logits.shape[1] == k else logits[:, list(self.read_positions)]


def _sum_at(p: Float[Tensor, "n k d_vocab"], ids: Int[Tensor, "n k token"]) -> Float[Tensor, "n k"]:
    """Sum of ``p`` over the ids of each row; −1 stands for no token."""
    return (p.gather(-1, ids.clamp(min=0)) * (ids >= 0)).sum(-1)
