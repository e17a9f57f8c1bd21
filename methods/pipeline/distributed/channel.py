"""Messages of one size from one rank to another.

Three ways: sockets for small messages between ranks of one host; gloo for everything else on
CPUs, with receives posted ahead, since gloo then hands a message over as soon as it is sent; NCCL
for tensors on GPUs, whose receives are posted when needed, because operations between two ranks
run in the order they are posted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from methods.pipeline.distributed.post import Post

_DEPTH = 4
"""Messages under way at a time. A rank is never two cycles ahead of another, so it never waits here."""


class ByteSender(Protocol):
    def send(self, data: bytes | memoryview) -> None:
        """Send; returns at once, and ``data`` may change afterwards."""


class ByteReceiver(Protocol):
    def receive(self) -> bytes | memoryview:
        """The next message, valid until the next call."""

    def ready(self) -> bool:
        """Whether a message is known to have arrived: False may be wrong, True never is."""


class _SocketEnd:
    def __init__(self, post: Post, rank: int, tag: int) -> None:
        self._post, self._rank, self._tag = post, rank, tag

    def send(self, data: bytes | memoryview) -> None:
        self._post.send(self._rank, self._tag, data)

    def receive(self) -> bytes:
        return self._post.receive(self._rank, self._tag)

    def ready(self) -> bool:
        return self._post.ready(self._rank, self._tag)


class _GlooEnd:
    """``size`` bytes a message."""

    def __init__(self, rank: int, tag: int, size: int) -> None:
        self._rank, self._tag = rank, tag
        self._buffers = [torch.zeros(size, dtype=torch.uint8) for _ in range(_DEPTH)]
        self._views = [_bytes_of(buffer) for buffer in self._buffers]
        self._works: list[Any] = [None] * _DEPTH
        self._next = 0

    def _advance(self) -> int:
        slot = self._next
        self._next = (slot + 1) % _DEPTH
        return slot


class _GlooSender(_GlooEnd):
    def send(self, data: bytes | memoryview) -> None:
        slot = self._advance()
        if self._works[slot] is not None:
            self._works[slot].wait()
        self._views[slot][: len(data)] = data
        self._works[slot] = dist.isend(self._buffers[slot], self._rank, tag=self._tag)


class _GlooReceiver(_GlooEnd):
    def __init__(self, rank: int, tag: int, size: int) -> None:
        super().__init__(rank, tag, size)
        for slot in range(_DEPTH - 1):
            self._post(slot)

    def receive(self) -> memoryview:
        slot = self._advance()
        self._works[slot].wait()
        self._post((slot - 1) % _DEPTH)  # the one handed out last is free again
        return self._views[slot]

    def ready(self) -> bool:
        return False

    def _post(self, slot: int) -> None:
        self._works[slot] = dist.irecv(self._buffers[slot], self._rank, tag=self._tag)


def byte_sender(post: Post, rank: int, tag: int, size: int) -> ByteSender:
    """The sending end of a channel for messages of up to ``size`` bytes to ``rank``."""
    return _SocketEnd(post, rank, tag) if post.carries(rank, size) else _GlooSender(rank, tag, size)


def byte_receiver(post: Post, rank: int, tag: int, size: int) -> ByteReceiver:
    return _SocketEnd(post, rank, tag) if post.carries(rank, size) else _GlooReceiver(rank, tag, size)


class TensorSender:
    """The sending end for tensors of up to ``shape`` [rows, ...], of ``like``'s dtype and device."""

    def __init__(self, post: Post, rank: int, tag: int, shape: Sequence[int], like: Tensor) -> None:
        self._rank, self._tag = rank, tag
        self._buffer = like.new_zeros(*shape)
        self._way: ByteSender | None = None
        if not like.is_cuda:
            self._view = _bytes_of(self._buffer)
            self._way = byte_sender(post, rank, tag, len(self._view))

    def send(self, rows: Tensor) -> None:
        buffer = self._buffer
        (buffer if len(rows) == len(buffer) else buffer[: len(rows)]).copy_(rows)
        if self._way is not None:
            self._way.send(self._view)
        else:  # NCCL: the stream orders this copy before the send, and the next copy after it
            work = dist.isend(self._buffer, self._rank, tag=self._tag)
            assert work is not None
            work.wait()


class TensorReceiver:
    """The receiving end of a ``TensorSender``."""

    def __init__(self, post: Post, rank: int, tag: int, shape: Sequence[int], like: Tensor) -> None:
        self._rank, self._tag = rank, tag
        self._buffer = like.new_zeros(*shape)
        self._way: ByteReceiver | None = None
        if not like.is_cuda:
            self._view = _bytes_of(self._buffer)
            self._way = byte_receiver(post, rank, tag, len(self._view))

    def receive(self) -> Tensor:
        """The next message [rows, ...], valid until the next call."""
        if self._way is not None:
            self._view[:] = self._way.receive()
        else:
            work = dist.irecv(self._buffer, self._rank, tag=self._tag)
            assert work is not None
            work.wait()
        return self._buffer


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


def _bytes_of(buffer: Tensor) -> memoryview:
    """The memory of a CPU tensor."""
    array: Any = buffer.view(torch.uint8).numpy()
    return memoryview(array).cast("B")
