"""The figures of one table cell as this project measured them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from harness.execution.plan import AR
from harness.records.record import Mode
from paper_tables.plan import Row

_SPEEDS = ("tok_per_s", "ar_tok_per_s")
FIGURES = ("S0", "S", "wallclock_speedup", *_SPEEDS, "step_acceptance", "nodes_per_stage")
ON_RANKS = "ranks_wallclock_speedup"
"""The wall-clock speedup measured with a process per stage: no figure of one process stands beside it."""
EMULATED, PROJECTED = "emulated_wallclock_speedup", "projected_wallclock_speedup"
ON_DEVICES: Mapping[Mode, str] = {"emulate": EMULATED, "project": PROJECTED}
"""The wall-clock speedup on a profile's devices, by the mode of its records."""


@dataclass(frozen=True)
class Interval:
    """A ratio and its 95 % bootstrap interval over prompts; None where there is no figure."""

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Origin:
    """What a record was measured with: ``target`` and ``machine`` in words, ``dtype``, the cap on new
    tokens of an answer, how tokens were drawn at T > 0, what its drafter was trained on, if known, and
    which of its prompts are not the paper's."""

    target: str
    dtype: str
    machine: str
    max_new_tokens: int
    top_k: int
    top_p: float
    training: str | None = None
    subset: str | None = None


@dataclass(frozen=True)
class Measured:
    """One row of a run's summary: a method on one benchmark ("overall" = all) at one temperature."""

    row: Row
    temperature: float
    benchmark: str
    figures: Mapping[str, Interval]
    """By name: ``FIGURES``, ``ON_RANKS``, ``ON_DEVICES``; those that do not apply are missing."""
    lossless: str | None
    """Losslessness status; None = not checked, and then no speedup may be shown."""
    prompts: int
    tokens: int
    failed: int
    origin: Origin | None = None
    """None where the lines come from no stored record."""


def from_summary(
    row: Row, lines: Iterable[Mapping[str, Any]], width: int = 1, origin: Origin | None = None
) -> list[Measured]:
    """The lines of ``harness.analysis.summary.rows`` at draft width ``width`` as the cells of ``row``."""
    return [
        Measured(
            row=row,
            temperature=float(line["temperature"]),
            benchmark=line["benchmark"],
            figures=_figures(row, line),
            lossless=_status(row, line["lossless"]),
            prompts=line["prompts"],
            tokens=line["tokens"],
            failed=line["failed"],
            origin=origin,
        )
        for line in lines
        if line["width"] == width
    ]


def with_devices(cell: Measured, mode: Mode, lines: Iterable[Mapping[str, Any]]) -> Measured:
    """``cell`` with the speedup on a profile's devices out of the ``lines`` of their records."""
    found = [
        _interval(line, "wallclock_speedup")
        for line in lines
        if (line["benchmark"], line["temperature"]) == (cell.benchmark, cell.temperature)
    ]
    return replace(cell, figures={**cell.figures, ON_DEVICES[mode]: found[0]}) if found else cell


def _figures(row: Row, line: Mapping[str, Any]) -> dict[str, Interval]:
    figures = {name: _interval(line, name) for name in FIGURES}
    if dict(row.options).get("runtime") == "distributed":
        figures[ON_RANKS] = figures.pop("wallclock_speedup")
        for name in _SPEEDS:
            del figures[name]
    return figures


def _interval(line: Mapping[str, Any], name: str) -> Interval:
    low, high = line.get(f"{name}_interval") or (None, None)
    return Interval(line.get(name), low, high)


def _status(row: Row, lossless: str | None) -> str | None:
    if lossless in (None, "unchecked"):
        return None
    # AR's own output is what the others are compared with; "exact" would claim a comparison.
    return "reference" if row.method == AR else lossless
