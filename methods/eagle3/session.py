"""One sequence's EAGLE-3 draft cache: stable slots of true features, and a tree grown on them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from methods.drafters.attention import visible_keys, window_start
from methods.drafters.cache import LayerCache
from methods.eagle3.head import Eagle3Head

_CHUNK = 1024


class Eagle3Session:
    """Slots computed from the target's own features stay; slots of drafted tokens are dropped.

    A round: ``extend`` with the features of the tokens just verified, ``grow`` once per further
    draft level, ``drop`` (implied by the next ``extend``).
    """

    def __init__(self, head: Eagle3Head) -> None:
        self._head = head
        self._cache = LayerCache()
        self._length = 0
        self._ancestors = torch.zeros(0, 0, dtype=torch.bool)
        self._level = 0

    @property
    def length(self) -> int:
        """Stable slots, which is the position of the next one."""
        return self._length

    def rollback(self, length: int) -> None:
        """Keep the first ``length`` stable slots and no tree."""
        if not 0 <= length <= self._length:
            raise ValueError(f"cannot roll {self._length} slots back to {length}")
        self._length = length
        self.drop()

    def drop(self) -> None:
        """Forget the tree."""
        self._cache.truncate(self._length)
        self._ancestors = torch.zeros(0, 0, dtype=torch.bool)
        self._level = 0

    @torch.no_grad()
    def extend(self, features: Tensor, next_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Output [1, hidden] and draft logits [1, draft_vocab] of the last of the new stable slots.

        ``features`` [slots, 3 * target_hidden] are the target's taps at positions ``length`` on,
        ``next_ids`` [slots] the tokens that follow them.
        """
        self.drop()
        for part, ids in zip(features.split(_CHUNK), next_ids.split(_CHUNK), strict=True):
            end = self._length + part.shape[0]
            positions = torch.arange(self._length, end, device=part.device)
            window = self._head.config.window
            self._cache.start = window_start(self._length, window)
            mask = visible_keys(positions, self._cache.start, self._length, window)
            out, _ = self._head.slots(self._head.fuse(part)[None], ids[None], positions, mask, self._cache)
            self._length = end
        return out[0, -1:], self._head.logits(out[0, -1:])

    @torch.no_grad()
    def grow(self, parents: Sequence[int], parent_outputs: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs [nodes, hidden] and draft logits [nodes, draft_vocab] of the tree's next level.

        Node i carries the drafted target id ``ids[i]`` and its parent's output
        ``parent_outputs[i]`` [nodes, hidden]. ``parents[i]`` numbers the parent among all nodes
        grown since ``extend``, in order; -1 is the last stable slot.
        """
        count, old = len(parents), self._ancestors.shape[0]
        grown = torch.zeros(old + count, old + count, dtype=torch.bool)
        grown[:old, :old] = self._ancestors
        for node, parent in enumerate(parents, start=old):
            if parent >= 0:
                grown[node] = grown[parent]
            grown[node, node] = True
        self._ancestors = grown
        position = self._length + self._level
        self._level += 1
        mask = None  # a chain sees everything before it
        if self._head.config.window is not None or not grown[old:].all():
            mask = self._tree_mask(grown[old:].to(ids.device), position)
        positions = torch.full((count,), position, device=ids.device)
        out, _ = self._head.slots(parent_outputs[None], ids[None], positions, mask, self._cache)
        return out[0], self._head.logits(out[0])

    def _tree_mask(self, ancestors: Tensor, position: int) -> Tensor:
        """Bool [nodes, keys]: all stable slots in the window, then ancestors and the node itself."""
        window = self._head.config.window
        self._cache.start = window_start(min(position, self._length), window)
        stable = torch.arange(self._cache.start, self._length, device=ancestors.device)
        near = torch.ones_like(stable, dtype=torch.bool) if window is None else position - stable < window
        return torch.cat((near.expand(ancestors.shape[0], -1), ancestors), dim=1)
