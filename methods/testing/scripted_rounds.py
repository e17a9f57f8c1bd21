"""Draft-then-verify methods that draft what a script says."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from torch import Tensor

from methods.core import SamplingParams
from methods.decoding.rounds import DraftSession, RoundMethod
from methods.decoding.sampling import Draws, probabilities
from methods.decoding.verification import Draft, DraftLaw, draw_without_replacement
from methods.drafters.vocabulary import DraftVocabulary
from methods.interface import NoOptions
from methods.models.target import Target
from methods.testing.scripted import LawOf, Right

Propose = Callable[[list[int], int], Draft]
"""(output so far, its last token the root; the budget) -> draft."""


class ScriptedSession(DraftSession):
    """Drafts ``propose``s of the output so far (the tokens after the prompt)."""

    def __init__(self, propose: Propose) -> None:
        self._propose = propose
        self._output: list[int] = []

    def observe(self, tokens: Sequence[int], taps: Tensor) -> None:
        self._output += tokens if self._output else tokens[-1:]

    def propose(self, budget: int) -> Draft:
        return self._propose(list(self._output), budget)


class ScriptedRounds(RoundMethod):
    """``make`` gives the script of each decode call."""

    name = "scripted"

    def __init__(
        self,
        target: Target,
        make: Callable[[SamplingParams, Draws], Propose],
        reads: tuple[int, ...] = (),
    ) -> None:
        super().__init__(target, NoOptions())
        self._make = make
        self.reads = reads

    @classmethod
    def fixed(cls, target: Target, propose: Propose, reads: tuple[int, ...] = ()) -> ScriptedRounds:
        """A script that does not depend on the sampling parameters."""
        return cls(target, lambda sampling, draws: propose, reads)

    def session(self, sampling: SamplingParams, draws: Draws) -> ScriptedSession:
        return ScriptedSession(self._make(sampling, draws))


def knowing_chain(output: Sequence[int], vocab: int, m: int, right: Right) -> Propose:
    """Chains of ``m`` by one who has seen ``output``: its token i where ``right(i)``, else another."""

    def propose(so_far: list[int], budget: int) -> Draft:
        start = len(so_far)
        known = output[start : start + min(m, budget)]
        return Draft.chain([t if right(i) else (t + 1) % vocab for i, t in enumerate(known, start)])

    return propose


def rounds_by_hand(right: Right, m: int, max_new_tokens: int) -> list[tuple[int, int]]:
    """(drafted levels, accepted) of every round of ``knowing_chain``: each emits one token more than it
    accepts."""
    rounds, done = [], 1
    while done < max_new_tokens:
        depth = min(m, max_new_tokens - done - 1)
        accepted = 0
        while accepted < depth and right(done + accepted):
            accepted += 1
        rounds.append((depth, accepted))
        done += accepted + 1
    return rounds


def knowing_tree(
    output: Sequence[int], vocab: int, m: int, width: int, right: Right, seed: int = 0
) -> Propose:
    """Trees of ``width`` nodes a level, in random order, by one who has seen ``output``.

    Level i holds its token, behind the right node of the level before, only if all ``right`` up to
    there; the other nodes hang anywhere.
    """

    def propose(so_far: list[int], budget: int) -> Draft:
        start = len(so_far)
        rng = random.Random(seed * 1_000_003 + start)
        tokens: list[int] = []
        parents: list[int] = []
        level, track, on_track = [-1], -1, True
        for i, token in enumerate(output[start : start + min(m, budget)], start):
            wrong = [(token + 1 + rng.randrange(vocab - 1)) % vocab for _ in range(width)]
            nodes = list(dict.fromkeys((rng.choice(level), t) for t in wrong))
            on_track = on_track and right(i)
            if on_track:
                nodes = [*nodes[: width - 1], (track, token)]
                rng.shuffle(nodes)
            first = len(tokens)
            parents += [above for above, _ in nodes]
            tokens += [t for _, t in nodes]
            track = first + nodes.index((track, token)) if on_track else track
            level = list(range(first, len(tokens)))
        return Draft(tokens, parents)

    return propose


def drawn_branches(
    law_of: LawOf, vocabulary: DraftVocabulary, m: int, width: int = 1
) -> Callable[[SamplingParams, Draws], Propose]:
    """``width`` first tokens drawn without replacement, each continued as a drawn chain of ``m``."""

    def make(sampling: SamplingParams, draws: Draws) -> Propose:
        def propose(so_far: list[int], budget: int) -> Draft:
            if not min(m, budget):
                return Draft()
            first = probabilities(law_of(so_far), sampling)
            laws: list[DraftLaw] = []
            parents: list[int] = []
            for law in draw_without_replacement(first, width, vocabulary, draws):
                prefix, parent = list(so_far), -1
                for level in range(min(m, budget)):
                    if level:
                        law = DraftLaw.draw(law_of(prefix), vocabulary, sampling, draws)
                    laws.append(law)
                    parents.append(parent)
                    prefix.append(law.token)
                    parent = len(laws) - 1
            return Draft([law.token for law in laws], parents, laws)

        return propose

    return make


def best_branches(law_of: LawOf, vocabulary: DraftVocabulary, m: int, width: int) -> Propose:
    """Trees that branch into the ``width`` largest logits at the root and follow the largest below."""

    def propose(so_far: list[int], budget: int) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        for rank in range(width if budget else 0):
            prefix, parent = list(so_far), -1
            for level in range(min(m, budget)):
                order = law_of(prefix).sort(descending=True, stable=True).indices
                tokens.append(int(vocabulary.to_target(order[0 if level else rank])))
                parents.append(parent)
                prefix.append(tokens[-1])
                parent = len(tokens) - 1
        return Draft(tokens, parents)

    return propose
