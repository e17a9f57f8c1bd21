"""Grouped-query attention for a few query rows over a long cache, without copying the cache."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

# Below this many query rows the groups are folded into the query length; above it the folded mask
# would outweigh what it saves, and the fused kernel's own grouping is used.
_FOLD_LIMIT = 64


def causal_mask(rows: int, keys: int, device: torch.device | None = None) -> Tensor:
    """Bool [rows, keys], True where visible: the rows are the last ``rows`` of the keys."""
    return torch.ones(rows, keys, dtype=torch.bool, device=device).tril(keys - rows)


def window_start(length: int, window: int | None) -> int:
    """Oldest cached position a row at position ``length`` or later sees, its own counted in."""
    return 0 if window is None else max(0, length + 1 - window)


def visible_keys(
    positions: Tensor, start: int, length: int, window: int | None, mask: Tensor | None = None
) -> Tensor | None:
    """Bool [rows, keys] for new rows at ``positions`` [rows] after cached positions ``start`` to
    ``length`` - 1; None where plain causal attention is meant.

    ``mask`` (bool [k, k]) replaces the causal order among the last k rows; a row never sees a
    position ``window`` or more before its own.
    """
    rows, prefix = positions.shape[0], length - start
    if mask is None and window is None and (rows == 1 or prefix == 0):
        return None
    visible = causal_mask(rows, prefix + rows, positions.device)
    if mask is not None:
        tail = mask.shape[0]
        visible[rows - tail :, prefix + rows - tail :] = mask
    if window is not None:
        cached = torch.arange(start, length, device=positions.device)
        visible &= positions[:, None] - torch.cat((cached, positions)) < window
    return visible


def attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Attention output [batch, rows, heads, head_dim].

    ``query`` is [batch, rows, heads, head_dim], ``keys`` and ``values`` [batch, kv_heads, length,
    head_dim]. ``mask`` is bool, True where visible, [rows, length] or [batch, rows, length]; None
    is causal with the rows at the end of the keys. Every row must see at least one key.
    """
    batch, rows, heads, head_dim = query.shape
    kv_heads, length = keys.shape[1], keys.shape[2]
    groups = heads // kv_heads
    square = mask is None and rows == length
    if mask is None and rows > 1 and not (square and rows >= _FOLD_LIMIT):
        mask = causal_mask(rows, length, query.device)
    if mask is not None and mask.dim() == 3:
        mask = mask[:, None]
    if rows >= _FOLD_LIMIT:
        out = F.scaled_dot_product_attention(
            query.transpose(1, 2),
            keys,
            values,
            attn_mask=mask,
            is_causal=mask is None,
            enable_gqa=groups > 1,
        )
        return out.transpose(1, 2)
    folded = query.view(batch, rows, kv_heads, groups, head_dim).transpose(1, 2)
    folded = folded.reshape(batch, kv_heads, rows * groups, head_dim)
    if mask is not None:
        mask = mask.repeat_interleave(groups, dim=-2)
    out = F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask)
    return out.view(batch, kv_heads, rows, groups, head_dim).transpose(1, 2).flatten(2, 3)
