"""The figures of all arms as HTML tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape
from typing import Any

from harness import metrics
from harness.comparable import KINDS
from harness.plan import AR
from harness.report.arms import Arm
from harness.summary import OVERALL, TITLES, checked, rows, worst

FIGURES = {
    "S0": "S0",
    "S": "S",
    "wallclock_speedup": "wall-clock",
    "tok_per_s": "tok/s",
    "step_acceptance": "step acceptance",
    "accuracy": "accuracy",
}


def figures(arms: Sequence[Arm], temperature: float) -> str:
    """One line per arm and benchmark, overall first; columns nobody has a figure for are left out."""
    table = [(arm, line) for arm in arms for line in _lines(arm, temperature)]
    titles = FIGURES | {"wallclock_speedup": wall_clock(arms)}
    shown = {
        name: title for name, title in titles.items() if any(line[name] is not None for _, line in table)
    }
    body = []
    for arm, line in table:
        overall = line["benchmark"] == OVERALL
        status = status_of(arm, line["lossless"])
        bad = "bad" if status in ("mismatch", "unchecked") else ""
        cells = "".join(f"<td>{_number(line, name, status)}</td>" for name in shown)
        body.append(
            f'<tr class="{"overall" if overall else ""}"><td>{escape(arm.name) if overall else ""}</td>'
            f'<td class="text">{TITLES.get(line["benchmark"], escape(line["benchmark"]))}</td>'
            f'<td class="text {bad}">{escape(status or "-")}</td>{cells}'
            f"<td>{line['prompts']}</td><td>{line['tokens']}</td><td>{line['failed'] or ''}</td></tr>"
        )
    head = "".join(f"<th>{title}</th>" for title in shown.values())
    return (
        '<div class="scroll"><table><tr><th>method</th><th class="text">benchmark</th>'
        f'<th class="text">lossless</th>{head}<th>prompts</th><th>tokens</th><th>failed</th></tr>'
        f"{''.join(body)}</table></div>"
    )


def wall_clock(arms: Sequence[Arm]) -> str:
    """What the seconds of a page's runs are called: they are of one kind, replays have none."""
    kinds = [KINDS[arm.mode] for arm in arms if arm.mode != "replay"]
    return f"{kinds[0]} wall-clock" if kinds else "wall-clock"


def _lines(arm: Arm, temperature: float) -> list[dict[str, Any]]:
    found = rows(arm.at(temperature), arm.baseline)
    return [line for line in found if line["benchmark"] == OVERALL] + [
        line for line in found if line["benchmark"] != OVERALL
    ]


def status_of(arm: Arm, lossless: str | None) -> str | None:
    """What AR is compared with is itself: "reference"."""
    return "reference" if arm.records[0].method == AR else lossless


def _number(line: dict[str, Any], name: str, status: str | None) -> str:
    value, interval = line[name], line[f"{name}_interval"]
    if value is None or not checked(status, name):
        return "-"
    digits = 1 if name == "tok_per_s" else 2
    spread = (
        "" if interval is None else f" <small>[{interval[0]:.{digits}f}, {interval[1]:.{digits}f}]</small>"
    )
    return f"{value:.{digits}f}{spread}"


def categories(arms: Sequence[Arm], temperature: float) -> str:
    """S and step acceptance by category, where a benchmark has more than one."""
    drafting = [arm for arm in arms if arm.records[0].method != AR]
    pairs = [
        (record.benchmark, record.category)
        for arm in drafting
        for record in arm.at(temperature)
        if record.category
    ]
    many = {name for name, count in Counter(name for name, _ in set(pairs)).items() if count > 1}
    groups = [pair for pair in dict.fromkeys(pairs) if pair[0] in many]
    if not groups:
        return ""
    head = "".join(f"<th>{escape(arm.name)}</th>" for arm in drafting)
    body = []
    for benchmark, category in groups:
        cells = ""
        for arm in drafting:
            mine = [r for r in arm.at(temperature) if (r.benchmark, r.category) == (benchmark, category)]
            s = metrics.s(mine) if checked(worst(mine), "S") else None
            acceptance = metrics.step_acceptance(mine)
            second = f" <small>{acceptance.pooled:.2f}</small>" if acceptance else ""
            cells += f"<td>{f'{s.pooled:.2f}{second}' if s else '-'}</td>"
        body.append(f"<tr><td>{TITLES.get(benchmark, benchmark)}: {escape(str(category))}</td>{cells}</tr>")
    return (
        "<h3>By category: S, step acceptance beside it</h3>"
        f'<div class="scroll"><table><tr><th>category</th>{head}</tr>{"".join(body)}</table></div>'
    )
