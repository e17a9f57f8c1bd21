"""What a draft tree is chosen from: every token a drafter offered, with its cumulative score."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

ROOT = -1
"""The parent of the candidates behind the last output token."""


def top_logprobs(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` largest log probabilities (or all there are) and their indices [rows, count].

    They are float32, descending and never positive, whatever the dtype of ``logits`` [rows, size],
    of which no float32 copy is made.
    """
    best = logits.topk(min(count, logits.shape[-1]), -1)
    top = best.values[..., :1]
    # Relative to the largest: half precision would round the plain log-sum-exp of large logits to
    # steps that are wider than most log probabilities.
    mass = (logits - top).exp_().sum(-1, keepdim=True)
    return (best.values.float() - top.float()) - mass.float().log(), best.indices


class Candidates:
    """Candidates numbered from 0 in the order they were offered: parents before children."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.scores: list[float] = []

    def add(
        self, parents: Sequence[int], tokens: Sequence[list[int]], logprobs: Sequence[list[float]]
    ) -> range:
        """Candidates ``tokens[i]`` with ``logprobs[i]`` behind ``parents[i]``; returns their numbers."""
        start = len(self.tokens)
        for parent, row, offered in zip(parents, tokens, logprobs, strict=True):
            score = 0.0 if parent == ROOT else self.scores[parent]
            self.tokens += row
            self.parents += [parent] * len(row)
            self.scores += [score + logprob for logprob in offered]
        return range(start, len(self.tokens))

    def best(self, numbers: Iterable[int], count: int) -> list[int]:
        """The ``count`` best, best first.

        A tie goes to the earlier one. Since no child scores above its parent, the best of all
        candidates therefore include the parent of each of them.
        """
        return sorted(numbers, key=lambda number: (-self.scores[number], number))[:count]

    def tree(self, numbers: Iterable[int]) -> tuple[list[int], list[int]]:
        """Tokens and parent indices of the tree of ``numbers``, which hold the parents of all."""
        chosen = sorted(numbers)
        place = {number: i for i, number in enumerate(chosen)} | {ROOT: ROOT}
        return [self.tokens[n] for n in chosen], [place[self.parents[n]] for n in chosen]
