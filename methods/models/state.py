"""What a run of layers remembers of a sequence, with rollback exact for every layer kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from methods.models.block import Block, causal
from methods.models.rotary import Rotary, signed


class LayerCache(ABC):
    """The memory of one layer. Slots are numbered from 0; ``State`` owns their count."""

    @abstractmethod
    def reserve(self, capacity: int) -> None:
        """Make room for ``capacity`` slots, keeping what is stored."""

    @abstractmethod
    def truncate(self, length: int) -> None:
        """Forget slots from ``length`` on."""

    @abstractmethod
    def gather(self, base: int, slots: Sequence[int]) -> None:
        """Keep slots below ``base`` and the listed later ones, moved down in their order."""

    @abstractmethod
    def commit(self, length: int) -> None:
        """Promise that no rollback goes below ``length``."""

    @abstractmethod
    def contents(self, length: int) -> list[Tensor]:
        """Everything a later token can depend on, for comparison with a fresh prefill."""


class AttentionCache(LayerCache):
    """Keys and values [batch, kv_heads, capacity, head_dim] of one attention layer."""

    def __init__(self, batch: int, kv_heads: int, head_dim: int, like: Tensor) -> None:
        shape = (batch, kv_heads, 0, head_dim)
        self.keys = torch.empty(shape, dtype=like.dtype, device=like.device)
        self.values = torch.empty_like(self.keys)

    def write(self, start: int, keys: Tensor, values: Tensor) -> None:
        """Store [batch, count, kv_heads, head_dim] in the slots from ``start`` on."""
        self.keys.narrow(2, start, keys.shape[1]).copy_(keys.transpose(1, 2))
        self.values.narrow(2, start, values.shape[1]).copy_(values.transpose(1, 2))

    def reserve(self, capacity: int) -> None:
        self.keys = _grown(self.keys, capacity)
        self.values = _grown(self.values, capacity)

    def truncate(self, length: int) -> None:
        pass  # slots beyond the state's length are never read

    def gather(self, base: int, slots: Sequence[int]) -> None:
        index = torch.as_tensor(slots, device=self.keys.device)
        for tensor in (self.keys, self.values):
            tensor[:, :, base : base + len(slots)] = tensor[:, :, index]

    def commit(self, length: int) -> None:
        pass

    def contents(self, length: int) -> list[Tensor]:
        return [self.keys[:, :, :length], self.values[:, :, :length]]


class RecurrentCache(LayerCache):
    """States after single slots of a layer that folds its past into a fixed-size state.

    A mask cannot take a token out of such a state, so the state after every slot that may still
    be rolled back to is kept, beginning with the last committed one.
    """

    def __init__(self) -> None:
        self.states: dict[int, tuple[Tensor, ...]] = {}

    def after(self, slot: int) -> tuple[Tensor, ...] | None:
        """The state after ``slot``; None before the first token."""
        if slot < 0:
            return None
        return self.states[slot]

    def store(self, slot: int, state: tuple[Tensor, ...]) -> None:
        self.states[slot] = state

    def reserve(self, capacity: int) -> None:
        pass

    def truncate(self, length: int) -> None:
        for slot in [slot for slot in self.states if slot >= length]:
            del self.states[slot]

    def gather(self, base: int, slots: Sequence[int]) -> None:
        kept = {base + i: self.states[slot] for i, slot in enumerate(slots)}
        self.truncate(base)
        self.states.update(kept)

    def commit(self, length: int) -> None:
        for slot in [slot for slot in self.states if slot < length - 1]:
            del self.states[slot]

    def contents(self, length: int) -> list[Tensor]:
        return [] if length == 0 else list(self.states[length - 1])


class State:
    """The memory of consecutive layers that advance together.

    Slots below ``committed`` are one chain that every new token sees; slots from there on may
    form a tree (``parents``) and can be rolled back to, or narrowed to one path. ``pad`` gives the
    number of left-padding slots of each row of a batch.
    """

    def __init__(
        self, caches: list[LayerCache], rotary: Rotary, like: Tensor, pad: Tensor | None = None
    ) -> None:
        self.caches = caches
        self.length = 0
        self.committed = 0
        self.capacity = 0
        self._rotary = rotary
        self._device = like.device
        self._pad = pad
        self._paths: list[tuple[int, ...]] | None = None
        """For slots >= committed, their ancestors from ``committed`` on, themselves last; None: a chain."""

    def mark(self) -> int:
        """A point to roll back to."""
        return self.length

    def rollback(self, mark: int) -> None:
        """Forget every slot from ``mark`` on. Raises ValueError below what was committed."""
        if not self.committed <= mark <= self.length:
            raise ValueError(
                f"cannot roll back to {mark}: of the {self.length} tokens of this state the first "
                f"{self.committed} are final; tokens that may go run with forward(..., record=True)"
            )
        if mark == self.length:
            return
        for cache in self.caches:
            cache.truncate(mark)
        if self._paths is not None:
            self._paths = self._paths[: mark - self.committed] or None
        self.length = mark

    def keep(self, slots: Sequence[int]) -> None:
        """Narrow the slots from ``committed`` on to ``slots`` (ascending, parents among them)."""
        base = self.committed
        if list(slots) == list(range(base, base + len(slots))):
            self.rollback(base + len(slots))
            return
        for cache in self.caches:
            cache.gather(base, slots)
        if self._paths is not None:
            moved = {slot: base + i for i, slot in enumerate(slots)}
            self._paths = [tuple(moved[s] for s in self._paths[slot - base]) for slot in slots]
        self.length = base + len(slots)

    def commit(self, length: int | None = None) -> None:
        """Make slots below ``length`` (default: all) final. They must be one chain."""
        length = self.length if length is None else length
        if length <= self.committed:
            return
        for cache in self.caches:
            cache.commit(length)
        if self._paths is not None:
            rest = self._paths[length - self.committed :]
            self._paths = [tuple(s for s in path if s >= length) for path in rest] or None
        self.committed = length

    def block(self, count: int, parents: Sequence[int] | None, record: bool) -> Block:
        """Describe ``count`` new slots and make room for them.

        ``parents`` gives each new slot's parent slot; None continues the chain. ``record=False``
        is for tokens that are already final.
        """
        start, end = self.length, self.length + count
        self._reserve(end)
        if parents is not None or self._paths is not None:
            return self._tree_block(start, parents or list(range(start - 1, end - 1)), record)
        chain = list(range(start - 1, end - 1))
        if self._pad is not None:
            return self._padded_block(start, count, chain)
        cos, sin = self._rotary.rows(start, count)
        return Block(
            start, count, cos[None, :, None], signed(sin)[None, :, None],
            causal(start, count, self._device), chain, record,
        )  # fmt: skip

    def advance(self, block: Block) -> None:
        """Count the block's slots as filled, once all layers have run."""
        self.length = block.end
        if not block.record:
            self.commit()

    def _reserve(self, length: int) -> None:
        if length <= self.capacity:
            return
        self.capacity = max(256, length, 2 * self.capacity)
        for cache in self.caches:
            cache.reserve(self.capacity)

    def _tree_block(self, start: int, parents: Sequence[int], record: bool) -> Block:
        base, count = self.committed, len(parents)
        if self._paths is None:
            self._paths = [tuple(range(base, slot + 1)) for slot in range(base, start)]
        for slot, parent in enumerate(parents, start):
            above = self._paths[parent - base] if parent >= base else ()
            self._paths.append((*above, slot))
        end = start + count
        visible = torch.zeros(1, count, end, dtype=torch.bool)
        visible[:, :, :base] = True
        for row, path in enumerate(self._paths[start - base :]):
            visible[0, row, list(path)] = True
        positions = torch.arange(end)
        positions[base:] = torch.tensor([base + len(path) - 1 for path in self._paths])
        positions = positions.to(self._device)
        cos, sin = self._rotary.at(positions[start:])
        return Block(
            start, count, cos[None, :, None], signed(sin)[None, :, None], visible.to(self._device),
            list(parents), record, positions[start:], positions,
        )  # fmt: skip

    def _padded_block(self, start: int, count: int, parents: list[int]) -> Block:
        assert self._pad is not None
        slots = torch.arange(start + count, device=self._device)
        pad = self._pad[:, None]
        real = slots >= pad  # [batch, end]
        positions = (slots - pad).clamp(min=0)
        cos, sin = self._rotary.at(positions[:, start:])
        own = slots == slots[start:, None]
        # A padding row sees itself: a softmax over nothing would be NaN and NaN survives a zero weight.
        visible = (slots <= slots[start:, None]) & real[:, None] | own
        return Block(
            start, count, cos[:, :, None], signed(sin)[:, :, None], visible, parents, False,
            positions[:, start:], positions[:, None], real[:, start:, None],
        )  # fmt: skip


def _grown(tensor: Tensor, capacity: int) -> Tensor:
    shape = (*tensor.shape[:2], capacity, tensor.shape[3])
    # Zeros, not empty memory: a masked slot still enters a weighted sum, and 0 * NaN is NaN.
    grown = torch.zeros(shape, dtype=tensor.dtype, device=tensor.device)
    grown[:, :, : tensor.shape[2]] = tensor
    return grown
