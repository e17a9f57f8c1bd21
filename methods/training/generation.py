"""The target answers many prompts at once: training text in its own words (self-distillation)."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from methods.target.state import AttentionCache, RecurrentCache, State
from methods.target.target import Target

_SPARE_SLOTS = 64
"""Room for the tokens until the next replacement; more costs memory that is written once and never read."""

_REFILL_SHARE = 8
"""Rows are replaced once one in this many is free: each replacement copies the batch's cache once."""


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt to be answered. ``seed`` decides the draws at ``temperature`` > 0."""

    key: str
    prompt_ids: Sequence[int]
    temperature: float
    seed: int


@dataclass(frozen=True, slots=True)
class Answer:
    """``ids`` end with a stop id, or were cut at the cap (``stopped`` False)."""

    question: Question
    ids: list[int]
    stopped: bool


@dataclass(slots=True)
class _Row:
    """One sequence of the batch: the state and row index that hold it, ``length`` slots of it real."""

    question: Question
    state: State
    index: int
    length: int
    ids: list[int] = field(default_factory=list)
    draws: random.Random = field(default_factory=random.Random)


class Generator:
    """Batched decoding that keeps ``batch`` rows busy until the questions run out.

    Rows are padded on the left to a common length. A row that ends makes room for the next
    question; rows are then moved into a fresh state whose length is the longest row's.
    """

    def __init__(self, target: Target, batch: int, max_new_tokens: int, stop_ids: Collection[int]) -> None:
        self._target = target
        self._batch = batch
        self._cap = max_new_tokens
        self._stop = frozenset(stop_ids)

    @torch.inference_mode()
    def answers(self, questions: Iterable[Question]) -> Iterator[Answer]:
        """Answers in the order in which they end."""
        waiting = iter(questions)
        rows: list[_Row] = []
        while True:
            fresh = self._start(waiting, self._batch - len(rows))
            rows += fresh
            if not rows:
                return
            state = self._assemble(rows)
            ended = [row for row in rows if self._ended(row)]
            # Out of questions, the batch shrinks only when half of it is idle.
            idle = max(1, len(rows) // (_REFILL_SHARE if fresh else 2))
            while len(ended) < min(idle, len(rows)):
                ended += self._step(rows, state)
            for row in ended:
                yield Answer(row.question, row.ids, row.ids[-1] in self._stop)
            rows = [row for row in rows if not self._ended(row)]

    def _start(self, waiting: Iterator[Question], room: int) -> list[_Row]:
        """Prefill up to ``room`` new questions, each with its first token drawn."""
        questions = [question for question, _ in zip(waiting, range(room), strict=False)]
        if not questions:
            return []
        longest = max(len(question.prompt_ids) for question in questions)
        pads = [longest - len(question.prompt_ids) for question in questions]
        ids = [[0] * pad + list(q.prompt_ids) for pad, q in zip(pads, questions, strict=True)]
        device = self._target.device
        state = self._target.new_state(len(questions), torch.tensor(pads, device=device))
        hidden = self._target.forward(torch.tensor(ids, device=device), state).hidden[:, -1]
        rows = [
            _Row(q, state, i, len(q.prompt_ids), draws=random.Random(q.seed)) for i, q in enumerate(questions)
        ]
        self._draw(rows, self._target.logits(hidden))
        return rows

    def _step(self, rows: list[_Row], state: State) -> list[_Row]:
        """One token for every row that has not ended; returns those that end with it."""
        last = torch.tensor([[row.ids[-1]] for row in rows], device=self._target.device)
        hidden = self._target.forward(last, state).hidden[:, -1]
        running = [i for i, row in enumerate(rows) if not self._ended(row)]
        for row in rows:
            row.length += 1
        live = [rows[i] for i in running]
        self._draw(live, self._target.logits(hidden[running]))
        return [row for row in live if self._ended(row)]

    def _ended(self, row: _Row) -> bool:
        return row.ids[-1] in self._stop or len(row.ids) >= self._cap

    def _draw(self, rows: list[_Row], logits: Tensor) -> None:
        tokens = logits.argmax(-1)
        warm = [i for i, row in enumerate(rows) if row.question.temperature > 0]
        if warm:
            heat = torch.tensor([rows[i].question.temperature for i in warm], device=logits.device)
            uniform = torch.tensor([rows[i].draws.random() for i in warm], device=logits.device)
            cumulative = (logits[warm].float() / heat[:, None]).softmax(-1).cumsum(-1)
            drawn = torch.searchsorted(cumulative, uniform[:, None] * cumulative[:, -1:], right=True)
            tokens[warm] = drawn[:, 0].clamp(max=logits.shape[-1] - 1)
        for row, token in zip(rows, tokens.tolist(), strict=True):
            row.ids.append(token)

    def _assemble(self, rows: list[_Row]) -> State:
        """A state with exactly ``rows``, in order, padded to the longest; each row is moved to it."""
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
        return state


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
