"""The output of one decode call: where it ends is decided here, for every method."""

from __future__ import annotations

from collections.abc import Iterable

from methods.errors import UsageError
from methods.interface import FinishReason


class Transcript:
    """Output tokens, cut at the first stop id (kept as the last token) and at the cap.

    ``finish_reason`` is None while more tokens are wanted. A cap of 0 is finished from the start.
    Raises ``UsageError`` for a negative cap.
    """

    def __init__(self, max_new_tokens: int, stop_ids: Iterable[int] = ()) -> None:
        if max_new_tokens < 0:
            raise UsageError(f"max_new_tokens must be >= 0, got {max_new_tokens}")
        self.max_new_tokens = max_new_tokens
        self.stop_ids = frozenset(stop_ids)
        self.tokens: list[int] = []
        self.finish_reason: FinishReason | None = None if max_new_tokens else "length"

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def extend(self, tokens: Iterable[int]) -> int:
        """Append ``tokens`` up to the end of the output; returns how many were kept."""
        before = len(self.tokens)
        for token in tokens:
            if self.finish_reason is not None:
                break
            self.tokens.append(token)
            if token in self.stop_ids:
                self.finish_reason = "stop"
            elif len(self.tokens) == self.max_new_tokens:
                self.finish_reason = "length"
        return len(self.tokens) - before
