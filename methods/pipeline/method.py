"""What the pipeline methods share: stage split, options, and the decode call."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

from methods.core import DecodeResult, SamplingParams
from methods.decoding.replay import KnownOutput, Replayed
from methods.decoding.verification import proposal_rule
from methods.errors import UsageError
from methods.interface import DecodingMethod
from methods.models.partition import check_stage_layers, split_layers
from methods.models.target import Target
from methods.pipeline.distributed.launcher import check_world
from methods.pipeline.distributed.ranks import Distributed
from methods.pipeline.drafter import Drafter, critical_layers
from methods.pipeline.layout import Layout
from methods.pipeline.lockstep import Lockstep
from methods.pipeline.replay import DraftLogits, replay_chain

Runtime = Literal["lockstep", "distributed"]
"""lockstep: all stages in this process, one after another. distributed: a process per stage."""


@dataclass(frozen=True)
class PipelineOptions:
    """``n`` stages, drafts of ``width`` W, a trained ``checkpoint`` (a path or ``hf:REPO/FILE``) or
    an ``untrained`` drafter; ``stage_layers`` such as "5;9;9;9" for an uneven split. ``layout`` says
    where the drafter is: "n+1" on a device of its own, "n" with stage 1. In lockstep there is one
    device only, and it counts for S and for emulated devices."""

    n: int = 8
    width: int = 1
    proposal: str | None = None
    checkpoint: str | None = None
    untrained: bool = False
    stage_layers: str | None = None
    runtime: str = "lockstep"
    layout: str = "n+1"

    def __post_init__(self) -> None:
        if self.n < 1:
            raise UsageError(f"n = {self.n} stages; allowed: a whole number >= 1")
        if self.runtime not in get_args(Runtime):
            raise UsageError(f"unknown runtime {self.runtime!r}; allowed: {', '.join(get_args(Runtime))}")
        layout = Layout.named(self.layout, self.n)
        if self.runtime == "distributed":
            check_world(layout)


class PipelineMethod(DecodingMethod):
    """A pipeline of target stages with the drafter of a subclass."""

    Options = PipelineOptions

    def __init__(self, target: Target, options: PipelineOptions) -> None:
        super().__init__(target, options)
        self.stage_layers = _stages(target.num_layers, options.n, options.stage_layers)
        self.rule = proposal_rule(options.proposal, options.width)
        if self.rule == "sampled" and options.width > 1:
            # Branches enter by score, so their tokens no longer follow the law an acceptance test needs.
            raise UsageError("proposal 'sampled' needs width 1 in a pipeline; allowed for a tree: point-mass")
        if (options.checkpoint is None) == (not options.untrained):
            raise UsageError(
                f"method {self.name!r} needs a drafter for {target.name}, n = {options.n}: give --checkpoint "
                "(a directory written by training, or an authors' file as PATH or hf:REPO/FILE), or "
                "--untrained for a random one (not both)"
            )
        self._beside_first = not Layout.named(options.layout, options.n).own_drafter
        self.tied_head = options.untrained
        """Whether the drafter's head is rows of the target's."""

    @abstractmethod
    def drafter(self) -> Drafter:
        """A drafter for one sequence."""

    def lockstep(self, sampling: SamplingParams) -> Lockstep:
        """One decode call, not begun."""
        return Lockstep(
            self.target,
            self.stage_layers,
            self.drafter(),
            sampling,
            self.rule,
            self.options.width,
            self._beside_first,
        )

    @abstractmethod
    def draft_logits(self, known: KnownOutput) -> DraftLogits:
        """The drafter's answers along a known output."""

    def can_replay(self, sampling: SamplingParams) -> bool:
        return self.options.width == 1

    def replay(self, known: KnownOutput) -> Replayed:
        drafter = self.drafter()
        return replay_chain(
            known,
            self.options.n,
            self.draft_logits(known),
            drafter.vocabulary,
            self.rule == "sampled",
            max(self.stage_layers),
            critical_layers(drafter, self.stage_layers, self._beside_first),
        )

    @cached_property
    def distributed(self) -> Distributed:
        """The ranks' side of this method, if its ``runtime`` is distributed."""
        layout = Layout.named(self.options.layout, self.options.n)
        return Distributed(self, layout, self.stage_layers, self.drafter(), self.tied_head)

    @classmethod
    def has_ranks(cls, options: Any) -> bool:
        return bool(options.runtime == "distributed")

    def decode(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        max_new_tokens: int,
        stop_ids: Sequence[int] = (),
    ) -> DecodeResult:
        if self.has_ranks(self.options):
            return self.distributed.decode(
                prompt_ids, sampling, max_new_tokens, stop_ids, self.rule, self.options.width
            )
        return self.lockstep(sampling).decode(prompt_ids, max_new_tokens, stop_ids)

    def describe(self) -> dict[str, Any]:
        about = {
            "proposal": self.rule,
            "stage_layers": self.stage_layers,
            "untrained": self.options.untrained,
        }
        return about | (self.distributed.describe() if self.has_ranks(self.options) else {})


def _stages(num_layers: int, n: int, explicit: str | None) -> list[int]:
    if explicit is None:
        return split_layers(num_layers, n)
    try:
        layers = [int(part) for part in explicit.split(";")]
    except ValueError as error:
        raise UsageError(
            f"stage layers {explicit!r} are not numbers separated by ';', e.g. 5;9;9;9"
        ) from error
    if len(layers) != n:
        raise UsageError(f"stage layers {explicit!r} name {len(layers)} stages, but n = {n}")
    return check_stage_layers(num_layers, layers)
