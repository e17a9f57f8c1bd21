"""The ranks of this process: starting them, asking them, noticing that one is lost; and the decode call
of a pipeline method, handed to them."""

from __future__ import annotations

import atexit
import dataclasses
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from methods.core import DecodeResult, SamplingParams, Transcript
from methods.decoding.verification import ProposalRule
from methods.environment import environment_rank, under_launcher, world_size
from methods.errors import RunFailure, UsageError
from methods.interface import DecodingMethod
from methods.models.target import PREFILL_CHUNK, Target
from methods.pipeline.distributed import rank
from methods.pipeline.distributed.job import Job, LoadedWorkload, Request
from methods.pipeline.distributed.launcher import check_world, join, kill, open_store, put, start, take
from methods.pipeline.distributed.rank import Decode, Prepare, Report, Stop
from methods.pipeline.distributed.watch import Watch
from methods.pipeline.drafter import Drafter, critical_layers
from methods.pipeline.layout import Layout
from methods.registry import modules
from methods.source_code.code import file_hashes

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
        self.address, self._own_store = join() if under_launcher() else open_store()
        self._store, self._answers = self.address.connect("control"), self.address.connect("control")
        """To ask, and to wait for answers: in threads of their own, so with a connection each."""
        self._jobs: list[Job] = []
        self._order = 0
        self.processes = start(self.world, self.address, threads, rank.run_rank)
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
        if job not in self._jobs:
            self._watch.layout = job.layout
            self._ask(Prepare(len(self._jobs), job))
            self._jobs.append(job)
        return self._jobs.index(job)

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
            put(self._store, rank.order_key(self._order), Stop())
            deadline = time.monotonic() + (0.0 if at_once else _GRACE_S)
            for process in processes:
                process.join(max(0.0, deadline - time.monotonic()))
        kill(processes)
        if self._previous is not None:
            signal.signal(signal.SIGUSR1, self._previous)
        atexit.unregister(self.close)

    def _ask(self, order: Any) -> list[Report]:
        number, self._order = self._order, self._order + 1
        keys = [rank.report_key(number, each) for each in range(self.world)]
        with self._attention():
            put(self._store, rank.order_key(number), order)
            # In a thread of its own: waiting in the store cannot be interrupted, an event can.
            threading.Thread(target=self._await, args=(keys,), daemon=True).start()
            self._news.wait()
            self._check()
            reports = [take(self._store, key) for key in keys]
        for key in [*keys, rank.order_key(number)]:
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
        kill(self.processes)
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
    own_rank, local_rank = environment_rank()
    rank.run_rank(own_rank, local_rank, world_size(), address, {}, threads)


class Distributed:
    """Decodes like ``Lockstep``, one rank per stage. ``reports`` are those of the last call; with
    ``timings`` they hold every phase of every cycle.

    Raises ``UsageError`` for a target that exists in this process only, and for a world of ranks
    that does not fit the layout.
    """

    def __init__(
        self,
        method: DecodingMethod,
        layout: Layout,
        stage_layers: Sequence[int],
        drafter: Drafter,
        tied_head: bool,
    ) -> None:
        target: Target = method.target
        if target.source is None:
            raise UsageError(
                f"the distributed runtime loads the parts of a target from files; {target.name!r} has none"
            )
        self._target = target
        self.reports: list[Report] = []
        self.timings = False
        self.job = Job(
            layout=layout,
            stage_layers=tuple(stage_layers),
            reads=drafter.reads,
            series=drafter.series,
            draft_layers=critical_layers(drafter, stage_layers, not layout.own_drafter),
            device=str(target.device).split(":")[0],
            workload=LoadedWorkload(
                source=target.source,
                build=type(method),
                # What a request says anyway is left out: equal jobs share what the ranks have loaded.
                options=dataclasses.replace(method.options, runtime="lockstep", width=1, proposal=None),
                vocabulary=None if drafter.vocabulary.is_full else tuple(drafter.vocabulary.ids.tolist()),
                tied_head=tied_head,
                sources=tuple(file_hashes(modules(type(method))).items()),
            ),
        )

    def decode(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        max_new_tokens: int,
        stop_ids: Sequence[int],
        rule: ProposalRule,
        width: int,
    ) -> DecodeResult:
        """See ``DecodingMethod.decode``; raises ``RunFailure`` if a rank fails."""
        self._target.check_prompt(prompt_ids)
        Transcript(max_new_tokens, stop_ids)  # refuses what cannot be asked for, before the ranks see it
        request = Request(
            tuple(prompt_ids),
            sampling,
            rule,
            self._target.room(prompt_ids, max_new_tokens),
            tuple(stop_ids),
            width,
            PREFILL_CHUNK,
            self.timings,
        )
        self.reports = Ranks.of(self.job.layout).decode(self.job, request)
        result = self.reports[0].result
        assert result is not None
        return result

    def describe(self) -> dict[str, Any]:
        layout = self.job.layout
        return {
            "runtime": "distributed",
            "layout": "n+1" if layout.own_drafter else "n",
            "ranks": layout.world,
            "threads": THREADS,
        }
