"""What a rank is doing and where its time goes: for whoever watches it, and for the records."""

from __future__ import annotations

import time
from typing import NamedTuple, Protocol, TypeVar

STUCK_S = 8.0
"""Without progress for this long, a rank that waits for nobody is taken for stuck."""

PROMPT = "running the prompt"
"""A chunk of it can take a stage longer than a rank may otherwise stand still."""

WAIT, COMPUTE, DRAFT, SEND, VERIFY, CONTROL = PHASES = (
    "wait",
    "compute",
    "draft",
    "send",
    "verify",
    "control",
)

M = TypeVar("M", covariant=True)


class Progress:
    """Written by the rank's main thread, read by its heartbeat.

    ``count`` grows whenever the rank gets somewhere; ``doing`` is for messages; ``patient`` tells
    that standing still is no fault of this rank now: it waits for another, or loads.
    """

    def __init__(self) -> None:
        self.count = 0
        self.doing = "starting"
        self.patient = True
        self._before = self.doing, self.patient

    def begin(self, doing: str, patient: bool) -> None:
        self.doing, self.patient = doing, patient
        self.count += 1

    def step(self) -> None:
        self.count += 1

    def waiting(self, what: str) -> Progress:
        """While waiting for another rank, as a context; an error leaves it as it is, for the message."""
        self._before = self.doing, self.patient
        self.doing, self.patient = f"waiting for {what}", True
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.doing, self.patient = self._before
            self.count += 1


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


class Receiver(Protocol[M]):
    def receive(self) -> M: ...


class Inbox:
    """Waits for messages, with the waiting on the clock and in sight of whoever watches the rank."""

    def __init__(self, clock: Clock, progress: Progress) -> None:
        self._clock, self._progress = clock, progress

    def take(self, receiver: Receiver[M] | None, what: str) -> M:
        """The next message, valid until the next call; ``what`` says for messages what is waited for."""
        assert receiver is not None
        self._clock.lap(CONTROL)
        with self._progress.waiting(what):
            message = receiver.receive()
        self._clock.lap(WAIT)
        return message
