"""Timing several things against each other on a machine that is not quiet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter

Timed = Callable[[], float]
"""Runs once and returns its own seconds, so that what must not count (a prefill) can be left out."""


def seconds(call: Callable[[], object]) -> float:
    """Wall-clock seconds of one call."""
    started = perf_counter()
    call()
    return perf_counter() - started


def interleaved(arms: Mapping[str, Timed], repeats: int) -> dict[str, list[float]]:
    """Every arm once unrecorded, then ``repeats`` rounds in which the arms take turns.

    The order rotates from round to round, so that no arm always runs behind the same other one.
    """
    names = list(arms)
    for name in names:
        arms[name]()
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(repeats):
        for name in rotated(names, number):
            times[name].append(arms[name]())
    return times


def rotated(names: Sequence[str], by: int) -> list[str]:
    by %= len(names)
    return [*names[by:], *names[:by]]
