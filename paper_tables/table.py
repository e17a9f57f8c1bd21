"""Any of the tables from summarised records: per temperature, benchmark and overall."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields

import pandas as pd

from harness.analysis.comparable import apart
from harness.analysis.summary import OVERALL, TITLES
from harness.cli.arguments import BENCHMARKS
from harness.config.profiles import load_profile
from paper_tables import published
from paper_tables.measured import EMULATED, ON_RANKS, PROJECTED, Interval, Measured, Origin
from paper_tables.plan import Row, Spec
from paper_tables.render import Section, Table

NO_RECORD = "no record"
UNCHECKED = "the records have no losslessness status"
NO_TOKENS = "the records have no token after the prefill's"

COLUMNS = {
    "S0": "S0",
    "S": "S",
    "tok_per_s": "tok/s",
    "ar_tok_per_s": "AR's tok/s beside it",
    "wallclock_speedup": "measured wall-clock, one process",
    ON_RANKS: "measured wall-clock, a process per stage",
    EMULATED: "emulated wall-clock",
    PROJECTED: "projected wall-clock",
    "step_acceptance": "step acceptance",
    "nodes_per_stage": "nodes per stage",
}
PRINTED = COLUMNS | {"wallclock_speedup": "wall-clock"}
"""What published figures are called: how they were measured is for their source to say."""
LEGEND = {
    "S0": "S0: speedup if drafting were free.",
    "S": "S: speedup with the draft's layers on the critical path.",
    "tok_per_s": "tok/s: decoded tokens per second, prefill outside.",
    "ar_tok_per_s": "AR's tok/s beside it: of AR in the row's own run, in turn with the method.",
    "wallclock_speedup": "wall-clock: decode seconds per token of AR / of the method. Measured, one process: "
    "both in the same run on one machine, where pipeline stages take turns.",
    ON_RANKS: "Measured, a process per stage: every stage has a thread of its own, and so has AR beside it.",
    EMULATED: "Emulated: the distributed runtime itself, a process per device, with timed waits in place of "
    "computing and the decisions of the measured run's trace.",
    PROJECTED: "Projected: computed from the same trace and the devices' times, at no cost of the runtime.",
    "step_acceptance": "step acceptance: accepted share of the accept-or-reject decisions.",
    "nodes_per_stage": "nodes per stage: tokens a target stage runs per step on average, what a wider draft "
    "costs and S0 and S leave out.",
}


def build(
    spec: Spec,
    rows: Sequence[Row],
    temperatures: Sequence[float],
    measured: Iterable[Measured],
    reasons: Mapping[Row, str],
    target: str,
) -> Table:
    """Table ``spec`` with ``rows`` from summarised records: a pure function.

    ``reasons`` says for a row why it could not be run; a cell without record or without
    losslessness status shows a dash and its reason underneath. ``target`` names the measured model.
    """
    cells = {(cell.row, cell.temperature, cell.benchmark): cell for cell in measured}
    data = pd.DataFrame(
        [
            _tidy(spec, row, temperature, benchmark, cells.get((row, temperature, benchmark)), reasons)
            for temperature in temperatures
            for benchmark in (OVERALL, *BENCHMARKS)
            for row in rows
        ]
    )
    whole = ["n", "m", "draft_layers", "prompts", "tokens", "failed", "max_new_tokens", "top_k"]
    data[whole] = data[whole].astype("Int64")
    footnotes = {reason: f"({i})" for i, reason in enumerate(data["reason"].dropna().unique(), start=1)}
    sections = [
        Section(f"T = {temperature:g}, {TITLES[benchmark]}", _printed(spec, part, footnotes))
        for (temperature, benchmark), part in data.groupby(["temperature", "benchmark"], sort=False)
    ]
    notes = [f"{mark} {reason}" for reason, mark in footnotes.items()]
    title = f"Table {spec.number}. {spec.title[:1].upper()}{spec.title[1:]} on {target}, W = {spec.width}"
    return Table(title, data, sections, notes + _legend(spec, data))


def _tidy(
    spec: Spec,
    row: Row,
    temperature: float,
    benchmark: str,
    cell: Measured | None,
    reasons: Mapping[Row, str],
) -> dict[str, object]:
    """One line of the tidy frame: measured and published figures of one cell."""
    reason = None
    if cell is None:
        reason = reasons.get(row, NO_RECORD)
    elif cell.lossless is None:
        cell, reason = None, UNCHECKED
    elif cell.tokens == 0 or cell.figures["S0"].value is None:
        cell, reason = None, NO_TOKENS
    given = dict(row.options)
    line: dict[str, object] = {
        "temperature": temperature,
        "benchmark": benchmark,
        "label": row.label,
        "method": row.method,
        **{name: _whole(given.get(name)) for name in ("n", "m", "draft_layers")},
    }
    for name in spec.columns:
        interval = cell.figures.get(name, Interval(None)) if cell else Interval(None)
        line |= {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
    line |= {
        "lossless": cell.lossless if cell else None,
        "prompts": cell.prompts if cell else None,
        "tokens": cell.tokens if cell else None,
        "failed": cell.failed if cell else None,
        "reason": reason,
    }
    origin = cell.origin if cell else None
    line |= {each.name: getattr(origin, each.name, None) for each in fields(Origin)}
    figures = published.figures(row.method, given, temperature, benchmark)
    for model in spec.printed_for:
        for name in spec.published:
            figure = figures.get((model, name))
            line[_published_column(model, name)] = None if figure is None else round(figure.value, 2)
            if model == published.ALL_CELLS:
                line[_published_column(model, name) + "_high"] = None if figure is None else figure.high
    return line


def _whole(value: object) -> int | None:
    """A plugin's option of a known name may be of any type."""
    return value if type(value) is int else None


def _published_column(model: str, name: str) -> str:
    return f"{model} {PRINTED[name]} (published)"


def _column(spec: Spec, name: str) -> str:
    return f"{COLUMNS[name]} ({spec.profile})" if name in (EMULATED, PROJECTED) else COLUMNS[name]


def _printed(spec: Spec, part: pd.DataFrame, footnotes: Mapping[str, str]) -> pd.DataFrame:
    """The tidy lines of one section as strings."""
    records = part.astype(object).where(part.notna(), None).to_dict("records")
    lines = []
    for record in records:
        dash = f"- {footnotes[record['reason']]}" if record["reason"] else "-"
        line = {"method": record["label"]}
        for name in spec.columns:
            line[_column(spec, name)] = _with_interval(record, name) if record[name] is not None else dash
        line["lossless"] = record["lossless"] or "-"
        for model in spec.printed_for:
            for name in spec.published:
                column = _published_column(model, name)
                line[column] = _printed_figure(record, column)
        lines.append(line)
    return pd.DataFrame(lines)


def _printed_figure(record: Mapping[str, object], column: str) -> str:
    if record[column] is None:
        return ""
    high = record.get(f"{column}_high")
    return f"{record[column]:.2f}" if high is None else f"{record[column]:.2f} to {high:.2f}"


def _with_interval(record: Mapping[str, object], name: str) -> str:
    digits = 1 if name.endswith("tok_per_s") else 2
    if record[f"{name}_low"] is None:
        return f"{record[name]:.{digits}f}"
    low, high = record[f"{name}_low"], record[f"{name}_high"]
    return f"{record[name]:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def _legend(spec: Spec, data: pd.DataFrame) -> list[str]:
    """What was measured on how many prompts, and where the published figures come from."""
    notes = [
        _amount(temperature, part)
        for temperature, part in data[data["benchmark"] != OVERALL].groupby("temperature", sort=False)
        if part["prompts"].notna().any()
    ]
    notes += [*_machines(data), *_states(spec, data), *_trainings(data)]
    failed = data[data["failed"].gt(0) & (data["benchmark"] == OVERALL)]
    notes += [
        f"{line.label}, T = {line.temperature:g}: {line.failed} prompts failed."
        for line in failed.itertuples()
    ]
    return [
        *notes,
        " ".join(LEGEND[name] for name in spec.columns),
        *_devices(spec),
        "Pooled over prompts; in brackets the 95 % bootstrap interval over prompts.",
        "lossless: how the output compares with the target's own (exact, tie, mismatch); sampled where T > 0 "
        "makes outputs random; replayed where the trace was computed along AR's stored output instead of "
        "decoded (at T > 0 with drawn proposals: its expectation); reference for AR itself.",
        _source(spec),
    ]


def _amount(temperature: float, part: pd.DataFrame) -> str:
    """How many prompts of how many tokens, and at T > 0 which law they were drawn from."""
    known = part.dropna(subset=["max_new_tokens"])
    law = (
        ""
        if temperature == 0
        else _either(f", top-k {r.top_k}, top-p {r.top_p:g}" for r in known.itertuples())
    )
    counts = _either(f"{int(count)}" for count in part["prompts"].dropna())
    foreign = _either(part["subset"].dropna())
    prompts = "prompt" if counts == "1" else "prompts"
    note = f"T = {temperature:g}{law}: {counts} {prompts} per benchmark{foreign and f' ({foreign})'}"
    caps = _either(str(cap) for cap in known["max_new_tokens"])
    return f"{note}, at most {caps} new tokens each." if caps else f"{note}."


def _machines(data: pd.DataFrame) -> list[str]:
    """Target, dtype and machine of all rows; of which rows, where they differ."""
    groups = list(data.groupby(["target", "dtype", "machine"], sort=False))
    return [
        f"measured{'' if len(groups) == 1 else ' (' + ', '.join(part['label'].unique()) + ')'}: "
        f"{target} in {dtype} on {machine}."
        for (target, dtype, machine), part in groups
    ]


def _states(spec: Spec, data: pd.DataFrame) -> list[str]:
    """Where AR, the same work beside every row, shows that rows met the machine in different states."""
    if "ar_tok_per_s" not in spec.columns:
        return []
    known = data[(data["benchmark"] == OVERALL) & data["ar_tok_per_s"].notna()]
    notes = []
    for temperature, part in known.groupby("temperature", sort=False):
        speeds = part["ar_tok_per_s"]
        lows, highs = part["ar_tok_per_s_low"].fillna(speeds), part["ar_tok_per_s_high"].fillna(speeds)
        if apart(list(zip(speeds, zip(lows, highs, strict=True), strict=True))):
            notes.append(
                f"T = {temperature:g}: AR ran at {speeds.min():.1f} to {speeds.max():.1f} tok/s beside the "
                "rows, further apart than its 95 % intervals: the machine was not in one state, so tok/s of "
                "two rows do not compare; a row's wall-clock does, against AR of its own run."
            )
    return notes


def _trainings(data: pd.DataFrame) -> list[str]:
    """What the drafters of the rows were trained on, where that is known."""
    return [
        f"drafters trained on {training}: {', '.join(part['label'].unique())}."
        for training, part in data.groupby("training", sort=False)
    ]


def _either(texts: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(texts))


def _devices(spec: Spec) -> list[str]:
    """What the devices of the emulated and projected columns are, and which rows they are for."""
    if spec.profile is None:
        return []
    profile = load_profile(spec.profile)
    times = [f"AR {1e3 * profile.ar_s:.1f} a token"]
    for each in profile.pipelines:
        stage, draft = 1e3 * each.stage_s, 1e3 * each.draft_s
        times.append(f"n = {each.n}, Ls = {each.draft_layers}: stage {stage:.2f}, draft {draft:.2f}")
    return [
        f"{spec.profile}: devices with the times of {profile.target} in milliseconds ({'; '.join(times)}) "
        "and this table's traces; a dash for rows of another n or Ls."
    ]


def _source(spec: Spec) -> str:
    page = "; ".join(published.speedups()["source"].unique())
    paper = "arXiv 2605.30852, versions 1 and 3"
    source = paper if spec.width > 1 else page
    if published.ALL_CELLS in spec.printed_for:
        source += f"; {published.ALL_CELLS}: range over the table's cells in arXiv 2605.30852v1, Table 3"
    return (
        f"published: {source}; other targets (L = 32), 80 prompts per benchmark, 512 new tokens, mean over "
        "prompts. Blank: not published. Where the source prints S alone, S0 is computed from it."
    )
