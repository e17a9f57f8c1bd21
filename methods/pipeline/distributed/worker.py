"""One rank's side of a decode call: the cycle of the lockstep executor, with messages in between.

The order of a cycle on every rank: draft (before the stages), run the stage, draft (after them),
learn the verdict, learn the proposals, let the next level enter. Ranks wait for messages only, so
each is as far ahead as its inputs allow. Stage 1 and the drafter wait for the verdict, since a flush
gives them other work at once; the stages between do not (see ``StageRole``). All stages start the
next token before they keep the books of the cycle, which a device that computes by itself makes free.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

from methods.core import DecodeResult, Transcript
from methods.pipeline.controller import PipelineController, Verdict
from methods.pipeline.distributed.drafting import DrafterRole, Proposals
from methods.pipeline.distributed.job import Request
from methods.pipeline.distributed.links import JobLinks, Offers
from methods.pipeline.distributed.progress import (
    CONTROL,
    DRAFT,
    PROMPT,
    SEND,
    VERIFY,
    Clock,
    Inbox,
    Progress,
)
from methods.pipeline.distributed.stage import StageRole, Taps
from methods.pipeline.tree import Level, Node


class Worker:
    """Runs ``decode`` once. Every rank returns the same result but for its times, which are its own."""

    def __init__(self, links: JobLinks, request: Request, progress: Progress) -> None:
        setup, job, rank = links.setup, links.job, links.rank
        self._setup, self._job, self._links = setup, job, links.of(request.width)
        self._request, self._progress = request, progress
        self.clock = Clock(request.timings)
        self._inbox = Inbox(self.clock, progress)
        self._decisions = setup.decisions(request)
        self._proposals = Proposals(setup, self._links, self._decisions, self._inbox)
        self._stage: StageRole | None = None
        self._drafter: DrafterRole | None = None
        number = job.layout.stage(rank)
        if number is not None:
            self._stage = StageRole(setup, job, number, self._links, request, self._inbox, self.clock)
        if rank == job.layout.drafter:
            self._drafter = DrafterRole(setup, job, self._links, self._inbox)
        self._is_first, self._verifies = number == 1, number == job.layout.n
        self._runs_ahead = self._stage is not None and self._stage.runs_ahead
        self._reads_embedding = self._drafter is not None and 0 in job.reads

    @property
    def wasted(self) -> int:
        """Nodes run ahead of a verdict that dropped them."""
        return self._stage.wasted if self._stage is not None else 0

    @torch.no_grad()
    def decode(self) -> DecodeResult:
        """Take part in one decode call."""
        started = time.perf_counter()
        request, job = self._request, self._job
        self._progress.begin(PROMPT, patient=True)
        first = self._prefill()
        self._progress.begin("decoding", patient=False)
        prefilled = time.perf_counter()
        transcript = Transcript(request.max_new_tokens, request.stop_ids)
        pipeline = PipelineController(
            job.layout.n,
            len(request.prompt_ids),
            first,
            transcript,
            request.width,
            max(job.stage_layers),
            job.draft_layers,
        )
        self._enter((pipeline.root,))
        self.clock.restart()
        while not pipeline.finished:
            self._cycle(pipeline)
        self._proposals.skip_owed()
        seconds = time.perf_counter() - prefilled
        reason = transcript.finish_reason or "length"
        return DecodeResult(transcript.tokens, pipeline.steps, prefilled - started, seconds, reason)

    def _prefill(self) -> int:
        """The prompt through the stages, a chunk behind the other, and the token after it, which the last
        rank tells the others."""
        hidden: Tensor = self._setup.like
        own_taps: list[Taps] = []
        if self._stage is not None:
            hidden, own_taps = self._stage.prefill(self._request, self._progress)
        if self._drafter is not None:
            self._drafter.prefill(self._request, own_taps, self._progress)
        if self._verifies:
            first = self._decisions.first(self._setup.logits(hidden[:, -1:])[0, -1])
            self._links.verdicts.send(first)
        else:
            first, _ = self._links.verdicts.receive(self._inbox, (), "the first token")
        self._links.blocks.flush()
        return first

    def _cycle(self, pipeline: PipelineController) -> None:
        newest, work = pipeline.newest, pipeline.stage_work()
        offers: Offers = {}
        stage, drafter = self._stage, self._drafter
        if drafter is not None and newest and not self._job.series:
            offers = self._draft(drafter, pipeline, newest)
        if stage is not None and work[stage.number - 1]:
            self._run_stage(stage, work[stage.number - 1])
        if drafter is not None:
            drafter.collect_taps(work)
            if newest and self._job.series:
                offers = self._draft(drafter, pipeline, newest)
        if stage is not None:
            stage.expect(work)
            if pipeline.verification_due and not self._verifies:
                stage.run_ahead_of_upstream()
        told = drafter is None and bool(newest)
        if told and self._is_first and pipeline.verification_due:
            # Stage 1 waits for the verdict now, and afterwards its device waits for it.
            early = self._proposals.receive_early(newest)
            if early is not None:
                offers, told = early, False
        if pipeline.expansion_due:  # before the verification only if n = 1
            self._expand(pipeline, self._proposals.receive(newest) if told else offers)
            told = False
        later: tuple[Verdict, Node] | None = None
        if pipeline.verification_due:
            root = pipeline.root
            verdict = self._verify(pipeline)
            if verdict.accepted and self._runs_ahead:
                later = verdict, root
            else:
                self._settle(verdict, root)
        if pipeline.expansion_due:
            self._expand(pipeline, self._proposals.receive(newest) if told else offers)
            told = False
        if later is not None:
            self._settle(*later)
        if told:
            self._proposals.owe()
        if stage is not None:
            stage.receive_upstream(pipeline)
        pipeline.end_cycle(self.clock.end_cycle())
        self._progress.step()

    def _draft(self, drafter: DrafterRole, pipeline: PipelineController, newest: Level) -> Offers:
        self.clock.lap(CONTROL)
        rows = self._proposals.choose(drafter.draft(pipeline))
        self.clock.lap(DRAFT)
        offers = self._proposals.send(newest, rows)
        self.clock.lap(SEND)
        return offers

    def _run_stage(self, stage: StageRole, level: Level) -> None:
        taps = stage.run(level)
        if self._drafter is not None:
            self._drafter.store_taps(level, {row: value[0] for row, value in taps.items()})
        self.clock.lap(SEND)

    def _verify(self, pipeline: PipelineController) -> Verdict:
        """The last stage decides on the root's successor, the others learn of it."""
        if self._verifies and self._stage is not None:
            token, child = self._decisions.verify(pipeline, self._setup.logits(self._stage.output)[0, -1])
            self.clock.lap(VERIFY)
            self._links.verdicts.send(token, pipeline.candidates, child)
            self._stage.send_taps()
            self.clock.lap(SEND)
            if child is not None:
                self._stage.run_ahead_of_upstream()
        else:
            what = "the verdict of the last stage"
            token, child = self._links.verdicts.receive(self._inbox, pipeline.candidates, what)
        return pipeline.commit(token, child)

    def _settle(self, verdict: Verdict, root: Node) -> None:
        if self._stage is not None:
            self._stage.settle(verdict)
        if self._drafter is not None:
            self._drafter.settle(verdict, root)
        if verdict.flushed:
            self._enter((verdict.root,))
            self._start_first((verdict.root,))

    def _expand(self, pipeline: PipelineController, offers: Offers) -> None:
        pipeline.expand(offers)
        level = pipeline.in_flight[-1]
        if level[0].entered == pipeline.cycle + 1:
            self._enter(level)
            self._start_first(level)

    def _start_first(self, level: Level) -> None:
        """On stage 1, a level that enters in the next cycle runs as soon as it is known."""
        if self._is_first and self._stage is not None:
            self._stage.run_ahead(level)

    def _enter(self, level: Level) -> None:
        """Prepare tokens that enter stage 1 in the next cycle."""
        hidden = None
        if self._is_first or self._reads_embedding:
            hidden = self._setup.embed([node.token for node in level])
        if self._is_first and self._stage is not None and hidden is not None:
            self._stage.enter(level, hidden)
        if self._drafter is not None:
            self._drafter.enter(level, hidden if self._reads_embedding else None)
