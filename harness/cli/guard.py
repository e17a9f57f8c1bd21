"""A command's work in a child process, and the parent that answers for how it ended.

A decoding method is code of others in this process. It can end the process with exit code 0 in the middle
of the work, and it can hang where no exception reaches it. The parent has nothing to do but to see that.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from harness.cli import time_limit
from harness.cli.time_limit import finished, tell

GRACE_S = 10.0
"""How long after its limit a prompt has to end before its process is killed."""
_INTERRUPT_S = 0.3
"""Ctrl-C reaches a child by itself. An interrupt of the parent alone is passed on after so long."""
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1


def guarded(command: Callable[[], int], resumes: bool = False, grace_s: float = GRACE_S) -> int:
    """The exit code of ``command``, run in a child of this process; 0 only if it returned 0.

    Call it first thing, with little imported and no thread started. Signals go to the child, and its end
    by a signal becomes this process's own. A child that hangs ``grace_s`` beyond a ``limit`` is killed;
    if the command ``resumes`` what it began, it is started again and passes over the prompt it hung in.
    """
    hung: list[str] = []
    while True:
        child = _start(hung)
        if child is None:
            code = command()
            sys.stdout.flush()
            finished()
            return code
        child.watch(grace_s)
        if child.killed_in is None or not resumes or _launched():
            return child.answer()
        hung.append(child.killed_in)
        print(f"{child.killed_in}: hangs and cannot be interrupted; going on without it", file=sys.stderr)


@dataclass
class _Child:
    """The child process ``pid``; what it tells comes out of ``link``."""

    pid: int
    link: int
    signals: _Signals
    news: dict[str, Any] = field(default_factory=dict)
    status: int = 0
    killed_in: str | None = None
    _rest: bytes = b""
    _interrupt_at: float | None = None

    def watch(self, grace_s: float) -> None:
        """Return when the child has ended, by itself or because it was killed here."""
        sources = [self.signals.pipe, self.link]
        while True:
            ready, _, _ = select.select(sources, [], [], self._patience(grace_s))
            if self.link in ready and not self._listen():
                sources.remove(self.link)
            if self.signals.pipe in ready:
                self._hear()
            self._pass_on_interrupt()
            ended, self.status = os.waitpid(self.pid, os.WNOHANG)
            if not ended and self._overdue(grace_s):
                self.killed_in = self.news["what"]
                os.kill(self.pid, signal.SIGKILL)
                ended, self.status = os.waitpid(self.pid, 0)
            if ended:
                self._listen()
                os.close(self.link)
                self.signals.restore()
                return

    def _patience(self, grace_s: float) -> float | None:
        """Seconds until there is something to do although nothing was heard."""
        until = self.news.get("until")
        moments = [self._interrupt_at, None if until is None else until + grace_s]
        return min((max(0.0, at - time.monotonic()) for at in moments if at is not None), default=None)

    def _overdue(self, grace_s: float) -> bool:
        until = self.news.get("until")
        return until is not None and time.monotonic() >= until + grace_s

    def _listen(self) -> bool:
        """Take in what was told; whether there can be more."""
        with suppress(BlockingIOError):
            while data := os.read(self.link, 1 << 16):
                *lines, self._rest = (self._rest + data).split(b"\n")
                for line in lines:
                    self.news |= json.loads(line)
            return False
        return True

    def _hear(self) -> None:
        for number in os.read(self.signals.pipe, 512):
            if number == signal.SIGINT:
                self._interrupt_at = time.monotonic() + _INTERRUPT_S
            elif number in _FORWARDED:
                os.kill(self.pid, number)  # nobody else waits for the child: it is there, dead or alive

    def _pass_on_interrupt(self) -> None:
        if self._interrupt_at is None:
            return
        if self.news.get("interrupted", 0.0) > self._interrupt_at - 2 * _INTERRUPT_S:
            self._interrupt_at = None
        elif time.monotonic() >= self._interrupt_at:
            self._interrupt_at = None
            os.kill(self.pid, signal.SIGINT)

    def answer(self) -> int:
        """This process's exit code, with a line on stderr for an end that nothing was said of."""
        code = os.waitstatus_to_exitcode(self.status)
        during = f" during {self.news['what']}" if self.news.get("what") else ""
        if self.killed_in is not None:
            return _failed(f"{self.killed_in} hangs and cannot be interrupted; the process was killed")
        if code == 0 and not self.news.get("done"):
            return _failed(f"the process was ended with exit code 0{during}, before its work was done")
        if code >= 0:
            return code
        if -code in _FORWARDED:  # so that who started this process sees how it ended
            signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        _failed(f"the process was ended by signal {-code} ({signal.Signals(-code).name}){during}")
        return 128 - code


class _Signals:
    """Signals to this process as bytes in a pipe, until ``restore``. Those that it ignores stay ignored."""

    def __init__(self) -> None:
        self.pipe, self._end = os.pipe()
        os.set_blocking(self.pipe, False)
        os.set_blocking(self._end, False)
        kinds = (*_FORWARDED, signal.SIGCHLD)
        self._before = {kind: signal.signal(kind, _nothing) for kind in kinds if _heeded(kind)}
        self._wakeup = signal.set_wakeup_fd(self._end, warn_on_full_buffer=False)

    def restore(self) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for kind, handler in self._before.items():
            signal.signal(kind, handler)
        os.close(self.pipe)
        os.close(self._end)


def _heeded(kind: int) -> bool:
    return kind == signal.SIGCHLD or signal.getsignal(kind) not in (signal.SIG_IGN, None)


def _nothing(*_: object) -> None:
    pass


def _failed(why: str) -> int:
    print(f"error: {why}", file=sys.stderr)
    return 1


def _start(hung: Sequence[str]) -> _Child | None:
    """Fork. The parent gets the child, the child None."""
    sys.stdout.flush()
    sys.stderr.flush()
    listen, tell_end = os.pipe()
    os.set_blocking(listen, False)
    signals, parent = _Signals(), os.getpid()
    pid = os.fork()
    if pid:
        os.close(tell_end)
        return _Child(pid, listen, signals)
    signals.restore()
    os.close(listen)
    _die_with(parent)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    time_limit.begin(tell_end, hung)
    return None


def _interrupt(*_: object) -> None:
    tell({"interrupted": time.monotonic()})
    raise KeyboardInterrupt


def _die_with(parent: int) -> None:
    """End this process when its parent is killed. Where the system cannot do that, it works on."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _launched() -> bool:
    """Whether other processes of a launcher wait for this one: a second start could not join them."""
    return os.environ.get("WORLD_SIZE", "1") != "1"
