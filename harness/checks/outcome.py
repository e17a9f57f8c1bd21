"""What a check found out."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["passed", "failed", "not applicable"]


@dataclass(frozen=True, slots=True)
class Measured:
    """``figure`` was measured, ``bound`` is what is allowed; ``fault`` is what is wrong, None if nothing."""

    figure: str
    bound: str
    fault: str | None = None


class NotApplicable(Exception):
    """A check does not apply; the message says why."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One check on one subject. ``figure`` and ``bound`` are empty where it does not apply; ``reason``
    is the fault, or why it does not apply."""

    check: str
    title: str
    subject: str
    status: Status
    figure: str
    bound: str
    reason: str
    seconds: float

    def as_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "seconds": round(self.seconds, 3)}


def within(value: float, bound: float, what: str, fault: str) -> Measured:
    """Passed if ``value`` <= ``bound``; NaN is not."""
    passed = value <= bound
    return Measured(f"{what} {value:.1e}", f"<= {bound:.0e}", None if passed else fault)
