"""How outcomes are printed: a line each, a table over the checks, and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from harness.checking.catalogue import Check
from harness.checking.outcome import Outcome


def heading(outcome: Outcome) -> str:
    return f"\n{outcome.subject}"


def line(outcome: Outcome) -> str:
    """``C1   passed  title: figure (allowed: bound)``, a fault or a tie on a line of its own."""
    start = f"  {outcome.check:4} {outcome.status}"
    if outcome.status == "not applicable":
        return f"{start}: {outcome.reason}"
    figure = f": {outcome.figure}" if outcome.figure else ""
    allowed = f" (allowed: {outcome.bound})" if outcome.bound else ""
    why = f"\n       {outcome.reason}" if outcome.reason else ""
    return f"{start}  {outcome.title}{figure}{allowed}{why}"


def report(
    checks: Sequence[Check], outcomes: Sequence[Outcome], ran: Mapping[str, Any], seconds: float
) -> str:
    """Where there are several subjects a line per check over all of them, then one JSON object on the
    last line."""
    lines = [f"\n{seconds:.0f} s"]
    several = len({outcome.subject for outcome in outcomes}) > 1
    for check in checks if several else ():
        lines.append(
            f"  {check.id:4} {_verdict([o for o in outcomes if o.check == check.id]):36} {check.title}"
        )
    counts = {
        status: sum(outcome.status == status for outcome in outcomes)
        for status in ("passed", "failed", "not applicable")
    }
    content = {
        "passed": counts["failed"] == 0 and counts["passed"] > 0,
        "counts": counts,
        "ran": dict(ran),
        "seconds": round(seconds, 1),
        "checks": [outcome.as_json() for outcome in outcomes],
    }
    return "\n".join([*lines, json.dumps(content, allow_nan=False)])


def _verdict(outcomes: Sequence[Outcome]) -> str:
    failed = [outcome.subject for outcome in outcomes if outcome.status == "failed"]
    passed = sum(outcome.status == "passed" for outcome in outcomes)
    if failed:
        return f"failed: {', '.join(failed)}"
    return f"passed on {passed} of {len(outcomes)}" if passed else "not applicable"
