"""How long a prompt may take, and what a guarded process tells its parent of it."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

_AGAIN_S = 2.0
"""A method that swallows the first exception of the limit gets another."""

_link: int | None = None
"""Where this process tells its parent what it does; None without a parent that listens."""
_hung: Sequence[str] = ()
"""What an earlier start of this command was killed in, in the words of ``limit``."""


class OutOfTime(BaseException):
    """A prompt took longer than its limit. Not an ``Exception``: methods catch those."""


def begin(link: int, hung: Sequence[str]) -> None:
    """Be the child of ``harness.cli.guard``: tell the parent by ``link``, pass over what is in ``hung``."""
    global _link, _hung
    _link, _hung = link, tuple(hung)


def started_again() -> bool:
    """Whether an earlier start of this command was killed, and this one goes on with its work."""
    return bool(_hung)


@contextmanager
def limit(seconds: float | None, what: str) -> Iterator[None]:
    """Let the body, which is ``what``, take ``seconds`` at most; None is no limit.

    Beyond that it ends with ``OutOfTime``, raised between two lines of Python. Where that gets no
    chance, in the middle of a call that does not return, the parent ends the process: ``harness.cli.guard``.
    """
    if what in _hung:
        raise OutOfTime("no result within the time limit, and the method could not be interrupted")
    tell({"what": what, "until": None if seconds is None else time.monotonic() + seconds})
    try:
        with _alarm(seconds):
            yield
    finally:
        tell({"what": None, "until": None})


def finished() -> None:
    """Tell the parent that nothing is left to do but to end, with whatever exit code."""
    tell({"done": True})


def tell(news: dict[str, Any]) -> None:
    """Send ``news`` to the parent, if there is one that listens."""
    if _link is not None:
        with suppress(OSError):
            os.write(_link, json.dumps(news).encode() + b"\n")


@contextmanager
def _alarm(seconds: float | None) -> Iterator[None]:
    # Python hands signals to the main thread; elsewhere there is the parent alone.
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def expired(*_: object) -> None:
        raise OutOfTime(f"no result within {seconds:g} s")

    other, again = signal.setitimer(signal.ITIMER_REAL, 0)  # a test runner may have its own
    before, started = signal.signal(signal.SIGALRM, expired), time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if other:
            signal.setitimer(signal.ITIMER_REAL, max(1e-3, other - (time.monotonic() - started)), again)
