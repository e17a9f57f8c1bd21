"""The values that methods take and give: sampling, a step of a trace, a result, an output as it grows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from methods.errors import UsageError

FinishReason = Literal["stop", "length"]

LOWEST_TEMPERATURE = 1e-6
"""Above 0: logits divided by less would leave float32."""


def check_temperature(value: float) -> float:
    """``value`` if logits can be divided by it, or if it is 0 (greedy); else ``UsageError``."""
    if value == 0 or (math.isfinite(value) and value >= LOWEST_TEMPERATURE):
        return value
    raise UsageError(f"temperature must be 0 or a number >= {LOWEST_TEMPERATURE:g}, got {value:g}")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the target's next-token law is formed, and the seed that draws from it.

    ``temperature`` 0 is greedy decoding; ``top_k`` 0 and ``top_p`` 1.0 switch those filters off.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_temperature(self.temperature)
        if self.top_k < 0:
            raise UsageError(f"top-k must be >= 0 (0 = off), got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top-p must be in (0, 1], got {self.top_p}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


@dataclass(frozen=True, slots=True)
class Step:
    """One autoregressive step, one draft-and-verify round, or one pipeline cycle.

    ``drafted`` counts draft nodes proposed, ``accepted`` those the verification kept, ``emitted``
    the tokens that joined the output, ``depth`` the deepest draft position that was examined.
    ``target_layers`` and ``draft_layers`` are the decoder layers on the critical path, in units of
    one target layer; a drafter that runs beside the target adds only what it takes longer.
    ``nodes`` are the tokens each target stage ran (one entry without a pipeline): what a wider draft
    costs, which the layer counts do not show. ``phases`` are measured wall-clock seconds by name
    ("target", "draft", "verify").

    Layers and nodes are held against the target's own count where it runs in this process: see
    ``methods.decoding.trace.counted_fault``. Work past the end of the output belongs to a step, too.
    """

    drafted: int
    accepted: int
    emitted: int
    target_layers: float
    draft_layers: float
    depth: int = 0
    nodes: tuple[int, ...] = (1,)
    phases: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DecodeResult:
    """Tokens after the prompt and the trace that produced them.

    ``tokens`` holds the token from the prefill first; ``sum(step.emitted) == len(tokens) - 1``
    (0 for an empty result). ``prefill_s`` is time to the first token, ``decode_s`` all after it.
    """

    tokens: list[int]
    steps: list[Step]
    prefill_s: float
    decode_s: float
    finish_reason: FinishReason


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
