"""Processes of a launcher, one device each, that share the prompts of a run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

from methods.environment import environment_number, environment_rank, under_launcher, world_size
from methods.errors import UsageError

Value = TypeVar("Value")
_DONE = b"done"


class Shard:
    """Process ``rank`` of ``world``. All of them make the same calls of ``first``, ``agreed`` and
    ``gather`` in the same order; alone, none of these waits for anything."""

    def __init__(self, rank: int = 0, world: int = 1, store: Any = None, server: Any = None) -> None:
        self.rank, self.world = rank, world
        self._store, self._server = store, server  # the server lives as long as it is referred to
        self._calls = 0

    def holds(self, index: int) -> bool:
        """Whether prompt ``index`` of the run belongs to this process."""
        return index % self.world == self.rank

    def own(self, name: str) -> str:
        """``name`` for a file of this process only."""
        return name if self.world == 1 else f"{name}-{self.rank}"

    @contextmanager
    def first(self) -> Iterator[None]:
        """Rank 0 runs the body before the others do: what it fetches or writes is there for them. If it
        fails there, they raise ``UsageError`` in its place."""
        key = self._key()
        if self.rank and self._store.get(key) != _DONE:
            raise UsageError(f"process {self.rank} cannot go on: process 0 failed, and says why")
        done = False
        try:
            yield
            done = True
        finally:
            if self.world > 1 and not self.rank:
                self._store.set(key, _DONE if done else b"failed")

    def agreed(self, value: Callable[[], Value]) -> Value:
        """``value()`` of rank 0, for all."""
        from methods.pipeline.distributed.launcher import put, take

        key = self._key()
        if self.rank:
            return take(self._store, key)
        found = value()
        if self.world > 1:
            put(self._store, key, found)
        return found

    def gather(self) -> None:
        """Rank 0 returns when all have come here, the others at once."""
        key = self._key()
        if self.rank:
            self._store.set(f"{key}/{self.rank}", _DONE)
        elif self.world > 1:
            self._store.wait([f"{key}/{rank}" for rank in range(1, self.world)])

    def _key(self) -> str:
        self._calls += 1
        return str(self._calls)


ALONE = Shard()


def join() -> Shard:
    """This process's share under torchrun, on the GPU of its local rank; else ``ALONE``."""
    if not {"RANK", "WORLD_SIZE"} <= os.environ.keys():
        return ALONE
    shared = under_launcher() and environment_number("WORLD_SIZE") != 1
    return _joined() if shared else ALONE


@cache
def _joined() -> Shard:
    """One per process: a second one would count its calls from the start again."""
    import torch

    from methods.pipeline.distributed import launcher

    rank, local_rank = environment_rank()
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank % torch.cuda.device_count())
    address, server = launcher.join()
    return Shard(rank, world_size(), address.connect("shards"), server)
