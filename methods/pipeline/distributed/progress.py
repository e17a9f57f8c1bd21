"""What a rank is doing, for whoever watches it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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

    def begin(self, doing: str, patient: bool) -> None:
        self.doing, self.patient = doing, patient
        self.count += 1

    def step(self) -> None:
        self.count += 1

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """While waiting for another rank."""
        before = self.doing, self.patient
        self.doing, self.patient = f"waiting for {what}", True
        yield
        self.doing, self.patient = before
        self.count += 1
