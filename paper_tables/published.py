"""The figures others published, each row with its source; nothing here was measured by this project."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import pandas as pd

TARGET_LAYERS = 32
"""L of Qwen3.5-4B and Qwen3.5-9B, the targets of every published figure."""

MODELS = ("Qwen3.5-4B", "Qwen3.5-9B")

ALL_CELLS = "all cells"
"""Stands for the model where only the range over a whole table is known."""

KEY = ["model", "training_mix", "temperature", "width", "method", "n", "m", "draft_layers", "benchmark"]
"""The columns that name one published row; ``n`` or ``m`` is missing where a method has none."""


def free_drafting_factor(method: str, *, n: int | None, m: int | None, draft_layers: int) -> float:
    """S0 / S at L = 32: what the draft's serial cost takes away.

    EAGLE-3: S = L_acc·L / (Ls·m + L); PPSD: S = L_acc·L / (Ls·n + L); in both S0 = L_acc, so the
    factor is the draft cost over L plus one. SPD drafts beside the stages: S0 = S.
    Raises ``KeyError`` for a method without a published formula.
    """
    serial_drafts = {"eagle3": m, "ppsd": n, "spd": 0}[method]
    if serial_drafts is None:
        raise ValueError(f"{method} needs its number of serial draft steps")
    return (draft_layers * serial_drafts + TARGET_LAYERS) / TARGET_LAYERS


@cache
def speedups() -> pd.DataFrame:
    """W = 1 rows of the authors' result page: ``KEY``, S0 (computed), S, wallclock_speedup, source."""
    frame = _read("w1_theory_and_wallclock.csv")
    factors = [
        free_drafting_factor(row.method, n=_int(row.n), m=_int(row.m), draft_layers=row.draft_layers)
        for row in frame.itertuples()
    ]
    frame.insert(frame.columns.get_loc("S"), "S0", frame["S"] * factors)
    return frame


@cache
def paper_figures() -> pd.DataFrame:
    """Single figures of the paper's versions v1 and v3: what each measures is in ``quantity``.

    ``value_high`` closes a range; ``note`` says what the print leaves open.
    """
    return _read("paper.csv")


def lookup(method: str, options: dict[str, int], temperature: float, benchmark: str) -> dict[str, pd.Series]:
    """Published rows (default training mix) by model name for one row of Table 1; none for options that
    leave open which row is meant."""
    frame = speedups()
    keep = (
        (frame["method"] == method)
        & (frame["training_mix"] == "default")
        & (frame["temperature"] == temperature)
        & (frame["benchmark"] == benchmark)
    )
    for name, value in options.items():
        keep &= frame[name] == value
    found = frame[keep]
    return {row["model"]: row for _, row in found[~found["model"].duplicated(keep=False)].iterrows()}


@dataclass(frozen=True)
class Figure:
    """A printed number, or with ``high`` a range from ``value``."""

    value: float
    high: float | None = None


def figures(
    method: str, options: Mapping[str, Any], temperature: float, benchmark: str
) -> Mapping[tuple[str, str], Figure]:
    """Published figures of one cell by (model or ``ALL_CELLS``, quantity): S0, S, wallclock_speedup.

    At W = 1 the authors' result page counts (the paper's first version prints an older
    architecture); the paper itself for draft trees and for the schedule ablation, whose rows are
    ranges over all cells. SPD's S0 is its S.
    """
    return _figures(method, tuple(sorted(options.items())), temperature, benchmark)


@cache
def _figures(
    method: str, given: tuple[tuple[str, Any], ...], temperature: float, benchmark: str
) -> Mapping[tuple[str, str], Figure]:
    options = dict(given)
    width, schedule = options.get("width", 1), options.get("schedule", "pre-step")
    found: dict[tuple[str, str], Figure] = {}
    if width == 1 and schedule == "pre-step":
        known = {name: value for name, value in options.items() if name in ("n", "m", "draft_layers")}
        for model, row in lookup(method, known, temperature, benchmark).items():
            found |= {(model, name): Figure(float(row[name])) for name in ("S0", "S", "wallclock_speedup")}
    for line in paper_figures().itertuples():
        if not _fits(line, method, options, temperature, benchmark):
            continue
        ablation = pd.isna(line.model)
        if ablation != (not pd.isna(line.schedule)) or (not ablation and width == 1):
            continue
        figure = Figure(float(line.value), None if pd.isna(line.value_high) else float(line.value_high))
        quantity = "S0" if line.quantity == "L_acc" else line.quantity
        found[ALL_CELLS if ablation else line.model, quantity] = figure
        if method == "spd" and quantity == "S" and not ablation:
            found[line.model, "S0"] = figure
    return found


def _fits(line: Any, method: str, options: Mapping[str, Any], temperature: float, benchmark: str) -> bool:
    """Whether a printed figure is of this cell; what the print leaves open fits "overall" and any T."""
    given = {"n": options.get("n"), "m": options.get("m")}
    if "draft_layers" in options:
        given["draft_layers"] = options["draft_layers"]
    stated = {name: _int(getattr(line, name)) for name in given}
    schedule = line.schedule if not pd.isna(line.schedule) else options.get("schedule", "pre-step")
    return (
        line.method == method
        and stated == given
        and schedule == options.get("schedule", "pre-step")
        and (pd.isna(line.temperature) or line.temperature == temperature)
        and (pd.isna(line.width) or line.width == options.get("width", 1))
        and (benchmark == "overall" if pd.isna(line.benchmark) else line.benchmark == benchmark)
    )


def _read(name: str) -> pd.DataFrame:
    with (files("paper_tables") / "published" / name).open(encoding="utf-8") as handle:
        return pd.read_csv(handle, dtype={"n": "Int64", "m": "Int64", "draft_layers": "Int64"})


def _int(value: Any) -> int | None:
    return None if pd.isna(value) else int(value)
