"""SPD's drafts along a known output: any number of fills and positions in one batched pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from methods.drafters.attention import causal_mask
from methods.pipeline.replay import Pair
from methods.spd.draft_module import DraftModule

_ROWS = 512
"""Rows per pass: bounds the attention mask, which is rows x (tokens + rows)."""


class SpdReplay:
    """The draft module over true features.

    A completed token's row depends on completed rows only, so those are computed once. The rows in
    flight with the newest token of a pair, a *frame*, see the completed rows before them and each
    other; frames do not see each other and share a pass. ``features`` [tokens, anchors, hidden];
    output token i is token ``first`` + i; ``series`` as in ``SpdDrafter``.
    """

    def __init__(self, module: DraftModule, features: Tensor, first: int, series: bool) -> None:
        self._module = module
        self._first = first
        self._series = series
        self._n = module.config.aggregation.n
        count, types = features.shape[0], module.config.aggregation.types
        by_type = {kind: types.index(kind) for kind in types}
        self._rows = torch.stack(
            [
                module.aggregate(features, [by_type[kind]] * count) if kind in by_type else features[:, 0]
                for kind in range(max(types) + 1)
            ]
        )
        self._types = torch.tensor(types, device=features.device)
        self._past = self._complete(self._rows[types[self._n]])

    def logits(self, pairs: Sequence[Pair]) -> Tensor:
        """Draft logits [pairs, draft_vocab]; see ``methods.pipeline.replay``."""
        parts: list[Tensor] = []
        batch: list[Pair] = []
        size = 0
        for pair in pairs:
            if batch and size + pair[1] > _ROWS:
                parts.append(self._frames(batch))
                batch, size = [], 0
            batch.append(pair)
            size += pair[1]
        parts.append(self._frames(batch))
        return self._module.logits(torch.cat(parts))

    def _complete(self, rows: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of all tokens as completed rows [tokens, hidden], by layer."""
        positions = torch.arange(rows.shape[0], device=rows.device)
        mask, window = None, self._module.config.window
        if window is not None:
            mask = causal_mask(len(positions), len(positions), rows.device)
            mask &= positions[:, None] - positions < window
        cos, sin = self._module.rotary(positions)
        hidden, past = rows[None], []
        for layer in self._module.spec_layers:
            hidden, new = layer(hidden, None, cos, sin, mask)
            past.append(new)
        return past

    def _frames(self, pairs: Sequence[Pair]) -> Tensor:
        """Outputs [pairs, hidden] of the newest rows."""
        device = self._rows.device
        fills = torch.tensor([fill for _, fill in pairs], device=device)
        newest = torch.tensor([self._first + index for index, _ in pairs], device=device)
        ends = fills.cumsum(0)
        frame = torch.repeat_interleave(torch.arange(len(pairs), device=device), fills)
        distance = ends[frame] - 1 - torch.arange(len(frame), device=device)
        positions = newest[frame] - distance
        depths = (distance + self._series).clamp(max=self._n)
        hidden = self._rows[self._types[depths], positions][None]
        mask = self._mask(positions, frame, (newest - fills)[frame])
        cos, sin = self._module.rotary(positions)
        for layer, past in zip(self._module.spec_layers, self._past, strict=True):
            hidden, _ = layer(hidden, None, cos, sin, mask, past)
        return hidden[0, ends - 1]

    def _mask(self, positions: Tensor, frame: Tensor, completed: Tensor) -> Tensor:
        """Bool [rows, tokens + rows]: completed tokens up to ``completed`` [rows], then the frame."""
        tokens = torch.arange(self._rows.shape[1], device=positions.device)
        before = tokens <= completed[:, None]
        own = (frame[:, None] == frame) & (positions <= positions[:, None])
        mask = torch.cat((before, own), 1)
        window = self._module.config.window
        if window is not None:
            mask &= positions[:, None] - torch.cat((tokens, positions)) < window
        return mask
