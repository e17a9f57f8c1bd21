"""Speculative pipeline decoding (arXiv 2605.30852), and its post-step ablation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from methods.decoding.replay import KnownOutput
from methods.drafters.vocabulary import DraftVocabulary
from methods.errors import UsageError
from methods.models.target import Target
from methods.pipeline.method import PipelineMethod, PipelineOptions
from methods.pipeline.replay import DraftLogits
from methods.registry import register
from methods.spd import checkpoint
from methods.spd.aggregation import choose_anchors
from methods.spd.drafter import SpdDrafter
from methods.spd.replay import SpdReplay

Schedule = Literal["pre-step", "post-step"]
_UNTRAINED_LAYERS = 3


@dataclass(frozen=True)
class SpdOptions(PipelineOptions):
    """``draft_layers`` Ls (None: what the checkpoint has); ``schedule`` pre-step drafts beside the
    stages, post-step after them."""

    draft_layers: int | None = None
    schedule: Schedule = "pre-step"


@register("spd")
class Spd(PipelineMethod):
    """n target stages and the pipeline draft module beside them."""

    Options = SpdOptions

    def __init__(self, target: Target, options: SpdOptions) -> None:
        super().__init__(target, options)
        if options.schedule not in get_args(Schedule):
            raise UsageError(
                f"unknown schedule {options.schedule!r}; allowed: {', '.join(get_args(Schedule))}"
            )
        self._about: dict[str, Any] = {"schedule": options.schedule}
        if options.checkpoint is None:
            self.module = checkpoint.untrained(
                target.shape,
                choose_anchors(self.stage_layers),
                _UNTRAINED_LAYERS if options.draft_layers is None else options.draft_layers,
                DraftVocabulary(target.vocab_size),
                target.head_weight,
                target.final_norm,
                target.rotary.at,
                dtype=target.dtype,
            ).to(target.device)
        else:
            loaded = checkpoint.load(
                options.checkpoint,
                target.shape,
                target.final_norm,
                target.rotary.at,
                n=options.n,
                stage_layers=self.stage_layers,
                draft_layers=options.draft_layers,
                schedule=options.schedule,
                target_head=target.head_weight,
                dtype=target.dtype,
            )
            self.module = loaded.module.to(target.device)
            self.tied_head = loaded.config.tied_head
            self._about.update(checkpoint=loaded.source, checkpoint_sha256=loaded.sha256)

    def drafter(self) -> SpdDrafter:
        return SpdDrafter(self.module, series=self.options.schedule == "post-step")

    def draft_logits(self, known: KnownOutput) -> DraftLogits:
        drafter = self.drafter()
        features = known.features(drafter.reads)
        return SpdReplay(self.module, features, len(known.prompt_ids), drafter.series).logits

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), **self._about, "draft_layers": self.module.config.draft_layers}
