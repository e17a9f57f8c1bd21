"""How far a check has come, for whoever shows it to a user. Nobody listens unless ``listening`` says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")
Listener = Callable[[float], None]
"""Told the share of the work that is done, in [0, 1]."""

_listener: Listener | None = None
_span = (0.0, 1.0)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """``listener`` hears of what is done within; it begins at 0."""
    global _listener, _span
    before, _listener, _span = (_listener, _span), listener, (0.0, 1.0)
    try:
        yield
    finally:
        _listener, _span = before


def tick(share: float) -> None:
    """``share`` of the work at hand is done."""
    if _listener is not None:
        first, last = _span
        _listener(first + (last - first) * min(1.0, max(0.0, share)))


@contextmanager
def portion(first: float, last: float) -> Iterator[None]:
    """Ticks within are between ``first`` and ``last`` of the work at hand."""
    global _span
    start, end = outer = _span
    _span = start + (end - start) * first, start + (end - start) * last
    try:
        yield
        tick(1.0)
    finally:
        _span = outer


def each(items: Sequence[Item]) -> Iterator[Item]:
    """``items``, of which each is an equal share of the work at hand."""
    for number, item in enumerate(items):
        with portion(number / len(items), (number + 1) / len(items)):
            yield item
