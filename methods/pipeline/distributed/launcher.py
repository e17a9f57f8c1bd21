"""Starting the ranks' processes, and the store where they meet: this process's own, or a launcher's."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch.distributed as dist

from methods.environment import (
    environment_rank,
    launcher_holds_store,
    master_address,
    master_port,
    under_launcher,
    world_size,
)
from methods.errors import UsageError
from methods.pipeline.distributed.transport import socket_mesh
from methods.pipeline.layout import Layout

_FOREVER = timedelta(days=30)
_LOCAL = "127.0.0.1"
_PRELOAD = ("methods.pipeline.distributed.rank", "methods.registry", "transformers.modeling_utils")
"""Imported once, in the process that the ranks are forked from."""


@dataclass(frozen=True)
class Address:
    """Where the store listens. ``local``: all ranks are on this host."""

    host: str
    port: int
    local: bool

    def connect(self, name: str) -> dist.Store:
        """A connection of its own: a store object must not be used by two threads at once."""
        store = dist.TCPStore(self.host, self.port, is_master=False, timeout=_FOREVER)
        return dist.PrefixStore(name, store)


def check_world(layout: Layout) -> None:
    """Raises ``UsageError`` if a launcher started another number of ranks than ``layout`` has."""
    if under_launcher() and world_size() != layout.world:
        raise UsageError(
            f"WORLD_SIZE is {world_size()}; n = {layout.n} with layout "
            f"{'n+1' if layout.own_drafter else 'n'} needs {layout.world} ranks"
        )


def join() -> tuple[Address, dist.Store | None]:
    """The launcher's address. The store is opened here if the launcher left that to rank 0."""
    host, port = master_address()
    store = None if launcher_holds_store() or environment_rank()[0] else _listen(host, port)
    return Address(host, port, local=False), store


def open_store() -> tuple[Address, dist.Store]:
    """A new store on this host: on MASTER_PORT if that is set, else on any free port.

    Raises ``UsageError`` if the port is taken.
    """
    store = _listen(_LOCAL, master_port())
    return Address(_LOCAL, store.port, local=True), store


def _listen(host: str, port: int) -> dist.TCPStore:
    try:
        return dist.TCPStore(host, port, is_master=True, wait_for_workers=False, timeout=_FOREVER)
    except (RuntimeError, OSError) as error:
        reason = "is in use" if "EADDRINUSE" in str(error) else f"cannot be opened: {error}"
        raise UsageError(
            f"port {port} for the ranks' rendezvous {reason}; set MASTER_PORT to another"
        ) from error


def put(store: dist.Store, key: str, value: Any) -> None:
    """Set ``key`` to any picklable ``value``."""
    data: Any = pickle.dumps(value)  # the binding takes bytes, its annotation does not
    store.set(key, data)


def take(store: dist.Store, key: str) -> Any:
    """The value of ``key``; waits as long as it takes."""
    return pickle.loads(store.get(key))


def start(world: int, address: Address, threads: int, run: Callable[..., Any]) -> list[BaseProcess]:
    """Ranks as children that ``run``, forked from a process with everything imported and nothing run.
    Under a launcher only rank 0 is missing."""
    context = get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOAD))
    ranks = [environment_rank()] if under_launcher() else [(rank, rank) for rank in range(world)]
    sockets = socket_mesh(world if len(ranks) == world else 1)
    settings = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE", **_same_packages()}
    with _environment(**settings), _without_main_module():
        processes = [
            context.Process(
                target=run,
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


def _same_packages() -> dict[str, str]:
    """Python looks in the working directory first, where a folder may have the name of a package of ours."""
    paths = [str(Path(__file__).resolve().parents[3]), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}


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


def kill(processes: list[BaseProcess]) -> None:
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
