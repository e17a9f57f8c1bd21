"""Drafters that run at their full cost and are told what to say: speed without a trained checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from methods.drafters.vocabulary import DraftVocabulary
from methods.models import Target
from methods.pipeline.controller import PipelineController, Verdict
from methods.pipeline.drafter import Drafter, Features
from methods.spd import checkpoint
from methods.spd.method import Spd, SpdOptions
from methods.testing.scripted import ScriptedDrafter, knows_output, sometimes

DRAFT_VOCABULARY = 8192
"""Rows of the head, at most: those of the recipe for small targets."""


class ToldDrafter:
    """Runs ``drafter`` for its cost and answers with ``script``."""

    def __init__(self, drafter: Drafter, script: ScriptedDrafter) -> None:
        self._drafter, self._script = drafter, script
        self.reads, self.series, self.layers = drafter.reads, drafter.series, drafter.layers
        self.vocabulary = script.vocabulary

    def start(self, prompt: Tensor, tree: bool) -> None:
        self._drafter.start(prompt, tree)

    def draft(self, pipeline: PipelineController, features: Features) -> Tensor:
        self._drafter.draft(pipeline, features)
        return self._script.draft(pipeline, features)

    def settle(self, verdict: Verdict, root: Tensor) -> None:
        self._drafter.settle(verdict, root)


@dataclass(frozen=True)
class ToldOptions(SpdOptions):
    """``output`` of the target, each token of which is named with probability ``right``."""

    output: tuple[int, ...] = ()
    right: float = 1.0


class ToldSpd(Spd):
    """SPD with a random draft module of the usual size, told what to draft; on any runtime."""

    def __init__(self, target: Target, options: ToldOptions) -> None:
        super().__init__(target, options)
        size = min(DRAFT_VOCABULARY, target.vocab_size)
        self.module = checkpoint.untrained(
            target.shape,
            self.module.config.aggregation,
            self.module.config.draft_layers,
            DraftVocabulary(target.vocab_size, None if size == target.vocab_size else range(size)),
            target.head_weight,
            target.final_norm,
            target.rotary.at,
            dtype=target.dtype,
        ).to(target.device)
        vocab = target.vocab_size
        law = knows_output(options.output, vocab, sometimes(options.right))
        self._script = ScriptedDrafter(law, DraftVocabulary(vocab), layers=options.draft_layers or 1)

    def drafter(self) -> Drafter:  # type: ignore[override]
        return ToldDrafter(super().drafter(), self._script)
