"""What a user sees: a bar on stderr while checks run; outcomes as a line each, a table, and JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from tqdm import tqdm

from harness.checks.catalogue import Check
from harness.checks.outcome import Outcome
from harness.checks.subject import Subject
from methods.testing.progress import listening

EVERY_S = 30.0
"""How often the bar is renewed where stderr is no terminal: in a log every state of it stays."""


class Bar:
    """Over all checks of ``plan``: the one that runs, the share of the work that is done, the time left."""

    def __init__(self, plan: Sequence[tuple[Check, Subject | None]]) -> None:
        self._terminal = sys.stderr.isatty()
        pause = 0.1 if self._terminal else EVERY_S
        self._bar = tqdm(
            total=sum(check.cost for check, _ in plan),
            file=sys.stderr,
            mininterval=pause,
            maxinterval=pause,
            miniters=0,
            delay=0 if self._terminal else pause,
            smoothing=0,
            leave=False,
            bar_format="{desc}: {percentage:3.0f} %|{bar:20}| {elapsed}, about {remaining} left",
        )

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    @contextmanager
    def showing(self, check: Check, subject: Subject | None) -> Iterator[None]:
        """``check`` runs on ``subject``."""
        title = f"{check.id} {check.title}" + (f", {subject.label}" if subject else "")
        self._bar.set_description_str(title, refresh=self._terminal)
        start = self._bar.n

        def done(share: float) -> None:
            self._bar.update(start + check.cost * share - self._bar.n)

        with listening(done):
            yield
        done(1.0)

    def print(self, text: str) -> None:
        """On stdout, clear of the bar."""
        with tqdm.external_write_mode(file=sys.stdout) if self._terminal else nullcontext():
            print(text, flush=True)


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
) -> tuple[str, dict[str, Any]]:
    """For people, where there are several subjects a line per check over all of them; and for programs."""
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
    return "\n".join(lines), content


def _verdict(outcomes: Sequence[Outcome]) -> str:
    failed = [outcome.subject for outcome in outcomes if outcome.status == "failed"]
    passed = sum(outcome.status == "passed" for outcome in outcomes)
    if failed:
        return f"failed: {', '.join(failed)}"
    return f"passed on {passed} of {len(outcomes)}" if passed else "not applicable"
