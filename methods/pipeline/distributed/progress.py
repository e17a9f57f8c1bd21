"""What a rank is doing, for whoever watches it."""

from __future__ import annotations

STUCK_S = 8.0
"""Without progress for this long, a rank that waits for nobody is taken for stuck."""

PROMPT = "running the prompt"
"""A chunk of it can take a stage longer than a rank may otherwise stand still."""


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
