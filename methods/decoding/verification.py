"""Accept rules: which drafted tokens become output, so that the output follows the target's law."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from methods.core import SamplingParams
from methods.decoding.sampling import Draws, pick, probabilities, target_token
from methods.drafters.vocabulary import DraftVocabulary
from methods.errors import UsageError

ProposalRule = Literal["sampled", "point-mass"]
"""sampled: the draft token is drawn from the draft law q and accepted with min(1, p/q).
point-mass: the draft token is q's largest and accepted iff the target's own draw equals it."""


MAX_WIDTH = 256
"""Nodes of a draft level: a beam looks at the square of it, and no target gains from more."""


def proposal_rule(asked: str | None, width: int) -> ProposalRule:
    """The rule a method runs under: as asked, else "sampled" for a chain and "point-mass" for a tree.

    Raises ``UsageError`` for an unknown rule, and for a width that no draft has.
    """
    if not 1 <= width <= MAX_WIDTH:
        raise UsageError(f"width must be 1 to {MAX_WIDTH}, got {width}")
    if asked is None:
        return "sampled" if width == 1 else "point-mass"
    for rule in get_args(ProposalRule):
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
    def draw(
        cls, logits: Tensor, vocabulary: DraftVocabulary, sampling: SamplingParams, draws: Draws
    ) -> DraftLaw:
        """Draw from draft ``logits`` [size], warped exactly as the target's are."""
        return cls.of(probabilities(logits, sampling), vocabulary, draws)

    @classmethod
    def of(cls, probs: Tensor, vocabulary: DraftVocabulary, draws: Draws) -> DraftLaw:
        """Draw from ``probs`` [size]."""
        return cls(probs, vocabulary, pick(probs, draws.draft()))

    @property
    def token(self) -> int:
        """The target id that was drawn."""
        return int(self.vocabulary.ids[self.index])


def draw_without_replacement(
    probs: Tensor, count: int, vocabulary: DraftVocabulary, draws: Draws
) -> list[DraftLaw]:
    """Up to ``count`` distinct tokens from ``probs`` [size], each with the law it was drawn from:
    the first's without the tokens before it. Fewer where the law has fewer tokens."""
    laws = [DraftLaw.of(probs, vocabulary, draws)]
    while len(laws) < count:
        rest = laws[-1].probs.clone()
        rest[laws[-1].index] = 0
        mass = float(rest.sum())
        if mass <= 0:
            break
        laws.append(DraftLaw.of(rest / mass, vocabulary, draws))
    return laws


def accept_drawn(p: Tensor, law: DraftLaw, draws: Draws) -> tuple[bool, int]:
    """Leviathan et al. 2023, Algorithm 1, for one token: (accepted, the token to emit)."""
    chosen, token = accept_one_of(p, [law], draws)
    return chosen is not None, token


def accept_one_of(p: Tensor, laws: Sequence[DraftLaw], draws: Draws) -> tuple[int | None, int]:
    """Recursive rejection over candidates: (index of the accepted one or None, the token to emit).

    ``p`` [vocab] is the target's law; candidate i was drawn from ``laws[i]``, whose law may depend
    on the candidates before it (drawing without replacement). Each is kept with probability
    min(1, p/q); after a rejection p becomes the normalised positive part of p - q. The emitted
    token follows the original p exactly (Leviathan et al. 2023; Miao et al. 2024, SpecInfer).
    """
    for i, law in enumerate(laws):
        if draws.acceptance() * float(law.probs[law.index]) < float(p[law.token]):
            return i, law.token
        residual = (p - law.vocabulary.scatter(law.probs)).clamp(min=0)
        mass = float(residual.sum())
        # p == q up to rounding: a rejection then has probability ~0 and any draw from p is right.
        p = residual / mass if mass > 0 else p
    return None, pick(p, draws.acceptance())


@dataclass(frozen=True)
class Draft:
    """Tokens proposed behind the last output token (the root), as a tree.

    ``parents[i]`` < i is the draft node before node i, -1 the root. ``laws`` are those the tokens
    were drawn from, for the "sampled" rule. ``layers`` is what drafting cost in sequence, in units
    of one target layer.
    """

    tokens: Sequence[int] = ()
    parents: Sequence[int] = ()
    laws: Sequence[DraftLaw] | None = None
    layers: float = 0.0

    def __post_init__(self) -> None:
        if len(self.parents) != len(self.tokens) or (
            self.laws is not None and len(self.laws) != len(self.tokens)
        ):
            raise ValueError("a draft needs one parent, and one law if it has laws, for every token")
        if not all(-1 <= parent < i for i, parent in enumerate(self.parents)):
            raise ValueError(f"draft parents {list(self.parents)} do not come before their children")

    @classmethod
    def chain(
        cls, tokens: Sequence[int], laws: Sequence[DraftLaw] | None = None, layers: float = 0.0
    ) -> Draft:
        """``tokens`` one behind the other."""
        return cls(tokens, range(-1, len(tokens) - 1), laws, layers)

    @property
    def is_chain(self) -> bool:
        """Whether each token follows the one before it; true of an empty draft."""
        return all(parent == i - 1 for i, parent in enumerate(self.parents))

    def children(self) -> list[list[int]]:
        """Draft nodes behind each node, the root's first: entry i + 1 is for node i."""
        behind: list[list[int]] = [[] for _ in range(len(self.tokens) + 1)]
        for node, parent in enumerate(self.parents):
            behind[parent + 1].append(node)
        return behind


@dataclass(frozen=True, slots=True)
class Verified:
    """``path``: accepted draft nodes, root side first. ``token``: the target's own token after them.
    ``depth``: draft positions decided on, the rejected one included."""

    path: list[int]
    token: int
    depth: int


def verify(draft: Draft, logits: Tensor, sampling: SamplingParams, draws: Draws, index: int) -> Verified:
    """Walk a draft with the target's ``logits`` [1 + nodes, vocab], row 0 the root's.

    At each node the target's token is drawn once and the child that carries it, if any, is
    descended to: exact for every tree, greedy or sampled, whatever proposed it. A draft with
    ``laws`` is tested against them instead, candidate by candidate. ``index`` is the output
    position of the token after the root.
    """
    children = draft.children()
    laws = None if sampling.greedy else draft.laws
    best = logits.argmax(-1).tolist() if sampling.greedy else None
    node = -1
    path: list[int] = []
    while True:
        row, below = node + 1, children[node + 1]
        child: int | None
        if laws is not None and below:
            p = probabilities(logits[row], sampling)
            chosen, token = accept_one_of(p, [laws[i] for i in below], draws)
            child = None if chosen is None else below[chosen]
        else:
            # All argmaxes cross to the host at once; sampled rows only as far as the walk gets.
            token = (
                best[row]
                if best is not None
                else target_token(logits[row], sampling, draws, index + len(path))
            )
            child = next((i for i in below if draft.tokens[i] == token), None)
        if child is None:
            return Verified(path, token, len(path) + bool(below))
        path.append(child)
        node = child


def follow(draft: Draft, truth: Sequence[int]) -> Verified:
    """Walk a draft with the target's tokens behind the root, as far as they are known, instead of
    its laws: right for greedy decoding and for point-mass proposals. ``token`` is -1 where the path
    reaches the end of ``truth``."""
    children = draft.children()
    node = -1
    path: list[int] = []
    for token in truth:
        child = next((i for i in children[node + 1] if draft.tokens[i] == token), None)
        if child is None:
            return Verified(path, token, len(path) + bool(children[node + 1]))
        path.append(child)
        node = child
    return Verified(path, -1, len(path))
