"""How a target's decoder layers are divided among pipeline stages."""

from __future__ import annotations

from collections.abc import Sequence

from methods.errors import UsageError


def split_layers(num_layers: int, n: int) -> list[int]:
    """Layers of each of ``n`` stages, as even as possible, the larger stages first.

    30 layers at n = 8 are 4, 4, 4, 4, 4, 4, 3, 3. Raises ``UsageError`` unless 1 <= n <= layers.
    """
    if not 1 <= n <= num_layers:
        raise UsageError(f"n = {n} stages for {num_layers} target layers; allowed: 1 to {num_layers}")
    size, larger = divmod(num_layers, n)
    return [size + 1] * larger + [size] * (n - larger)


def check_stage_layers(num_layers: int, stage_layers: Sequence[int]) -> list[int]:
    """``stage_layers`` as given, if each is at least 1 and they add up to ``num_layers``."""
    stages = list(stage_layers)
    if not stages or min(stages) < 1:
        raise UsageError(f"stage layers {stages}: every stage needs at least one layer")
    if sum(stages) != num_layers:
        raise UsageError(f"stage layers {stages} add up to {sum(stages)}; the target has {num_layers} layers")
    return stages
