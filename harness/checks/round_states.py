"""Whether a draft-then-verify method's target remembers, and its session is told, what a fresh prefill
of the committed tokens gives, after every verification."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

from torch import Tensor

from harness.checks.states import Looks, StateReport, at_every_length, difference, memory_difference
from methods.core import SamplingParams
from methods.decoding.rounds import DraftSession, RoundMethod
from methods.decoding.sampling import Draws
from methods.decoding.verification import Draft
from methods.models.state import State


def watch_rounds(
    method: RoundMethod,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    sampling: SamplingParams,
    looks: Looks = at_every_length,
) -> StateReport:
    """Decode with ``method`` and compare it with fresh passes after the prefill and every round that
    ``looks`` but the last, which nobody is told of.

    ``memory`` covers the state and the features handed to the session.
    """
    states: list[State] = []
    watches: list[_Watch] = []
    new_state, new_session = method.target.new_state, method.session

    def watched_state(*args: Any) -> State:
        states.append(new_state(*args))
        return states[-1]

    def watched_session(sampling: SamplingParams, draws: Draws) -> DraftSession:
        watches.append(_Watch(new_session(sampling, draws), method, states[0], len(prompt_ids), looks))
        return watches[-1]

    with (
        patch.object(method.target, "new_state", watched_state),
        patch.object(method, "session", watched_session),
    ):
        tokens = method.decode(prompt_ids, sampling, max_new_tokens).tokens
    watch = watches[0]
    return StateReport(tokens, watch.verifications, watch.logits, watch.memory)


class _Watch(DraftSession):
    """The inner session, and a comparison whenever something was committed."""

    def __init__(
        self, inner: DraftSession, method: RoundMethod, state: State, prompt: int, looks: Looks
    ) -> None:
        self._inner, self._method, self._state = inner, method, state
        self._prompt, self._looks = prompt, looks
        self._tokens: list[int] = []
        self.verifications = 0
        """Rounds compared; the first call of ``observe`` is about the prefill."""
        self.logits = self.memory = 0.0

    def observe(self, tokens: Sequence[int], taps: Tensor) -> None:
        first = not self._tokens
        self._tokens += tokens
        if self._looks(len(self._tokens) - self._prompt):
            self.verifications += not first
            # Rows of the tokens the session has not seen yet, the new root left out.
            self._compare(taps, len(self._tokens) - 1 if first else len(tokens))
        self._inner.observe(tokens, taps)

    def propose(self, budget: int) -> Draft:
        return self._inner.propose(budget)

    def _compare(self, taps: Tensor, count: int) -> None:
        target, reads, state = self._method.target, self._method.reads, self._state
        length = len(self._tokens) - 1
        if not state.committed == state.length == length or taps.shape[0] != (count if reads else 0):
            self.memory = float("inf")
            return
        fresh = type(target).new_state(target)
        out = target.prefill(self._tokens[:-1], fresh, taps=reads)
        self.memory = max(self.memory, memory_difference(state, fresh, [length]))
        for i, tap in enumerate(reads):
            self.memory = max(self.memory, difference(taps[:, i], out.taps[tap][0, -count:]))
        mine, theirs = (
            target.logits(target.forward([self._tokens[-1]], one, record=True).hidden)
            for one in (state, fresh)
        )
        self.logits = max(self.logits, difference(mine, theirs))
        state.rollback(length)
