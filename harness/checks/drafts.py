"""Whether a drafter with caches drafts what its stateless definition says, cycle by cycle."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from methods.core import DecodeResult, SamplingParams
from methods.models.target import Target
from methods.pipeline.controller import PipelineController, Verdict
from methods.pipeline.drafter import Drafter, Features
from methods.pipeline.lockstep import Lockstep
from methods.pipeline.method import PipelineMethod
from methods.pipeline.tree import Node
from methods.ppsd.exit_head import ExitHead
from methods.spd.draft_module import DraftModule

Definition = Callable[[list[int], list[int]], Tensor]
"""Draft logits [draft_vocab] behind a sequence of tokens, whose last ones, still in flight, have
completed the given numbers of stages before this cycle."""


class WatchedDrafter:
    """Runs ``drafter`` and compares: ``worst`` is the largest difference of its logits from
    ``definition`` over all ``drafts``.

    ``script`` (optional) has the last word on what is proposed, so that the caches of an untrained
    drafter also see acceptances.
    """

    def __init__(
        self,
        drafter: Drafter,
        definition: Definition,
        prompt_ids: Sequence[int],
        script: Drafter | None = None,
    ) -> None:
        self._drafter = drafter
        self._definition = definition
        self._prompt = list(prompt_ids)
        self._script = script
        self.reads, self.series, self.layers = drafter.reads, drafter.series, drafter.layers
        self.vocabulary = drafter.vocabulary
        self.worst = 0.0
        self.drafts = 0

    def start(self, prompt: Tensor, tree: bool) -> None:
        self._drafter.start(prompt, tree)

    def draft(self, pipeline: PipelineController, features: Features) -> Tensor:
        logits = self._drafter.draft(pipeline, features)
        for node, row in zip(pipeline.newest, logits, strict=True):
            difference = float((row - self._expected(pipeline, node)).abs().max())
            self.worst = max(self.worst, difference)
            self.drafts += 1
        return logits if self._script is None else self._script.draft(pipeline, features)

    def settle(self, verdict: Verdict, root: Tensor) -> None:
        self._drafter.settle(verdict, root)

    def _expected(self, pipeline: PipelineController, node: Node) -> Tensor:
        path = node.path()
        tokens = [*self._prompt, *pipeline.transcript.tokens[:-1], *(above.token for above in path)]
        return self._definition(tokens, [pipeline.depth(above) for above in path])


def draft_module_definition(target: Target, module: DraftModule, series: bool) -> Definition:
    """SPD: one causal pass over all rows, each at its current depth (one more if in ``series``)."""
    aggregation = module.config.aggregation

    @torch.no_grad()
    def logits(tokens: list[int], in_flight: list[int]) -> Tensor:
        taps = target.forward(tokens, target.new_state(), taps=aggregation.anchors).taps
        rows = torch.stack([taps[anchor][0] for anchor in aggregation.anchors], 1)
        depths = [aggregation.n] * (len(tokens) - len(in_flight)) + [depth + series for depth in in_flight]
        return module.stateless(rows, depths)[-1]

    return logits


def exit_head_definition(target: Target, head: ExitHead) -> Definition:
    """PPSD: one causal pass over the stage-1 features of all tokens."""
    layer = head.config.exit_layers

    @torch.no_grad()
    def logits(tokens: list[int], in_flight: list[int]) -> Tensor:
        taps = target.forward(tokens, target.new_state(), taps=(layer,)).taps
        return head.stateless(taps[layer][0])[-1]

    return logits


def watch_drafts(
    method: PipelineMethod,
    definition: Definition,
    prompt_ids: Sequence[int],
    script: Drafter,
    max_new_tokens: int,
) -> tuple[WatchedDrafter, DecodeResult]:
    """C17 in the loop: decode greedily with the drafter of ``method`` watched and ``script`` proposing."""
    drafter = WatchedDrafter(method.drafter(), definition, prompt_ids, script)
    width = method.options.width
    run = Lockstep(method.target, method.stage_layers, drafter, SamplingParams(), "point-mass", width)
    return drafter, run.decode(prompt_ids, max_new_tokens, ())
