"""Where the time of a distributed run went: cycles by fill level, the steady state, a Chrome trace."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from methods.core import Step
from methods.pipeline.distributed.progress import PHASES, Span
from methods.pipeline.layout import Layout


@dataclass(frozen=True, slots=True)
class CycleTimes:
    """Seconds of ``cycles`` cycles of one kind on one rank; ``phases`` are means that sum to ``mean``."""

    cycles: int
    median: float
    mean: float
    p90: float
    phases: dict[str, float]


def cycle_times(steps: Sequence[Step]) -> CycleTimes | None:
    """Of all ``steps``, None without any."""
    return times_of([step.phases for step in steps])


def times_of(cycles: Sequence[Mapping[str, float]]) -> CycleTimes | None:
    """Of cycles given by the seconds of their phases, None without any."""
    if not cycles:
        return None
    seconds = sorted(sum(phases.values()) for phases in cycles)
    return CycleTimes(
        cycles=len(cycles),
        median=statistics.median(seconds),
        mean=statistics.fmean(seconds),
        p90=seconds[int(0.9 * (len(seconds) - 1))],
        phases={name: statistics.fmean(phases[name] for phases in cycles) for name in cycles[0]},
    )


def phases_by_cycle(cycles: int, spans: Iterable[Span]) -> list[dict[str, float]]:
    """A rank's spans as seconds by phase, for each of ``cycles`` cycles."""
    found = [dict.fromkeys(PHASES, 0.0) for _ in range(cycles)]
    for span in spans:
        if span.cycle < cycles:  # behind the last one, only what was under way is received
            found[span.cycle][span.phase] += span.seconds
    return found


def steady(steps: Sequence[Step]) -> list[Step]:
    """Cycles in which every stage worked, and had worked in the cycle before."""
    return [step for before, step in pairwise(steps) if all(before.nodes) and all(step.nodes)]


def fill_level(step: Step) -> int:
    """How many stages worked."""
    return sum(count > 0 for count in step.nodes)


def by_fill(steps: Sequence[Step]) -> dict[int, CycleTimes]:
    """Cycle times by the number of stages that worked."""
    groups: dict[int, list[Step]] = defaultdict(list)
    for step in steps:
        groups[fill_level(step)].append(step)
    times = {fill: cycle_times(group) for fill, group in sorted(groups.items())}
    return {fill: found for fill, found in times.items() if found is not None}


def chrome_trace(layout: Layout, spans: Sequence[Sequence[Span]]) -> dict[str, Any]:
    """Spans by rank as a trace that chrome://tracing and Perfetto show. Ranks on several hosts have
    clocks of their own, which are not aligned."""
    events: list[dict[str, Any]] = []
    for rank, own in enumerate(spans):
        events.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": layout.name(rank)}})
        events += [
            {
                "ph": "X",
                "name": span.phase,
                "pid": rank,
                "tid": 0,
                "ts": span.start * 1e6,
                "dur": span.seconds * 1e6,
                "args": {"cycle": span.cycle},
            }
            for span in own
        ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}
