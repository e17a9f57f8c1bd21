"""What a target ran, by its own count: the layers and the tokens of every pass.

A trace says how many layers and tokens each step cost; ``methods.decoding.trace`` holds it against this.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from methods.clock import perf_counter


@dataclass(frozen=True, slots=True)
class Pass:
    """Layers ``first`` to ``last`` (exclusive) ran the same ``tokens``, which begin in slot ``start``,
    one layer after another. The first layer began at ``first_s``, the last one at ``last_s`` of
    ``time.perf_counter``."""

    first: int
    last: int
    start: int
    tokens: int
    first_s: float
    last_s: float

    @property
    def layers(self) -> int:
        return self.last - self.first


@dataclass(slots=True)
class Recording:
    """What the layers called in while it was open, in that order; None begins a new pass."""

    calls: list[tuple[int, int, int, float] | None] = field(default_factory=list)

    @property
    def passes(self) -> list[Pass]:
        """Calls of consecutive layers on the same tokens, joined."""
        found: list[list[Any]] = []
        newest: list[Any] | None = None
        for call in self.calls:
            if call is None:
                newest = None
                continue
            layer, start, tokens, at = call
            if newest is not None and newest[1:4] == [layer, start, tokens]:
                newest[1], newest[5] = layer + 1, at
            else:
                newest = [layer, layer + 1, start, tokens, at, at]
                found.append(newest)
        return [Pass(*each) for each in found]


class PassLog:
    """Every layer of a target calls ``ran``; what it says is kept while a recording is open.

    ``modules`` are the decoder layers of the transformers model on the same weights, which a method
    may run instead: they are watched by hooks while a recording is open.
    """

    def __init__(self, modules: Sequence[Any] = ()) -> None:
        self._modules = modules
        self._recording: Recording | None = None

    @contextmanager
    def recording(self) -> Iterator[Recording]:
        """Open a recording. An outer one pauses meanwhile."""
        outer, self._recording = self._recording, Recording()
        hooks = [
            module.register_forward_pre_hook(_hook(layer, self._recording), with_kwargs=True)
            for layer, module in enumerate(self._modules)
        ]
        try:
            yield self._recording
        finally:
            self._recording = outer
            for hook in hooks:
                hook.remove()

    def begin(self) -> None:
        """What follows is a pass of its own."""
        if self._recording is not None:
            self._recording.calls.append(None)

    def ran(self, layer: int, start: int, tokens: int) -> None:
        """Layer ``layer`` now runs ``tokens`` tokens, the first in slot ``start``."""
        if self._recording is not None:
            self._recording.calls.append((layer, start, tokens, perf_counter()))


def _hook(layer: int, recording: Recording) -> Any:
    """A hook of a transformers decoder layer; the slot is the position, or without positions the
    number of tokens that the layer has run."""
    seen = 0

    def before(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal seen
        hidden = args[0] if args else kwargs["hidden_states"]
        tokens = hidden.shape[:-1].numel()
        positions = kwargs.get("position_ids")
        start = seen if positions is None else int(positions.min())
        recording.calls.append((layer, start, tokens, perf_counter()))
        seen += tokens

    return before
