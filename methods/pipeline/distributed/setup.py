"""What one rank holds of a pipeline, loaded once and used for every prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from methods.code import other_files
from methods.drafting.vocabulary import DraftVocabulary
from methods.errors import UsageError
from methods.pipeline.controller import PipelineController
from methods.pipeline.decisions import Decisions
from methods.pipeline.distributed.job import Job, Request
from methods.pipeline.distributed.links import TAGS_PER_SET, Links
from methods.pipeline.distributed.post import Post
from methods.pipeline.drafter import Drafter
from methods.pipeline.stage_runner import StageRunner
from methods.pipeline.tree import Level, Node, Proposal


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
class Sizes:
    """What messages are made of: width of the residual stream, tensors of its kind."""

    hidden: int
    like: Tensor


class Setup(Protocol):
    """One rank's share of a job."""

    job: Job
    rank: int
    sizes: Sizes
    vocabulary: DraftVocabulary

    def stage(self) -> StageRun:
        """This rank's stage for a new sequence."""

    def drafter(self) -> Drafter:
        """The drafter for a new sequence."""

    def decisions(self, request: Request) -> Deciding: ...

    def embed(self, tokens: list[int]) -> Tensor:
        """[1, count, hidden]"""

    def logits(self, hidden: Tensor) -> Tensor: ...


class LoadedSetup:
    """A rank with its part of the target, and the drafter where it belongs to this rank."""

    def __init__(self, job: Job, rank: int, device: torch.device) -> None:
        assert job.source is not None and job.build is not None
        if others := other_files(dict(job.sources)):
            raise UsageError(
                f"{', '.join(others)} of the method is another file here than in the process that started "
                "the ranks: have the same files on every host, unchanged while the ranks start"
            )
        self.job, self.rank = job, rank
        self._target = job.source.load(job.part(rank), device)
        self._method = job.build(self._target, job.options) if rank == job.layout.drafter else None
        self.sizes = Sizes(self._target.hidden_size, torch.empty(0, dtype=self._target.dtype, device=device))
        self.vocabulary = DraftVocabulary(self._target.vocab_size, job.vocabulary)

    def stage(self) -> StageRunner:
        first, last = self.job.bounds[self.rank]
        return StageRunner(self._target, first, last, self.job.reads)

    def drafter(self) -> Drafter:
        assert self._method is not None
        return self._method.drafter()

    def decisions(self, request: Request) -> Decisions:
        return Decisions(request.sampling, request.rule, request.width)

    def embed(self, tokens: list[int]) -> Tensor:
        return self._target.embed(tokens)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._target.logits(hidden)


class LinkSets:
    """The links of one set-up by width, made when a width is first asked for."""

    def __init__(self, setup: Setup, post: Post, first_tag: int) -> None:
        self.setup = setup
        self._post = post
        self._tag = first_tag
        self._by_width: dict[int, Links] = {}

    def of(self, width: int) -> Links:
        if width not in self._by_width:
            setup, tag = self.setup, self._tag + TAGS_PER_SET * len(self._by_width)
            sizes = setup.sizes
            self._by_width[width] = Links(
                setup.job, setup.rank, width, sizes.hidden, setup.vocabulary.size, sizes.like, self._post, tag
            )
        return self._by_width[width]
