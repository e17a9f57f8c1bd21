"""PPSD (arXiv 2509.19368): pipeline-parallel self-speculation from an exit head after stage 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from methods.decoding.replay import KnownOutput
from methods.drafters.vocabulary import DraftVocabulary
from methods.models.target import Target
from methods.pipeline.method import PipelineMethod, PipelineOptions
from methods.pipeline.replay import DraftLogits
from methods.ppsd import checkpoint
from methods.ppsd.drafter import PpsdDrafter
from methods.ppsd.exit_head import HeadClass
from methods.ppsd.replay import PpsdReplay
from methods.registry import register


@dataclass(frozen=True)
class PpsdOptions(PipelineOptions):
    """``head_class`` of the exit head: layer (default), mlp or linear."""

    head_class: HeadClass | None = None


@register("ppsd")
class Ppsd(PipelineMethod):
    """n target stages and an exit head in series with the first."""

    Options = PpsdOptions

    def __init__(self, target: Target, options: PpsdOptions) -> None:
        super().__init__(target, options)
        self._about: dict[str, Any] = {}
        if options.checkpoint is None:
            head = checkpoint.untrained(
                target.shape,
                self.stage_layers[0],
                DraftVocabulary(target.vocab_size),
                target.head_weight,
                target.rotary.at,
                head_class=options.head_class or "layer",
                dtype=target.dtype,
            )
        else:
            loaded = checkpoint.load(
                options.checkpoint,
                target.shape,
                target.rotary.at,
                n=options.n,
                stage_layers=self.stage_layers,
                head_class=options.head_class,
                target_head=target.head_weight,
                dtype=target.dtype,
            )
            head = loaded.module
            self.tied_head = loaded.config.tied_head
            self._about.update(checkpoint=loaded.source, checkpoint_sha256=loaded.sha256)
        self.head = head.to(target.device)

    def drafter(self) -> PpsdDrafter:
        return PpsdDrafter(self.head)

    def draft_logits(self, known: KnownOutput) -> DraftLogits:
        features = known.features(self.drafter().reads)[:, 0]
        return PpsdReplay(self.head, features, len(known.prompt_ids)).logits

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), **self._about, "head_class": self.head.config.head_class}
