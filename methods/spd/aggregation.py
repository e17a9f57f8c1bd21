"""Which target features a token's draft-module row is built from (SPD, feature aggregation)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from methods.errors import UsageError


@dataclass(frozen=True, slots=True)
class Aggregation:
    """Stage sizes and anchors, and what follows from them for each pipeline depth.

    A token at depth d (stages completed) has residual-stream indices 0 .. ``boundaries[d]``, where
    index 0 is the embedding and index k the output of decoder layer k - 1. ``anchors`` are the
    indices a row may use; a row at depth d uses anchors 0 .. ``types[d]``, all those available.
    Raises ``UsageError`` for anchors that do not start at 0, do not increase, or reach L, where
    the raw and the normed output of the last layer are easily confused.
    """

    stage_layers: tuple[int, ...]
    anchors: tuple[int, ...]

    def __post_init__(self) -> None:
        anchors = self.anchors
        if not anchors or anchors[0] != 0:
            raise UsageError(f"anchors {list(anchors)}: the first must be 0, the embedding")
        if any(low >= high for low, high in pairwise(anchors)):
            raise UsageError(f"anchors {list(anchors)} must be strictly increasing")
        if anchors[-1] > self.num_layers - 1:
            raise UsageError(
                f"anchors {list(anchors)}: the last may be at most {self.num_layers - 1} "
                f"for {self.num_layers} layers"
            )

    @property
    def n(self) -> int:
        """Pipeline stages."""
        return len(self.stage_layers)

    @property
    def num_layers(self) -> int:
        return sum(self.stage_layers)

    @property
    def boundaries(self) -> tuple[int, ...]:
        """l_max(d) for d = 0 .. n: layers completed at depth d, by cumulative count."""
        return (0, *accumulate(self.stage_layers))

    @property
    def types(self) -> tuple[int, ...]:
        """f(d) for d = 0 .. n: index of the deepest anchor a row at depth d has."""
        return tuple(bisect_right(self.anchors, reached) - 1 for reached in self.boundaries)

    @property
    def dead_anchors(self) -> tuple[int, ...]:
        """Anchors that are the deepest at no depth: their projection is never used."""
        used = set(self.types)
        return tuple(anchor for i, anchor in enumerate(self.anchors) if i not in used)

    def available(self, depth: int) -> tuple[int, ...]:
        """The anchors a row at ``depth`` is built from."""
        return self.anchors[: self.types[depth] + 1]


def choose_anchors(
    stage_layers: Sequence[int], anchors: Sequence[int] | None = None, deepest: int | None = None
) -> Aggregation:
    """Given anchors, checked, or by rule: 0, the ends of stages 1, 3 and 6, and ``deepest`` (L - 1).

    Of several rule anchors that first become available at the same depth only the deepest is
    kept, so every projection is used at some depth. Given anchors with an unused one are refused.
    """
    stages = tuple(stage_layers)
    if anchors is None:
        return Aggregation(stages, _automatic(stages, deepest))
    aggregation = Aggregation(stages, tuple(anchors))
    if dead := aggregation.dead_anchors:
        raise UsageError(
            f"anchors {list(anchors)}: {list(dead)} would be used at no depth of stages {list(stages)}; "
            "leave out or move"
        )
    return aggregation


def _automatic(stages: tuple[int, ...], deepest: int | None) -> tuple[int, ...]:
    boundaries = (0, *accumulate(stages))
    deepest = boundaries[-1] - 1 if deepest is None else deepest
    wanted = {0, deepest} | {min(boundaries[min(k, len(stages))], deepest) for k in (1, 3, 6)}
    by_depth: dict[int, int] = {}
    for anchor in sorted(wanted):
        depth = next(d for d, reached in enumerate(boundaries) if reached >= anchor)
        by_depth[depth] = anchor
    return tuple(by_depth.values())
