"""Starting the ranks, asking them, and watching that all of them live."""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any

from methods.errors import RunFailure
from methods.pipeline.distributed import rank_process
from methods.pipeline.distributed.job import Job, Request
from methods.pipeline.distributed.layout import Layout
from methods.pipeline.distributed.post import socket_mesh
from methods.pipeline.distributed.rank_process import Decode, Prepare, Report, Stop
from methods.pipeline.distributed.rendezvous import (
    Address,
    check_world,
    environment_rank,
    join,
    open_store,
    put,
    take,
    under_torchrun,
)
from methods.pipeline.distributed.watch import Watch

_PRELOAD = ("methods.pipeline.distributed.rank_process", "methods.registry", "transformers.modeling_utils")
"""Imported once, in the process that the ranks are forked from."""
THREADS = 1
"""Of a rank. A stage on CPUs stands for a device, and the smallest one there is a core."""
_GRACE_S = 2.0
_running: Ranks | None = None


class Ranks:
    """The rank processes of this run. They stay until ``close`` or the end of the process, and take
    any number of jobs and prompts. A rank that fails ends all of them and raises ``RunFailure`` in
    the main thread, wherever that is."""

    def __init__(self, layout: Layout, threads: int = THREADS) -> None:
        check_world(layout)
        self.layout, self.world = layout, layout.world
        self.address, self._own_store = join() if under_torchrun() else open_store()
        self._store, self._answers = self.address.connect("control"), self.address.connect("control")
        """To ask, and to wait for answers: in threads of their own, so with a connection each."""
        self._jobs: dict[bytes, int] = {}
        self._order = 0
        self.processes = _start(self.world, self.address, threads)
        self._failure: str | None = None
        self._asking = False
        self._news = threading.Event()
        """Set when an answer is complete, or never will be."""
        self._main = (
            threading.main_thread() if threading.current_thread() is threading.main_thread() else None
        )
        self._previous = signal.signal(signal.SIGUSR1, self._raise) if self._main else None
        self._watch = Watch(self.address, self.processes, self.world, self._fail)
        atexit.register(self.close)

    @classmethod
    def of(cls, layout: Layout, threads: int = THREADS) -> Ranks:
        """The ranks that run already, if they are enough, else new ones in their place."""
        global _running
        if _running is None or _running.closed or _running.world < layout.world:
            if _running is not None:
                _running.close()
            _running = cls(layout, threads)
        return _running

    @property
    def closed(self) -> bool:
        return not self.processes

    def prepare(self, job: Job) -> int:
        """Make the ranks load ``job``, unless they have; returns its number."""
        key = pickle.dumps(job)
        if key not in self._jobs:
            self._watch.layout = job.layout
            self._ask(Prepare(len(self._jobs), job))
            self._jobs[key] = len(self._jobs)
        return self._jobs[key]

    def decode(self, job: Job, request: Request) -> list[Report]:
        """One report per rank; the first has the result."""
        number = self.prepare(job)
        self._watch.layout = job.layout
        with self._watch.decoding():
            return self._ask(Decode(number, request))

    def close(self, at_once: bool = False) -> None:
        """End the ranks, ``at_once`` even in the middle of an order. Nothing happens if they have ended."""
        if self.closed:
            return
        processes, self.processes = self.processes, []
        self._watch.stop()
        if self._failure is None:
            put(self._store, rank_process.order_key(self._order), Stop())
            deadline = time.monotonic() + (0.0 if at_once else _GRACE_S)
            for process in processes:
                process.join(max(0.0, deadline - time.monotonic()))
        _kill(processes)
        if self._previous is not None:
            signal.signal(signal.SIGUSR1, self._previous)
        atexit.unregister(self.close)

    def _ask(self, order: Any) -> list[Report]:
        number, self._order = self._order, self._order + 1
        keys = [rank_process.report_key(number, rank) for rank in range(self.world)]
        with self._attention():
            put(self._store, rank_process.order_key(number), order)
            # In a thread of its own: waiting in the store cannot be interrupted, an event can.
            threading.Thread(target=self._await, args=(keys,), daemon=True).start()
            self._news.wait()
            self._check()
            reports = [take(self._store, key) for key in keys]
        for key in [*keys, rank_process.order_key(number)]:
            self._store.delete_key(key)
        return reports

    def _await(self, keys: list[str]) -> None:
        self._answers.wait(keys)
        self._news.set()

    @contextmanager
    def _attention(self) -> Iterator[None]:
        """While asking, a failure is found by asking; else it must interrupt the main thread."""
        self._news.clear()
        self._asking = True
        self._check()
        try:
            yield
        except BaseException:
            # Interrupted, it must not take the answer to this for that to the next order.
            self.close(at_once=True)
            raise
        finally:
            self._asking = False

    def _check(self) -> None:
        if self._failure is not None:
            self.close()
            raise RunFailure(self._failure)

    def _fail(self, message: str) -> None:
        """Called by the watcher, in its thread."""
        self._failure = message
        _kill(self.processes)
        self._news.set()
        if self._main is not None and not self._asking:
            signal.pthread_kill(self._main.ident or 0, signal.SIGUSR1)

    def _raise(self, number: int, frame: FrameType | None) -> None:
        self._check()


def close() -> None:
    """End the ranks of this process, if there are any."""
    if _running is not None:
        _running.close()


def serve_as_rank(threads: int = THREADS) -> None:
    """Be one of the ranks a launcher started; rank 0's place is taken by a child of its process."""
    address, _ = join()
    rank, local_rank = environment_rank()
    rank_process.run_rank(rank, local_rank, int(os.environ["WORLD_SIZE"]), address, {}, threads)


def _start(world: int, address: Address, threads: int) -> list[BaseProcess]:
    """Ranks as children that are forked from a process with everything imported and nothing run.
    Under a launcher only rank 0 is missing."""
    context = get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOAD))
    ranks = [environment_rank()] if under_torchrun() else [(rank, rank) for rank in range(world)]
    sockets = socket_mesh(world if len(ranks) == world else 1)
    settings = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    with _environment(**settings), _without_main_module():
        processes = [
            context.Process(
                target=rank_process.run_rank,
                args=(rank, local_rank, world, address, sockets[rank], threads),
                name=f"rank {rank}",
                daemon=True,
            )
            for rank, local_rank in ranks
        ]
        try:
            for process in processes:
                process.start()
        finally:
            for end in (end for ends in sockets for end in ends.values()):
                end.close()  # the ranks have their own, and notice when the other side has none any more
    return list(processes)


@contextmanager
def _without_main_module() -> Iterator[None]:
    """Children started meanwhile do not import this program's main module: they run none of it, and
    a script without the usual guard would start ranks of its own there."""
    main: dict[str, Any] = vars(sys.modules["__main__"])
    hidden: dict[str, Any] = {name: main.pop(name) for name in ("__spec__", "__file__") if name in main}
    main["__spec__"] = None
    try:
        yield
    finally:
        main.update(hidden)


def _kill(processes: list[BaseProcess]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.join()


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """``values`` for the processes started meanwhile: OpenMP reads them when it is loaded."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
