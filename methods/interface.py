"""The contract between decoding methods and everything that runs or measures them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from methods.errors import UsageError

if TYPE_CHECKING:
    from methods.decoding.replay import KnownOutput, Replayed

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


@dataclass(frozen=True)
class NoOptions:
    """The options of a method that has none."""


class DecodingMethod(ABC):
    """A way to decode from a target. Register subclasses with ``methods.registry.register``.

    ``Options`` is a frozen dataclass; its fields are the method's command-line options (``--n``,
    ``--draft-layers`` ...). A value that cannot be used raises ``UsageError`` from ``__init__``.
    """

    name: ClassVar[str]
    Options: ClassVar[type] = NoOptions

    def __init__(self, target: Any, options: Any) -> None:
        self.target = target
        self.options = options

    @abstractmethod
    def decode(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        max_new_tokens: int,
        stop_ids: Sequence[int] = (),
    ) -> DecodeResult:
        """Decode up to ``max_new_tokens`` tokens, ending with the first of ``stop_ids``.

        Raises ``UsageError`` for an empty prompt or one longer than the target's context.
        """

    @property
    def in_process(self) -> bool:
        """Whether the target's layers run in this process, where they are counted; where they do not, a
        trace is taken as the method reports it."""
        return True

    def can_replay(self, sampling: SamplingParams) -> bool:
        """Whether ``replay`` is there for outputs decoded under ``sampling``."""
        return False

    def replay(self, known: KnownOutput) -> Replayed:
        """The trace of ``decode`` on a prompt whose AR output is known, without decoding: see
        ``methods.decoding.replay``. Optional."""
        raise UsageError(f"method {self.name!r} cannot be replayed; it has to be run in mode decode")

    def describe(self) -> dict[str, Any]:
        """What a record must say of this method besides its options: proposal rule, checkpoint
        hash, whether the drafter is untrained. JSON values only."""
        return {}
