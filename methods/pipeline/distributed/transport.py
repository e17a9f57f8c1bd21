"""How bytes and tensors get from one rank to another, whatever carries them.

Three carriers: sockets for small messages between ranks of one host; gloo for everything else on
CPUs, with receives posted ahead, since gloo then hands a message over as soon as it is sent; NCCL
for tensors on GPUs, whose receives are posted when needed, because operations between two ranks
run in the order they are posted.
"""

from __future__ import annotations

import socket
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

LARGEST = 1 << 15
"""Bytes a socket carries: two such messages fit into any socket's buffer, so a send never waits for its
reader."""
_HEADER = 8
_SPARE_FILES = 256
"""What a process needs beside its ends of the connections, while it starts the others."""
_DEPTH = 4
"""Messages under way at a time. A rank is never two cycles ahead of another, so it never waits here."""

Sockets = Mapping[int, socket.socket]
"""Peer rank -> this rank's end of the connection."""


class ByteSender(Protocol):
    def send(self, data: bytes | memoryview) -> None:
        """Send; returns at once, and ``data`` may change afterwards."""


class ByteReceiver(Protocol):
    def receive(self) -> bytes | memoryview:
        """The next message, valid until the next call."""

    def ready(self) -> bool:
        """Whether a message is known to have arrived: False may be wrong, True never is."""


class Transport:
    """One rank's ways to the others: over ``sockets`` where they lead and the message fits, else over
    torch.distributed.

    gloo costs a small message two more notes and two more threads: at a few milliseconds a cycle and
    dozens of messages, more processor time than two cores have. On a socket, messages carry a tag;
    each tag is a queue of its own.
    """

    def __init__(self, sockets: Sockets) -> None:
        self._sockets = sockets
        self._header, self._body = bytearray(_HEADER), bytearray(LARGEST)
        self._arrived: dict[tuple[int, int], deque[bytes]] = defaultdict(deque)

    def sender(self, rank: int, tag: int, size: int) -> ByteSender:
        """The sending end of a channel for messages of up to ``size`` bytes to ``rank``."""
        return _SocketEnd(self, rank, tag) if self._carries(rank, size) else _GlooSender(rank, tag, size)

    def receiver(self, rank: int, tag: int, size: int) -> ByteReceiver:
        return _SocketEnd(self, rank, tag) if self._carries(rank, size) else _GlooReceiver(rank, tag, size)

    def _carries(self, rank: int, size: int) -> bool:
        return rank in self._sockets and size <= LARGEST

    def send(self, rank: int, tag: int, data: bytes | memoryview) -> None:
        """Over the socket to ``rank``."""
        self._sockets[rank].sendmsg([tag.to_bytes(_HEADER, "little"), data])

    def receive(self, rank: int, tag: int) -> bytes:
        """The next message with ``tag`` on the socket from ``rank``. Raises ``ConnectionError`` if the
        other rank is gone."""
        waiting = self._arrived[rank, tag]
        while not waiting:
            self._take(rank)
        return waiting.popleft()

    def ready(self, rank: int, tag: int) -> bool:
        """Whether a message with ``tag`` has arrived on the socket from ``rank``."""
        waiting = self._arrived[rank, tag]
        try:
            while not waiting:
                self._take(rank, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        return True

    def _take(self, rank: int, flags: int = 0) -> None:
        size = self._sockets[rank].recvmsg_into([self._header, self._body], 0, flags)[0]
        if size < _HEADER:
            raise ConnectionError(f"rank {rank} closed its connection")
        found = int.from_bytes(self._header, "little")
        self._arrived[rank, found].append(bytes(self._body[: size - _HEADER]))


class _SocketEnd:
    def __init__(self, transport: Transport, rank: int, tag: int) -> None:
        self._transport, self._rank, self._tag = transport, rank, tag

    def send(self, data: bytes | memoryview) -> None:
        self._transport.send(self._rank, self._tag, data)

    def receive(self) -> bytes:
        return self._transport.receive(self._rank, self._tag)

    def ready(self) -> bool:
        return self._transport.ready(self._rank, self._tag)


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


class TensorSender:
    """The sending end for tensors of up to ``shape`` [rows, ...], of ``like``'s dtype and device."""

    def __init__(self, transport: Transport, rank: int, tag: int, shape: Sequence[int], like: Tensor) -> None:
        self._rank, self._tag = rank, tag
        self._buffer = like.new_zeros(*shape)
        self._carrier: ByteSender | None = None
        if not like.is_cuda:
            self._view = _bytes_of(self._buffer)
            self._carrier = transport.sender(rank, tag, len(self._view))

    def send(self, rows: Tensor) -> None:
        buffer = self._buffer
        (buffer if len(rows) == len(buffer) else buffer[: len(rows)]).copy_(rows)
        if self._carrier is not None:
            self._carrier.send(self._view)
        else:  # NCCL: the stream orders this copy before the send, and the next copy after it
            _wait(dist.isend(self._buffer, self._rank, tag=self._tag))


class TensorReceiver:
    """The receiving end of a ``TensorSender``."""

    def __init__(self, transport: Transport, rank: int, tag: int, shape: Sequence[int], like: Tensor) -> None:
        self._rank, self._tag = rank, tag
        self._buffer = like.new_zeros(*shape)
        self._carrier: ByteReceiver | None = None
        if not like.is_cuda:
            self._view = _bytes_of(self._buffer)
            self._carrier = transport.receiver(rank, tag, len(self._view))

    def receive(self) -> Tensor:
        """The next message [rows, ...], valid until the next call."""
        if self._carrier is not None:
            self._view[:] = self._carrier.receive()
        else:
            _wait(dist.irecv(self._buffer, self._rank, tag=self._tag))
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
        _wait(dist.irecv(block, rank, tag=self._tag))
        return block

    def flush(self) -> None:
        """Wait until everything sent has left."""
        for work, _ in self._sending:
            work.wait()
        self._sending.clear()


def _wait(work: dist.Work | None) -> None:
    assert work is not None
    work.wait()


def _bytes_of(buffer: Tensor) -> memoryview:
    """The memory of a CPU tensor."""
    array: Any = buffer.view(torch.uint8).numpy()
    return memoryview(array).cast("B")


def socket_mesh(world: int) -> list[dict[int, socket.socket]]:
    """A connection between every two of ``world`` ranks; empty where the system has no such sockets or
    does not allow a process that many files."""
    ends: list[dict[int, socket.socket]] = [{} for _ in range(world)]
    if not hasattr(socket, "AF_UNIX") or not hasattr(socket, "SOCK_SEQPACKET"):
        return ends
    if world * (world - 1) + _SPARE_FILES > _files_allowed():
        return ends
    for a in range(world):
        for b in range(a + 1, world):
            try:
                ends[a][b], ends[b][a] = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            except OSError:  # a system that knows the name but not the thing
                return [{} for _ in range(world)]
    return ends


def _files_allowed() -> float:
    """Files this process may have open. The module is not there on Windows, nor are such sockets."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return float("inf") if soft == resource.RLIM_INFINITY else soft
