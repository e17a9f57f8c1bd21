"""EAGLE-3 along one sequence: a chain of m tokens, or a tree of W nodes a level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from methods.core import SamplingParams
from methods.decoding.rounds import DraftSession
from methods.decoding.sampling import Draws, probabilities
from methods.decoding.verification import Draft, DraftLaw, draw_without_replacement
from methods.drafters.candidates import ROOT, Candidates, top_logprobs
from methods.eagle3.head import Eagle3Head
from methods.eagle3.session import Eagle3Session


@dataclass(frozen=True, slots=True)
class Shape:
    """``m`` levels of at most ``width`` nodes. ``rerank`` spends the same m * width nodes on the best
    of all candidates seen (EAGLE-2). ``drawn``: at T > 0 tokens are drawn from the draft law, in
    ``width`` branches that part at the root only, because a selection by score spoils the law."""

    m: int
    width: int
    rerank: bool
    drawn: bool


class Eagle3Drafter(DraftSession):
    """One head pass per level; the first runs over the slots of the tokens verified last."""

    def __init__(self, head: Eagle3Head, shape: Shape, sampling: SamplingParams, draws: Draws) -> None:
        self._head = head
        self._session = Eagle3Session(head)
        self._shape = shape
        self._sampling = sampling
        self._draws = draws
        self._output = self._logits = torch.empty(0)

    def observe(self, tokens: Sequence[int], taps: Tensor) -> None:
        # Slot t pairs the features of position t with token t + 1; the prompt's first has no slot.
        following = torch.as_tensor(tokens[len(tokens) - taps.shape[0] :], device=taps.device)
        self._output, self._logits = self._session.extend(taps.flatten(1), following)

    def propose(self, budget: int) -> Draft:
        levels = min(self._shape.m, budget)
        if levels < 1:
            return Draft()
        if self._shape.drawn and not self._sampling.greedy:
            return self._branches(levels)
        if self._shape.width == 1:
            return self._chain(levels)
        return self._tree(levels)

    def _chain(self, levels: int) -> Draft:
        """The largest draft logit of every level; the host waits for the device once."""
        output, logits, ids = self._output, self._logits, []
        for level in range(levels):
            ids.append(self._head.vocabulary.to_target(logits.argmax(-1)))
            if level + 1 < levels:
                output, logits = self._session.grow([level - 1], output, ids[-1])
        return Draft.chain(torch.cat(ids).tolist(), layers=levels)

    def _branches(self, levels: int) -> Draft:
        """``width`` first tokens drawn without replacement, each continued as a drawn chain."""
        vocabulary = self._head.vocabulary
        first = probabilities(self._logits[0], self._sampling)
        newest = draw_without_replacement(first, self._shape.width, vocabulary, self._draws)
        count = len(newest)
        laws, parents = list(newest), [ROOT] * count
        output = self._output.expand(count, -1)
        for level in range(1, levels):
            ids = torch.tensor([law.token for law in newest], device=output.device)
            output, logits = self._session.grow(parents[-count:], output, ids)
            newest = [
                DraftLaw.of(row, vocabulary, self._draws) for row in probabilities(logits, self._sampling)
            ]
            parents += range((level - 1) * count, level * count)
            laws += newest
        return Draft([law.token for law in laws], parents, laws, layers=levels)

    def _tree(self, levels: int) -> Draft:
        """A beam of ``width`` nodes a level, by cumulative log probability of the draft law at T = 1."""
        width = self._shape.width
        candidates = Candidates()
        kept: list[int] = []
        beam, output, logits = [ROOT], self._output, self._logits
        for level in range(levels):
            logprobs, indices = top_logprobs(logits, width)
            tokens = self._head.vocabulary.to_target(indices)
            offered = candidates.add(beam, tokens.tolist(), logprobs.tolist())
            chosen = candidates.best(offered, width)
            if level + 1 < levels:
                parents = [candidates.parents[node] for node in chosen]
                rows = [beam.index(parent) for parent in parents]
                # The session numbers its nodes in the order grown, which is that of ``kept``.
                above = [ROOT if parent == ROOT else kept.index(parent) for parent in parents]
                ids = torch.tensor([candidates.tokens[node] for node in chosen], device=output.device)
                output, logits = self._session.grow(above, output[rows], ids)
            kept += chosen
            beam = chosen
        if self._shape.rerank:
            kept = candidates.best(range(len(candidates.tokens)), levels * width)
        return Draft(*candidates.tree(kept), layers=levels)
