"""The small messages of a cycle as bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from methods.pipeline.tree import Level, Node, Proposal

Offers = dict[int, list[Proposal]]
"""Node id -> what the drafter proposes behind it."""

_OFFER = struct.Struct("<qd")  # token, log probability
_VERDICT = struct.Struct("<qq")  # token, index of the accepted candidate (-1: none)
VERDICT_BYTES = _VERDICT.size


def offers_bytes(width: int, draft_vocab: int) -> int:
    """Size of the largest message of proposals: a level of ``width`` nodes with ``width`` each."""
    return width * min(width, draft_vocab) * _OFFER.size


def pack_offers(rows: Sequence[Sequence[Proposal]]) -> bytes:
    """Every node has the same number of proposals, which both ends know."""
    return b"".join(_OFFER.pack(p.token, p.logprob) for row in rows for p in row)


def unpack_offers(level: Level, each: int, data: bytes | memoryview) -> Offers:
    """``each`` proposals behind every node of ``level``."""
    pairs = _OFFER.iter_unpack(data[: len(level) * each * _OFFER.size])
    return {node.id: [Proposal(*next(pairs)) for _ in range(each)] for node in level}


def pack_verdict(token: int, candidates: Level, child: Node | None) -> bytes:
    return _VERDICT.pack(token, -1 if child is None else candidates.index(child))


def unpack_verdict(candidates: Level, data: bytes | memoryview) -> tuple[int, Node | None]:
    token, index = _VERDICT.unpack(data)
    return token, None if index < 0 else candidates[index]
