"""The life of one rank: meet the others, load a part, decode what is asked, end when told to."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing import connection, parent_process
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from methods.core import DecodeResult
from methods.errors import describe
from methods.pipeline.distributed.job import Job, Request
from methods.pipeline.distributed.launcher import Address, put, take
from methods.pipeline.distributed.links import JobLinks
from methods.pipeline.distributed.progress import Progress, Span
from methods.pipeline.distributed.transport import Sockets, Transport
from methods.pipeline.distributed.worker import Worker

BEAT_S = 0.5
"""Seconds between two signs of life."""


@dataclass(frozen=True)
class Prepare:
    """Load ``job`` and remember it as ``number``."""

    number: int
    job: Job


@dataclass(frozen=True)
class Decode:
    """Run one prompt through job ``number``."""

    number: int
    request: Request


@dataclass(frozen=True)
class Stop:
    """End."""


@dataclass
class Report:
    """What a rank has to say of an order: its result, where its time went, nodes run in vain, and
    the processor time of all its threads."""

    result: DecodeResult | None = None
    spans: list[Span] = field(default_factory=list)
    wasted: int = 0
    cpu_s: float = 0.0


def order_key(number: int) -> str:
    return f"order/{number}"


def report_key(number: int, rank: int) -> str:
    return f"report/{number}/{rank}"


def beat_key(rank: int) -> str:
    return f"beat/{rank}"


def failure_key(rank: int) -> str:
    return f"failure/{rank}"


def run_rank(
    rank: int, local_rank: int, world: int, address: Address, sockets: Sockets, threads: int
) -> NoReturn:
    """Everything a rank does; ``sockets`` may lead to some of the others. Never returns: the process
    ends with 0 when told to stop, else 1."""
    torch.set_num_threads(threads)
    if parent_process() is not None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all: who started the ranks ends them
    gc.freeze()  # or the collector walks everything that was imported, in the middle of some cycle
    progress = Progress()
    code = 1
    try:
        threading.Thread(target=_beat, args=(rank, address, progress), daemon=True).start()
        _meet(rank, world, address)
        _serve(rank, local_rank, address, Transport(sockets), progress)
        code = 0
    except BaseException as error:
        _tell(rank, address, error)
    # Receives are still posted, and nobody is left to answer them: no orderly teardown could end.
    sys.stdout.flush()
    os._exit(code)


def _meet(rank: int, world: int, address: Address) -> None:
    if address.local:  # the host's own name need not resolve
        loopback = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback[0])
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    store = address.connect("group")
    # Waiting for a message has no limit of its own: the watcher knows better who is to blame.
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timedelta(days=30))


def _serve(rank: int, local_rank: int, address: Address, transport: Transport, progress: Progress) -> None:
    store, order = address.connect("control"), 0
    links: dict[int, JobLinks] = {}
    while True:
        progress.begin("waiting for a prompt", patient=True)
        message = take(store, order_key(order))
        if isinstance(message, Stop):
            return
        report = Report()
        if isinstance(message, Prepare) and rank < message.job.layout.world:
            progress.begin("loading its part", patient=True)
            links[message.number] = _prepare(message, rank, local_rank, transport)
        elif isinstance(message, Decode) and message.number in links:
            progress.begin("decoding", patient=False)
            report = _decode(links[message.number], message.request, rank, progress)
        put(store, report_key(order, rank), report)
        order += 1


def _prepare(order: Prepare, rank: int, local_rank: int, transport: Transport) -> JobLinks:
    device = torch.device(order.job.device)
    if device.type == "cuda":
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    setup = order.job.workload.set_up(order.job, rank, device)
    return JobLinks(setup, order.job, rank, transport, order.number)


def _decode(links: JobLinks, request: Request, rank: int, progress: Progress) -> Report:
    worker = Worker(links, request, progress)
    started = time.process_time()
    result = worker.decode()
    used = time.process_time() - started
    return Report(result if rank == 0 else None, worker.clock.spans or [], worker.wasted, used)


def _beat(rank: int, address: Address, progress: Progress) -> None:
    """Show that this process lives; end it when nobody is left to see that."""
    parent = parent_process()
    watched: list[Any] = [parent.sentinel] if parent is not None else []
    try:
        store, number = address.connect("control"), 0
        while not connection.wait(watched, BEAT_S):
            number += 1
            state = [number, progress.count, progress.patient, progress.doing]
            put(store, beat_key(rank), state)
    finally:
        os._exit(1)


def _tell(rank: int, address: Address, error: BaseException) -> None:
    text = describe(error)
    consequence = isinstance(error, OSError | dist.DistError) or "gloo" in text.lower()
    with suppress(Exception):  # the store may have gone with the process that started this one
        put(address.connect("control"), failure_key(rank), (consequence, text[:500]))
