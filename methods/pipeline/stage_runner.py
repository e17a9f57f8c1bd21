"""One pipeline stage along one sequence: its layers, their state, and the taps a drafter reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from methods.models.target import Target
from methods.pipeline.tree import Level, Node


class StageRunner:
    """One stage with its state and, for trees, the nodes behind the committed prefix."""

    def __init__(self, target: Target, first: int, last: int, reads: Sequence[int]) -> None:
        self._stage = target.stage(first, last)
        self.state = self._stage.new_state()
        self._taps = {tap: row for row, tap in enumerate(reads) if first < tap <= last}
        self._slots: dict[int, int] = {}
        """Node id -> slot, kept for draft trees only."""

    def prefill(self, hidden: Tensor) -> tuple[Tensor, Mapping[int, Tensor]]:
        """Prompt tokens [1, count, hidden] -> the stage's output, and taps by row of ``reads``."""
        hidden, tapped = self._stage.forward(hidden, self.state, taps=self._taps)
        return hidden, {self._taps[tap]: value for tap, value in tapped.items()}

    def run(self, level: Level, hidden: Tensor, tree: bool) -> tuple[Tensor, Mapping[int, Tensor]]:
        """Advance the level's nodes [1, nodes, hidden] by one stage; returns as ``prefill`` does."""
        parents = None
        if tree:
            prefix = self.state.committed - 1
            parents = [prefix if n.parent is None else self._slots[n.parent.id] for n in level]
            self._slots.update({node.id: self.state.length + i for i, node in enumerate(level)})
        hidden, tapped = self._stage.forward(hidden, self.state, parents, record=True, taps=self._taps)
        return hidden, {self._taps[tap]: value for tap, value in tapped.items()}

    def finish(self) -> None:
        """Called before the outputs of ``run`` are used. Nothing to wait for: a CPU is done when
        ``run`` returns, and a GPU's stream keeps the order."""

    def settle(self, seen: list[Node], kept: list[int], tree: bool) -> None:
        """Keep the ``kept`` of the newest slots (indices into ``seen``); the first is now final."""
        base = self.state.committed
        if len(kept) < len(seen):
            self.state.keep([base + i for i in kept])
        self.state.commit(base + 1)
        if tree:
            self._slots = {seen[i].id: base + slot for slot, i in enumerate(kept)}
