"""EAGLE-3 (arXiv 2503.01840): a one-layer head on three target features drafts, the target verifies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from torch import Tensor
from torch.nn import functional as F

from methods.core import SamplingParams
from methods.decoding.replay import KnownOutput, Replayed
from methods.decoding.rounds import RoundMethod
from methods.decoding.sampling import Draws
from methods.decoding.verification import proposal_rule
from methods.drafters.vocabulary import DraftVocabulary
from methods.eagle3 import checkpoint
from methods.eagle3.drafting import Eagle3Drafter, Shape
from methods.eagle3.head import Eagle3Head
from methods.eagle3.replay import chain_table, replay_chain
from methods.errors import UsageError
from methods.models.target import Target
from methods.registry import register

Tree = Literal["beam", "dynamic"]


@dataclass(frozen=True)
class Eagle3Options:
    """``m`` draft levels of ``width`` W nodes (1 + W m tokens per verification); ``tree`` "beam" keeps
    the best W of each level, "dynamic" re-ranks all candidates under the same budget (EAGLE-2).
    With ``proposal`` "sampled" and W > 1, branches at T > 0 part at the root only.
    ``draft_rope_theta`` and ``taps`` (three residual-stream indices such as "2;16;29") override what
    a published head says of itself."""

    m: int = 7
    width: int = 1
    tree: str = "beam"
    proposal: str | None = None
    checkpoint: str | None = None
    untrained: bool = False
    draft_rope_theta: float | None = None
    taps: str | None = None


@register("eagle3")
class Eagle3(RoundMethod):
    """A chain (width 1) or a draft tree per round."""

    Options = Eagle3Options

    def __init__(self, target: Target, options: Eagle3Options) -> None:
        super().__init__(target, options)
        if options.m < 1:
            raise UsageError(f"m must be >= 1, got {options.m}")
        if options.tree not in get_args(Tree):
            raise UsageError(f"unknown tree {options.tree!r}; allowed: {', '.join(get_args(Tree))}")
        if options.tree == "dynamic" and options.width == 1:
            raise UsageError("tree 'dynamic' needs a width above 1")
        if (options.checkpoint is None) == (not options.untrained):
            raise UsageError(
                f"method {self.name!r} needs a draft head for {target.name}: give --checkpoint (a directory "
                "written by training, or a published head as PATH or hf:REPO), or --untrained for a random "
                "one (not both)"
            )
        if options.untrained and (options.taps is not None or options.draft_rope_theta is not None):
            raise UsageError("taps and draft_rope_theta belong to a published head: give --checkpoint")
        self.rule = proposal_rule(options.proposal, options.width)
        if self.rule == "sampled" and options.tree == "dynamic":
            raise UsageError("tree 'dynamic' selects by score, so it needs --proposal point-mass")
        self._origin: dict[str, Any] = {}
        self.head = (self._untrained() if options.untrained else self._loaded()).to(target.device)
        self.reads = self.head.config.taps
        self.shape = Shape(options.m, options.width, options.tree == "dynamic", self.rule == "sampled")

    def session(self, sampling: SamplingParams, draws: Draws) -> Eagle3Drafter:
        return Eagle3Drafter(self.head, self.shape, sampling, draws)

    def can_replay(self, sampling: SamplingParams) -> bool:
        # Branches drawn without replacement are accepted by chance even when the output is known.
        return sampling.greedy or self.shape.width == 1 or not self.shape.drawn

    def replay(self, known: KnownOutput) -> Replayed:
        if self.shape.width > 1:
            return super().replay(known)
        table = chain_table(self.head, known, self.shape.m, self.shape.drawn)
        return replay_chain(known, table, self.shape, self._step)

    def describe(self) -> dict[str, Any]:
        return {"proposal": self.rule, "untrained": self.options.untrained, **self._origin}

    def _untrained(self) -> Eagle3Head:
        target = self.target
        return checkpoint.untrained(
            target.shape,
            DraftVocabulary(target.vocab_size),
            self._embed,
            target_head=target.head_weight,
            dtype=target.dtype,
        )

    def _loaded(self) -> Eagle3Head:
        loaded = checkpoint.load(
            self.options.checkpoint,
            self.target.shape,
            self._embed,
            draft_rope_theta=self.options.draft_rope_theta,
            taps=_indices(self.options.taps),
            target_head=self.target.head_weight,
            dtype=self.target.dtype,
        )
        self._origin = {"checkpoint": loaded.source, "checkpoint_sha256": loaded.sha256}
        if loaded.config.tied_head and "published_config" in loaded.config.training:
            self._origin["borrowed_head"] = True
        return loaded.module

    def _embed(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.target.embedding)


def _indices(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(";")]
    except ValueError as error:
        raise UsageError(f"taps {text!r} are not numbers separated by ';', e.g. 2;16;29") from error
