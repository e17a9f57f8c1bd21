"""The draft tree in flight: one committed root and, behind it, levels of at most W draft nodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

MIN_LOGPROB = -1e3
"""Floor of a proposal's log probability: descendants of a token with q = 0 still have an order."""


class Proposal(NamedTuple):
    """A token the drafter offers as successor of a node.

    ``record`` is handed on untouched in ``Node.record``, e.g. the law the token was drawn from.
    """

    token: int
    logprob: float
    record: Any = None


@dataclass(slots=True, eq=False)
class Node:
    """A token in flight.

    ``position`` is absolute (0 = first prompt token), ``entered`` the cycle in which it runs in
    stage 1. ``score`` is its cumulative log draft probability; subtracting the root's gives it
    relative to the root, and since all nodes share a root it never needs re-basing to compare.
    ``parent`` is None for the root. ``proposals`` are the successors the drafter offered when the
    node was the newest.
    """

    id: int
    token: int
    position: int
    entered: int
    score: float = 0.0
    parent: Node | None = field(default=None, repr=False)
    record: Any = field(default=None, repr=False)
    proposals: Sequence[Proposal] = field(default=(), repr=False)

    def path(self) -> tuple[Node, ...]:
        """The nodes in flight from the root to this one, both included: what it attends to
        beside the committed prefix."""
        nodes = [self]
        while (parent := nodes[-1].parent) is not None:
            nodes.append(parent)
        return tuple(reversed(nodes))


Level = tuple[Node, ...]


class DraftTree:
    """Levels oldest first; every node's parent is in the level before its own, no level is empty."""

    def __init__(self, token: int, position: int, entered: int) -> None:
        self._next_id = 0
        self.levels: deque[Level] = deque()
        self.reset(token, position, entered)

    @property
    def root(self) -> Node:
        return self.levels[0][0]

    @property
    def candidates(self) -> Level:
        """The root's children."""
        return self.levels[1] if len(self.levels) > 1 else ()

    @property
    def newest(self) -> Level:
        return self.levels[-1]

    def reset(self, token: int, position: int, entered: int) -> None:
        """Drop every node and start again from a committed token."""
        self.levels.clear()
        self.levels.append((Node(self._new_id(), token, position, entered),))

    def accept(self, child: Node) -> None:
        """Make ``child`` the root: the old root leaves, and with it all that is not behind ``child``."""
        self.levels.popleft()
        if len(self.levels[0]) > 1:
            self._prune(child)
        child.parent = None  # an unbroken chain would keep every token of the run alive

    def grow(self, width: int, entered: int) -> None:
        """Add the best ``width`` proposals of the newest level's nodes as the next level.

        Best by score; ties go to the earlier parent, then to the earlier proposal. Of equal
        tokens under one parent the first counts. Nothing proposed, nothing added.
        """
        offers = [offer for parent in self.newest for offer in _offers(parent)]
        # The sort is stable: equal scores stay in order of parent, then of proposal.
        offers.sort(key=lambda offer: offer[0], reverse=True)
        level = tuple(
            Node(self._new_id(), p.token, parent.position + 1, entered, score, parent, p.record)
            for score, parent, p in offers[:width]
        )
        if level:
            self.levels.append(level)

    def _prune(self, child: Node) -> None:
        alive = {child}
        kept: list[Level] = [(child,)]
        for level in list(self.levels)[1:]:
            survivors = tuple(node for node in level if node.parent in alive)
            if not survivors:
                break
            kept.append(survivors)
            alive = set(survivors)
        self.levels = deque(kept)

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1


def _offers(parent: Node) -> list[tuple[float, Node, Proposal]]:
    first_of_token: dict[int, Proposal] = {}
    for proposal in parent.proposals:
        first_of_token.setdefault(proposal.token, proposal)
    return [(parent.score + max(p.logprob, MIN_LOGPROB), parent, p) for p in first_of_token.values()]
