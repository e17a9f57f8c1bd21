"""What the tables measure: their rows, and how many prompts and tokens each size takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.plan import AR
from methods.errors import UsageError


@dataclass(frozen=True)
class Size:
    """Prompts per benchmark for each temperature, and the cap on new tokens."""

    prompts: Mapping[float, int]
    max_new_tokens: int

    @property
    def temperatures(self) -> tuple[float, ...]:
        return tuple(self.prompts)


SIZES = {
    # Small enough for six minutes on two CPU cores that read 12 GB/s, at 45 ms a token: every row
    # that is not AR runs AR beside it.
    "quick": Size(prompts={0.0: 4, 1.0: 2}, max_new_tokens=64),
    "paper": Size(prompts={0.0: 80, 1.0: 80}, max_new_tokens=512),
}


@dataclass(frozen=True)
class Row:
    """One row of a table: a registered method with its options."""

    label: str
    method: str
    options: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, label: str, method: str, **options: int) -> Row:
        return cls(label, method, tuple(options.items()))


TABLE1 = (
    Row.of("AR", AR),
    *(Row.of(f"EAGLE-3 m={m}", "eagle3", m=m) for m in (3, 7, 15)),
    *(Row.of(f"PPSD n={n}", "ppsd", n=n) for n in (4, 8, 16)),
    *(
        Row.of(f"SPD n={n} Ls={draft_layers}", "spd", n=n, draft_layers=draft_layers)
        for n, draft_layers in ((4, 4), (8, 4), (8, 3), (8, 2), (16, 2))
    ),
    Row.of("n-gram", "ngram"),
)
"""The paper's rows with their Ls, and the n-gram drafter, which needs no training."""


def size(name: str) -> Size:
    """The size called ``name``; ``UsageError`` lists what exists."""
    if name not in SIZES:
        raise UsageError(f"unknown size {name!r}; known: {', '.join(SIZES)}")
    return SIZES[name]
