"""The small messages of a cycle, packed into integers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from methods.pipeline.tree import Level, Node, Proposal

Offers = dict[int, list[Proposal]]
"""Node id -> what the drafter proposes behind it."""

OFFER = 2
"""Integers per proposal: its token, and the bits of its log probability (float64)."""
VERDICT = 2
"""Integers per verdict: the token, and the index of the accepted candidate (-1: none)."""


def pack_offers(rows: Sequence[Sequence[Proposal]]) -> Tensor:
    """int64 [nodes, proposals, OFFER]; every node has the same number of proposals."""
    scores = torch.tensor([[p.logprob for p in row] for row in rows], dtype=torch.float64)
    tokens = torch.tensor([[p.token for p in row] for row in rows])
    return torch.stack([tokens, scores.view(torch.int64)], -1)


def unpack_offers(level: Level, packed: Tensor) -> Offers:
    """The proposals behind the nodes of ``level`` from int64 [at least nodes, proposals, OFFER]."""
    tokens = packed[: len(level), :, 0].tolist()
    scores = packed[: len(level), :, 1].contiguous().view(torch.float64).tolist()
    return {
        node.id: [Proposal(*pair) for pair in zip(*row, strict=True)]
        for node, *row in zip(level, tokens, scores, strict=True)
    }


def pack_verdict(token: int, candidates: Level, child: Node | None) -> Tensor:
    """int64 [VERDICT]."""
    return torch.tensor([token, -1 if child is None else candidates.index(child)])


def unpack_verdict(candidates: Level, packed: Tensor) -> tuple[int, Node | None]:
    token, index = packed.tolist()
    return token, None if index < 0 else candidates[index]
