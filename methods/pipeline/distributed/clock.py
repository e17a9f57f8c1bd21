"""Where one rank's time goes, cycle by cycle."""

from __future__ import annotations

import time
from typing import NamedTuple

WAIT, COMPUTE, DRAFT, SEND, VERIFY, CONTROL = PHASES = (
    "wait",
    "compute",
    "draft",
    "send",
    "verify",
    "control",
)


class Span(NamedTuple):
    """``start`` in seconds on the machine's monotonic clock, ``seconds`` long, in cycle ``cycle``."""

    cycle: int
    phase: str
    start: float
    seconds: float


class Clock:
    """Laps by phase. With ``record`` every lap is kept, else only the sums of the current cycle."""

    def __init__(self, record: bool = False) -> None:
        self.spans: list[Span] | None = [] if record else None
        self.restart()

    def restart(self) -> None:
        """Forget what was so far."""
        self.spans = None if self.spans is None else []
        self.cycle = 0
        self._sums = dict.fromkeys(PHASES, 0.0)
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        """Count the time since the last lap as ``phase``."""
        now = time.perf_counter()
        self._sums[phase] += now - self._last
        if self.spans is not None and now - self._last > 1e-6:
            self.spans.append(Span(self.cycle, phase, self._last, now - self._last))
        self._last = now

    def end_cycle(self) -> dict[str, float]:
        """Seconds by phase of the cycle that ends here."""
        self.lap(CONTROL)
        sums, self._sums = self._sums, dict.fromkeys(PHASES, 0.0)
        self.cycle += 1
        return sums
