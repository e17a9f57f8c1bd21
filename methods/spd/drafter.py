"""SPD's drafter in a pipeline: rows of all tokens in flight, each at its current depth."""

from __future__ import annotations

import torch
from torch import Tensor

from methods.pipeline.controller import PipelineController, Verdict
from methods.pipeline.drafter import Features
from methods.pipeline.tree_rows import tree_rows
from methods.spd.draft_module import DraftModule


class SpdDrafter:
    """Feeds a draft module: completed tokens once, tokens in flight anew every cycle.

    A token k levels behind the newest is at depth k before the cycle's stage work and at k + 1
    after it; ``series`` (the post-step schedule) drafts from the latter.
    """

    def __init__(self, module: DraftModule, series: bool) -> None:
        self._module = module
        self._session = module.session()
        self._completed: list[Tensor] = []
        self.reads = module.config.aggregation.anchors
        self.series = series
        self.layers = module.config.draft_layers
        self.vocabulary = module.vocabulary

    def start(self, prompt: Tensor) -> None:
        self._session = self._module.session()
        self._completed = []
        self._session.step(prompt)

    def draft(self, pipeline: PipelineController, features: Features) -> Tensor:
        levels = pipeline.in_flight
        depths, rows = [], []
        for distance, level in zip(range(len(levels) - 1, -1, -1), levels, strict=True):
            depths += [min(distance + self.series, pipeline.n)] * len(level)
            rows += [features[node.id] for node in level]
        completed = torch.stack(self._completed) if self._completed else None
        self._completed = []
        positions = mask = None
        if pipeline.width > 1:
            positions, mask = tree_rows(levels, rows[0].device)
        return self._session.step(
            completed, torch.stack(rows), depths, positions=positions, mask=mask, last=len(levels[-1])
        )

    def settle(self, verdict: Verdict, root: Tensor) -> None:
        self._completed.append(root)
