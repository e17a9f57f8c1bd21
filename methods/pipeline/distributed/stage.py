"""A rank's stage: the prompt's chunks and the cycle's tokens through it, and what it hands on."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from methods.pipeline.controller import PipelineController, Verdict
from methods.pipeline.distributed.job import Job, Request, Setup
from methods.pipeline.distributed.links import Links
from methods.pipeline.distributed.progress import COMPUTE, CONTROL, Clock, Inbox, Progress
from methods.pipeline.tree import Level

Taps = Mapping[int, Tensor]
"""Row of ``Job.reads`` -> the residual stream of some tokens."""


class StageRole:
    """Stage ``number`` along one sequence.

    A stage between the first and the last need not know the verdict before it runs the next token: what
    it ran in vain is rolled back by the flush that the verdict then brings, before the new root can have
    reached it. Chains only: the slots of a tree move with every verdict.
    """

    def __init__(
        self, setup: Setup, job: Job, number: int, links: Links, request: Request, inbox: Inbox, clock: Clock
    ) -> None:
        layout = job.layout
        self._setup, self._job, self._links = setup, job, links
        self._inbox, self._clock = inbox, clock
        self._stage = setup.stage()
        self.number, self.rank = number, number - 1
        self.is_first, self.is_last = number == 1, number == layout.n
        self._drafts = self.rank == layout.drafter
        self._tree = request.width > 1
        self.runs_ahead = layout.n > 1 and not self._tree
        self._taps_late = self.is_last and layout.n > 1 and not job.series
        """All ranks wait for the verdict. A drafter in series with the stages waits for the taps first."""
        self._inputs: dict[int, Tensor] = {}
        """Node id -> [1, 1, hidden] that the stage runs next."""
        self._upstream: Level = ()
        """What the stage before runs in this cycle, until it has been received."""
        self._ahead: tuple[Level, Tensor, Taps] | None = None
        """A level of the next cycle that has run already, with its outputs."""
        self.output = setup.like
        self._taps: Taps | None = None
        """To be sent to the drafter."""
        self.wasted = 0
        """Nodes run ahead of a verdict that dropped them."""

    def prefill(self, request: Request, progress: Progress) -> tuple[Tensor, list[Taps]]:
        """The last chunk's output, and the taps of all if the drafter is on this rank, too."""
        layout, blocks = self._job.layout, self._links.blocks
        hidden, own_taps = self._setup.like, []
        for chunk in chunks(request):
            hidden, taps = self._stage.prefill(self._chunk_input(chunk, progress))
            progress.step()
            if not self.is_last:
                blocks.send(self.rank + 1, hidden)
            if self._drafts:
                own_taps.append(taps)
            elif taps:
                blocks.send(layout.drafter, torch.cat(list(taps.values())))
        return hidden, own_taps

    def _chunk_input(self, chunk: tuple[int, ...], progress: Progress) -> Tensor:
        if self.is_first:
            return self._setup.embed(list(chunk))
        with progress.waiting("a chunk of the prompt"):
            return self._links.blocks.receive(self.rank - 1, 1, len(chunk), self._setup.hidden)

    def run(self, level: Level) -> Taps:
        """Run ``level``, unless that has been done ahead, and send on what comes out; returns its taps."""
        if self._ahead is not None:
            _, out, taps = self._ahead
            self._ahead = None
        else:
            out, taps = self._forward(level)
        self._stage.finish()
        self._clock.lap(COMPUTE)
        if self._links.hidden_out is not None:
            self._links.hidden_out.send(out[0])
        self._taps, self.output = taps, out
        if not self._taps_late:
            self.send_taps()
        return taps

    def send_taps(self) -> None:
        """Send the taps of this cycle, unless they are sent."""
        taps, self._taps = self._taps, None
        if taps and self._links.taps_out is not None:
            self._links.taps_out.send(torch.stack([tap[0] for tap in taps.values()], 1))

    def _forward(self, level: Level) -> tuple[Tensor, Taps]:
        inputs = [self._inputs.pop(node.id) for node in level]
        self._clock.lap(CONTROL)
        out, taps = self._stage.run(level, inputs[0] if len(level) == 1 else torch.cat(inputs, 1), self._tree)
        self._clock.lap(COMPUTE)
        return out, taps

    def run_ahead(self, level: Level) -> None:
        """Start a level of the next cycle now, if that can be undone; the books of this cycle are kept
        meanwhile."""
        if self.runs_ahead:
            self._ahead = level, *self._forward(level)

    def expect(self, work: tuple[Level, ...]) -> None:
        """What the stage before ran in this cycle arrives whatever the verdict says of it."""
        self._upstream = work[self.number - 2] if self.number > 1 else ()

    def run_ahead_of_upstream(self) -> None:
        """Start the next token before the verdict, or what follows from it, is known here."""
        if self._upstream and self.runs_ahead:
            level = self._upstream
            self._take_upstream()
            self.run_ahead(level)

    def receive_upstream(self, pipeline: PipelineController) -> None:
        """Receive what the stage before made of its level, and forget what a verdict dropped meanwhile."""
        if self._upstream:
            self._take_upstream()
            alive = {node.id for level in pipeline.in_flight for node in level}
            self._inputs = {key: value for key, value in self._inputs.items() if key in alive}

    def _take_upstream(self) -> None:
        level, self._upstream = self._upstream, ()
        rows = self._inbox.take(self._links.hidden_in, f"hidden states from stage {self.number - 1}")
        for i, node in enumerate(level):
            self._inputs[node.id] = rows[None, i : i + 1].clone()

    def settle(self, verdict: Verdict) -> None:
        """Roll back what the verdict dropped."""
        self._stage.settle(verdict.seen_by(self.number), verdict.kept_by(self.number), self._tree)
        if self._ahead is not None and not verdict.accepted:
            self.wasted += len(self._ahead[0])
            self._ahead = None
        for node_id in verdict.gone:
            self._inputs.pop(node_id, None)

    def enter(self, level: Level, hidden: Tensor) -> None:
        """Tokens [1, nodes, hidden] that enter stage 1 in the next cycle."""
        for i, node in enumerate(level):
            self._inputs[node.id] = hidden if len(level) == 1 else hidden[:, i : i + 1]


def chunks(request: Request) -> list[tuple[int, ...]]:
    """The prompt in the pieces in which it passes."""
    starts = range(0, len(request.prompt_ids), request.chunk)
    return [request.prompt_ids[start : start + request.chunk] for start in starts]
