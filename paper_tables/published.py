"""The figures others published, each row with its source; nothing here was measured by this project."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

import pandas as pd

TARGET_LAYERS = 32
"""L of Qwen3.5-4B and Qwen3.5-9B, the targets of every published figure."""

MODELS = ("Qwen3.5-4B", "Qwen3.5-9B")

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
    """Published rows (default training mix) by model name for one row of Table 1, where there are any."""
    frame = speedups()
    keep = (
        (frame["method"] == method)
        & (frame["training_mix"] == "default")
        & (frame["temperature"] == temperature)
        & (frame["benchmark"] == benchmark)
    )
    for name, value in options.items():
        keep &= frame[name] == value
    return {row["model"]: row for _, row in frame[keep].iterrows()}


def _read(name: str) -> pd.DataFrame:
    with (files("paper_tables") / "published" / name).open(encoding="utf-8") as handle:
        return pd.read_csv(handle, dtype={"n": "Int64", "m": "Int64", "draft_layers": "Int64"})


def _int(value: Any) -> int | None:
    return None if pd.isna(value) else int(value)
