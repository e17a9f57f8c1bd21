"""The charts of all arms at one temperature, each with its title."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from harness import metrics
from harness.metrics import Estimate
from harness.records import Record
from harness.report import charts, trace
from harness.report.arms import Arm
from harness.report.charts import Series
from harness.report.tables import status_of, wall_clock
from harness.summary import checked, worst


def panels(arms: Sequence[Arm], temperature: float) -> str:
    held = [(arm, metrics.completed(arm.at(temperature))) for arm in arms]
    held = [(arm, records) for arm, records in held if records]
    drafting = [(arm, records) for arm, records in held if any(sum(r.steps.depth) for r in records)]
    drawn = [
        _panel("Speedups", f"S0, S and {wall_clock(arms)}; the dashed line is AR", _speedups(held)),
        _panel(
            "L_acc by answer",
            "answers per bin of 0.25",
            charts.histogram([_l_acc(arm, records) for arm, records in drafting], "L_acc", 0.25),
        ),
        _panel(
            "Acceptance by depth",
            "share accepted of the drafts examined as the d-th in a row since the last rejection or round",
            charts.lines(
                [_points(arm, trace.by_depth(records)[:24]) for arm, records in drafting], "depth", 1.0
            ),
        ),
        _panel(
            "Acceptance by position in the answer",
            "blocks of 16 tokens",
            charts.lines(
                [_points(arm, trace.by_position(records)) for arm, records in drafting], "position", 1.0
            ),
        ),
        _panel("Where the time goes", "milliseconds per decoded token, by phase", _phases(held)),
    ]
    return f'<div class="charts">{"".join(drawn)}</div>'


def _panel(title: str, about: str, chart: str) -> str:
    if not chart:
        return ""
    return f"<figure><figcaption>{title}<span>{about}</span></figcaption>{chart}</figure>"


def _speedups(held: Sequence[tuple[Arm, list[Record]]]) -> str:
    groups = []
    for title, figure in (
        ("S0", lambda arm, records: metrics.s0(records)),
        ("S", lambda arm, records: metrics.s(records)),
        ("wall-clock", lambda arm, records: metrics.wallclock_speedup(records, arm.baseline)),
    ):
        points = []
        for row, (arm, records) in enumerate(held):
            if not checked(status_of(arm, worst(records)), "S"):
                continue
            estimate = figure(arm, records)
            if estimate is not None:
                points.append((float(row), estimate.pooled, _with_interval(estimate)))
        if points:
            groups.append(Series(title, points))
    return charts.bars([arm.name for arm, _ in held], groups, mark=1.0)


def _with_interval(estimate: Estimate) -> str:
    if estimate.pooled_interval is None:
        return f"{estimate.pooled:.2f}"
    low, high = estimate.pooled_interval
    return f"{estimate.pooled:.2f} [{low:.2f}, {high:.2f}]"


def _l_acc(arm: Arm, records: Sequence[Record]) -> Series:
    bins: Counter[float] = Counter()
    for record in records:
        found = metrics.l_acc([record])
        if found is not None:
            bins[int(found.pooled / 0.25) * 0.25] += 1
    points = [
        (low, float(count), f"{count} answers, L_acc {low:g} to {low + 0.25:g}")
        for low, count in sorted(bins.items())
    ]
    return Series(arm.name, points)


def _points(arm: Arm, found: Sequence[tuple[int, float, int]]) -> Series:
    return Series(arm.name, [(float(x), y, f"{y:.2f} of {count} at {x}") for x, y, count in found])


def _phases(held: Sequence[tuple[Arm, list[Record]]]) -> str:
    timed = [(arm, records) for arm, records in held if any(record.phases for record in records)]
    names = dict.fromkeys(name for _, records in timed for record in records for name in record.phases)
    parts = []
    for name in names:
        points = []
        for row, (_, records) in enumerate(timed):
            seconds = sum(record.phases.get(name, 0.0) for record in records)
            value = 1000 * seconds / max(1, metrics.tokens(records))
            points.append((float(row), value, f"{value:.1f} ms"))
        parts.append(Series(name, points))
    return charts.stacked([arm.name for arm, _ in timed], parts, "ms")
