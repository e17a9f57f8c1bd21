"""The figures of one table cell as this project measured them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from paper_tables.plan import AR, Row


@dataclass(frozen=True)
class Interval:
    """A ratio and its 95 % bootstrap interval over prompts; None where there is no figure."""

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Measured:
    """One row of a run's summary: a method on one benchmark ("overall" = all) at one temperature."""

    row: Row
    temperature: float
    benchmark: str
    S0: Interval
    S: Interval
    lossless: str | None
    """Losslessness status; None = not checked, and then no speedup may be shown."""
    prompts: int
    tokens: int


def from_summary(row: Row, lines: Iterable[Mapping[str, Any]]) -> list[Measured]:
    """The harness's summary lines (the ``results`` of a run's last stdout line) for ``row``."""
    return [
        Measured(
            row=row,
            temperature=float(line["temperature"]),
            benchmark=line["benchmark"],
            S0=_interval(line, "S0"),
            S=_interval(line, "S"),
            lossless=_status(row, line.get("lossless")),
            prompts=line["prompts"],
            tokens=line["tokens"],
        )
        for line in lines
        if line["width"] == 1
    ]


def _interval(line: Mapping[str, Any], name: str) -> Interval:
    low, high = line.get(f"{name}_interval") or (None, None)
    return Interval(line[name], low, high)


def _status(row: Row, lossless: str | Mapping[str, int] | None) -> str | None:
    """One word, or counts by word where prompts differ. AR is what the others are compared with."""
    if row.method == AR:
        return "reference"
    if isinstance(lossless, Mapping):
        present = {word: count for word, count in lossless.items() if count}
        if "unchecked" in present:
            return None
        lossless = ", ".join(f"{count} {word}" for word, count in present.items()) if present else None
    return None if lossless == "unchecked" else lossless
