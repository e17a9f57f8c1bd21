"""Which rank holds which stage, and which drafts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from methods.errors import UsageError

LayoutName = Literal["n+1", "n"]
"""n+1: the drafter has a rank of its own, the last. n: it runs beside stage 1."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Rank r holds stage r + 1."""

    n: int
    own_drafter: bool

    @classmethod
    def named(cls, name: str, n: int) -> Layout:
        """Raises ``UsageError`` for an unknown name."""
        if name not in get_args(LayoutName):
            raise UsageError(f"unknown layout {name!r}; allowed: {', '.join(get_args(LayoutName))}")
        return cls(n, name == "n+1")

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return self.n + self.own_drafter

    @property
    def drafter(self) -> int:
        return self.n if self.own_drafter else 0

    @property
    def last(self) -> int:
        """The rank of stage n, which verifies."""
        return self.n - 1

    def stage(self, rank: int) -> int | None:
        """The stage 1..n of ``rank``, None if it only drafts."""
        return rank + 1 if rank < self.n else None

    def name(self, rank: int) -> str:
        """For messages: "rank 3 (stage 4)"."""
        roles = [f"stage {rank + 1}"] if rank < self.n else []
        if rank == self.drafter:
            roles.append("drafter")
        return f"rank {rank} ({' and '.join(roles) or 'idle'})"
