"""One forward call over consecutive cache slots: who sees whom, at which position."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(slots=True)
class Block:
    """``count`` new slots from ``start`` on, shared by all layers of the call.

    ``cos`` and (``signed``) ``sin`` are [1 or batch, count, 1, rotary_dim]. ``visible`` is a bool mask
    [1 or batch, count, start + count], or None when every slot is visible to the only new one.
    ``parents`` holds the parent slot of each new slot (-1: none); ``record`` keeps the recurrent
    state after every slot, so that the block can be rolled back into. ``real`` [batch, count, 1]
    is 0 at left padding, or None. ``positions`` [count or batch, count] are those of the new slots
    and ``slot_positions`` of all, None where they are the slots' own numbers.
    """

    start: int
    count: int
    cos: Tensor
    sin: Tensor
    visible: Tensor | None
    parents: list[int]
    record: bool
    positions: Tensor | None = None
    slot_positions: Tensor | None = None
    real: Tensor | None = None
    _folded: dict[tuple[int, int | None], Tensor | None] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.start + self.count

    def mask(self, groups: int, window: int | None) -> Tensor | None:
        """The attention mask for query heads folded into rows, [1 or batch, 1, groups * count, end].

        ``window`` restricts it to the last ``window`` positions of a sliding-window layer.
        """
        key = (groups, window)
        if key not in self._folded:
            self._folded[key] = self._fold(groups, window)
        return self._folded[key]

    def levels(self) -> list[list[int]]:
        """New slots (as offsets into the block) grouped by depth: parents before children."""
        depth: list[int] = []
        for parent in self.parents:
            depth.append(0 if parent < self.start else depth[parent - self.start] + 1)
        groups: list[list[int]] = [[] for _ in range(max(depth, default=-1) + 1)]
        for offset, level in enumerate(depth):
            groups[level].append(offset)
        return groups

    def _fold(self, groups: int, window: int | None) -> Tensor | None:
        visible = self.visible
        if window is not None and self.end > window:
            positions, every = self.positions, self.slot_positions
            if positions is None or every is None:
                every = torch.arange(self.end, device=self.cos.device)
                positions = every[self.start :]
            near = every > (positions[..., None] - window)
            near = near.view(-1, self.count, self.end)
            visible = near if visible is None else visible & near
        if visible is None:
            return None
        return visible.repeat(1, groups, 1)[:, None]


def causal(start: int, count: int, device: torch.device) -> Tensor | None:
    """Visibility [1, count, start + count] of a chain of new slots behind ``start`` old ones."""
    if count == 1:
        return None
    return torch.ones(1, count, start + count, dtype=torch.bool, device=device).tril(start)
