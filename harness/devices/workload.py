"""The real runtime on devices that do not exist: timed waits for compute, decisions from a trace.

Processes, messages, controller and bookkeeping are those of a real run; what is measured is what
they cost beside stages of the given length.
"""

from __future__ import annotations

import ctypes
import random
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from methods.drafters.vocabulary import DraftVocabulary
from methods.errors import UsageError
from methods.pipeline.controller import PipelineController, Verdict
from methods.pipeline.distributed.job import Job, Request
from methods.pipeline.distributed.progress import STUCK_S
from methods.pipeline.drafter import Features
from methods.pipeline.tree import Level, Node, Proposal

_PR_SET_TIMERSLACK = 29
_RIGHT, _WRONG = 0, 1
"""The two tokens of an emulated vocabulary: what the drafter says, and anything else."""


@dataclass(frozen=True)
class Emulation:
    """A workload of waits. ``stage_s``: seconds of each stage; ``draft_s``, ``verify_s``: of the drafter and
    of norm, head and choice on the last stage; ``hop_s``: what a hidden state is under way between two
    stages on top of the real message; ``jitter``: relative standard deviation of a stage's time.
    ``accepted``: the verdicts of a recorded run, in order, repeated as needed. ``hidden`` is the
    width of the residual stream whose messages are sent (bfloat16)."""

    stage_s: tuple[float, ...]
    draft_s: float
    accepted: tuple[bool, ...]
    verify_s: float = 0.0
    hop_s: float = 0.0
    jitter: float = 0.0
    hidden: int = 2560

    def __post_init__(self) -> None:
        if not self.accepted:
            raise UsageError("the trace to emulate has no verification")
        longest = max(*self.stage_s, self.draft_s, self.verify_s) + self.hop_s
        if longest >= STUCK_S:
            raise UsageError(
                f"a device that works {longest:g} s at a time cannot be emulated: a rank that stands still "
                f"for {STUCK_S:g} s counts as stuck"
            )

    def set_up(self, job: Job, rank: int, device: torch.device) -> EmulatedSetup:
        return EmulatedSetup(self, job, rank)


class EmulatedSetup:
    """A rank that waits instead of computing. Chains only: a trace does not say what a tree would
    have held."""

    def __init__(self, emulation: Emulation, job: Job, rank: int) -> None:
        self.job, self.rank, self._emulation = job, rank, emulation
        self.hidden = emulation.hidden
        self.like = torch.empty(0, dtype=torch.bfloat16)
        self.vocabulary = DraftVocabulary(2)
        _sleep_exactly()

    def stage(self) -> EmulatedStage:
        return EmulatedStage(self._emulation, self.rank, self.job.taps(self.rank + 1))

    def drafter(self) -> EmulatedDrafter:
        return EmulatedDrafter(self.job, self._emulation.draft_s, self.vocabulary)

    def decisions(self, request: Request) -> EmulatedDecisions:
        return EmulatedDecisions(self._emulation.accepted)

    def embed(self, tokens: list[int]) -> Tensor:
        return self.like.new_zeros(1, len(tokens), self.hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        wait(self._emulation.verify_s)
        return hidden


class EmulatedStage:
    """See ``StageRunner``."""

    def __init__(self, emulation: Emulation, rank: int, taps: list[int]) -> None:
        self._emulation, self._rank, self._taps = emulation, rank, taps
        self._random = random.Random(rank)
        self._done = 0.0

    def prefill(self, hidden: Tensor) -> tuple[Tensor, Mapping[int, Tensor]]:
        return hidden, dict.fromkeys(self._taps, hidden)

    def run(self, level: Level, hidden: Tensor, tree: bool) -> tuple[Tensor, Mapping[int, Tensor]]:
        seconds, jitter = self._emulation.stage_s[self._rank], self._emulation.jitter
        if jitter:
            seconds = max(0.0, self._random.gauss(seconds, seconds * jitter))
        self._done = time.perf_counter() + seconds + (self._emulation.hop_s if self._rank else 0.0)
        return hidden, dict.fromkeys(self._taps, hidden)

    def finish(self) -> None:
        """The device works by itself from ``run`` on; here the host waits for it."""
        wait(self._done - time.perf_counter())

    def settle(self, seen: list[Node], kept: list[int], tree: bool) -> None:
        pass


class EmulatedDrafter:
    """See ``Drafter``."""

    def __init__(self, job: Job, seconds: float, vocabulary: DraftVocabulary) -> None:
        self.reads, self.series, self.layers = job.reads, job.series, job.draft_layers
        self.vocabulary = vocabulary
        self._seconds = seconds
        self._logits = torch.tensor([[1.0, 0.0]])

    def start(self, prompt: Tensor, tree: bool) -> None:
        if tree:
            raise UsageError("emulated devices run chains only: width must be 1")

    def draft(self, pipeline: PipelineController, features: Features) -> Tensor:
        wait(self._seconds)
        return self._logits

    def settle(self, verdict: Verdict, root: Tensor) -> None:
        pass


class EmulatedDecisions:
    """See ``Decisions``: every draft is the same token, and the trace says whether it was right."""

    drawn = False

    def __init__(self, accepted: tuple[bool, ...]) -> None:
        self._accepted = accepted
        self._verified = 0

    def first(self, logits: Tensor) -> int:
        return _RIGHT

    def offers(self, logits: Tensor, vocabulary: DraftVocabulary) -> list[list[Proposal]]:
        return [[Proposal(_RIGHT, 0.0)]]

    def verify(self, pipeline: PipelineController, logits: Tensor) -> tuple[int, Node | None]:
        if not pipeline.candidates:
            return _WRONG, None
        right = self._accepted[self._verified % len(self._accepted)]
        self._verified += 1
        return (_RIGHT, pipeline.candidates[0]) if right else (_WRONG, None)


def _sleep_exactly() -> None:
    """Have this thread's sleeps end on time: Linux adds up to 50 us, which no device would."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


def wait(seconds: float) -> None:
    """Let ``seconds`` pass without using the processor, as a kernel on a device would."""
    if seconds > 0:
        time.sleep(seconds)
