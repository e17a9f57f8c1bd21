"""How much a check looks at."""

from __future__ import annotations

from dataclasses import dataclass, replace

from methods.errors import UsageError


@dataclass(frozen=True, slots=True)
class Sizes:
    """``prompts`` per target of C1, C2 and C5, ``tokens`` per output, ``draws`` of three tokens in the
    sampled part of C9, ``families`` of tiny targets, ``stages`` n of a pipeline where a check runs
    several. What is printed are the numbers that were run."""

    prompts: int
    tokens: int
    draws: int
    families: tuple[str, ...] = ("llama", "qwen3", "hybrid", "moe")
    stages: tuple[int, ...] = (2, 3, 4, 8)

    def with_prompts(self, prompts: int | None) -> Sizes:
        return self if prompts is None else replace(self, prompts=prompts)


SIZES = {
    "smallest": Sizes(prompts=1, tokens=16, draws=150, families=("hybrid",), stages=(3,)),
    "quick": Sizes(prompts=1, tokens=24, draws=400, stages=(2, 8)),
    "full": Sizes(prompts=20, tokens=64, draws=200_000),
}


def named(name: str) -> Sizes:
    """``UsageError`` lists the sizes there are."""
    if name not in SIZES:
        raise UsageError(f"unknown size {name!r}; allowed: {', '.join(SIZES)}")
    return SIZES[name]
