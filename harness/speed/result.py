"""What a speed measurement is asked for and what it returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from harness.cli.arguments import DEFAULT_PRESET
from methods.errors import UsageError


@dataclass(frozen=True, slots=True)
class Settings:
    """``tokens`` decoded per timed call, ``repeats`` of every arm, dtypes to measure."""

    preset: str = DEFAULT_PRESET
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    tokens: int = 48
    repeats: int = 7

    def __post_init__(self) -> None:
        if self.tokens < 2:
            raise UsageError(f"tokens must be >= 2 (the first belongs to the prefill), got {self.tokens}")
        if self.repeats < 1:
            raise UsageError(f"repeats must be >= 1, got {self.repeats}")


@dataclass(frozen=True, slots=True)
class Ratio:
    """Seconds of arm ``over`` / seconds of arm ``under``, repeat by repeat: above 1, ``under`` is the
    faster one. ``aim`` is the least value wished for, ``at_most`` the largest; None without one."""

    name: str
    over: str
    under: str
    aim: float | None = None
    at_most: float | None = None

    @property
    def wished(self) -> str:
        """For tables: ">= 0.9, <= 1.1"."""
        limits = ((">=", self.aim), ("<=", self.at_most))
        return ", ".join(f"{sign} {limit:.4g}" for sign, limit in limits if limit is not None)


@dataclass(frozen=True, slots=True)
class Result:
    """Raw ``seconds`` per ``unit`` by arm, one entry per repeat, taken in turn; and ratios of arms."""

    subject: str
    case: str
    unit: str
    seconds: Mapping[str, list[float]]
    ratios: tuple[Ratio, ...]

    def values(self, ratio: Ratio) -> list[float]:
        """The ratio of each repeat: its two times are neighbours, so that a slow phase of the machine
        hits both."""
        pairs = zip(self.seconds[ratio.over], self.seconds[ratio.under], strict=True)
        return [over / under for over, under in pairs]

    def as_json(self) -> dict[str, Any]:
        """Medians and raw repeats, JSON values only."""
        ratios = {
            r.name: {"median": median(self.values(r)), "aim": r.aim, "at_most": r.at_most}
            for r in self.ratios
        }
        return {
            "subject": self.subject,
            "case": self.case,
            "unit": self.unit,
            "median_s": {arm: median(values) for arm, values in self.seconds.items()},
            "ratios": ratios,
            "raw_s": dict(self.seconds),
        }
