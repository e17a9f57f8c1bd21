"""The prompt on its way through the stages, a chunk behind the other, up to the first token."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from methods.pipeline.distributed.clock import Clock
from methods.pipeline.distributed.incoming import Incoming
from methods.pipeline.distributed.job import Request
from methods.pipeline.distributed.links import Links
from methods.pipeline.distributed.messages import pack_verdict, unpack_verdict
from methods.pipeline.distributed.progress import Progress
from methods.pipeline.distributed.setup import Deciding, Setup, StageRun
from methods.pipeline.drafter import Drafter

Chunk = tuple[int, ...]
Taps = Mapping[int, Tensor]
"""Row of ``reads`` -> the residual stream of some tokens."""


class PromptPass:
    """One rank's part: its ``stage`` runs every chunk, its ``drafter`` gets the features of all."""

    def __init__(
        self,
        setup: Setup,
        links: Links,
        request: Request,
        progress: Progress,
        stage: StageRun | None,
        drafter: Drafter | None,
    ) -> None:
        self._setup, self._links, self._progress = setup, links, progress
        self._stage, self._drafter = stage, drafter
        self._ids, self._tree = request.prompt_ids, request.width > 1
        starts = range(0, len(self._ids), request.chunk)
        self._chunks: list[Chunk] = [self._ids[start : start + request.chunk] for start in starts]

    def run(self, decisions: Deciding) -> int:
        """The token after the prompt, which the last rank tells the others."""
        hidden, own_taps = self._run_stage() if self._stage is not None else (self._setup.sizes.like, [])
        if self._drafter is not None:
            self._drafter.start(self._features(own_taps), self._tree)
        if self._setup.rank == self._setup.job.layout.last:
            first = decisions.first(self._setup.logits(hidden[:, -1:])[0, -1])
            for sender in self._links.verdict_out:
                sender.send(pack_verdict(first, (), None))
        else:
            incoming = Incoming(Clock(), self._progress)
            first, _ = unpack_verdict((), incoming.data(self._links.verdict_in, "the first token"))
        self._links.blocks.flush()
        return first

    def _run_stage(self) -> tuple[Tensor, list[Taps]]:
        """The last chunk's output, and the taps of all if the drafter is on this rank, too."""
        assert self._stage is not None
        layout, blocks, rank = self._setup.job.layout, self._links.blocks, self._setup.rank
        hidden, own_taps = self._setup.sizes.like, []
        for chunk in self._chunks:
            hidden, taps = self._stage.prefill(self._input(chunk))
            self._progress.step()
            if rank != layout.last:
                blocks.send(rank + 1, hidden)
            if self._drafter is not None:
                own_taps.append(taps)
            elif taps:
                blocks.send(layout.drafter, torch.cat(list(taps.values())))
        return hidden, own_taps

    def _input(self, chunk: Chunk) -> Tensor:
        if self._setup.rank == 0:
            return self._setup.embed(list(chunk))
        with self._progress.waiting("a chunk of the prompt"):
            return self._links.blocks.receive(self._setup.rank - 1, 1, len(chunk), self._setup.sizes.hidden)

    def _features(self, own_taps: list[Taps]) -> Tensor:
        """The drafter's features of the prompt [prompt, reads, hidden], from all stages."""
        job, size, start = self._setup.job, self._setup.sizes.hidden, 0
        prompt = self._setup.sizes.like.new_empty(len(self._ids), len(job.reads), size)
        for number, chunk in enumerate(self._chunks):
            part = prompt[start : start + len(chunk)]
            start += len(chunk)
            if 0 in job.reads:
                part[:, job.reads.index(0)] = self._setup.embed(list(chunk))[0]
            if own_taps:
                for row, value in own_taps[number].items():
                    part[:, row] = value[0]
            for stage in self._links.taps_in:
                rows = job.taps(stage)
                with self._progress.waiting(f"taps of the prompt from stage {stage}"):
                    block = self._links.blocks.receive(stage - 1, len(rows), len(chunk), size)
                for row, value in zip(rows, block, strict=True):
                    part[:, row] = value
        return prompt
