"""The pipeline in one process: every stage runs its tokens once a cycle, one stage after another."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from methods.core import DecodeResult, SamplingParams, Transcript
from methods.decoding.verification import ProposalRule
from methods.models.state import State
from methods.models.target import PREFILL_CHUNK, Target
from methods.pipeline.controller import PipelineController, Verdict
from methods.pipeline.decisions import Decisions
from methods.pipeline.drafter import Drafter, Features, critical_layers
from methods.pipeline.stage_runner import StageRunner
from methods.pipeline.tree import Level, Node, Proposal

Offers = dict[int, list[Proposal]]
"""Node id -> what the drafter proposes behind it."""


class Lockstep:
    """One decode call of a pipeline, all stages in this process.

    ``decode`` is ``begin`` and then ``cycle`` until the pipeline has finished; a caller that wants
    to look at ``states`` and ``verified`` between cycles makes these calls itself. ``tree`` keeps
    the tokens in flight as a draft tree even where ``width`` 1 makes it a chain (default: only if
    it may branch).
    """

    def __init__(
        self,
        target: Target,
        stage_layers: Sequence[int],
        drafter: Drafter,
        sampling: SamplingParams,
        rule: ProposalRule,
        width: int = 1,
        beside_first: bool = False,
        tree: bool | None = None,
    ) -> None:
        self._target = target
        self._drafter = drafter
        self._decisions = Decisions(sampling, rule, width)
        self._width = width
        self._tree = width > 1 if tree is None else tree
        self._stage_layers, self._beside_first = list(stage_layers), beside_first
        bounds = pairwise(accumulate(stage_layers, initial=0))
        self._stages = [StageRunner(target, first, last, drafter.reads) for first, last in bounds]
        self._hidden: dict[int, Tensor] = {}
        self._features: Features = {}
        self.verified: Tensor | None = None
        """The target's logits [vocab] that decided the newest committed token."""

    @property
    def states(self) -> list[State]:
        """What each stage remembers, stage 1 first."""
        return [stage.state for stage in self._stages]

    def decode(self, prompt_ids: Sequence[int], max_new_tokens: int, stop_ids: Sequence[int]) -> DecodeResult:
        """See ``DecodingMethod.decode``."""
        started = time.perf_counter()
        pipeline = self.begin(prompt_ids, max_new_tokens, stop_ids)
        prefilled = time.perf_counter()
        while not pipeline.finished:
            self.cycle(pipeline)
        decode_s = time.perf_counter() - prefilled
        transcript = pipeline.transcript
        return DecodeResult(
            transcript.tokens,
            pipeline.steps,
            prefilled - started,
            decode_s,
            transcript.finish_reason or "length",
        )

    @torch.no_grad()
    def begin(
        self, prompt_ids: Sequence[int], max_new_tokens: int, stop_ids: Sequence[int]
    ) -> PipelineController:
        """Prefill; the target's first token is committed and ready to enter stage 1."""
        self._target.check_prompt(prompt_ids)
        transcript = Transcript(self._target.room(prompt_ids, max_new_tokens), stop_ids)
        self.verified = self._target.logits(self._prefill(prompt_ids))[0, -1]
        pipeline = PipelineController(
            len(self._stages),
            len(prompt_ids),
            self._decisions.first(self.verified),
            transcript,
            self._width,
            max(self._stage_layers),
            critical_layers(self._drafter, self._stage_layers, self._beside_first),
        )
        self._enter((pipeline.root,))
        return pipeline

    def _prefill(self, prompt_ids: Sequence[int]) -> Tensor:
        """Run the prompt through the stages; returns the last token's output [1, 1, hidden]."""
        reads = self._drafter.reads
        prompt = self._target.embedding.new_empty(len(prompt_ids), len(reads), self._target.hidden_size)
        hidden = prompt[:0]
        for start in range(0, len(prompt_ids), PREFILL_CHUNK):
            part = prompt[start : start + PREFILL_CHUNK]
            hidden = self._target.embed(prompt_ids[start : start + PREFILL_CHUNK])
            if 0 in reads:
                part[:, reads.index(0)] = hidden[0]
            for stage in self._stages:
                hidden, tapped = stage.prefill(hidden)
                for row, value in tapped.items():
                    part[:, row] = value[0]
        self._drafter.start(prompt, self._tree)
        return hidden[:, -1:]

    @torch.no_grad()
    def cycle(self, pipeline: PipelineController) -> None:
        """One cycle: every stage runs, the drafter drafts, the token that left is verified."""
        clock = time.perf_counter
        t0 = clock()
        offers: Offers = {}
        newest = pipeline.newest
        if newest and not self._drafter.series:
            offers = self._draft(pipeline)
        t1 = clock()
        for stage, level in zip(self._stages, pipeline.stage_work(), strict=True):
            if level:
                self._advance(stage, level)
        t2 = clock()
        if newest and self._drafter.series:
            offers = self._draft(pipeline)
        if pipeline.expansion_due:
            self._expand(pipeline, offers)
        t3 = clock()
        if pipeline.verification_due:
            self._verify(pipeline)
        t4 = clock()
        if pipeline.expansion_due:
            self._expand(pipeline, offers)
        t5 = clock()
        pipeline.end_cycle({"target": t2 - t1, "draft": t1 - t0 + t3 - t2 + t5 - t4, "verify": t4 - t3})

    def _advance(self, stage: StageRunner, level: Level) -> None:
        inputs = [self._hidden[node.id] for node in level]
        out, tapped = stage.run(level, inputs[0] if len(level) == 1 else torch.cat(inputs, 1), self._tree)
        for i, node in enumerate(level):
            self._hidden[node.id] = out[:, i : i + 1]
            for row, value in tapped.items():
                self._features[node.id][row] = value[0, i]

    def _verify(self, pipeline: PipelineController) -> None:
        """Commit the target's token after the root, which has left the last stage."""
        root = pipeline.root
        logits = self.verified = self._target.logits(self._hidden[root.id])[0, -1]
        token, child = self._decisions.verify(pipeline, logits)
        self._settle(pipeline, pipeline.commit(token, child), root)

    def _settle(self, pipeline: PipelineController, verdict: Verdict, root: Node) -> None:
        for number, stage in enumerate(self._stages, 1):
            stage.settle(verdict.seen_by(number), verdict.kept_by(number), self._tree)
        self._drafter.settle(verdict, self._features[root.id])
        gone = [n.id for level in verdict.levels for n in level if n.id not in verdict.survivors]
        for node_id in gone:
            del self._hidden[node_id], self._features[node_id]
        if verdict.flushed:
            self._enter((verdict.root,))

    def _draft(self, pipeline: PipelineController) -> Offers:
        """Proposals behind the newest nodes. They are chosen before the cycle's verification, whose
        outcome a drafter in another process would have to wait for."""
        logits = self._drafter.draft(pipeline, self._features)
        offers = self._decisions.offers(logits, self._drafter.vocabulary)
        return {node.id: rows for node, rows in zip(pipeline.newest, offers, strict=True)}

    def _expand(self, pipeline: PipelineController, offers: Offers) -> None:
        """Let the best proposals behind the nodes that are still in flight enter."""
        pipeline.expand(offers)
        level = pipeline.in_flight[-1]
        if level[0].entered == pipeline.cycle + 1:
            self._enter(level)

    def _enter(self, level: Level) -> None:
        """Embed tokens that enter stage 1 in the next cycle."""
        hidden = self._target.embed([node.token for node in level])
        reads = self._drafter.reads
        for i, node in enumerate(level):
            self._hidden[node.id] = hidden[:, i : i + 1]
            self._features[node.id] = hidden.new_empty(len(reads), hidden.shape[-1])
            if 0 in reads:
                self._features[node.id][reads.index(0)] = hidden[0, i]
