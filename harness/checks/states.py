"""Whether the states of a pipeline are those of a fresh prefill, after every verification."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from methods.models.state import State
from methods.models.target import Target
from methods.pipeline.controller import PipelineController
from methods.pipeline.lockstep import Lockstep


@dataclass(frozen=True, slots=True)
class StateReport:
    """The output of a watched run, its number of ``verifications``, and the largest differences from
    fresh passes over the same tokens: of the ``logits`` that decided each token, and of everything
    the stages remember (``memory``; inf if a stage remembers too many or too few tokens).

    Differences are absolute up to a magnitude of 1 and relative to a tensor's largest value above.
    """

    tokens: list[int]
    verifications: int
    logits: float
    memory: float


Looks = Callable[[int], bool]
"""Whether to compare at an output of so many tokens."""


def at_every_length(tokens: int) -> bool:
    return True


@torch.no_grad()
def watch_states(
    run: Lockstep,
    target: Target,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    stop_ids: Sequence[int] = (),
    looks: Looks = at_every_length,
) -> StateReport:
    """Decode with ``run`` and compare it with fresh passes after every verification that ``looks``.

    The committed tokens go through one prefill, as in no pipeline; the nodes in flight are then
    appended in one call, in the order in which stage 1 ran them.
    """
    pipeline = run.begin(prompt_ids, max_new_tokens, stop_ids)
    layers = [len(state.caches) for state in run.states]
    verifications, logits, memory = 0, 0.0, 0.0
    while not pipeline.finished:
        run.cycle(pipeline)
        if not pipeline.steps[-1].emitted or not looks(len(pipeline.transcript.tokens)):
            continue
        verifications += 1
        committed = [*prompt_ids, *pipeline.transcript.tokens[:-1]]
        fresh, law = _fresh(target, layers, committed, pipeline)
        assert run.verified is not None
        logits = max(logits, difference(run.verified, law))
        for stage, (mine, theirs) in enumerate(zip(run.states, fresh, strict=True), 1):
            seen = sum(len(level) for level in pipeline.in_flight if pipeline.depth(level[0]) >= stage)
            memory = max(memory, _difference(mine, theirs, len(committed), seen))
    return StateReport(pipeline.transcript.tokens, verifications, logits, memory)


def _fresh(
    target: Target, layers: Sequence[int], committed: Sequence[int], pipeline: PipelineController
) -> tuple[list[State], Tensor]:
    """States of new stages after the committed tokens and all nodes in flight, and the target's
    logits behind the committed tokens."""
    nodes = [node for level in pipeline.in_flight for node in level]
    slots = {node: slot for slot, node in enumerate(nodes, len(committed))}
    parents = [len(committed) - 1 if node.parent is None else slots[node.parent] for node in nodes]
    prefix, flight = target.embed(committed), target.embed([node.token for node in nodes])
    states, first = [], 0
    for count in layers:
        stage = target.stage(first, first + count)
        states.append(stage.new_state())
        prefix, _ = stage.forward(prefix, states[-1])
        flight, _ = stage.forward(flight, states[-1], parents, record=True)
        first += count
    return states, target.logits(prefix[:, -1:])[0, -1]


def _difference(mine: State, theirs: State, committed: int, in_flight: int) -> float:
    """Over the committed tokens and each of the ``in_flight`` nodes behind them."""
    if (mine.committed, mine.length) != (committed, committed + in_flight):
        return float("inf")
    return memory_difference(mine, theirs, range(committed, committed + in_flight + 1))


def memory_difference(mine: State, theirs: State, lengths: Iterable[int]) -> float:
    """Largest difference between what the two remember of the first tokens, for every one of ``lengths``."""
    caches = list(zip(mine.caches, theirs.caches, strict=True))
    pairs = [
        pair
        for length in lengths
        for a, b in caches
        for pair in zip(a.contents(length), b.contents(length), strict=True)
    ]
    return max((difference(a, b) for a, b in pairs), default=0.0)


def difference(mine: Tensor, theirs: Tensor) -> float:
    """Largest absolute difference; relative to the largest value of ``theirs`` if that is above 1."""
    if not theirs.numel():
        return 0.0
    scale = max(1.0, float(theirs.abs().max()))
    return float((mine.float() - theirs.float()).abs().max()) / scale
