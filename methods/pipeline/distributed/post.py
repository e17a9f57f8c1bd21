"""Small messages between ranks of one host, over Unix sockets.

torch.distributed's gloo costs a small message two more notes and two more threads: at a few
milliseconds a cycle and dozens of messages, more processor time than two cores have.
"""

from __future__ import annotations

import socket
from collections import defaultdict, deque
from collections.abc import Mapping

LARGEST = 1 << 15
"""Bytes: two such messages fit into any socket's buffer, so a send never waits for its reader."""
_HEADER = 8

_SPARE_FILES = 256
"""What a process needs beside its ends of the connections, while it starts the others."""

Sockets = Mapping[int, socket.socket]
"""Peer rank -> this rank's end of the connection."""


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


class Post:
    """One rank's connections. Messages carry a tag; each tag is a queue of its own."""

    def __init__(self, sockets: Sockets) -> None:
        self._sockets = sockets
        self._header, self._body = bytearray(_HEADER), bytearray(LARGEST)
        self._arrived: dict[tuple[int, int], deque[bytes]] = defaultdict(deque)

    def carries(self, rank: int, size: int) -> bool:
        """Whether messages of ``size`` bytes to or from ``rank`` can go this way."""
        return rank in self._sockets and size <= LARGEST

    def send(self, rank: int, tag: int, data: bytes | memoryview) -> None:
        self._sockets[rank].sendmsg([tag.to_bytes(_HEADER, "little"), data])

    def receive(self, rank: int, tag: int) -> bytes:
        """The next message with ``tag``. Raises ``ConnectionError`` if the other rank is gone."""
        waiting = self._arrived[rank, tag]
        while not waiting:
            self._take(rank)
        return waiting.popleft()

    def ready(self, rank: int, tag: int) -> bool:
        """Whether a message with ``tag`` has arrived."""
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
