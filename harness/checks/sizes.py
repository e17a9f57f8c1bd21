"""How much a check looks at."""

from __future__ import annotations

from dataclasses import dataclass, replace

from methods.errors import UsageError
from methods.testing.tiny import FAMILIES


@dataclass(frozen=True, slots=True)
class Sizes:
    """``prompts`` per target of C1, C2 and C28, ``tokens`` per output but for a few long ones, ``draws``
    of three tokens in each sampled law of C9 and ``paths`` of chance in each enumerated one, ``families``
    of tiny targets, ``stages`` n of a pipeline where a check runs several. What is printed are the
    numbers that were run. A check that takes longer than ``limit_s`` seconds has failed; None is no
    limit."""

    prompts: int
    tokens: int
    draws: int
    paths: int
    families: tuple[str, ...] = FAMILIES
    stages: tuple[int, ...] = (2, 3, 4, 8)
    limit_s: float | None = 300.0

    def but(self, prompts: int | None, limit_s: float | None) -> Sizes:
        """With what is given instead."""
        sizes = self if prompts is None else replace(self, prompts=prompts)
        return sizes if limit_s is None else replace(sizes, limit_s=limit_s)


SIZES = {
    "smallest": Sizes(prompts=1, tokens=16, draws=120, paths=500, families=("hybrid",), stages=(3,)),
    "quick": Sizes(prompts=1, tokens=24, draws=240, paths=500, stages=(2, 8)),
    "full": Sizes(prompts=20, tokens=64, draws=200_000, paths=50_000, limit_s=None),
}


def named(name: str) -> Sizes:
    """``UsageError`` lists the sizes there are."""
    if name not in SIZES:
        raise UsageError(f"unknown size {name!r}; allowed: {', '.join(SIZES)}")
    return SIZES[name]
