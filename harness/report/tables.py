"""The figures of all arms as HTML tables, and what their headings mean."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape
from typing import Any

from harness.analysis import metrics
from harness.analysis.comparable import KINDS
from harness.analysis.summary import OVERALL, TITLES, accuracy_notes, checked, rows, worst
from harness.report.arms import Arm
from harness.report.html import Row, table, words

FIGURES = {
    "S0": "S0",
    "S": "S",
    "wallclock_speedup": "wall-clock",
    "tok_per_s": "tok/s",
    "ar_tok_per_s": "AR's tok/s",
    "step_acceptance": "step acceptance",
    "accuracy": "accuracy",
    "ar_accuracy": "AR's accuracy",
}
MEANINGS = {
    "AR": "plain decoding, one token per pass of the target, of the same prompts in the same run",
    "S0": "speedup over AR if drafting were free, counted in layers: N·L / the target layers on the critical "
    "path, for N decoded tokens and a target of L layers; it is also L_acc, the tokens per pass",
    "S": "the same with the draft's layers on the critical path, too; S = S0 where drafting hides behind the "
    "target",
    "wallclock_speedup": "AR's decode seconds per token / the method's, in one run; prefill outside",
    "tok_per_s": "decoded tokens per second, prefill outside; AR's tok/s is of the same run, so it tells how "
    "fast the machine was then: tok/s of two runs do not compare, wall-clock speedups do",
    "step_acceptance": "share of the drafted tokens the target decided on that it accepted",
    "lossless": "is the output AR's own? exact: the same tokens; tie: differs first where the target itself "
    "had two tokens as good as equal; mismatch: differs otherwise; sampled: T > 0, where the law counts and "
    "not the tokens; replayed: the trace was computed along AR's output; unchecked: nothing to compare with, "
    "and then no speedup is shown; reference: AR",
    "[low, high]": "95 % bootstrap interval over prompts; figures are pooled over prompts",
}
"""By figure, or the word itself."""


Lines = Sequence[tuple[Arm, dict[str, Any]]]
"""An arm and a row of its summary, several for each arm."""


def lines_of(arms: Sequence[Arm], temperature: float) -> Lines:
    """The figures of every arm by benchmark, overall first."""
    return [(arm, line) for arm in arms for line in _lines(arm, temperature)]


def figures(arms: Sequence[Arm], lines: Lines) -> str:
    """A row for each of ``lines``; columns nobody has a figure for are left out."""
    shown = _shown(arms, lines)
    counts = ["prompts", "tokens", *(["failed"] if any(line["failed"] for _, line in lines) else [])]
    body = [
        Row(
            [
                *_about(arm, line),
                *(_number(arm, line, name) for name in shown),
                *(str(line[c]) for c in counts),
            ],
            "overall" if line["benchmark"] == OVERALL else "",
        )
        for arm, line in lines
    ]
    return table(["method", "benchmark", "lossless", *shown.values(), *counts], body, words=3)


def meanings(arms: Sequence[Arm], lines: Lines) -> str:
    """What the headings mean that a page with ``lines`` has."""
    shown = _shown(arms, lines)
    known = MEANINGS | {"accuracy": "; ".join(accuracy_notes(line["accuracy_by"] for _, line in lines))}
    return words(
        {shown.get(name, name): is_ for name, is_ in known.items() if name in shown or name not in FIGURES}
    )


def wall_clock(arms: Sequence[Arm]) -> str:
    """What the seconds of a page's runs are called: they are of one kind, replays have none."""
    kinds = [KINDS[arm.mode] for arm in arms if arm.mode != "replay"]
    return f"{kinds[0]} wall-clock" if kinds else "wall-clock"


def _shown(arms: Sequence[Arm], lines: Lines) -> dict[str, str]:
    """Figures that somebody has, with their headings. AR's accuracy is the method's own where the
    outputs are."""
    titles = FIGURES | {"wallclock_speedup": wall_clock(arms)}
    if all(line["ar_accuracy"] in (None, line["accuracy"]) for _, line in lines):
        del titles["ar_accuracy"]
    return {name: title for name, title in titles.items() if any(line[name] is not None for _, line in lines)}


def _lines(arm: Arm, temperature: float) -> list[dict[str, Any]]:
    mine = arm.at(temperature)
    found = rows(mine, arm.baseline)
    of_ar = metrics.beside(mine, arm.baseline)
    for line in found:
        ar = metrics.accuracy([r for r in of_ar if line["benchmark"] in (OVERALL, r.benchmark)])
        line["ar_accuracy"] = None if ar is None else ar.pooled
        line["ar_accuracy_interval"] = None if ar is None else ar.pooled_interval
    return [line for line in found if line["benchmark"] == OVERALL] + [
        line for line in found if line["benchmark"] != OVERALL
    ]


def _about(arm: Arm, line: dict[str, Any]) -> list[str]:
    overall = line["benchmark"] == OVERALL
    status = status_of(arm, line["lossless"])
    bad = ' class="bad"' if status in ("mismatch", "unchecked") else ""
    return [
        escape(arm.name) if overall else f'<span class="again">{escape(arm.name)}</span>',
        escape(TITLES.get(line["benchmark"], line["benchmark"])),
        f"<span{bad}>{escape(status or '-')}</span>",
    ]


def status_of(arm: Arm, lossless: str | None) -> str | None:
    """What AR is compared with is itself: "reference"."""
    return "reference" if arm.is_ar else lossless


def _number(arm: Arm, line: dict[str, Any], name: str) -> str:
    value, interval = line[name], line[f"{name}_interval"]
    if value is None or not checked(status_of(arm, line["lossless"]), name):
        return "-"
    digits = 1 if name.endswith("tok_per_s") else 2
    spread = (
        "" if interval is None else f" <small>[{interval[0]:.{digits}f}, {interval[1]:.{digits}f}]</small>"
    )
    return f"{value:.{digits}f}{spread}"


def categories(arms: Sequence[Arm], temperature: float) -> str:
    """S and step acceptance by category, where a benchmark has more than one."""
    drafting = [arm for arm in arms if not arm.is_ar]
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
    body = []
    for benchmark, category in groups:
        cells = [escape(f"{TITLES.get(benchmark, benchmark)}: {category}")]
        for arm in drafting:
            mine = [r for r in arm.at(temperature) if (r.benchmark, r.category) == (benchmark, category)]
            s = metrics.s(mine) if checked(worst(mine), "S") else None
            acceptance = metrics.step_acceptance(mine)
            second = f" <small>{acceptance.pooled:.2f}</small>" if acceptance else ""
            cells.append(f"{s.pooled:.2f}{second}" if s else "-")
        body.append(Row(cells))
    return "<h3>By category: S, step acceptance below it</h3>" + table(
        ["category", *(arm.name for arm in drafting)], body
    )
