"""Watching the ranks: which one died, which one hangs."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

import torch.distributed as dist

from methods.pipeline.distributed.launcher import Address, take
from methods.pipeline.distributed.progress import PROMPT, STUCK_S
from methods.pipeline.distributed.rank import BEAT_S, beat_key, failure_key
from methods.pipeline.layout import Layout

SILENT_S = 6.0
"""Without a sign of life for this long, a process is taken for stopped."""
_SETTLE_S = 0.3
"""How long the other ranks get to tell their side once one has ended."""
_PAUSE_S = 4 * BEAT_S
"""When this process itself has not looked for this long, all of them may have been stopped together."""


class _Seen(NamedTuple):
    beat: int
    beat_at: float
    step: int
    step_at: float
    patient: bool
    doing: str


class Watch:
    """A thread that calls ``fail`` once with a sentence about the rank at fault."""

    def __init__(
        self, address: Address, processes: Sequence[BaseProcess], world: int, fail: Callable[[str], None]
    ) -> None:
        self.layout: Layout | None = None
        """Names the ranks' roles in messages."""
        self._address, self._processes, self._fail = address, list(processes), fail
        self._world = world
        self._seen: dict[int, _Seen] = {}
        self._decoding_since: float | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """While the ranks owe a result."""
        self._decoding_since = time.monotonic()
        try:
            yield
        finally:
            self._decoding_since = None

    def stop(self) -> None:
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        store, looked = self._address.connect("control"), time.monotonic()
        while not self._stop.is_set():
            ended = connection.wait([process.sentinel for process in self._processes], BEAT_S)
            if self._stop.is_set():
                return
            now = time.monotonic()
            if now - looked > _PAUSE_S:
                self._forget(now - looked)
            looked = now
            message = self._cause_of_death(store) if ended else self._fault(store, now)
            if message is not None:
                self._fail(message)
                return

    def _name(self, rank: int) -> str:
        return self.layout.name(rank) if self.layout is not None else f"rank {rank}"

    def _cause_of_death(self, store: dist.Store) -> str:
        """The first that failed by itself; the others fail because it is gone."""
        time.sleep(_SETTLE_S)
        told = {
            rank: take(store, failure_key(rank))
            for rank in range(self._world)
            if store.check([failure_key(rank)])
        }
        for rank, (consequence, text) in told.items():
            if not consequence:
                return f"{self._name(rank)} failed: {text}"
        codes = {int(process.name.split()[-1]): process.exitcode for process in self._processes}
        for rank, code in codes.items():
            if code is not None and code < 0:
                return f"{self._name(rank)} was killed by signal {-code} ({signal.Signals(-code).name})"
        for rank, code in codes.items():
            if code is not None and rank not in told:
                return f"{self._name(rank)} ended with exit code {code} and no message"
        rank, (_, text) = next(iter(told.items()))
        return f"{self._name(rank)} failed: {text}"

    def _fault(self, store: dist.Store, now: float) -> str | None:
        for rank in range(self._world):
            if store.check([beat_key(rank)]):
                self._note(rank, take(store, beat_key(rank)), now)
        for rank, seen in self._seen.items():
            if now - seen.beat_at > SILENT_S:
                return f"{self._name(rank)} does not respond for {SILENT_S:g} s (last: {seen.doing})"
            if not seen.patient and now - seen.step_at > STUCK_S:
                return f"{self._name(rank)} has not moved for {STUCK_S:g} s ({seen.doing})"
        since = self._decoding_since
        if since is None or any(seen.doing == PROMPT for seen in self._seen.values()):
            return None
        # They may have been idle for long before: that was no fault of theirs.
        still = [seen for seen in self._seen.values() if now - max(seen.step_at, since) > STUCK_S]
        if len(still) == self._world:
            waits = "; ".join(f"{self._name(rank)}: {seen.doing}" for rank, seen in self._seen.items())
            return f"no rank has moved for {STUCK_S:g} s ({waits})"
        return None

    def _forget(self, pause: float) -> None:
        """Count ``pause`` seconds for nobody: the whole run was stopped, by a shell or a scheduler."""
        for rank, seen in self._seen.items():
            self._seen[rank] = seen._replace(beat_at=seen.beat_at + pause, step_at=seen.step_at + pause)
        if self._decoding_since is not None:
            self._decoding_since += pause

    def _note(self, rank: int, state: Any, now: float) -> None:
        beat, step, patient, doing = state
        last = self._seen.get(rank)
        beat_at = last.beat_at if last is not None and last.beat == beat else now
        step_at = last.step_at if last is not None and last.step == step else now
        self._seen[rank] = _Seen(beat, beat_at, step, step_at, patient, doing)
