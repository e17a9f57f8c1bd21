"""Drafters for the pipeline that follow a script instead of weights."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from methods.core import DecodeResult, SamplingParams
from methods.decoding.verification import ProposalRule
from methods.drafters.vocabulary import DraftVocabulary
from methods.interface import DecodingMethod, NoOptions
from methods.models.target import Target
from methods.pipeline.controller import PipelineController, Verdict
from methods.pipeline.drafter import Drafter, Features
from methods.pipeline.lockstep import Lockstep
from methods.pipeline.tree import Node

Right = Callable[[int], bool]
"""Whether the draft of output token i (0 = the prefill's, which nobody drafts) is right."""
LawOf = Callable[[Sequence[int]], Tensor]
"""Draft logits [draft_vocab] for the successor of an output prefix (tokens after the prompt)."""


def always(index: int) -> bool:
    return True


def never(index: int) -> bool:
    return False


def sometimes(probability: float, seed: int = 0) -> Right:
    """Right with ``probability``, decided per output token once and for all."""
    return lambda index: random.Random(seed * 1_000_003 + index).random() < probability


class ScriptedDrafter:
    """A drafter whose logits are ``law_of`` the tokens up to the node. ``series`` and ``layers`` say
    where it stands in the schedule, as for any drafter."""

    reads: tuple[int, ...] = (0,)

    def __init__(
        self, law_of: LawOf, vocabulary: DraftVocabulary, series: bool = False, layers: int = 1
    ) -> None:
        self._law_of = law_of
        self.vocabulary = vocabulary
        self.series = series
        self.layers = layers

    def start(self, prompt: Tensor, tree: bool) -> None:
        pass

    def draft(self, pipeline: PipelineController, features: Features) -> Tensor:
        return torch.stack([self._law_of(_output_prefix(pipeline, node)) for node in pipeline.newest])

    def settle(self, verdict: Verdict, root: Tensor) -> None:
        pass


def knows_output(output: Sequence[int], vocab: int, right: Right) -> LawOf:
    """Drafts of one who has seen the target's ``output``: its token first if ``right``, else last."""

    def law_of(prefix: Sequence[int]) -> Tensor:
        index = len(prefix)
        logits = -torch.arange(vocab, dtype=torch.float32)
        if index < len(output):
            logits[output[index]] = 9.0 if right(index) else -9.0 - vocab
        return logits

    return law_of


def random_laws(
    vocab: int, seed: int = 0, sharpness: float = 1.0, dtype: torch.dtype = torch.float32
) -> LawOf:
    """A fixed random law for every prefix, told apart by its length and its last two tokens."""
    rows = 4093
    generator = torch.Generator().manual_seed(seed)
    table = (sharpness * torch.randn(rows, vocab, generator=generator)).to(dtype)

    def law_of(prefix: Sequence[int]) -> Tensor:
        last, before = prefix[-1], prefix[-2] if len(prefix) > 1 else vocab
        return table[(len(prefix) * 1009 + last * 131 + before * 17) % rows]

    return law_of


class ScriptedPipeline(DecodingMethod):
    """A pipeline over ``stage_layers`` with a drafter made anew for every call, from its prompt and
    sampling parameters (whose seed decides the output)."""

    name = "scripted"

    def __init__(
        self,
        target: Target,
        stage_layers: Sequence[int],
        drafter: Callable[[Sequence[int], SamplingParams], Drafter],
        rule: ProposalRule = "sampled",
        width: int = 1,
        tree: bool | None = None,
    ) -> None:
        super().__init__(target, NoOptions())
        self.stage_layers = list(stage_layers)
        self.drafter = drafter
        self._rule = rule
        self._width = width
        self._tree = tree

    def lockstep(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Lockstep:
        """One decode call, not begun."""
        drafter = self.drafter(prompt_ids, sampling)
        return Lockstep(
            self.target, self.stage_layers, drafter, sampling, self._rule, self._width, tree=self._tree
        )

    def decode(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        max_new_tokens: int,
        stop_ids: Sequence[int] = (),
    ) -> DecodeResult:
        return self.lockstep(prompt_ids, sampling).decode(prompt_ids, max_new_tokens, stop_ids)


def _output_prefix(pipeline: PipelineController, node: Node) -> list[int]:
    # The root is both the last committed token and the first of the path.
    return [*pipeline.transcript.tokens[:-1], *(above.token for above in node.path())]
