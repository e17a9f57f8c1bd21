"""``--timings``: where every rank's time went in every cycle of a run, kept beside its records.

``timings.jsonl`` has a line per decoded prompt, ``timings.json`` the breakdowns over all of them,
``trace.json`` the last prompt for chrome://tracing and Perfetto.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.execution.timing import chrome_trace, fill_level, phases_by_cycle, times_of
from harness.records.manifest import write_json
from harness.records.record import Key
from methods.core import Step
from methods.errors import UsageError
from methods.pipeline.distributed.progress import PHASES
from methods.pipeline.distributed.rank import Report
from methods.pipeline.layout import Layout

LOG, SUMMARY, TRACE = "timings.jsonl", "timings.json", "trace.json"


class CycleLog:
    """Appends prompts to the log of ``directory``; on leaving, writes the breakdowns of all of them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._trace: dict[str, Any] | None = None
        try:
            self._file = (directory / LOG).open("ab+")
        except OSError as error:
            raise UsageError(f"cannot write {directory / LOG}: {error.strerror}") from error
        self._cut_torn_line()

    def __enter__(self) -> CycleLog:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        log = self._directory / LOG
        # Also what a killed start logged and could not sum up.
        if self._trace is not None or (log.stat().st_size and not (self._directory / SUMMARY).exists()):
            write_json(self._directory / SUMMARY, breakdowns(log))
        if self._trace is not None:
            write_json(self._directory / TRACE, self._trace)

    def append(self, key: Key, layout: Layout, steps: Sequence[Step], reports: Sequence[Report]) -> None:
        """One prompt: the fill level of every cycle, microseconds [rank][cycle][phase]."""
        spans = [report.spans for report in reports[: layout.world]]
        cycles = [phases_by_cycle(len(steps), own) for own in spans]
        line = {
            "key": key,
            "stages": layout.n,
            "ranks": [layout.name(rank) for rank in range(layout.world)],
            "phases": PHASES,
            "fill": [fill_level(step) for step in steps],
            "us": [[[round(1e6 * phases[name]) for name in PHASES] for phases in own] for own in cycles],
        }
        self._file.write(json.dumps(line).encode() + b"\n")
        self._file.flush()
        self._trace = chrome_trace(layout, spans)

    def _cut_torn_line(self) -> None:
        self._file.seek(0)
        os.ftruncate(self._file.fileno(), self._file.read().rfind(b"\n") + 1)


def breakdowns(log: Path) -> dict[str, Any]:
    """Rank -> "steady" and fill levels -> ``CycleTimes``; of a prompt timed twice, the last counts.

    Steady is a cycle in which every stage worked, and had worked in the cycle before.
    """
    lines = [json.loads(line) for line in log.read_bytes().splitlines()]
    groups: dict[str, dict[str, list[dict[str, float]]]] = {}
    for line in {tuple(line["key"]): line for line in lines}.values():
        for rank, cycles in zip(line["ranks"], line["us"], strict=True):
            levels = groups.setdefault(rank, {"steady": []})
            for before, fill, us in zip([0, *line["fill"]], line["fill"], cycles, strict=False):
                phases = {name: value / 1e6 for name, value in zip(line["phases"], us, strict=True)}
                levels.setdefault(str(fill), []).append(phases)
                if before == fill == line["stages"]:
                    levels["steady"].append(phases)
    return {
        rank: {level: (times := times_of(cycles)) and asdict(times) for level, cycles in levels.items()}
        for rank, levels in groups.items()
    }
