"""Where the ranks of a run meet: a store in the process that started them, or torchrun's."""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from methods.errors import UsageError
from methods.pipeline.distributed.layout import Layout

_FOREVER = timedelta(days=30)
_LOCAL = "127.0.0.1"


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


def under_torchrun() -> bool:
    """Whether a launcher such as torchrun has made this process one rank of a world.

    Raises ``UsageError`` for a launcher's variable that is no number."""
    numbers = [environment_number(name) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")]
    return None not in numbers and "MASTER_ADDR" in os.environ


def environment_number(name: str) -> int | None:
    """The number in a launcher's variable, None if it is not set; ``UsageError`` if it is no number."""
    text = os.environ.get(name)
    if text is not None and not text.isdecimal():
        raise UsageError(f"{name} is {text!r}; launchers such as torchrun set it to a number, else unset it")
    return None if text is None else int(text)


def environment_rank() -> tuple[int, int]:
    """(rank, local rank) of this process under torchrun."""
    return int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", os.environ["RANK"]))


def check_world(layout: Layout) -> None:
    """Raises ``UsageError`` if a launcher started another number of ranks than ``layout`` has."""
    if under_torchrun() and int(os.environ["WORLD_SIZE"]) != layout.world:
        raise UsageError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}; n = {layout.n} with layout "
            f"{'n+1' if layout.own_drafter else 'n'} needs {layout.world} ranks"
        )


def join() -> tuple[Address, dist.Store | None]:
    """The launcher's address. The store is opened here if the launcher left that to rank 0."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = None if agent or environment_rank()[0] else _listen(host, port)
    return Address(host, port, local=False), store


def open_store() -> tuple[Address, dist.Store]:
    """A new store on this host: on MASTER_PORT if that is set, else on any free port.

    Raises ``UsageError`` if the port is taken.
    """
    port = os.environ.get("MASTER_PORT", "0")
    if not port.isdecimal():
        raise UsageError(f"MASTER_PORT is {port!r}; allowed: a port number, or unset for any free one")
    store = _listen(_LOCAL, int(port))
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
