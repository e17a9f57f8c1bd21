"""Prompt lookup: the tokens that followed the last occurrence of the current n-gram are the draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from methods.core import SamplingParams
from methods.decoding.rounds import DraftSession, RoundMethod
from methods.decoding.sampling import Draws
from methods.decoding.verification import Draft
from methods.errors import UsageError
from methods.models.target import Target
from methods.registry import register

LONGEST = 64
"""Longer matches tell nothing more, and every length is indexed."""


@dataclass(frozen=True)
class NgramOptions:
    """Draft up to ``m`` tokens after a match of ``longest`` tokens, or of fewer, down to one."""

    m: int = 5
    longest: int = 3


class NgramSession(DraftSession):
    """An index from n-gram to the position after its latest earlier occurrence."""

    def __init__(self, options: NgramOptions) -> None:
        self._m = options.m
        self._sizes = range(options.longest, 0, -1)
        self._history: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}

    def observe(self, tokens: Sequence[int], taps: Tensor) -> None:
        for token in tokens:
            # The n-grams that end here become findable now that something follows them.
            end = len(self._history)
            for size in self._sizes:
                if size <= end:
                    self._after[tuple(self._history[end - size :])] = end
            self._history.append(token)

    def propose(self, budget: int) -> Draft:
        for size in self._sizes:
            start = self._after.get(tuple(self._history[-size:])) if size <= len(self._history) else None
            if start is not None:
                tokens = self._history[start : start + min(self._m, budget)]
                return Draft.chain(tokens)
        return Draft()


@register("ngram")
class Ngram(RoundMethod):
    """No weights, no draft cost; an ordinary step where nothing matches."""

    Options = NgramOptions

    def __init__(self, target: Target, options: NgramOptions) -> None:
        super().__init__(target, options)
        if options.m < 1:
            raise UsageError(f"m must be >= 1, got {options.m}")
        if not 1 <= options.longest <= LONGEST:
            raise UsageError(f"longest must be 1 to {LONGEST}, got {options.longest}")

    def session(self, sampling: SamplingParams, draws: Draws) -> NgramSession:
        return NgramSession(self.options)
