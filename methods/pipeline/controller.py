"""The schedule of a speculative pipeline as a state machine: which tokens are where, what is
verified, what is dropped, what is counted. It knows nothing of tensors or of the drafter.

One cycle, as an executor drives it::

    while not pipeline.finished:
        run every stage on its nodes: pipeline.stage_work()
        draft successors of pipeline.newest (before, beside or after the stages)
        if pipeline.expansion_due:                      # here only if n = 1
            pipeline.expand({node.id: proposals})
        if pipeline.verification_due:                   # the root has left stage n
            verdict = pipeline.commit(token, pipeline.candidate(token))
            narrow every stage's state to verdict.kept_by(stage), and make the old root final
        if pipeline.expansion_due:                      # not after a flush, not at the end
            pipeline.expand({node.id: proposals})
        pipeline.end_cycle()

A token enters stage 1 one cycle after its parent, so when the root leaves stage n its successors
are already in flight. With one stage they cannot be: there the drafter's proposals are needed
before the verification of the same cycle, which is the only difference n = 1 makes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from methods.core import Step, Transcript
from methods.errors import UsageError
from methods.pipeline.tree import DraftTree, Level, Node, Proposal


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verification committed and what it leaves in flight.

    ``root`` carries the committed ``token``: a candidate if ``accepted``, else a new node that
    enters stage 1 in the next cycle (``flushed``; not if the run ``finished``). ``levels`` are the
    nodes that were in flight, oldest first, the old root alone in the first; ``survivors`` the ids
    of those that stay in flight.
    """

    token: int
    accepted: bool
    flushed: bool
    finished: bool
    root: Node
    survivors: frozenset[int]
    levels: tuple[Level, ...]
    cycle: int

    def seen_by(self, stage: int) -> list[Node]:
        """The nodes of ``levels`` that stage 1..n has run, in the order it ran them, old root
        first. They are the newest entries of that stage's cache."""
        return [node for level in self.levels if self.cycle - level[0].entered + 1 >= stage for node in level]

    def kept_by(self, stage: int) -> list[int]:
        """Indices into ``seen_by(stage)`` of what must stay: the old root, which is now part of
        the committed prefix, and the survivors."""
        return [i for i, node in enumerate(self.seen_by(stage)) if i == 0 or node.id in self.survivors]

    @property
    def gone(self) -> list[int]:
        """Ids of what is no longer in flight, the old root among them."""
        return [node.id for level in self.levels for node in level if node.id not in self.survivors]


class PipelineController:
    """Drives ``n`` stages with drafts of width ``width`` (1 = a chain) until the transcript ends.

    ``first_token`` is the target's own from the prefill; it is added to ``transcript`` and, unless
    that ends the run, enters stage 1 in cycle 1 at position ``prompt_length``. ``target_layers``
    (layers of the largest stage) and ``draft_layers`` (what the drafter adds to the critical path
    of a cycle) only go into the trace. With ``width`` > 1 the proposals that enter are selected by
    score, so the executor must draw the target's token and pass the candidate that carries it:
    acceptance tests against a draft law would not be lossless on a selection.

    ``steps`` has one ``Step`` per cycle, whose ``drafted`` is the number of candidates at the
    verification of that cycle and ``nodes`` the number of nodes each stage ran. Counters:
    ``cycles``; ``fills``, times the pipeline was filled from a single token; ``rejections``,
    verifications that had candidates and accepted none; ``bubbles``, cycles without verification
    outside a fill, possible only for ``width`` > 1. With N decoded tokens after the first,
    ``cycles == N + (n - 1) * fills + bubbles``.

    Raises ``UsageError`` for ``n`` or ``width`` below 1, ``RuntimeError`` for calls out of order.
    """

    def __init__(
        self,
        n: int,
        prompt_length: int,
        first_token: int,
        transcript: Transcript,
        width: int = 1,
        target_layers: float = 1.0,
        draft_layers: float = 0.0,
    ) -> None:
        if n < 1:
            raise UsageError(f"the number of pipeline stages must be >= 1, got {n}")
        if width < 1:
            raise UsageError(f"the draft width must be >= 1, got {width}")
        self.n = n
        self.width = width
        self.transcript = transcript
        self.cycle = 1
        self.steps: list[Step] = []
        self.rejections = 0
        self.bubbles = 0
        self._target_layers = target_layers
        self._draft_layers = draft_layers
        self._tree = DraftTree(first_token, prompt_length, entered=self.cycle)
        transcript.extend([first_token])
        self.fills = 0 if transcript.finished else 1
        self._filling = True
        self._begin_cycle()

    @property
    def finished(self) -> bool:
        return self.transcript.finished

    @property
    def cycles(self) -> int:
        return len(self.steps)

    @property
    def flushes(self) -> int:
        """Times everything in flight was dropped and the run went on."""
        return max(0, self.fills - 1)

    @property
    def root(self) -> Node:
        """The committed token that will be verified next; nothing older is in flight."""
        return self._tree.root

    @property
    def in_flight(self) -> tuple[Level, ...]:
        """All levels, oldest first; a node's parent is in the level before its own."""
        return tuple(self._tree.levels)

    @property
    def candidates(self) -> Level:
        """The root's drafted successors, best first."""
        return self._tree.candidates

    @property
    def newest(self) -> Level:
        """The nodes that entered in this cycle and are still in flight: the drafter's input. Every
        node is in it for one cycle, its own in stage 1, so it is drafted from exactly once."""
        level = self._tree.newest
        return level if level[0].entered == self.cycle else ()

    @property
    def verification_due(self) -> bool:
        """The root has run in all stages, so the target's law for its successor is known."""
        return self.cycle - self._tree.root.entered == self.n - 1 and not self.finished

    @property
    def expansion_due(self) -> bool:
        """``expand`` is the next call this cycle needs."""
        return not (self._next_level_known or self.finished) and (self.n == 1 or not self.verification_due)

    def stage_work(self) -> tuple[Level, ...]:
        """The nodes each stage 1..n runs in this cycle, stage 1 first; empty where there is a gap.
        It does not change within a cycle."""
        return self._work

    def depth(self, node: Node) -> int:
        """Stages that ``node`` had completed before this cycle."""
        return self.cycle - node.entered

    def candidate(self, token: int) -> Node | None:
        """The candidate that carries ``token``."""
        for node in self._tree.candidates:
            if node.token == token:
                return node
        return None

    def commit(self, token: int, child: Node | None) -> Verdict:
        """Add the target's ``token`` to the output; ``child`` is the accepted candidate, if any.

        Accepted: ``child`` is the new root and what does not descend from it is dropped. Else all
        in flight is dropped and ``token`` enters stage 1 in the next cycle.
        """
        if not self.verification_due or (self.n == 1 and not self._next_level_known):
            raise RuntimeError("commit() called while no verification is due")
        tree = self._tree
        candidates, old_root = tree.candidates, tree.root
        if child is not None and (child not in candidates or child.token != token):
            raise ValueError(f"{child} is no candidate that carries token {token}")
        levels = tuple(tree.levels)
        self.transcript.extend((token,))
        if child is not None:
            tree.accept(child)
            survivors = frozenset([node.id for level in tree.levels for node in level])
            self._filling = False
        else:
            tree.reset(token, old_root.position + 1, entered=self.cycle + 1)
            survivors = frozenset()
            self._note_flush(had_candidates=bool(candidates))
        self._drafted, self._accepted, self._emitted = len(candidates), int(child is not None), 1
        return Verdict(
            token=token,
            accepted=child is not None,
            flushed=child is None and not self.finished,
            finished=self.finished,
            root=tree.root,
            survivors=survivors,
            levels=levels,
            cycle=self.cycle,
        )

    def expand(self, proposals: Mapping[int, Sequence[Proposal]]) -> None:
        """Choose the next level from ``proposals`` (node id -> proposals, for all of ``newest``).

        Proposals for nodes dropped since they were drafted are ignored. If none of the newest
        nodes survived the verification, the deepest survivors' earlier proposals, which had not
        made it into the best ``width``, enter instead: only the levels lost stay empty.
        """
        if not self.expansion_due:
            raise RuntimeError("expand() called while no expansion is due")
        for node in self.newest:
            node.proposals = proposals.get(node.id, ())
        self._tree.grow(self.width, entered=self.cycle + 1)
        self._next_level_known = True

    def end_cycle(self, phases: Mapping[str, float] | None = None) -> None:
        """Close the cycle: append its ``Step`` (with measured ``phases`` in seconds), move all levels
        one stage on."""
        if self.verification_due or self.expansion_due:
            raise RuntimeError("end_cycle() called before the cycle's verification or expansion")
        if self.finished and not self._emitted:
            raise RuntimeError("end_cycle() called after the end of the run")
        self.steps.append(
            Step(
                drafted=self._drafted,
                accepted=self._accepted,
                emitted=self._emitted,
                target_layers=self._target_layers,
                draft_layers=self._draft_layers if self._work[0] else 0.0,
                depth=int(self._drafted > 0),
                nodes=tuple(map(len, self._work)),
                phases=phases or {},
            )
        )
        if not (self._emitted or self._filling):
            self.bubbles += 1
        self.cycle += 1
        self._begin_cycle()

    def _begin_cycle(self) -> None:
        work: list[Level] = [()] * self.n
        if not self.finished:
            for level in self._tree.levels:
                work[self.cycle - level[0].entered] = level
        self._work = tuple(work)
        self._next_level_known = False
        self._drafted = self._accepted = self._emitted = 0

    def _note_flush(self, had_candidates: bool) -> None:
        self.rejections += had_candidates
        self.fills += not self.finished
        self._filling = True
        self._next_level_known = True
