"""One rank's side of a decode call: the cycle of the lockstep executor, with messages in between.

The order of a cycle on every rank: draft (before the stages), run the stage, draft (after them),
learn the verdict, learn the proposals, let the next level enter. Ranks wait for messages only, so
each is as far ahead as its inputs allow. A stage between the first and the last need not know the
verdict before it runs the next token: what it ran in vain is rolled back by the flush that the
verdict then brings, before the new root can have reached it. Stage 1 and the drafter do wait,
since a flush gives them other work at once. All stages start the next token before they keep the
books of the cycle, which a device that computes by itself makes free.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

from methods.interface import DecodeResult
from methods.pipeline.controller import PipelineController, Verdict
from methods.pipeline.distributed.clock import COMPUTE, CONTROL, DRAFT, SEND, VERIFY, Clock
from methods.pipeline.distributed.incoming import Incoming
from methods.pipeline.distributed.job import Request
from methods.pipeline.distributed.links import Links
from methods.pipeline.distributed.messages import Offers, pack_verdict, unpack_verdict
from methods.pipeline.distributed.progress import PROMPT, Progress
from methods.pipeline.distributed.prompt_pass import PromptPass, Taps
from methods.pipeline.distributed.proposals import Proposals
from methods.pipeline.distributed.setup import Setup
from methods.pipeline.drafter import Features
from methods.pipeline.tree import Level, Node
from methods.transcript import Transcript


class Worker:
    """Runs ``decode`` once. Every rank returns the same result but for its times, which are its own."""

    def __init__(self, setup: Setup, links: Links, request: Request, progress: Progress) -> None:
        layout = setup.job.layout
        self._setup, self._links, self._request = setup, links, request
        self._reads = setup.job.reads
        self._number = layout.stage(setup.rank)
        self._is_first, self._is_last = self._number == 1, self._number == layout.n
        self._stage = setup.stage() if self._number is not None else None
        self._drafter = setup.drafter() if setup.rank == layout.drafter else None
        self._decisions = setup.decisions(request)
        self._tree = request.width > 1
        self._runs_ahead = self._stage is not None and layout.n > 1 and not self._tree
        """Chains only: the slots of a tree move with every verdict."""
        self._taps_late = self._is_last and layout.n > 1 and not setup.job.series
        """All ranks wait for the verdict. A drafter in series with the stages waits for the taps first."""
        self._progress = progress
        self._inputs: dict[int, Tensor] = {}
        """Node id -> [1, 1, hidden] that this rank's stage runs next."""
        self._features: Features = {}
        self._upstream: Level = ()
        """What the stage before runs in this cycle, until it has been received."""
        self._ahead: tuple[Level, Tensor, Taps] | None = None
        """A level of the next cycle that has run already, with its outputs."""
        self._output = setup.sizes.like
        self._taps: Taps | None = None
        """To be sent to the drafter."""
        self.clock = Clock(request.timings)
        self._incoming = Incoming(self.clock, progress)
        self._proposals = Proposals(setup, links, self._decisions, self._incoming)
        self.wasted = 0
        """Nodes run ahead of a verdict that dropped them."""

    @torch.no_grad()
    def decode(self) -> DecodeResult:
        """Take part in one decode call."""
        started = time.perf_counter()
        request, job = self._request, self._setup.job
        prompt = PromptPass(self._setup, self._links, request, self._progress, self._stage, self._drafter)
        self._progress.begin(PROMPT, patient=True)
        first = prompt.run(self._decisions)
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

    def _cycle(self, pipeline: PipelineController) -> None:
        newest, work = pipeline.newest, pipeline.stage_work()
        offers: Offers = {}
        drafter = self._drafter
        if drafter is not None and newest and not drafter.series:
            offers = self._draft(pipeline, newest)
        if self._number is not None and work[self._number - 1]:
            self._run_stage(work[self._number - 1])
        if drafter is not None:
            self._collect_taps(work)
            if newest and drafter.series:
                offers = self._draft(pipeline, newest)
        # What the stage before ran in this cycle arrives whatever the verdict says of it.
        self._upstream = work[self._number - 2] if self._number is not None and self._number > 1 else ()
        if pipeline.verification_due and not self._is_last:
            self._run_ahead_of_upstream()
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
        if self._upstream:
            self._take_upstream()
            self._forget_inputs(pipeline)
        pipeline.end_cycle(self.clock.end_cycle())
        self._progress.step()

    def _run_stage(self, level: Level) -> None:
        assert self._stage is not None
        if self._ahead is not None:
            _, out, taps = self._ahead
            self._ahead = None
        else:
            out, taps = self._forward(level)
        self._stage.finish()
        self.clock.lap(COMPUTE)
        if self._links.hidden_out is not None:
            self._links.hidden_out.send(out[0])
        self._taps = taps
        if not self._taps_late:
            self._send_taps()
        if self._drafter is not None:
            self._store_taps(level, {row: value[0] for row, value in taps.items()})
        self._output = out
        self.clock.lap(SEND)

    def _send_taps(self) -> None:
        """Send the taps of this cycle, unless they are sent."""
        taps, self._taps = self._taps, None
        if taps and self._links.taps_out is not None:
            self._links.taps_out.send(torch.stack([tap[0] for tap in taps.values()], 1))

    def _forward(self, level: Level) -> tuple[Tensor, Taps]:
        assert self._stage is not None
        inputs = [self._inputs.pop(node.id) for node in level]
        self.clock.lap(CONTROL)
        out, taps = self._stage.run(level, inputs[0] if len(level) == 1 else torch.cat(inputs, 1), self._tree)
        self.clock.lap(COMPUTE)
        return out, taps

    def _run_ahead(self, level: Level) -> None:
        """Start a level of the next cycle now; the books of this cycle are kept meanwhile."""
        self._ahead = level, *self._forward(level)

    def _run_ahead_of_upstream(self) -> None:
        """Start the next token before the verdict, or what follows from it, is known here."""
        if self._upstream and self._runs_ahead:
            level = self._upstream
            self._take_upstream()
            self._run_ahead(level)

    def _take_upstream(self) -> None:
        """Receive what the stage before made of its level."""
        level, self._upstream = self._upstream, ()
        rows = self._incoming.tensor(
            self._links.hidden_in, f"hidden states from stage {(self._number or 0) - 1}"
        )
        for i, node in enumerate(level):
            self._inputs[node.id] = rows[None, i : i + 1].clone()

    def _forget_inputs(self, pipeline: PipelineController) -> None:
        """Drop inputs that arrived for nodes which the verdict had dropped meanwhile."""
        alive = {node.id for level in pipeline.in_flight for node in level}
        self._inputs = {key: value for key, value in self._inputs.items() if key in alive}

    def _draft(self, pipeline: PipelineController, newest: Level) -> Offers:
        assert self._drafter is not None
        self.clock.lap(CONTROL)
        logits = self._drafter.draft(pipeline, self._features)
        rows = self._proposals.choose(logits)
        self.clock.lap(DRAFT)
        offers = self._proposals.send(newest, rows)
        self.clock.lap(SEND)
        return offers

    def _collect_taps(self, work: tuple[Level, ...]) -> None:
        for stage, receiver in self._links.taps_in.items():
            level = work[stage - 1]
            if level:
                rows = self._incoming.tensor(receiver, f"taps from stage {stage}")
                values = zip(self._setup.job.taps(stage), rows.unbind(1), strict=True)
                self._store_taps(level, dict(values))

    def _store_taps(self, level: Level, taps: Taps) -> None:
        """``taps``: row of ``reads`` -> [at least nodes, hidden]."""
        for row, value in taps.items():
            for i, node in enumerate(level):
                self._features[node.id][row] = value[i]

    def _verify(self, pipeline: PipelineController) -> Verdict:
        if self._is_last:
            token, child = self._decisions.verify(pipeline, self._setup.logits(self._output)[0, -1])
            self.clock.lap(VERIFY)
            packed = pack_verdict(token, pipeline.candidates, child)
            for sender in self._links.verdict_out:
                sender.send(packed)
            self._send_taps()
            self.clock.lap(SEND)
            if child is not None:
                self._run_ahead_of_upstream()
        else:
            data = self._incoming.data(self._links.verdict_in, "the verdict of the last stage")
            token, child = unpack_verdict(pipeline.candidates, data)
        return pipeline.commit(token, child)

    def _settle(self, verdict: Verdict, root: Node) -> None:
        if self._stage is not None and self._number is not None:
            seen, kept = verdict.seen_by(self._number), verdict.kept_by(self._number)
            self._stage.settle(seen, kept, self._tree)
        if self._ahead is not None and not verdict.accepted:
            self.wasted += len(self._ahead[0])
            self._ahead = None
        if self._drafter is not None:
            self._drafter.settle(verdict, self._features[root.id])
        for node in (node for level in verdict.levels for node in level):
            if node.id not in verdict.survivors:
                self._inputs.pop(node.id, None)
                self._features.pop(node.id, None)
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
        """On stage 1, a level that enters in the next cycle can run as soon as it is known."""
        if self._is_first and self._runs_ahead:
            self._run_ahead(level)

    def _enter(self, level: Level) -> None:
        """Prepare tokens that enter stage 1 in the next cycle."""
        embedded = self._drafter is not None and 0 in self._reads
        if not (self._is_first or self._drafter is not None):
            return
        hidden = self._setup.embed([node.token for node in level]) if self._is_first or embedded else None
        for i, node in enumerate(level):
            if self._is_first and hidden is not None:
                self._inputs[node.id] = hidden if len(level) == 1 else hidden[:, i : i + 1]
            if self._drafter is not None:
                sizes = self._setup.sizes
                self._features[node.id] = sizes.like.new_empty(len(self._reads), sizes.hidden)
                if embedded and hidden is not None:
                    self._features[node.id][self._reads.index(0)] = hidden[0, i]
