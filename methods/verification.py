"""Accept rules: which drafted tokens become output, so that the output follows the target's law."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from methods.drafting.vocabulary import DraftVocabulary
from methods.errors import UsageError
from methods.interface import SamplingParams
from methods.sampling import Draws, pick, probabilities

ProposalRule = Literal["sampled", "point-mass"]
"""sampled: the draft token is drawn from the draft law q and accepted with min(1, p/q).
point-mass: the draft token is q's largest and accepted iff the target's own draw equals it."""


def proposal_rule(asked: str | None, width: int) -> ProposalRule:
    """The rule a method runs under: as asked, else "sampled" for a chain and "point-mass" for a tree.

    A tree's branches are selected by score, so no acceptance test against q would be exact there;
    asking for it is a ``UsageError``.
    """
    if asked is None:
        return "sampled" if width == 1 else "point-mass"
    for rule in get_args(ProposalRule):
        if asked == rule == "sampled" and width > 1:
            raise UsageError("proposal 'sampled' needs width 1: a draft tree is verified by 'point-mass'")
        if asked == rule:
            return rule
    raise UsageError(f"unknown proposal rule {asked!r}; allowed: {', '.join(get_args(ProposalRule))}")


@dataclass(frozen=True, slots=True)
class DraftLaw:
    """The law q a draft token was drawn from: ``probs`` [size] over ``vocabulary``."""

    probs: Tensor
    vocabulary: DraftVocabulary
    index: int
    """The draft id that was drawn."""

    @classmethod
    def draw(cls, logits: Tensor, vocabulary: DraftVocabulary, sampling: SamplingParams, draws: Draws) -> DraftLaw:
        """Draw from draft ``logits`` [size], warped exactly as the target's are."""
        probs = probabilities(logits, sampling)
        return cls(probs, vocabulary, pick(probs, draws.fresh()))

    @property
    def token(self) -> int:
        """The target id that was drawn."""
        return int(self.vocabulary.ids[self.index])


def accept_drawn(p: Tensor, law: DraftLaw, draws: Draws) -> tuple[bool, int]:
    """Leviathan et al. 2023, Algorithm 1, for one token: (accepted, the token to emit).

    ``p`` [vocab] is the target's law. The drawn token is kept with probability min(1, p/q);
    otherwise the output is drawn from the normalised positive part of p - q.
    """
    token = law.token
    if draws.fresh() * float(law.probs[law.index]) < float(p[token]):
        return True, token
    residual = (p - law.vocabulary.scatter(law.probs)).clamp(min=0)
    # p == q up to rounding: a rejection then has probability ~0 and any draw from p is right.
    return False, pick(residual if float(residual.sum()) > 0 else p, draws.fresh())
