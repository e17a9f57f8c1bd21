"""Attention of draft cycles: a few rows each over a shared prefix and over keys of their own.

A drafter's rows at one position never see the rows of another position's cycle, only the prefix
that both share. Laid out this way the training mask needs no (rows x rows) matrix: a cycle has
the prefix up to its bound, and a small block of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from methods.drafters.decoder_layer import KeyValues

_SCORES = 1 << 23
"""Scores per chunk of cycles; cycles in a chunk read the prefix only up to the longest bound among them."""


def attend_cycles(
    query: Tensor,
    prefix: KeyValues,
    bounds: Tensor,
    own: KeyValues | None = None,
    visible: Tensor | None = None,
) -> Tensor:
    """Attention output [cycles, rows, heads, head_dim].

    ``query`` is [cycles, rows, heads, head_dim]; ``prefix`` keys and values [kv_heads, length,
    head_dim], of which cycle c sees the first ``bounds[c]`` (ascending, int64 [cycles]); ``own``
    keys and values [cycles, own, kv_heads, head_dim], of which row r sees those in ``visible``
    (bool [cycles, rows, own]). Every row must see at least one key.
    """
    cycles, rows, heads, _ = query.shape
    limits = bounds.tolist()
    per_cycle = rows * heads * max(1, max(limits, default=1))
    step = max(1, _SCORES // per_cycle)
    parts = []
    for start in range(0, cycles, step):
        chunk = slice(start, min(cycles, start + step))
        length = limits[chunk.stop - 1]
        parts.append(
            _attend(
                query[chunk],
                (prefix[0][:, :length], prefix[1][:, :length]),
                bounds[chunk],
                None if own is None else (own[0][chunk], own[1][chunk]),
                None if visible is None else visible[chunk],
            )
        )
    return torch.cat(parts) if parts else query


def _attend(
    query: Tensor, prefix: KeyValues, bounds: Tensor, own: KeyValues | None, visible: Tensor | None
) -> Tensor:
    cycles, rows, heads, head_dim = query.shape
    keys, values = prefix
    kv_heads, length = keys.shape[:2]
    groups = heads // kv_heads
    # [kv_heads, cycles, rows * groups, head_dim]
    folded = query.view(cycles, rows, kv_heads, groups, head_dim).permute(2, 0, 1, 3, 4)
    folded = folded.reshape(kv_heads, cycles, rows * groups, head_dim) * head_dim**-0.5
    flat = folded.reshape(kv_heads, cycles * rows * groups, head_dim)
    scores = (flat @ keys.mT).view(kv_heads, cycles, rows * groups, length)
    seen = (torch.arange(length, device=query.device) < bounds[:, None])[:, None]
    if own is not None and visible is not None:
        own_keys, own_values = (
            tensor.permute(2, 0, 1, 3) for tensor in own
        )  # [kv_heads, cycles, own, head_dim]
        scores = torch.cat((scores, folded @ own_keys.mT), -1)
        seen = seen.expand(cycles, rows * groups, length)
        seen = torch.cat((seen, visible.repeat_interleave(groups, dim=1)), -1)
    weights = scores.float().masked_fill(~seen, -torch.inf).softmax(-1).to(values.dtype)
    out = weights[..., :length].reshape(kv_heads, cycles * rows * groups, length) @ values
    out = out.view(kv_heads, cycles, rows * groups, head_dim)
    if own is not None:
        out = out + weights[..., length:] @ own_values
    out = out.view(kv_heads, cycles, rows, groups, head_dim).permute(1, 2, 0, 3, 4)
    return out.reshape(cycles, rows, heads, head_dim)
