"""EAGLE-3 along one sequence: a chain of m tokens, or a tree of W nodes a level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from methods.eagle3.head import Eagle3Head
from methods.eagle3.session import Eagle3Session
from methods.interface import SamplingParams
from methods.rounds import DraftSession
from methods.sampling import Draws
from methods.verification import Draft, DraftLaw


@dataclass(frozen=True, slots=True)
class Shape:
    """``m`` levels of at most ``width`` nodes; ``rerank`` spends the same m * width nodes on the best
    of all candidates seen (EAGLE-2). ``drawn``: tokens are drawn from q, in ``width`` branches that
    part at the root only, because a selection by score would spoil the law."""

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
        # Slot t pairs the features of position t with token t + 1 (the prompt's first has no slot).
        following = torch.as_tensor(tokens[len(tokens) - taps.shape[0] :], device=taps.device)
        self._output, self._logits = self._session.extend(taps.flatten(1), following)

    def propose(self, budget: int) -> Draft:
        levels = min(self._shape.m, budget)
        if levels < 1:
            return Draft()
        if self._shape.drawn and not self._sampling.greedy:
            return self._drawn(levels)
        if self._shape.width == 1:
            return self._chain(levels)
        return self._tree(levels)

    def _chain(self, levels: int) -> Draft:
        output, logits, ids = self._output, self._logits, []
        for level in range(levels):
            ids.append(self._head.vocabulary.to_target(logits.argmax(-1)))
            if level + 1 < levels:
                output, logits = self._session.grow([level - 1], output, ids[-1])
        return Draft(torch.cat(ids).tolist(), range(-1, levels - 1), layers=levels)

    def _drawn(self, levels: int) -> Draft:
        """``width`` first tokens drawn without replacement, each continued as a drawn chain."""
        laws = draw_without_replacement(
            self._logits[0], self._shape.width, self._head, self._sampling, self._draws
        )
        tokens, parents, count = [law.token for law in laws], [-1] * len(laws), len(laws)
        output = self._output.expand(count, -1)
        for level in range(1, levels):
            ids = torch.tensor(tokens[-count:], device=output.device)
            output, logits = self._session.grow(parents[-count:], output, ids)
            vocabulary = self._head.vocabulary
            drawn = [DraftLaw.draw(row, vocabulary, self._sampling, self._draws) for row in logits]
            parents += range((level - 1) * count, level * count)
            tokens += [law.token for law in drawn]
            laws += drawn
        return Draft(tokens, parents, laws, layers=levels)

    def _tree(self, levels: int) -> Draft:
        """A beam of ``width`` nodes by cumulative log probability at T = 1 of the draft law."""
        width = self._shape.width
        pool = _Pool()
        beam, scores, outputs = [-1], torch.zeros(1), self._output
        logits = self._logits
        grown: dict[int, int] = {-1: -1}
        for level in range(levels):
            best = logits.topk(min(width, logits.shape[-1]), -1)
            logprobs = (best.values - logits.logsumexp(-1, keepdim=True)).float().cpu()
            tokens = self._head.vocabulary.to_target(best.indices).cpu()
            fresh = pool.add(beam, tokens.tolist(), (scores[:, None] + logprobs).tolist())
            chosen = pool.best(fresh, width)
            if level + 1 == levels:
                break
            rows = [beam.index(pool.parents[node]) for node in chosen]
            above = [grown[pool.parents[node]] for node in chosen]
            grown |= {node: len(grown) - 1 + i for i, node in enumerate(chosen)}
            ids = torch.tensor([pool.tokens[node] for node in chosen], device=outputs.device)
            outputs, logits = self._session.grow(above, outputs[rows], ids)
            beam, scores = chosen, torch.tensor([pool.scores[node] for node in chosen])
            pool.keep(chosen)
        pool.keep(chosen)
        nodes = pool.best(range(len(pool.tokens)), levels * width) if self._shape.rerank else pool.kept
        return pool.draft(sorted(nodes), layers=levels)


class _Pool:
    """All candidates of a tree in the order found: parents before children."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.scores: list[float] = []
        self.kept: list[int] = []

    def add(self, parents: list[int], tokens: list[list[int]], scores: list[list[float]]) -> range:
        """The candidates ``tokens[i]`` behind ``parents[i]``; returns their numbers."""
        start = len(self.tokens)
        for parent, row, row_scores in zip(parents, tokens, scores, strict=True):
            self.tokens += row
            self.scores += row_scores
            self.parents += [parent] * len(row)
        return range(start, len(self.tokens))

    def best(self, nodes: Sequence[int], count: int) -> list[int]:
        """The ``count`` best; a tie goes to the earlier one, so a parent never loses to its child."""
        return sorted(sorted(nodes), key=lambda node: -self.scores[node])[:count]

    def keep(self, nodes: list[int]) -> None:
        self.kept += nodes

    def draft(self, nodes: list[int], layers: float) -> Draft:
        """The tree of ``nodes`` (ascending, parents among them)."""
        number = {node: i for i, node in enumerate(nodes)} | {-1: -1}
        parents = [number[self.parents[node]] for node in nodes]
        return Draft([self.tokens[node] for node in nodes], parents, layers=layers)


def draw_without_replacement(
    logits: Tensor, count: int, head: Eagle3Head, sampling: SamplingParams, draws: Draws
) -> list[DraftLaw]:
    """Up to ``count`` distinct tokens from draft ``logits`` [draft_vocab], each with the law it was
    drawn from: q without the tokens before it. Fewer where the law has fewer tokens."""
    laws = [DraftLaw.draw(logits, head.vocabulary, sampling, draws)]
    while len(laws) < count:
        rest = laws[-1].probs.clone()
        rest[laws[-1].index] = 0
        mass = float(rest.sum())
        if mass <= 0:
            break
        laws.append(DraftLaw.of(rest / mass, head.vocabulary, draws))
    return laws
