"""PPSD's drafter in a pipeline: the exit head on the newest tokens' stage-1 features, in series."""

from __future__ import annotations

import torch
from torch import Tensor

from methods.pipeline.controller import PipelineController, Verdict
from methods.pipeline.drafter import Features
from methods.pipeline.tree_rows import tree_rows
from methods.ppsd.exit_head import ExitHead


class PpsdDrafter:
    """A chain keeps a row as soon as its token has left stage 1, and rolls back on a flush; of a
    tree only completed tokens are kept."""

    series = True

    def __init__(self, head: ExitHead) -> None:
        self._head = head
        self._session = head.session()
        self._completed: list[Tensor] = []
        self.reads: tuple[int, ...] = (head.config.exit_layers,)
        # An MLP is most of a decoder layer's work, and a cost must not be understated.
        self.layers = 0 if head.config.head_class == "linear" else 1
        self.vocabulary = head.vocabulary
        self._tree = False

    def start(self, prompt: Tensor, tree: bool) -> None:
        self._tree = tree
        self._session = self._head.session()
        self._completed = []
        self._session.step(prompt[:, 0])

    def draft(self, pipeline: PipelineController, features: Features) -> Tensor:
        if not self._tree:
            return self._session.step(features[pipeline.newest[0].id])
        levels = pipeline.in_flight
        rows = torch.cat([features[node.id] for level in levels for node in level])
        final = torch.cat(self._completed) if self._completed else None
        self._completed = []
        positions, mask = tree_rows(levels, rows.device)
        return self._session.step(final, rows, positions=positions, mask=mask, last=len(levels[-1]))

    def settle(self, verdict: Verdict, root: Tensor) -> None:
        if self._tree:
            self._completed.append(root)
        elif not verdict.accepted:
            self._session.rollback(verdict.root.position)
