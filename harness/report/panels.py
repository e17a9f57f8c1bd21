"""The charts of all arms at one temperature, each with its title."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape

from harness.analysis import metrics
from harness.analysis.estimate import Estimate
from harness.analysis.summary import checked, worst
from harness.records.record import Record
from harness.report import charts, trace
from harness.report.arms import Arm
from harness.report.charts import Point, Series
from harness.report.tables import status_of, wall_clock

Held = Sequence[tuple[Arm, list[Record]]]
Shares = Mapping[str, Sequence[tuple[int, float, int]]]
"""By arm: (place, share of accepted drafts there, decisions)."""

_DEEPEST = 24
_OPEN = 8
"""Lines of a table of counts that are shown without asking."""


def panels(arms: Sequence[Arm], temperature: float) -> str:
    held = [(arm, metrics.completed(arm.at(temperature))) for arm in arms]
    held = [(arm, records) for arm, records in held if records]
    drafting = [(arm, records) for arm, records in held if any(sum(r.steps.depth) for r in records)]
    depths = {arm.name: trace.by_depth(records)[:_DEEPEST] for arm, records in drafting}
    positions = {arm.name: trace.by_position(records) for arm, records in drafting}
    drawn = [
        _panel(
            "Speedups",
            f"S0, S and {wall_clock(arms)}, whiskers: 95 % intervals; the dashed line is AR",
            _speedups(held),
        ),
        _panel(
            "L_acc by answer",
            "answers per bin of 0.25; L_acc: tokens per pass through the target",
            charts.histogram([_l_acc(arm, records) for arm, records in drafting], "L_acc", 0.25),
        ),
        _panel(
            "Acceptance by depth",
            "share accepted of the drafts examined as the d-th in a row since the last rejection or round",
            _acceptance(depths, "depth"),
        ),
        _panel(
            "Acceptance by position in the answer",
            "share accepted of the drafts examined in blocks of 16 tokens, by a block's first",
            _acceptance(positions, "position"),
        ),
        _times(held),
    ]
    return f'<div class="charts">{"".join(drawn)}</div>'


def _panel(title: str, about: str, chart: str) -> str:
    if not chart:
        return ""
    return f"<figure><figcaption>{title}<span>{about}</span></figcaption>{chart}</figure>"


def _speedups(held: Held) -> str:
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
                points.append(_point(row, estimate, estimate.shown()))
        if points:
            groups.append(Series(title, points))
    return charts.bars([arm.name for arm, _ in held], groups, mark=1.0)


def _point(row: int, estimate: Estimate, text: str) -> Point:
    return Point(float(row), estimate.pooled, text, estimate.pooled_interval)


def _l_acc(arm: Arm, records: Sequence[Record]) -> Series:
    bins: Counter[float] = Counter()
    for record in records:
        found = metrics.l_acc([record])
        if found is not None:
            bins[int(found.pooled / 0.25) * 0.25] += 1
    points = [
        Point(low, float(count), f"{count} answers, L_acc {low:g} to {low + 0.25:g}")
        for low, count in sorted(bins.items())
    ]
    return Series(arm.name, points)


def _acceptance(shares: Shares, place: str) -> str:
    """Lines of shares, and below them each with the number of decisions it is of."""
    series = [
        Series(name, [Point(float(x), y, f"{y:.2f} of {count} at {x}") for x, y, count in found])
        for name, found in shares.items()
    ]
    chart = charts.lines(series, place, 1.0)
    return chart and chart + _counts(shares, place)


def _counts(shares: Shares, place: str) -> str:
    at = {name: {x: (y, count) for x, y, count in found} for name, found in shares.items()}
    names = "".join(f"<th>{charts.swatch(i)}{escape(name)}</th>" for i, name in enumerate(at))
    rows = [
        f"<tr><td>{x}</td>" + "".join(f"<td>{_share(found.get(x))}</td>" for found in at.values()) + "</tr>"
        for x in sorted({x for found in at.values() for x in found})
    ]
    head = f"<thead><tr><th>{place}</th>{names}</tr></thead>"
    parts = [f'<table class="counts">{head}<tbody>{"".join(rows[:_OPEN])}</tbody></table>']
    if rows[_OPEN:]:
        rest = f'<table class="counts">{head}<tbody>{"".join(rows[_OPEN:])}</tbody></table>'
        parts.append(f"<details><summary>{len(rows) - _OPEN} more</summary>{rest}</details>")
    return f'<div class="scroll">{"".join(parts)}</div>'


def _share(found: tuple[float, int] | None) -> str:
    return "-" if found is None else f"{found[0]:.2f} <small>of {found[1]}</small>"


def _times(held: Held) -> str:
    """Where a token's time goes, in units of AR's time for one in the same run, which a busier machine
    leaves as they are; milliseconds only of a single run that has no AR beside it."""
    timed = [(arm, records) for arm, records in held if any(record.phases for record in records)]
    if len({arm.run for arm, _ in timed}) == 1 and not any(arm.baseline for arm, _ in timed):
        return _panel("Where the time goes", "milliseconds per decoded token, by phase", _milliseconds(timed))
    beside = [(arm, records) for arm, records in timed if metrics.timed_pairs(records, arm.baseline)]
    lacking = [arm.name for arm, _ in timed if arm.name not in {other.name for other, _ in beside}]
    about = (
        "time per decoded token by phase, in units of AR's in the same run, the dashed line; whiskers: 95 % "
        "intervals"
    )
    if lacking:
        about += f"; without AR beside them and left out: {escape(', '.join(lacking))}"
    none = '<p class="note">No run has AR beside it.</p>' if timed else ""
    return _panel("Where the time goes", about, _relative(beside) or none)


def _relative(held: Held) -> str:
    names = _phases(held)
    totals = []
    for row, (arm, records) in enumerate(held):
        total = metrics.phase_time(records, arm.baseline, names)
        totals.append(_point(row, total, f"{total.pooled:.2f} x AR") if total else Point(float(row), 0, "-"))
    parts = []
    for name in names:
        found = [metrics.phase_time(records, arm.baseline, [name]) for arm, records in held]
        points = [_point(row, each, f"{each.shown()} x AR") for row, each in enumerate(found) if each]
        parts.append(Series(name, points))
    return charts.stacked([arm.name for arm, _ in held], parts, totals, mark=1.0)


def _milliseconds(held: Held) -> str:
    per_token = [
        {
            name: 1000 * sum(r.phases.get(name, 0.0) for r in records) / max(1, metrics.tokens(records))
            for name in _phases(held)
        }
        for _, records in held
    ]
    parts = [
        Series(
            name,
            [Point(float(row), each[name], f"{each[name]:.1f} ms") for row, each in enumerate(per_token)],
        )
        for name in _phases(held)
    ]
    sums = [sum(each.values()) for each in per_token]
    totals = [Point(float(row), total, f"{total:.1f} ms") for row, total in enumerate(sums)]
    return charts.stacked([arm.name for arm, _ in held], parts, totals)


def _phases(held: Held) -> list[str]:
    return list(dict.fromkeys(name for _, records in held for record in records for name in record.phases))
