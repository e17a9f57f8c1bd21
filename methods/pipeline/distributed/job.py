"""What the ranks are told, once per method and once per prompt, and what a rank makes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Protocol

import torch
from torch import Tensor

from methods.core import SamplingParams
from methods.decoding.verification import ProposalRule
from methods.drafters.vocabulary import DraftVocabulary
from methods.errors import UsageError
from methods.models.part import Part
from methods.models.target import Target, TargetSource
from methods.pipeline.controller import PipelineController
from methods.pipeline.decisions import Decisions
from methods.pipeline.drafter import Drafter
from methods.pipeline.layout import Layout
from methods.pipeline.stage_runner import StageRunner
from methods.pipeline.tree import Level, Node, Proposal
from methods.source_code.code import other_files


@dataclass(frozen=True)
class Job:
    """Everything about a pipeline that does not change from prompt to prompt. It must pickle.

    ``reads`` and ``series`` describe the drafter, which only its own rank has; ``draft_layers`` are
    those on a cycle's critical path. ``workload`` is what the ranks run.
    """

    layout: Layout
    stage_layers: tuple[int, ...]
    reads: tuple[int, ...]
    series: bool
    draft_layers: int
    device: str
    """"cpu", or "cuda": then each rank takes the GPU of its local rank."""
    workload: Workload

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """First and last (exclusive) layer of each stage."""
        return list(pairwise(accumulate(self.stage_layers, initial=0)))

    def taps(self, stage: int) -> list[int]:
        """Rows of ``reads`` whose residual stream comes from ``stage``."""
        first, last = self.bounds[stage - 1]
        return [row for row, tap in enumerate(self.reads) if first < tap <= last]


@dataclass(frozen=True)
class Request:
    """One decode call. ``max_new_tokens`` is already cut to the target's context; the prompt passes in
    pieces of ``chunk`` tokens; ``timings`` keeps every phase of every cycle."""

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    rule: ProposalRule
    max_new_tokens: int
    stop_ids: tuple[int, ...]
    width: int
    chunk: int
    timings: bool = False


class Workload(Protocol):
    """What the ranks of a job run: a loaded target and drafter, or a stand-in. It must pickle."""

    def set_up(self, job: Job, rank: int, device: torch.device) -> Setup:
        """What ``rank`` holds, loaded once and used for every prompt."""


class Setup(Protocol):
    """One rank's share of a job: ``like``, an empty tensor of the dtype and device of the residual
    stream, and ``hidden``, its width, say what messages are made of."""

    hidden: int
    like: Tensor
    vocabulary: DraftVocabulary

    def stage(self) -> StageRun:
        """This rank's stage for a new sequence."""

    def drafter(self) -> Drafter:
        """The drafter for a new sequence."""

    def decisions(self, request: Request) -> Deciding: ...

    def embed(self, tokens: list[int]) -> Tensor:
        """[1, count, hidden]"""

    def logits(self, hidden: Tensor) -> Tensor: ...


class StageRun(Protocol):
    """One stage along one sequence: see ``StageRunner``."""

    def prefill(self, hidden: Tensor) -> tuple[Tensor, Mapping[int, Tensor]]: ...

    def run(self, level: Level, hidden: Tensor, tree: bool) -> tuple[Tensor, Mapping[int, Tensor]]: ...

    def finish(self) -> None: ...

    def settle(self, seen: list[Node], kept: list[int], tree: bool) -> None: ...


class Deciding(Protocol):
    """The choices of one decode call: see ``Decisions``."""

    drawn: bool

    def first(self, logits: Tensor) -> int: ...

    def offers(self, logits: Tensor, vocabulary: DraftVocabulary) -> list[list[Proposal]]: ...

    def verify(self, pipeline: PipelineController, logits: Tensor) -> tuple[int, Node | None]: ...


@dataclass(frozen=True)
class LoadedWorkload:
    """The target out of ``source``, a part on every rank, and the drafter where it belongs: built there
    by ``build(target, options)``, whose result has a method ``drafter()``. ``vocabulary``: the draft
    ids, None for all; ``tied_head``: the drafter's head is the target's. ``sources`` are the modules of
    the method, each with its file's hash: every rank imports them itself."""

    source: TargetSource
    build: Callable[[Target, Any], Any]
    options: Any
    vocabulary: tuple[int, ...] | None
    tied_head: bool
    sources: tuple[tuple[str, str], ...] = ()

    def set_up(self, job: Job, rank: int, device: torch.device) -> LoadedSetup:
        return LoadedSetup(self, job, rank, device)

    def part(self, job: Job, rank: int) -> Part:
        """What ``rank`` needs of the target."""
        layout = job.layout
        drafts, stage = rank == layout.drafter, layout.stage(rank)
        first, last = job.bounds[rank] if stage is not None else (0, 0)
        return Part(
            first,
            last,
            embedding=stage == 1 or (drafts and 0 in job.reads),
            head=rank == layout.last or (drafts and self.tied_head),
        )


class LoadedSetup:
    """A rank with its part of the target, and the drafter where it belongs to this rank."""

    def __init__(self, work: LoadedWorkload, job: Job, rank: int, device: torch.device) -> None:
        if others := other_files(dict(work.sources)):
            raise UsageError(
                f"{', '.join(others)} of the method is another file here than in the process that started "
                "the ranks: have the same files on every host, unchanged while the ranks start"
            )
        self._target = work.source.load(work.part(job, rank), device)
        self._method = work.build(self._target, work.options) if rank == job.layout.drafter else None
        self._bounds = job.bounds[rank] if job.layout.stage(rank) is not None else None
        self._reads = job.reads
        self.hidden = self._target.hidden_size
        self.like = torch.empty(0, dtype=self._target.dtype, device=device)
        self.vocabulary = DraftVocabulary(self._target.vocab_size, work.vocabulary)

    def stage(self) -> StageRunner:
        assert self._bounds is not None
        return StageRunner(self._target, *self._bounds, self._reads)

    def drafter(self) -> Drafter:
        assert self._method is not None
        return self._method.drafter()

    def decisions(self, request: Request) -> Decisions:
        return Decisions(request.sampling, request.rule, request.width)

    def embed(self, tokens: list[int]) -> Tensor:
        return self._target.embed(tokens)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._target.logits(hidden)
