"""The trace of a chain pipeline (W = 1) along a known output.

On the true prefix every token is drafted from exactly once, when it is the newest of ``fill`` tokens
in flight. If that draft is right the next token's fill is one more (at most n), else the pipeline
is flushed and the next token is alone in flight. So all a trace depends on is, per output token
and fill, whether the draft is right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from methods.core import Step, Transcript
from methods.decoding.replay import KnownOutput, Replayed, acceptance
from methods.decoding.sampling import Draws
from methods.drafters.vocabulary import DraftVocabulary
from methods.pipeline.controller import PipelineController
from methods.pipeline.tree import Proposal

Pair = tuple[int, int]
"""(index of the newest token in the output, tokens in flight)"""

DraftLogits = Callable[[Sequence[Pair]], Tensor]
"""Draft logits [pairs, draft_vocab] behind the newest token of each pair."""

NEGLIGIBLE = 1e-6
"""Fills less likely than this at a position are not evaluated."""

_CHUNK = 128
_WRONG = -1


@dataclass
class FillTable:
    """Acceptance by output token and fill, evaluated only where a trace may come by.

    ``given`` and ``marginal`` as in ``methods.decoding.replay.Acceptance``.
    """

    n: int
    known: KnownOutput
    given: list[dict[int, float]] = field(init=False)
    marginal: list[dict[int, float]] = field(init=False)

    def __post_init__(self) -> None:
        self.given = [{} for _ in range(self.known.decoded)]
        self.marginal = [{} for _ in range(self.known.decoded)]

    def complete(self, logits: DraftLogits, vocabulary: DraftVocabulary, drawn: bool) -> None:
        """Evaluate what can be reached. Which fills those are depends on the answers, so unknown ones
        are first taken to be like the nearest known fill, until nothing unknown is reached."""
        while missing := self._missing():
            for start in range(0, len(missing), _CHUNK):
                pairs = missing[start : start + _CHUNK]
                found = acceptance(logits(pairs), vocabulary, self.known, [i for i, _ in pairs], drawn)
                for (i, fill), given, marginal in zip(
                    pairs, found.given.tolist(), found.marginal.tolist(), strict=True
                ):
                    self.given[i][fill], self.marginal[i][fill] = given, marginal

    def reach(self) -> list[dict[int, float]]:
        """Probability of each fill, per output token, along the known output."""
        reached: list[dict[int, float]] = []
        now = {1: 1.0}
        for known in self.given:
            reached.append(now)
            then: dict[int, float] = {}
            for fill, probability in now.items():
                right = _nearest(known, fill)
                after = min(fill + 1, self.n)
                then[after] = then.get(after, 0.0) + probability * right
                then[1] = then.get(1, 0.0) + probability * (1 - right)
            now = {fill: p for fill, p in then.items() if p >= NEGLIGIBLE}
        return reached

    def _missing(self) -> list[Pair]:
        return [(i, fill) for i, row in enumerate(self.reach()) for fill in row if fill not in self.given[i]]


def _nearest(known: dict[int, float], fill: int) -> float:
    if not known:
        return 0.0
    return known[min(known, key=lambda other: abs(other - fill))]


@torch.no_grad()
def replay_chain(
    known: KnownOutput,
    n: int,
    logits: DraftLogits,
    vocabulary: DraftVocabulary,
    drawn: bool,
    target_layers: float,
    draft_layers: float,
) -> Replayed:
    """The trace of a pipeline of ``n`` stages; ``target_layers`` and ``draft_layers`` per cycle."""
    if not known.output_ids:
        return Replayed([])
    table = FillTable(n, known)
    table.complete(logits, vocabulary, drawn)
    draws = Draws(known.sampling.seed)

    def right(index: int, fill: int) -> bool:
        # A fill below ``NEGLIGIBLE`` may still be drawn.
        return draws.acceptance() < _nearest(table.given[index], fill)

    steps = walk(known, n, right, target_layers, draft_layers)
    if known.sampling.greedy or not drawn:
        return Replayed(steps)
    return Replayed(steps, *_expectation(table, n, target_layers, draft_layers))


def walk(
    known: KnownOutput,
    n: int,
    right: Callable[[int, int], bool],
    target_layers: float,
    draft_layers: float,
) -> list[Step]:
    """The cycles of the schedule if the draft behind output token ``index`` at ``fill`` is right as
    ``right(index, fill)`` says; asked once per token."""
    output, prompt_length = known.output_ids, len(known.prompt_ids)
    transcript = Transcript(len(output))
    pipeline = PipelineController(n, prompt_length, output[0], transcript, 1, target_layers, draft_layers)
    while not pipeline.finished:
        newest, fill = pipeline.newest, len(pipeline.in_flight)
        offers = {}
        for node in newest:
            index = node.position - prompt_length
            true = node.token != _WRONG and index + 1 < len(output) and right(index, fill)
            offers[node.id] = [Proposal(output[index + 1] if true else _WRONG, 0.0)]
        if pipeline.expansion_due:
            pipeline.expand(offers)
        if pipeline.verification_due:
            token = output[len(transcript.tokens)]
            pipeline.commit(token, pipeline.candidate(token))
        if pipeline.expansion_due:
            pipeline.expand(offers)
        pipeline.end_cycle()
    return pipeline.steps


def _expectation(
    table: FillTable, n: int, target_layers: float, draft_layers: float
) -> tuple[dict[str, float], list[float | None]]:
    """Expected totals, and the acceptance probability of each position.

    cycles = N + (n - 1) fills, where fills = 1 + rejections that do not end the run; every
    verification has one candidate; cycle j < n of a fill runs j stages, every other one n.
    """
    reached = table.reach()
    accepted = [
        sum(p * table.given[i][fill] for fill, p in row.items()) / sum(row.values())
        for i, row in enumerate(reached)
    ]
    marginal: list[float | None] = [
        sum(p * table.marginal[i][fill] for fill, p in row.items()) / sum(row.values())
        for i, row in enumerate(reached)
    ]
    count = len(accepted)
    fills = 1 + sum(1 - a for a in accepted[:-1]) if count else 0.0
    cycles = count + (n - 1) * fills
    return {
        "steps": cycles,
        "drafted": float(count),
        "accepted": sum(accepted),
        "emitted": float(count),
        "target_layers": cycles * target_layers,
        "draft_layers": cycles * draft_layers,
        "depth": float(count),
        "nodes": count * n + fills * n * (n - 1) / 2,
    }, marginal
