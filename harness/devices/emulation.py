"""Running the distributed runtime on the devices of a profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.config.profiles import Profile
from harness.devices.projection import Devices
from harness.devices.workload import Emulation
from harness.execution.timing import CycleTimes, cycle_times, steady
from methods.core import DecodeResult, SamplingParams
from methods.models.partition import split_layers
from methods.pipeline.distributed.job import Job, Request
from methods.pipeline.distributed.rank import Report
from methods.pipeline.distributed.ranks import Ranks
from methods.pipeline.layout import Layout

_PROMPT = (0,) * 16


@dataclass(frozen=True)
class Emulated:
    """``steady``: steady-state cycles on stage 1, None if there was none. ``cpu_s``: processor time
    of all ranks per cycle, which must fit into the machine's cores for the rest to mean anything."""

    layout: Layout
    result: DecodeResult
    reports: list[Report]
    steady: CycleTimes | None
    cpu_s: float

    @property
    def tokens(self) -> int:
        """Decoded after the first."""
        return len(self.result.tokens) - 1

    def speedup(self, ar_s: float) -> float:
        return ar_s * self.tokens / self.result.decode_s


def emulate(
    profile: Profile, devices: Devices, accepted: Sequence[bool], tokens: int, timings: bool = False
) -> Emulated:
    """Decode ``tokens`` tokens after the first on ``devices``, one process each, with the verdicts
    ``accepted``. Raises ``RunFailure`` if a process is lost."""
    layout = Layout(len(devices.stage_s), own_drafter=not devices.beside_first)
    workload = Emulation(
        stage_s=devices.stage_s,
        draft_s=devices.draft_s,
        accepted=tuple(accepted),
        verify_s=devices.verify_s,
        hop_s=devices.hop_s,
        jitter=profile.jitter,
        hidden=profile.hidden,
    )
    job = Job(
        layout=layout,
        stage_layers=tuple(split_layers(profile.num_layers, layout.n)),
        reads=profile.anchors,
        series=devices.series,
        draft_layers=0,
        device="cpu",
        workload=workload,
    )
    request = Request(_PROMPT, SamplingParams(), "point-mass", tokens + 1, (), 1, len(_PROMPT), timings)
    reports = Ranks.of(layout).decode(job, request)
    result = reports[0].result
    assert result is not None
    cpu_s = sum(report.cpu_s for report in reports) / max(1, len(result.steps))
    return Emulated(layout, result, reports, cycle_times(steady(result.steps)), cpu_s)
