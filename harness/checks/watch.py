"""Sees that the targets a method is built for stay as they are while it is looked at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from harness.checks import worlds
from methods.models.seal import Seal
from methods.models.target import Target
from methods.source_code.loaded import functions

_open: list[Watch] = []


class Watch:
    """``fault``: what was changed, in words; known when the watch has ended."""

    def __init__(self) -> None:
        self.fault: str | None = None
        self._functions = functions()
        self._seals: dict[int, Seal] = {}

    def see(self, target: Target) -> None:
        if id(target) not in self._seals:
            self._seals[id(target)] = Seal(target, {} if self._seals else self._functions)

    def end(self) -> None:
        differences = (seal.difference() for seal in self._seals.values())
        found = next((difference for difference in differences if difference is not None), None)
        if found is not None:
            self.fault = f"the target was changed: {found}"
            worlds.forget()  # or what comes next would run on it


@contextmanager
def watching() -> Iterator[Watch]:
    """Watch every target that a method is built for in the body."""
    watch = Watch()
    _open.append(watch)
    try:
        yield watch
    finally:
        _open.remove(watch)
        watch.end()


def see(target: Target) -> None:
    """A method is about to be built for ``target``."""
    for watch in _open:
        watch.see(target)
