"""Where a method's output leaves AR's, and what the target says there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from harness.execution.losslessness import FACTOR, Doubt, judge
from methods.core import DecodeResult, Step
from methods.models.target import Target

SHOWN_STEPS = 3


@dataclass(frozen=True, slots=True)
class Divergence:
    """The ``doubt`` that decided about an output, and the trace up to the step that emitted its token."""

    doubt: Doubt
    in_flight: tuple[str, ...]

    def __str__(self) -> str:
        doubt, flight = self.doubt, "; ".join(self.in_flight) or "the prefill"
        return (
            f"token {doubt.position} is {doubt.token} (logit {doubt.logit - doubt.gap:.4f}), AR's "
            f"{doubt.best} (logit {doubt.logit:.4f}): gap {doubt.gap:.2g}, a tie up to {doubt.allowed:.2g} "
            f"({FACTOR:g} times what another pass changes there); in flight: {flight}"
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    status: Literal["exact", "tie", "mismatch"]
    divergence: Divergence | None = None
    """None for equal outputs, and where one output only ends before the other."""


def compare(
    target: Target, prompt_ids: Sequence[int], expected: Sequence[int], result: DecodeResult
) -> Comparison:
    """Judge ``result`` against AR's ``expected``: see ``harness.execution.losslessness``."""
    verdict = judge(target, prompt_ids, expected, result.tokens)
    if verdict.doubt is None:
        return Comparison(verdict.status)
    flight = last_steps(result.steps, verdict.doubt.position)
    return Comparison(verdict.status, Divergence(verdict.doubt, flight))


def last_steps(steps: Sequence[Step], position: int) -> tuple[str, ...]:
    """The steps up to the one that emitted output token ``position``, the last few of them."""
    emitted, number = 0, 0
    while number < len(steps) and emitted < position:
        emitted += steps[number].emitted
        number += 1
    first = max(0, number - SHOWN_STEPS)
    return tuple(
        f"step {i} drafted {step.drafted}, accepted {step.accepted}, emitted {step.emitted}"
        for i, step in enumerate(steps[first:number], first + 1)
    )


def counted(statuses: Sequence[str]) -> str:
    """ "18 exact, 2 ties, 0 mismatches"."""
    counts = Counter(statuses)
    names = (("exact", "exact"), ("tie", "ties"), ("mismatch", "mismatches"))
    return ", ".join(f"{counts[key]} {name}" for key, name in names)
