"""Table 1: S0 and S at W = 1, for T in {0, 1}, per benchmark and overall."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from harness.cli import BENCHMARKS
from harness.summary import OVERALL
from paper_tables import published
from paper_tables.measured import Interval, Measured
from paper_tables.plan import Row
from paper_tables.render import Section, Table

TITLES = {OVERALL: "overall", "mt_bench": "MT-Bench", "gsm8k": "GSM8K", "humaneval": "HumanEval"}
NO_RECORD = "no record"
UNCHECKED = "the records have no losslessness status"
NO_TOKENS = "the records have no token after the prefill's"


def build(
    rows: Sequence[Row],
    temperatures: Sequence[float],
    measured: Iterable[Measured],
    reasons: Mapping[Row, str],
    target: str,
    max_new_tokens: int,
) -> Table:
    """Table 1 from summarised records: a pure function.

    ``reasons`` says for a row why it could not be run; a cell without record or without
    losslessness status shows a dash and its reason underneath. ``target`` names the measured model,
    ``max_new_tokens`` is the cap it ran under.
    """
    cells = {(cell.row, cell.temperature, cell.benchmark): cell for cell in measured}
    data = pd.DataFrame(
        [
            _tidy(row, temperature, benchmark, cells.get((row, temperature, benchmark)), reasons)
            for temperature in temperatures
            for benchmark in (OVERALL, *BENCHMARKS)
            for row in rows
        ]
    )
    whole = ["n", "m", "draft_layers", "prompts", "tokens", "failed"]
    data[whole] = data[whole].astype("Int64")
    footnotes = {reason: f"({i})" for i, reason in enumerate(data["reason"].dropna().unique(), start=1)}
    sections = [
        Section(f"T = {temperature:g}, {TITLES[benchmark]}", _printed(part, footnotes))
        for (temperature, benchmark), part in data.groupby(["temperature", "benchmark"], sort=False)
    ]
    notes = [f"{mark} {reason}" for reason, mark in footnotes.items()]
    title = f"Table 1. S0 and S on {target}, W = 1"
    return Table(title, data, sections, notes + _legend(data, max_new_tokens))


def _tidy(
    row: Row, temperature: float, benchmark: str, cell: Measured | None, reasons: Mapping[Row, str]
) -> dict[str, object]:
    """One line of the tidy frame: measured and published figures of one cell."""
    reason = None
    if cell is None:
        reason = reasons.get(row, NO_RECORD)
    elif cell.lossless is None:
        cell, reason = None, UNCHECKED
    elif cell.S0.value is None:
        cell, reason = None, NO_TOKENS
    given = dict(row.options)
    options = {name: given.get(name) for name in ("n", "m", "draft_layers")}
    line: dict[str, object] = {
        "temperature": temperature,
        "benchmark": benchmark,
        "label": row.label,
        "method": row.method,
        **options,
    }
    for name in ("S0", "S"):
        interval: Interval = getattr(cell, name) if cell else Interval(None)
        line |= {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
    line |= {
        "lossless": cell.lossless if cell else None,
        "prompts": cell.prompts if cell else None,
        "tokens": cell.tokens if cell else None,
        "failed": cell.failed if cell else None,
        "reason": reason,
    }
    figures = published.lookup(row.method, given, temperature, benchmark)
    for model in published.MODELS:
        for name in ("S0", "S"):
            line[_published_column(model, name)] = (
                round(figures[model][name], 2) if model in figures else None
            )
    return line


def _published_column(model: str, name: str) -> str:
    return f"{model} {name} (published)"


def _printed(part: pd.DataFrame, footnotes: Mapping[str, str]) -> pd.DataFrame:
    """The tidy lines of one section as strings."""
    records = part.astype(object).where(part.notna(), None).to_dict("records")
    lines = []
    for record in records:
        dash = f"- {footnotes[record['reason']]}" if record["reason"] else "-"
        line = {"method": record["label"]}
        for name in ("S0", "S"):
            line[name] = _with_interval(record, name) if record[name] is not None else dash
        line["lossless"] = record["lossless"] or "-"
        for model in published.MODELS:
            for name in ("S0", "S"):
                column = _published_column(model, name)
                line[column] = "" if record[column] is None else f"{record[column]:.2f}"
        lines.append(line)
    return pd.DataFrame(lines)


def _with_interval(record: Mapping[str, object], name: str) -> str:
    if record[f"{name}_low"] is None:
        return f"{record[name]:.2f}"
    return f"{record[name]:.2f} [{record[f'{name}_low']:.2f}, {record[f'{name}_high']:.2f}]"


def _legend(data: pd.DataFrame, max_new_tokens: int) -> list[str]:
    """What was measured on how many prompts, and where the published figures come from."""
    notes = [
        f"T = {temperature:g}: {int(part['prompts'].max())} prompts per benchmark, at most {max_new_tokens} "
        "new tokens each."
        for temperature, part in data[data["benchmark"] != OVERALL].groupby("temperature", sort=False)
        if part["prompts"].notna().any()
    ]
    failed = data[data["failed"].gt(0) & (data["benchmark"] == OVERALL)]
    notes += [
        f"{line.label}, T = {line.temperature:g}: {line.failed} prompts failed."
        for line in failed.itertuples()
    ]
    sources = "; ".join(published.speedups()["source"].unique())
    return [
        *notes,
        "S0: speedup if drafting were free. S: speedup with the draft's layers on the critical path. "
        "Pooled over prompts; in brackets the 95 % bootstrap interval over prompts.",
        "lossless: how the output compares with the target's own (exact, tie, mismatch); sampled where T > 0 "
        "makes outputs random; reference for AR itself.",
        f"published: {sources}; other targets (L = 32), 80 prompts per benchmark, 512 new tokens, mean over "
        "prompts. Blank: not published. The source prints S; S0 of EAGLE-3 and PPSD is computed from it.",
    ]
