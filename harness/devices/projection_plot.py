"""The picture of ``harness.project --plot``: speedups by n, and what slower links would leave of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from methods.errors import UsageError

Curves = Mapping[int, Sequence[tuple[float, float]]]
"""n -> (milliseconds of a hop, projected speedup)."""


def check(path: Path) -> None:
    """Raise ``UsageError`` before anything is computed if no picture could be written to ``path``."""
    known = _figure().canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".") not in known:
        allowed = ", ".join(sorted(known))
        raise UsageError(f"--plot {path}: unknown kind of picture; allowed endings: {allowed}")


def draw(path: Path, rows: Sequence[Mapping[str, Any]], curves: Curves) -> None:
    """``rows`` of the printed table as bars, ``curves`` as lines."""
    figure = _figure()
    bars, lines = figure.subplots(1, 2)
    counts = list(curves)
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    for place, kind in enumerate(kinds):
        offset = 0.4 * (place - (len(kinds) - 1) / 2)
        found = [(counts.index(row["n"]) + offset, row["speedup"]) for row in rows if row["kind"] == kind]
        bars.bar(*zip(*found, strict=True), width=0.4, label=kind)
    bars.set(xticks=range(len(counts)), xticklabels=counts, xlabel="stages n", ylabel="speedup over AR")
    bars.legend()
    for n, points in curves.items():
        lines.plot(*zip(*points, strict=True), label=f"n = {n}")
    lines.set(xlabel="milliseconds of a hop", ylabel="projected speedup over AR")
    for axes in (bars, lines):
        axes.axhline(1.0, color="grey", linestyle="--", linewidth=1)
    lines.legend()
    try:
        figure.savefig(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def _figure() -> Any:
    try:
        from matplotlib.figure import Figure  # without pyplot: no window, no global state
    except ImportError as error:
        raise UsageError("--plot needs matplotlib: pip install 'spd-bench[plot]'") from error
    return Figure(figsize=(9, 3.5), layout="constrained")
