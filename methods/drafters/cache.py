"""Key-value cache of one drafter layer: preallocated, truncated by length, never concatenated."""

from __future__ import annotations

import torch
from torch import Tensor

_FIRST_CAPACITY = 256


class LayerCache:
    """Keys and values of one layer, [batch, kv_heads, length, head_dim], for inference only.

    The buffers double when full, so appending costs the new rows and truncating costs nothing.
    ``start`` hides older rows from ``append``'s views (a bounded attention span) without dropping
    them, since a rollback may need them again.
    """

    def __init__(self) -> None:
        self.start = 0
        self._length = 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    @property
    def length(self) -> int:
        """Rows held, those before ``start`` included."""
        return self._length

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add rows [batch, kv_heads, new, head_dim]; returns views of rows ``start`` to the end."""
        end = self._length + keys.shape[2]
        self._keys = self._store(self._keys, keys, end)
        self._values = self._store(self._values, values, end)
        self._length = end
        return self._keys[:, :, self.start : end], self._values[:, :, self.start : end]

    def truncate(self, length: int) -> None:
        """Forget every row from ``length`` on. Raises ``ValueError`` if fewer rows are held."""
        if not 0 <= length <= self._length:
            raise ValueError(f"cannot truncate {self._length} cached rows to {length}")
        self._length = length

    def _store(self, buffer: Tensor | None, rows: Tensor, end: int) -> Tensor:
        if buffer is None or end > buffer.shape[2]:
            buffer = self._grown(buffer, rows, end)
        buffer[:, :, self._length : end] = rows
        return buffer

    def _grown(self, buffer: Tensor | None, rows: Tensor, end: int) -> Tensor:
        capacity = _FIRST_CAPACITY if buffer is None else 2 * buffer.shape[2]
        batch, kv_heads, _, head_dim = rows.shape
        grown = torch.empty(
            (batch, kv_heads, max(capacity, end), head_dim), dtype=rows.dtype, device=rows.device
        )
        if buffer is not None:
            grown[:, :, : self._length] = buffer[:, :, : self._length]
        return grown
