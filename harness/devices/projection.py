"""Wall-clock of a pipeline on devices one does not have: a recorded trace and the times of its parts.

The model is the distributed runtime's own order of events, with a time for each: a stage starts
when it is done with its last token and the stage before has delivered the next; stage 1 and the
drafter also wait for the verdict, stage 1 for the drafter's token, the drafter for all taps. What
it leaves out is what a runtime itself costs, which emulation measures.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.config.profiles import PipelineTimes, Profile
from harness.records.record import Record, StepArrays
from methods.core import Transcript
from methods.errors import UsageError
from methods.pipeline.controller import PipelineController
from methods.pipeline.tree import Proposal

_RIGHT, _WRONG = 0, 1


@dataclass(frozen=True, slots=True)
class Devices:
    """Seconds: of every stage, of a draft, of a verification, and of a message between two devices.
    ``series``: the drafter works after stage 1 of the same cycle (PPSD), not beside the stages.
    ``beside_first``: it shares the device of stage 1 (layout n)."""

    stage_s: tuple[float, ...]
    draft_s: float
    verify_s: float = 0.0
    hop_s: float = 0.0
    series: bool = False
    beside_first: bool = False

    def __post_init__(self) -> None:
        if not self.stage_s or min([*self.stage_s, self.draft_s, self.verify_s, self.hop_s]) < 0:
            raise UsageError("a projection needs at least one stage and no negative time")

    @property
    def bottleneck_s(self) -> float:
        """The slowest device."""
        first, *others = self.stage_s
        if self.beside_first:
            first += self.draft_s
        return max([first, *others, self.draft_s])


def devices_of(
    profile: Profile,
    times: PipelineTimes,
    shares: Sequence[float] | None = None,
    series: bool = False,
    beside_first: bool = False,
) -> Devices:
    """The profile's devices for ``times.n`` stages. ``shares``: work of each stage over that of an equal
    part of the target, all 1 by default."""
    return Devices(
        stage_s=tuple(share * times.stage_s for share in shares or [1.0] * times.n),
        draft_s=times.draft_s,
        verify_s=profile.verify_s,
        hop_s=profile.hop_s,
        series=series,
        beside_first=beside_first,
    )


@dataclass(frozen=True, slots=True)
class Projection:
    """``tokens`` decoded after the first in ``cycles`` cycles and ``seconds``."""

    tokens: int
    cycles: int
    seconds: float

    @property
    def token_s(self) -> float:
        """Seconds per token."""
        return self.seconds / self.tokens

    def speedup(self, ar_s: float) -> float:
        """AR seconds per token / projected seconds per token."""
        return ar_s / self.token_s


def verdicts(steps: StepArrays) -> list[bool]:
    """Accepted or not, for every verification of a recorded run that had a candidate (W = 1)."""
    return [accepted > 0 for drafted, accepted in zip(steps.drafted, steps.accepted, strict=True) if drafted]


def recorded_verdicts(records: Iterable[Record]) -> list[bool]:
    """Those of all records in order. Raises ``UsageError`` if there is none, for a tree, for a method
    that is no pipeline and for several temperatures."""
    found: list[bool] = []
    temperatures = set()
    for record in records:
        temperatures.add(record.temperature)
        if record.stages == 1 and any(record.steps.drafted):
            raise UsageError(f"a projection reads runs of a pipeline; these records are of {record.method!r}")
        if len(temperatures) > 1:
            raise UsageError("a projection reads runs at one temperature; these records have several")
        if record.width != 1:
            raise UsageError("a projection reads runs of width 1: a trace does not say what a tree held")
        found += verdicts(record.steps)
    if not found:
        raise UsageError("the records hold no verification to project from")
    return found


def project(accepted: Sequence[bool], tokens: int, devices: Devices) -> Projection:
    """Decode ``tokens`` tokens after the first with the verdicts ``accepted``, repeated as needed."""
    if tokens < 1 or not accepted:
        raise UsageError("a projection needs at least one token and one verdict")
    n = len(devices.stage_s)
    pipeline = PipelineController(n, 1, _RIGHT, Transcript(tokens + 1))
    clock = _Clock(devices)
    verified = 0
    while not pipeline.finished:
        work = [bool(level) for level in pipeline.stage_work()]
        clock.cycle(work, bool(pipeline.newest), pipeline.verification_due)
        if pipeline.expansion_due:
            _expand(pipeline)
        if pipeline.verification_due:
            right = bool(pipeline.candidates) and accepted[verified % len(accepted)]
            verified += bool(pipeline.candidates)
            pipeline.commit(_RIGHT if right else _WRONG, pipeline.candidates[0] if right else None)
        if pipeline.expansion_due:
            _expand(pipeline)
        pipeline.end_cycle()
    return Projection(tokens, pipeline.cycles, clock.now)


def _expand(pipeline: PipelineController) -> None:
    pipeline.expand({node.id: [Proposal(_RIGHT, 0.0)] for node in pipeline.newest})


class _Clock:
    """When every device finished what, cycle by cycle."""

    def __init__(self, devices: Devices) -> None:
        self._devices = devices
        self._stage = [0.0] * len(devices.stage_s)
        """When each stage became free."""
        self._delivered = [0.0] * len(devices.stage_s)
        """When the stage's input for the next cycle is there."""
        self._drafter = 0.0
        self._token = self._taps = self._verdict = 0.0
        """When the next token, all taps and the verdict are known where they are needed."""

    @property
    def now(self) -> float:
        """When the last verdict fell."""
        return max(self._verdict - self._devices.hop_s, 0.0)

    def cycle(self, work: Sequence[bool], drafts: bool, verifies: bool) -> None:
        d = self._devices
        hop_to_drafter = 0.0 if d.beside_first else d.hop_s
        drafted = self._drafter
        if drafts and not d.series:
            drafted = max(self._drafter, self._taps, self._verdict) + d.draft_s
            if d.beside_first:
                self._stage[0] = drafted
        ends = self._run_stages(work)
        if drafts and d.series:
            start = self._stage[0] if d.beside_first else max(self._drafter, ends[0] + hop_to_drafter)
            drafted = start + d.draft_s
            if d.beside_first:
                self._stage[0] = drafted
        if drafts:
            self._drafter, self._token = drafted, drafted + hop_to_drafter
        self._taps = max([self._taps, *(end + d.hop_s for end, busy in zip(ends, work, strict=True) if busy)])
        if verifies:
            self._stage[-1] = ends[-1] + d.verify_s
            self._verdict = self._stage[-1] + (d.hop_s if len(work) > 1 else 0.0)
        self._delivered = [0.0, *(end + d.hop_s for end in ends[:-1])]

    def _run_stages(self, work: Sequence[bool]) -> list[float]:
        for index, busy in enumerate(work):
            if busy:
                ready = max(self._token, self._verdict) if index == 0 else self._delivered[index]
                self._stage[index] = max(self._stage[index], ready) + self._devices.stage_s[index]
        return list(self._stage)
