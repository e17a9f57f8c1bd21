"""From logits to tokens in a pipeline: what the drafter offers and what the target decides."""

from __future__ import annotations

from torch import Tensor

from methods.core import SamplingParams
from methods.decoding.sampling import Draws, probabilities, target_token
from methods.decoding.verification import DraftLaw, ProposalRule, accept_drawn
from methods.drafters.vocabulary import DraftVocabulary
from methods.pipeline.controller import PipelineController
from methods.pipeline.tree import Node, Proposal


class Decisions:
    """The choices of one decode call. Drafting and verification draw from streams of their own, so
    the two may run in different processes, each with its own copy of this object."""

    def __init__(self, sampling: SamplingParams, rule: ProposalRule, width: int) -> None:
        self._sampling = sampling
        self._draws = Draws(sampling.seed)
        self.drawn = rule == "sampled" and not sampling.greedy
        """Whether draft tokens are drawn, and verified against the law they were drawn from."""
        self._width = width

    def first(self, logits: Tensor) -> int:
        """The token after the prompt from its ``logits`` [vocab]."""
        return target_token(logits, self._sampling, self._draws, 0)

    def offers(self, logits: Tensor, vocabulary: DraftVocabulary) -> list[list[Proposal]]:
        """Proposals for every row of draft ``logits`` [nodes, draft_vocab]."""
        if self.drawn:
            return [[self._draw(row, vocabulary)] for row in logits]
        if self._width == 1:
            best = vocabulary.to_target(logits.argmax(-1))
            return [[Proposal(token, 0.0)] for token in best.tolist()]
        top = logits.float().log_softmax(-1).topk(min(self._width, logits.shape[-1]))
        tokens = vocabulary.to_target(top.indices).tolist()
        rows = zip(tokens, top.values.tolist(), strict=True)
        return [[Proposal(*pair) for pair in zip(*row, strict=True)] for row in rows]

    def verify(self, pipeline: PipelineController, logits: Tensor) -> tuple[int, Node | None]:
        """The target's token behind the root from ``logits`` [vocab], and the candidate it accepts."""
        if self.drawn and pipeline.candidates:
            child = pipeline.candidates[0]
            p = probabilities(logits, self._sampling)
            accepted, token = accept_drawn(p, child.record, self._draws)
            return token, child if accepted else None
        index = len(pipeline.transcript.tokens)
        token = target_token(logits, self._sampling, self._draws, index)
        return token, pipeline.candidate(token)

    def _draw(self, logits: Tensor, vocabulary: DraftVocabulary) -> Proposal:
        law = DraftLaw.draw(logits, vocabulary, self._sampling, self._draws)
        return Proposal(law.token, 0.0, law)
