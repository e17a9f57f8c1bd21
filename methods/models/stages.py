"""A run of consecutive decoder layers with one state: the whole target, or one pipeline stage."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from methods.models.layer import Layer
from methods.models.passes import PassLog
from methods.models.rotary import Rotary
from methods.models.state import State

Taps = Mapping[int, Tensor]
"""Residual stream [batch, count, hidden] by index: i is the input of layer i, L the last output."""


class Stage:
    """Layers ``first`` to ``last`` (exclusive) of the target."""

    def __init__(
        self,
        layers: Sequence[Layer],
        first: int,
        last: int,
        rotary: Rotary,
        like: Tensor,
        passes: PassLog,
    ) -> None:
        self.layers = list(layers[first:last])
        self.first, self.last = first, last
        self._rotary = rotary
        self._like = like
        self._passes = passes

    def new_state(self, batch: int = 1, pad: Tensor | None = None) -> State:
        """An empty state; ``pad`` [batch] is the number of left-padding tokens of each row."""
        caches = [layer.new_cache(batch, self._like) for layer in self.layers]
        return State(caches, self._rotary, self._like, pad)

    @torch.no_grad()
    def forward(
        self,
        hidden: Tensor,
        state: State,
        parents: Sequence[int] | None = None,
        record: bool = False,
        taps: Collection[int] = (),
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Run new tokens [batch, count, hidden] and append them to ``state``.

        ``parents``: parent slot of every token for a draft tree (None: a chain). ``record``: the
        tokens may be rolled back. Returns the output and the residual stream at ``taps``; the tap
        at ``first`` is the input.
        """
        block = state.block(hidden.shape[1], parents, record)
        self._passes.begin()
        tapped: dict[int, Tensor] = {}
        for index, (layer, cache) in enumerate(zip(self.layers, state.caches, strict=True), self.first):
            if index in taps:
                tapped[index] = hidden
            hidden = layer(hidden, block, cache)
        if self.last in taps:
            tapped[self.last] = hidden
        state.advance(block)
        return hidden, tapped
