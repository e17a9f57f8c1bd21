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
from collections.abc import Mapping

import torch
from torch import Tensor

from methods.interface import DecodeResult
from methods.pipeline.controller import PipelineController, Verdict
from methods.pipeline.distributed.channel import ByteReceiver, TensorReceiver
from methods.pipeline.distributed.clock import COMPUTE, CONTROL, DRAFT, SEND, VERIFY, WAIT, Clock
from methods.pipeline.distributed.job import Request
from methods.pipeline.distributed.links import Links
from methods.pipeline.distributed.messages import (
    Offers,
    pack_offers,
    pack_verdict,
    unpack_offers,
    unpack_verdict,
)
from methods.pipeline.distributed.progress import Progress
from methods.pipeline.distributed.setup import Setup
from methods.pipeline.drafter import Features
from methods.pipeline.tree import Level, Node, Proposal
from methods.transcript import Transcript
from methods.verification import DraftLaw

Taps = Mapping[int, Tensor]


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
        self._progress = progress
        self._inputs: dict[int, Tensor] = {}
        """Node id -> [1, 1, hidden] that this rank's stage runs next."""
        self._features: Features = {}
        self._upstream: Level = ()
        """What the stage before runs in this cycle, until it has been received."""
        self._ahead: tuple[Level, Tensor, Taps] | None = None
        """A level of the next cycle that has run already, with its outputs."""
        self._output = setup.sizes.like
        self._owed = 0
        """Proposals under way that a flush made useless before they arrived."""
        self.clock = Clock(request.timings)
        self.wasted = 0
        """Nodes run ahead of a verdict that dropped them."""

    @torch.no_grad()
    def decode(self) -> DecodeResult:
        """Take part in one decode call."""
        started = time.perf_counter()
        request, job = self._request, self._setup.job
        first = self._prefill()
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
        self.clock = Clock(request.timings)
        while not pipeline.finished:
            self._cycle(pipeline)
        self._skip_owed_offers()
        seconds = time.perf_counter() - prefilled
        reason = transcript.finish_reason or "length"
        return DecodeResult(transcript.tokens, pipeline.steps, prefilled - started, seconds, reason)

    def _prefill(self) -> int:
        """Run the prompt through the stages, a chunk behind the other; returns the token after it."""
        ids, size, blocks = self._request.prompt_ids, self._request.chunk, self._links.blocks
        chunks = [ids[start : start + size] for start in range(0, len(ids), size)]
        hidden, own_taps = self._setup.sizes.like, []
        if self._stage is not None:
            for chunk in chunks:
                hidden = self._prefill_input(chunk)
                hidden, taps = self._stage.prefill(hidden)
                self._progress.step()
                if not self._is_last:
                    blocks.send(self._setup.rank + 1, hidden)
                if self._drafter is not None:
                    own_taps.append(taps)
                elif taps:
                    blocks.send(self._setup.job.layout.drafter, torch.cat(list(taps.values())))
        if self._drafter is not None:
            self._drafter.start(self._prompt_features(chunks, own_taps), self._tree)
        if self._is_last:
            first = self._decisions.first(self._setup.logits(hidden[:, -1:])[0, -1])
            for sender in self._links.verdict_out:
                sender.send(pack_verdict(first, (), None))
        else:
            assert self._links.verdict_in is not None
            first, _ = unpack_verdict((), self._receive_bytes(self._links.verdict_in, "the first token"))
        blocks.flush()
        return first

    def _prefill_input(self, chunk: tuple[int, ...]) -> Tensor:
        if self._is_first:
            return self._setup.embed(list(chunk))
        with self._progress.waiting("a chunk of the prompt"):
            return self._links.blocks.receive(self._setup.rank - 1, 1, len(chunk), self._setup.sizes.hidden)

    def _prompt_features(self, chunks: list[tuple[int, ...]], own_taps: list[Taps]) -> Tensor:
        """The drafter's features of the prompt [prompt, reads, hidden], from all stages."""
        size, like = self._setup.sizes.hidden, self._setup.sizes.like
        job, start = self._setup.job, 0
        prompt = like.new_empty(len(self._request.prompt_ids), len(self._reads), size)
        for number, chunk in enumerate(chunks):
            part = prompt[start : start + len(chunk)]
            start += len(chunk)
            if 0 in self._reads:
                part[:, self._reads.index(0)] = self._setup.embed(list(chunk))[0]
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
        if pipeline.expansion_due:  # before the verification only if n = 1
            self._expand(pipeline, self._receive_offers(newest) if told else offers)
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
            self._expand(pipeline, self._receive_offers(newest) if told else offers)
            told = False
        if later is not None:
            self._settle(*later)
        self._owed += told
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
        if self._links.taps_out is not None:
            self._links.taps_out.send(torch.stack([taps[row][0] for row in taps], 1))
        if self._drafter is not None:
            self._store_taps(level, {row: value[0] for row, value in taps.items()})
        self._output = out
        self.clock.lap(SEND)

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
        assert self._links.hidden_in is not None
        level, self._upstream = self._upstream, ()
        rows = self._receive(self._links.hidden_in, f"hidden states from stage {(self._number or 0) - 1}")
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
        rows = self._decisions.offers(logits, self._setup.vocabulary)
        self.clock.lap(DRAFT)
        packed = pack_offers(rows)
        for sender in self._links.offers_out:
            sender.send(packed)
        if self._links.law_out is not None and self._decisions.drawn:
            self._links.law_out.send(rows[0][0].record.probs)
        self.clock.lap(SEND)
        return {node.id: row for node, row in zip(newest, rows, strict=True)}

    def _skip_owed_offers(self) -> None:
        while self._owed:
            self._owed -= 1
            self._receive_offers(())

    def _receive_offers(self, newest: Level) -> Offers:
        assert self._links.offers_in is not None
        self._skip_owed_offers()
        data = self._receive_bytes(self._links.offers_in, "the drafter's proposals")
        offers = unpack_offers(newest, self._links.offers_each, data)
        if self._links.law_in is not None and self._decisions.drawn:
            probs = self._receive(self._links.law_in, "the drafter's law").clone()
            offers = {key: [self._with_law(row[0], probs)] for key, row in offers.items()}
        return offers

    def _with_law(self, proposal: Proposal, probs: Tensor) -> Proposal:
        vocabulary = self._setup.vocabulary
        index = int(torch.searchsorted(vocabulary.ids, proposal.token))
        law = DraftLaw(probs.to(self._setup.sizes.like.device), vocabulary, index)
        return proposal._replace(record=law)

    def _collect_taps(self, work: tuple[Level, ...]) -> None:
        for stage, receiver in self._links.taps_in.items():
            level = work[stage - 1]
            if level:
                rows = self._receive(receiver, f"taps from stage {stage}")
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
            self.clock.lap(SEND)
            if child is not None:
                self._run_ahead_of_upstream()
        else:
            assert self._links.verdict_in is not None
            data = self._receive_bytes(self._links.verdict_in, "the verdict of the last stage")
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
                self._inputs[node.id] = hidden[:, i : i + 1]
            if self._drafter is not None:
                sizes = self._setup.sizes
                self._features[node.id] = sizes.like.new_empty(len(self._reads), sizes.hidden)
                if embedded and hidden is not None:
                    self._features[node.id][self._reads.index(0)] = hidden[0, i]

    def _receive(self, receiver: TensorReceiver, what: str) -> Tensor:
        self.clock.lap(CONTROL)
        with self._progress.waiting(what):
            message = receiver.receive()
        self.clock.lap(WAIT)
        return message

    def _receive_bytes(self, receiver: ByteReceiver, what: str) -> bytes | memoryview:
        self.clock.lap(CONTROL)
        with self._progress.waiting(what):
            message = receiver.receive()
        self.clock.lap(WAIT)
        return message
