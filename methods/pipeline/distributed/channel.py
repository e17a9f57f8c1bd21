"""Messages of one shape from one rank to another, through buffers that are allocated once.

On CPUs receives are posted ahead: gloo then hands a message over as soon as it is sent, without
asking first. On GPUs (NCCL) they are posted when needed, since operations between two ranks run
in the order they are posted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_DEPTH = 4
"""Messages under way at a time. A rank is never two cycles ahead of another, so it never waits here."""


class Sender:
    """The sending end: ``shape`` [rows, ...] of ``like``'s dtype and device to ``rank``."""

    def __init__(self, rank: int, tag: int, shape: Sequence[int], like: Tensor) -> None:
        self._rank, self._tag = rank, tag
        self._buffers = [like.new_zeros(*shape) for _ in range(_DEPTH)]
        self._pending: list[Any] = [None] * _DEPTH
        self._next = 0

    def send(self, rows: Tensor) -> None:
        """Send up to the shape's number of rows; returns at once."""
        slot = self._next
        if self._pending[slot] is not None:
            self._pending[slot].wait()
        buffer = self._buffers[slot]
        buffer[: rows.shape[0]].copy_(rows)
        self._pending[slot] = dist.isend(buffer, self._rank, tag=self._tag)
        self._next = (slot + 1) % _DEPTH


class Receiver:
    """The receiving end of a ``Sender``."""

    def __init__(self, rank: int, tag: int, shape: Sequence[int], like: Tensor) -> None:
        self._rank, self._tag = rank, tag
        ahead = 0 if like.is_cuda else _DEPTH - 1
        self._buffers = [like.new_zeros(*shape) for _ in range(_DEPTH)]
        self._posted: list[Any] = [None] * _DEPTH
        self._next = 0
        for slot in range(ahead):
            self._post(slot)
        self._ahead = ahead

    def receive(self) -> Tensor:
        """The next message [rows, ...], valid until the next call."""
        slot = self._next
        self._next = (slot + 1) % _DEPTH
        if not self._ahead:
            self._post(slot)
        self._posted[slot].wait()
        if self._ahead:  # the buffer handed out last is free again
            self._post((slot + self._ahead) % _DEPTH)
        return self._buffers[slot]

    def _post(self, slot: int) -> None:
        self._posted[slot] = dist.irecv(self._buffers[slot], self._rank, tag=self._tag)


class Blocks:
    """Messages of any size in both directions: a prompt's hidden states, which pass once."""

    def __init__(self, tag: int, like: Tensor) -> None:
        self._tag, self._like = tag, like
        self._sending: list[tuple[Any, Tensor]] = []

    def send(self, rank: int, block: Tensor) -> None:
        """Send ``block``, which must not change until ``flush``."""
        block = block.contiguous()
        self._sending.append((dist.isend(block, rank, tag=self._tag), block))

    def receive(self, rank: int, *shape: int) -> Tensor:
        block = self._like.new_empty(shape)
        work = dist.irecv(block, rank, tag=self._tag)
        assert work is not None
        work.wait()
        return block

    def flush(self) -> None:
        """Wait until everything sent has left."""
        for work, _ in self._sending:
            work.wait()
        self._sending.clear()


CPU = torch.empty(0)
"""What control messages are like: they stay on the CPU whatever the tensors do."""
INTEGERS = torch.empty(0, dtype=torch.int64)
