"""Speed measurements by subject. Each is a function ``Settings -> Iterator[Result]`` in a file of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module

from harness.speed.result import Result, Settings
from methods.errors import UsageError

Measurement = Callable[[Settings], Iterator[Result]]

SUBJECTS: Mapping[str, str] = {
    "autoregressive": "harness.speed.autoregressive",
    "distributed": "harness.speed.distributed",
    "emulation": "harness.speed.emulation",
    "pipeline": "harness.speed.pipeline",
    "replay": "harness.speed.replay",
    "rounds": "harness.speed.rounds",
}
"""Subject -> the module whose ``measure`` is its ``Measurement``; a new subject is one line here."""


def get(subject: str) -> Measurement:
    """The measurement of ``subject``; ``UsageError`` lists what exists."""
    if subject not in SUBJECTS:
        raise UsageError(f"unknown measurement {subject!r}; known: {', '.join(SUBJECTS)}")
    return import_module(SUBJECTS[subject]).measure


__all__ = ["SUBJECTS", "Measurement", "Result", "Settings", "get"]
