"""Waiting for messages, with the waiting on the clock and in sight of whoever watches the rank."""

from __future__ import annotations

from torch import Tensor

from methods.pipeline.distributed.channel import ByteReceiver, TensorReceiver
from methods.pipeline.distributed.clock import CONTROL, WAIT, Clock
from methods.pipeline.distributed.progress import Progress


class Incoming:
    """Receives for one rank; ``what`` says for messages what is waited for."""

    def __init__(self, clock: Clock, progress: Progress) -> None:
        self._clock, self._progress = clock, progress

    def tensor(self, receiver: TensorReceiver | None, what: str) -> Tensor:
        """The next message [rows, ...], valid until the next call."""
        assert receiver is not None
        self._clock.lap(CONTROL)
        with self._progress.waiting(what):
            message = receiver.receive()
        self._clock.lap(WAIT)
        return message

    def data(self, receiver: ByteReceiver | None, what: str) -> bytes | memoryview:
        """The next message, valid until the next call."""
        assert receiver is not None
        self._clock.lap(CONTROL)
        with self._progress.waiting(what):
            message = receiver.receive()
        self._clock.lap(WAIT)
        return message
