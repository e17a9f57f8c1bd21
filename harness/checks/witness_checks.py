"""Checks of what a method says of itself: its seconds and its trace against what the harness saw."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from harness.checks import worlds
from harness.checks.gates import GREEDY, WARM
from harness.checks.outcome import Measured, NotApplicable
from harness.checks.sizes import Sizes
from harness.checks.subject import Subject
from harness.execution.witness import Witness, Witnessed

TRIES = 3
"""A call is repeated before its clocks count as wrong: another process may have had the core."""


def clocks(subject: Subject, sizes: Sizes) -> Measured:
    """C33: no call may be off in each of ``TRIES``; waiting excuses nothing."""
    calls, left = 0, 0.0
    for tries in _calls(subject, sizes):
        calls += 1
        for seen in itertools.islice(tries, TRIES):
            fault = seen.clock_fault(stall_s=0.0)
            if fault is None:
                left = max(left, 1 - (seen.result.prefill_s + seen.result.decode_s) / seen.seconds)
                break
        if fault is not None:
            return Measured(f"{calls} calls", "within 5 % + 1 ms", fault)
    return Measured(f"{calls} calls, at most {left:.1%} of one not claimed", "within 5 % + 1 ms")


def counts(subject: Subject, sizes: Sizes) -> Measured:
    """C34."""
    calls = passes = 0
    for tries in _calls(subject, sizes):
        seen = next(tries)
        if seen.passes is None:
            raise NotApplicable("the target runs in other processes, where nothing is counted")
        calls, passes = calls + 1, passes + len(seen.passes)
        if (fault := seen.trace_fault()) is not None:
            return Measured(f"{calls} calls", "0 differ", fault)
    return Measured(f"{calls} calls, {passes} passes of the target counted, 0 differ", "0 differ")


def _calls(subject: Subject, sizes: Sizes) -> Iterator[Iterator[Witnessed]]:
    """Each call as often as it is asked for."""
    for target in (worlds.table(), worlds.family(sizes.families[-1], worlds.FEW)):
        for n, sampling in itertools.product(subject.stages(sizes.stages), (GREEDY, WARM)):
            witness = Witness(subject.build(target, n), target)
            for number in range(3, 3 + 2 * sizes.prompts):
                cell = worlds.cell(number, target.vocab_size, sizes.tokens)
                yield (witness.decode(cell.prompt, sampling, cell.tokens) for _ in itertools.count())
