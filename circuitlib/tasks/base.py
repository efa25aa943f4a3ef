"""What a task is: pairs of prompts, the right answer, the wrong ones, and a number that says how well a model does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from jaxtyping import Float, Int
from torch import Tensor

Metric = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Task:
    """Clean and corrupted prompts, token-aligned, with answers and distractors.

    Args:
        name: what the task is called in tables.
        clean, corrupted: ``[n, pos]``, the two prompts of each pair; same shape.
        answers: ``[n]``, the token that is right after the clean prompt. With several read positions ``[n, k]``.
        distractors: ``[n, n_wrong]`` wrong tokens (``[n, k, n_wrong]``); empty for a task whose metric is the answer's log-probability.
        positions: name → position in the prompt, for the places that the text talks about.
        read_positions: where the model's output is read (``k`` of them); in order.
        metric_name: "logit_diff" (answer minus best distractor) or "logprob" (log-probability of the answer, in nats).
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
        if self.metric_name not in ("logit_diff", "logprob"):
            raise ValueError(f"metric_name: expected 'logit_diff' or 'logprob', got {self.metric_name!r}")
        for name, position in {**self.positions, **{f"read position {p}": p for p in self.read_positions}}.items():
            if not 0 <= position < n_pos:
                raise ValueError(f"positions: {name!r} is {position}, expected 0 to {n_pos - 1}")

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
        answers = self.answers.view(len(self), -1, 1).to(logits.device)
        right = logits.gather(-1, answers).squeeze(-1)
        if self.metric_name == "logprob":
            return (right - logits.logsumexp(-1)).mean(-1)
        wrong = logits.gather(-1, self.distractors.view(*answers.shape[:2], -1).to(logits.device)).max(-1).values
        return (right - wrong).mean(-1)

    def accuracy(self, logits: Float[Tensor, "n k d_vocab"]) -> Float[Tensor, "n"]:
        """1 where the answer is the top token of the whole vocabulary, else 0 (averaged over read positions)."""
        logits = self._read(logits)
        return (logits.argmax(-1) == self.answers.view(len(self), -1).to(logits.device)).float().mean(-1)

    def success(self, logits: Float[Tensor, "n k d_vocab"]) -> Float[Tensor, "n"]:
        """1 where the answer is above every distractor, else 0."""
        logits = self._read(logits)
        answers = self.answers.view(len(self), -1, 1).to(logits.device)
        wrong = logits.gather(-1, self.distractors.view(*answers.shape[:2], -1).to(logits.device)).max(-1).values
        return (logits.gather(-1, answers).squeeze(-1) > wrong).float().mean(-1)

    def _read(self, logits: Tensor) -> Tensor:
        n, n_pos, k = len(self), self.clean.shape[1], len(self.read_positions)
        if logits.dim() != 3 or len(logits) != n or logits.shape[1] not in (k, n_pos):
            raise ValueError(
                f"logits: expected [{n}, {k}, d_vocab] or [{n}, {n_pos}, d_vocab], got {list(logits.shape)}"
            )
        return logits if logits.shape[1] == k else logits[:, list(self.read_positions)]
