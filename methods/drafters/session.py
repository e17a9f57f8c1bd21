"""One sequence's incremental pass through a stack of drafter layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from methods.drafters.attention import visible_keys, window_start
from methods.drafters.cache import LayerCache
from methods.drafters.decoder_layer import DecoderLayer
from methods.drafters.rotary import Rotary

# Long prompts pass in chunks, so that no mask is ever prompt x prompt.
_CHUNK = 1024


class RowSession:
    """Rows that are final stay cached; rows that will change are computed and dropped again.

    The cache always holds the rows of positions 0 .. ``length`` - 1. ``window`` bounds attention
    to the last ``window`` positions, the row's own included (None: unbounded).
    """

    def __init__(self, layers: Sequence[DecoderLayer], rotary: Rotary, window: int | None = None) -> None:
        self._layers = list(layers)
        self._caches = [LayerCache() for _ in self._layers]
        self._rotary = rotary
        self._window = window
        self._length = 0

    @property
    def length(self) -> int:
        """Final rows cached, which is the position of the next one."""
        return self._length

    def rollback(self, length: int) -> None:
        """Keep the first ``length`` final rows. Raises ``ValueError`` if fewer are held."""
        if not 0 <= length <= self._length:
            raise ValueError(f"cannot roll {self._length} rows back to {length}")
        for cache in self._caches:
            cache.truncate(length)
        self._length = length

    @torch.no_grad()
    def advance(
        self,
        rows: Tensor,
        final: int,
        *,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        last: int = 1,
    ) -> Tensor:
        """Outputs [last, hidden] of the last ``last`` of ``rows`` [rows, hidden].

        The first ``final`` rows take the positions from ``length`` on and stay; the others are in
        flight, see every final row, and are dropped after the pass. ``positions`` [in flight] and
        ``mask`` (bool [in flight, in flight], row sees column, itself included) describe them when
        they are a tree; by default they continue the final rows as a chain.
        """
        while final > _CHUNK and rows.shape[0] - _CHUNK >= last:
            self._forward(rows[:_CHUNK], _CHUNK, None, None)
            rows, final = rows[_CHUNK:], final - _CHUNK
        return self._forward(rows, final, positions, mask)[rows.shape[0] - last :]

    def _forward(self, rows: Tensor, final: int, flight: Tensor | None, mask: Tensor | None) -> Tensor:
        positions = torch.arange(self._length, self._length + rows.shape[0], device=rows.device)
        if flight is not None:
            positions[final:] = flight
        start = window_start(self._length, self._window)
        visible = visible_keys(positions, start, self._length, self._window, mask)
        cos, sin = self._rotary(positions)
        hidden = rows[None]
        for layer, cache in zip(self._layers, self._caches, strict=True):
            cache.start = start
            hidden, _ = layer(hidden, None, cos, sin, visible, cache)
            cache.truncate(self._length + final)
        self._length += final
        return hidden[0]
