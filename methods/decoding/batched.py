"""The target answers many prompts at once: AR outputs for replay, and training text in its own words.

Left-padded rows of one batch share every pass over the weights, which is what a single token costs.
Row for row the tokens are those of ``methods.decoding.autoregressive``, up to ties that other shapes of the
same sums decide otherwise; times of a batch are no measurement of a method.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor

from methods.core import SamplingParams, Transcript
from methods.decoding.sampling import Draws, target_token
from methods.models.state import AttentionCache, RecurrentCache, State
from methods.models.target import Target

_SPARE_SLOTS = 64
"""Room for the tokens until the next replacement; more costs memory that is written once and never read."""

_REFILL_SHARE = 8
"""Rows are replaced once one in this many is free: each replacement copies the batch's cache once."""


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt to be answered; ``key`` finds it again."""

    key: object
    prompt_ids: Sequence[int]
    sampling: SamplingParams = field(default_factory=SamplingParams)


@dataclass(frozen=True, slots=True)
class Answer:
    """``ids`` end with a stop id (``finish_reason`` "stop"), or were cut at the cap ("length")."""

    question: Question
    ids: list[int]
    finish_reason: str


@dataclass(slots=True)
class _Row:
    """One sequence of the batch: the state and row index that hold it, ``length`` slots of it real."""

    question: Question
    transcript: Transcript
    draws: Draws
    state: State
    index: int
    length: int

    def draw(self, logits: Tensor) -> None:
        """Take the target's token from ``logits`` [vocab], as AR does."""
        tokens = self.transcript.tokens
        self.transcript.extend([target_token(logits, self.question.sampling, self.draws, len(tokens))])


class Generator:
    """Batched decoding that keeps ``batch`` rows busy until the questions run out.

    A row that ends makes room for the next question; rows are then moved into a fresh state whose
    length is the longest row's. ``UsageError`` for a prompt the target cannot take.
    """

    def __init__(self, target: Target, batch: int, max_new_tokens: int, stop_ids: Collection[int]) -> None:
        self._target = target
        self._batch = batch
        self._cap = max_new_tokens
        self._stop = tuple(stop_ids)
        self.drawn = 0
        """Tokens so far, those of unfinished rows included."""

    @torch.no_grad()
    def answers(self, questions: Iterable[Question]) -> Iterator[Answer]:
        """Answers in the order in which they end."""
        waiting = iter(questions)
        rows: list[_Row] = []
        while True:
            fresh = self._start(waiting, self._batch - len(rows))
            rows += fresh
            if not rows:
                return
            # Out of questions, the batch shrinks only when half of it is idle. A row that ends with its
            # first token makes room at once: until all rows are in one state there is nothing to step.
            if not self._ended(rows):
                self._assemble(rows)
                idle = max(1, len(rows) // (_REFILL_SHARE if fresh else 2))
                while len(self._ended(rows)) < min(idle, len(rows)):
                    self._step(rows)
            for row in self._ended(rows):
                transcript = row.transcript
                yield Answer(row.question, transcript.tokens, transcript.finish_reason or "length")
            rows = [row for row in rows if not row.transcript.finished]

    def _start(self, waiting: Iterator[Question], room: int) -> list[_Row]:
        """Prefill up to ``room`` new questions, each with its first token drawn."""
        questions = list(islice(waiting, room))
        if not questions:
            return []
        target, device = self._target, self._target.device
        for question in questions:
            target.check_prompt(question.prompt_ids)
        longest = max(len(question.prompt_ids) for question in questions)
        pads = [longest - len(question.prompt_ids) for question in questions]
        ids = [[0] * pad + list(q.prompt_ids) for pad, q in zip(pads, questions, strict=True)]
        state = target.new_state(len(questions), torch.tensor(pads, device=device))
        hidden = target.forward(torch.tensor(ids, device=device), state).hidden[:, -1]
        rows = [
            _Row(
                question,
                Transcript(target.room(question.prompt_ids, self._cap), self._stop),
                Draws(question.sampling.seed),
                state,
                index,
                len(question.prompt_ids),
            )
            for index, question in enumerate(questions)
        ]
        for row, logits in zip(rows, target.logits(hidden), strict=True):
            if not row.transcript.finished:
                row.draw(logits)
                self.drawn += 1
        return rows

    def _step(self, rows: list[_Row]) -> None:
        """One token for every row that has not ended."""
        last = torch.tensor([[row.transcript.tokens[-1]] for row in rows], device=self._target.device)
        hidden = self._target.forward(last, rows[0].state).hidden[:, -1]
        running = [i for i, row in enumerate(rows) if not row.transcript.finished]
        for row in rows:
            row.length += 1
        for i, logits in zip(running, self._target.logits(hidden[running]), strict=True):
            rows[i].draw(logits)
        self.drawn += len(running)

    def _ended(self, rows: list[_Row]) -> list[_Row]:
        return [row for row in rows if row.transcript.finished]

    def _assemble(self, rows: list[_Row]) -> None:
        """Move ``rows``, in order, into a state with exactly them, padded to the longest."""
        length = max(row.length for row in rows)
        pads = torch.tensor([length - row.length for row in rows], device=self._target.device)
        state = self._target.new_state(len(rows), pads)
        state.capacity = length + _SPARE_SLOTS
        for layer, cache in enumerate(state.caches):
            cache.reserve(state.capacity)
            if isinstance(cache, AttentionCache):
                _move_keys(rows, layer, cache, length)
            else:
                assert isinstance(cache, RecurrentCache)
                _move_states(rows, layer, cache, length)
        state.length = state.committed = length
        for index, row in enumerate(rows):
            row.state, row.index = state, index


def _move_keys(rows: list[_Row], layer: int, to: AttentionCache, length: int) -> None:
    for index, row in enumerate(rows):
        source = row.state.caches[layer]
        assert isinstance(source, AttentionCache)
        old = slice(row.state.length - row.length, row.state.length)
        new = slice(length - row.length, length)
        to.keys[index, :, new] = source.keys[row.index, :, old]
        to.values[index, :, new] = source.values[row.index, :, old]


def _move_states(rows: list[_Row], layer: int, to: RecurrentCache, length: int) -> None:
    parts = []
    for row in rows:
        source = row.state.caches[layer]
        assert isinstance(source, RecurrentCache)
        last = source.after(row.state.length - 1)
        assert last is not None
        parts.append([tensor[row.index : row.index + 1] for tensor in last])
    to.store(length - 1, tuple(torch.cat(tensors) for tensors in zip(*parts, strict=True)))
