"""Checks of the clocks, on a clock that only the check moves."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from harness.checks import worlds
from harness.checks.gates import GREEDY
from harness.checks.outcome import Measured
from harness.checks.sizes import Sizes
from harness.checks.subject import Subject
from methods.pipeline.method import PipelineMethod

WAIT_S, START_S = 0.010, 0.070
CLOSE_S = 0.001


class _Clock:
    now = 1.0

    def __call__(self) -> float:
        return self.now

    def slow(self, call: Callable[..., Any], seconds: float) -> Callable[..., Any]:
        """``call``, taking ``seconds`` on this clock."""

        def slowed(*args: Any) -> Any:
            self.now += seconds
            return call(*args)

        return slowed


def drafter_wait(subject: Subject, sizes: Sizes) -> Measured:
    """C23: 10 ms in every draft, 70 ms in the prefill."""
    clock = _Clock()
    target = worlds.table()
    method = subject.scriptable(target, 3)
    owner, maker = (method, "drafter") if isinstance(method, PipelineMethod) else (method, "session")
    made = getattr(owner, maker)
    counted = []

    def slow_drafter(*args: Any) -> Any:
        clock.now += START_S  # a session begins within the prefill
        drafter = made(*args)
        name = "draft" if isinstance(method, PipelineMethod) else "propose"
        draft = clock.slow(getattr(drafter, name), WAIT_S)

        def count(*args: Any) -> Any:
            counted.append(1)
            return draft(*args)

        setattr(drafter, name, count)
        return drafter

    with patch.object(owner, maker, slow_drafter), patch.object(time, "perf_counter", clock):
        result = method.decode([0, 1, 2], GREEDY, sizes.tokens)
    phases: dict[str, float] = {}
    for step in result.steps:
        for name, seconds in step.phases.items():
            phases[name] = phases.get(name, 0.0) + seconds
    waited = WAIT_S * len(counted)
    others = sum(seconds for name, seconds in phases.items() if name != "draft")
    prefill = START_S if not isinstance(method, PipelineMethod) else result.prefill_s
    off = max(
        abs(phases.get("draft", 0.0) - waited),
        others,
        abs(result.decode_s - waited),
        abs(result.prefill_s - prefill),
    )
    figure = (
        f"{len(counted)} waits of 10 ms: draft {1e3 * phases.get('draft', 0.0):.1f} ms, other phases "
        f"{1e3 * others:.1f} ms, decode {1e3 * result.decode_s:.1f} ms"
    )
    fault = None if off <= CLOSE_S and counted else f"a wait of the drafter is off by {1e3 * off:.1f} ms"
    return Measured(figure, "within 1 ms", fault)
