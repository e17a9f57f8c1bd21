"""Where a method's output leaves AR's, and what the target says there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from harness.losslessness import classify, first_difference, probe
from methods.interface import DecodeResult, Step
from methods.target.target import Target

SHOWN_STEPS = 3


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first differing token of two greedy outputs, with the target's logits of both candidates,
    the allowance for a tie, and the trace up to the step that emitted it."""

    position: int
    expected: int
    found: int
    expected_logit: float
    found_logit: float
    gap: float
    allowed: float
    in_flight: tuple[str, ...]

    def __str__(self) -> str:
        flight = "; ".join(self.in_flight) or "the prefill"
        return (
            f"token {self.position} is {self.found} (logit {self.found_logit:.4f}), AR's {self.expected} "
            f"(logit {self.expected_logit:.4f}): gap {self.gap:.4f}, a tie up to {self.allowed:.4f} "
            f"(twice the measured block-versus-step difference); in flight: {flight}"
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    status: Literal["exact", "tie", "mismatch"]
    divergence: Divergence | None = None
    """None for equal outputs, and where one output only ends before the other."""


def compare(
    target: Target, prompt_ids: Sequence[int], expected: Sequence[int], result: DecodeResult
) -> Comparison:
    """Classify ``result`` against AR's ``expected`` with what is measured on ``target``: see
    ``harness.losslessness``."""
    position = first_difference(expected, result.tokens)
    if position is None:
        return Comparison("exact" if len(expected) == len(result.tokens) else "mismatch")
    there = probe(target, prompt_ids, expected, position)
    status = classify(expected, result.tokens, lambda _, token: there.gap(token), there.block_step_difference)
    ours, theirs = result.tokens[position], expected[position]
    divergence = Divergence(
        position,
        theirs,
        ours,
        float(there.logits[theirs]),
        float(there.logits[ours]),
        there.gap(ours),
        2 * there.block_step_difference,
        last_steps(result.steps, position),
    )
    return Comparison(status, divergence)


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
