"""Nothing that was measured on a target that a method had changed stays among a run's records."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.records.journal import Journal
from methods.errors import TargetChanged

if TYPE_CHECKING:
    from methods.models.seal import Seal

_SHARE, _LEAST_S = 0.02, 0.02
"""Of the time since the last look, and at least, that a look may take."""


class TargetWatch:
    """While it is open, ``journals`` keep only what was written before the target was last seen as ``seal``
    has it: what came later is set aside as soon as a change is found, and ``TargetChanged`` ends the run.

    ``blamed`` are the methods that run. A target too large for a look at all of it after every prompt is
    looked at in turn, and as a whole at the end.
    """

    def __init__(self, seal: Seal, blamed: Sequence[str], journals: Sequence[Journal]) -> None:
        self._seal, self._blamed, self._journals = seal, blamed, journals
        self._kept = self._ends()
        self._covered: list[int] | None = None
        """Up to where the round of looks in hand will have covered the journals, once it is through: what
        was decoded before its first look, and stored after that."""
        self._looked = time.monotonic()

    def __enter__(self) -> TargetWatch:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or not issubclass(kind, TargetChanged):
            self._look(math.inf)  # also after Ctrl-C: what is on the disk stays

    def look(self) -> None:
        """After a prompt, before it is stored."""
        self._look(max(_LEAST_S, _SHARE * (time.monotonic() - self._looked)))

    def _look(self, seconds: float) -> None:
        self._covered = self._covered or self._ends()
        if self._seal.whole:
            self._kept, self._covered = self._covered, None
        elif seconds == math.inf:
            self._covered = None  # all of it once more
        difference = self._seal.difference(seconds)
        self._looked = time.monotonic()
        if difference is not None:
            self._set_aside(told(self._blamed, difference))

    def _ends(self) -> list[int]:
        return [journal.end for journal in self._journals]

    def _set_aside(self, why: str) -> None:
        pairs = zip(self._journals, self._kept, strict=True)
        counts = [journal.set_aside(end, why) for journal, end in pairs]
        note = (
            f"; {sum(counts)} records since it was last seen unchanged are set aside" if any(counts) else ""
        )
        raise TargetChanged(why + note)


def told(blamed: Sequence[str], difference: str) -> str:
    """A change of the target in one line."""
    names = " or ".join(map(repr, dict.fromkeys(blamed)))
    return f"method {names} changed the target, so nothing that ran on it counts: {difference}"
