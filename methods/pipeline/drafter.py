"""What a pipeline asks of a drafter. SPD and PPSD are this pipeline with different drafters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from methods.drafters.vocabulary import DraftVocabulary
from methods.pipeline.controller import PipelineController, Verdict

Features = dict[int, Tensor]
"""Node id -> the residual stream of that token at ``Drafter.reads`` [reads, hidden], as far as its
stages have run; entries not reached yet are undefined."""


class Drafter(Protocol):
    """Drafts successors of the newest tokens of one sequence.

    ``reads`` are the residual-stream indices it needs (0 = embedding, L = last layer's output).
    ``series``: it runs after stage 1 of the same cycle and so adds its own ``layers`` to the
    cycle; otherwise it runs beside the stages on what was there before the cycle.
    """

    reads: tuple[int, ...]
    series: bool
    layers: int
    vocabulary: DraftVocabulary

    def start(self, prompt: Tensor, tree: bool) -> None:
        """Begin a sequence whose prompt has features [prompt, reads, hidden], all complete. ``tree``:
        levels may branch, or lose their successors while others are in flight."""

    def draft(self, pipeline: PipelineController, features: Features) -> Tensor:
        """Draft logits [newest nodes, draft_vocab] for the successors of ``pipeline.newest``."""

    def settle(self, verdict: Verdict, root: Tensor) -> None:
        """Follow a verification: ``root`` [reads, hidden] has left the last stage and is part of the
        prefix; nodes that are not among the verdict's survivors are gone."""


def critical_layers(drafter: Drafter, stage_layers: Sequence[int], beside_first: bool = False) -> int:
    """Target-layer units that drafting adds to a cycle: all of it in series, else the excess over
    the largest stage it runs beside. ``beside_first``: stage 1 has the same device, so its layers
    come on top."""
    if drafter.series:
        return drafter.layers
    own = drafter.layers + (stage_layers[0] if beside_first else 0)
    return max(0, own - max(stage_layers))
