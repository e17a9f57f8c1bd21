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

    Each token's row is built at the depth it has before the cycle's stage work, or, in ``series``
    (the post-step schedule), at the depth it has after it.
    """

    def __init__(self, module: DraftModule, series: bool) -> None:
        self._module = module
        self._session = module.session()
        self._completed: list[Tensor] = []
        self._tree = False
        self.reads = module.config.aggregation.anchors
        self.series = series
        self.layers = module.config.draft_layers
        self.vocabulary = module.vocabulary

    def start(self, prompt: Tensor, tree: bool) -> None:
        self._tree = tree
        self._session = self._module.session()
        self._completed = []
        self._session.step(prompt)

    def draft(self, pipeline: PipelineController, features: Features) -> Tensor:
        levels = pipeline.in_flight
        nodes = [node for level in levels for node in level]
        depths = [pipeline.depth(node) + self.series for node in nodes]
        rows = torch.stack([features[node.id] for node in nodes])
        completed = torch.stack(self._completed) if self._completed else None
        self._completed = []
        positions = mask = None
        if self._tree:
            positions, mask = tree_rows(levels, rows.device)
        return self._session.step(
            completed, rows, depths, positions=positions, mask=mask, last=len(levels[-1])
        )

    def settle(self, verdict: Verdict, root: Tensor) -> None:
        self._completed.append(root)
