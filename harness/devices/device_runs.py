"""A recorded run once more, on the devices of a profile: emulated by the real runtime, or projected.

The trace of every record, which token was accepted when, is kept; only the seconds are those of
other devices. AR's are the profile's seconds per token. Both are records like any other, in a run
directory of their own, so that no figure mixes them with what this machine measured.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Literal

from tqdm import tqdm

from harness.config.profiles import Profile, load_profile, profile_facts
from harness.devices.projection import Devices, devices_of, project, verdicts
from harness.execution import run_directory
from harness.execution.arm import phase_totals
from harness.execution.cycle_log import CycleLog
from harness.execution.plan import AR, NO_WIDTH, Plan, run_name
from harness.execution.runner import Outcome, ended, in_order
from harness.execution.sharding import ALONE
from harness.records.identity import device_code
from harness.records.journal import Journal
from harness.records.record import BASELINE, RECORDS, Record, StepArrays
from methods.core import Step
from methods.errors import UsageError, describe

DeviceMode = Literal["emulate", "project"]
_WARMUP_TOKENS = 8
Timed = Callable[[Record], tuple[float, dict[str, float]]]
"""Decode seconds of a recorded trace on other devices, and their sums by phase where they are known."""


@dataclass(frozen=True)
class DeviceRun:
    """``plan`` is that of the new records, ``source`` of those that hold the traces."""

    plan: Plan
    source: Plan
    mode: DeviceMode
    profile: Profile
    devices: Devices


def device_run(source: Plan, mode: DeviceMode, profile_name: str, timings: bool = False) -> DeviceRun:
    """The run of ``source``'s traces on a profile, in a directory beside it; ``timings`` keeps where
    the time of emulated cycles went.

    Raises ``UsageError`` for an unknown profile, one without times for the method's stages and
    drafter, and for methods whose trace is no chain on a pipeline.
    """
    profile = load_profile(profile_name)
    devices = devices_of_plan(source, profile)
    config = source.config | {
        "mode": mode,
        "trace": source.config["mode"],
        "profile": profile_facts(profile_name, profile),
        "devices": asdict(devices),
        **({"timings": True} if timings else {}),
    }
    request = dataclasses.replace(source.request, mode=mode, timings=timings)
    directory = source.directory.parent / run_name(request, config)
    plan = dataclasses.replace(
        source,
        request=request,
        config=config,
        directory=directory,
        code={**source.code, mode: device_code(mode)},
        shard=ALONE,
    )
    return DeviceRun(plan, source, mode, profile, devices)


def devices_of_plan(plan: Plan, profile: Profile) -> Devices:
    """A device per stage, and one for the drafter unless the method's layout puts it beside stage 1."""
    from methods.pipeline.drafter import Drafter
    from methods.pipeline.layout import Layout
    from methods.pipeline.method import PipelineMethod

    (method, *others) = plan.methods.values()
    if not isinstance(method, PipelineMethod) or others or method.options.width != 1:
        raise UsageError(
            f"a profile's devices run chains (width 1) of a pipeline method: ppsd, spd; got {method.name!r}"
            + (f" with widths {sorted(plan.methods)}" if others or max(plan.methods) > 1 else "")
        )
    drafter: Drafter = method.drafter()
    n = method.options.n
    shares = None
    if method.options.stage_layers is not None:
        shares = [layers * n / sum(method.stage_layers) for layers in method.stage_layers]
    return devices_of(
        profile,
        profile.pipeline(n, drafter.layers),
        shares,
        series=drafter.series,
        beside_first=not Layout.named(method.options.layout, n).own_drafter,
    )


def run(job: DeviceRun, recorded: Sequence[Record], argv: Sequence[str]) -> Outcome:
    """Records of ``recorded``'s traces on the profile's devices, continuing what is stored.

    Raises ``UsageError`` if the directory cannot be used, ``RunFailure`` if a process is lost.
    """
    with ExitStack() as stack:
        run_directory.enter(stack, job.plan, argv)
        records = run_directory.journal(stack, job.plan, RECORDS)
        baseline = run_directory.journal(stack, job.plan, BASELINE)
        todo = [record for record in recorded if _missing(records, record)]
        if todo:
            timed = _emulated(job, stack) if job.mode == "emulate" else _projected(job)
            for record in tqdm(todo, unit="prompt", desc=f"{job.mode} {job.profile.target}", file=sys.stderr):
                _store(baseline, _of_ar(record, job))
                _store(records, _on_devices(record, job, timed))
        outcome = Outcome(in_order(job.plan, records.records()), in_order(job.plan, baseline.records()))
        return ended(job.plan, outcome, idle=not todo)


def _missing(journal: Journal, record: Record) -> bool:
    stored = journal.get(record.key)
    return stored is None or stored.error is not None


def _store(journal: Journal, record: Record) -> None:
    journal.append(record, replace=journal.get(record.key) is not None)


def _on_devices(record: Record, job: DeviceRun, timed: Timed) -> Record:
    """``record`` with other seconds. Where its totals were an expectation, they become those of its
    drawn trace, the one that was timed."""
    blank = dataclasses.replace(
        record, mode=job.mode, prefill_s=None, decode_s=None, phases={}, expected=None, acceptance=None
    )
    if record.error is not None:
        return dataclasses.replace(blank, error=f"the recorded run failed: {record.error}")
    try:
        seconds, phases = timed(record) if record.decoded else (0.0, {})
    except Exception as error:
        return dataclasses.replace(blank, error=describe(error))
    return dataclasses.replace(blank, decode_s=seconds, phases=phases)


def _of_ar(record: Record, job: DeviceRun) -> Record:
    count = record.decoded
    step = Step(0, 0, 1, record.num_layers, 0)
    return dataclasses.replace(
        record,
        mode=job.mode,
        method=AR,
        width=NO_WIDTH,
        stages=1,
        steps=StepArrays.of([step] * count),
        lossless="exact",
        prefill_s=None,
        decode_s=count * job.profile.ar_s,
        phases={},
        expected=None,
        acceptance=None,
    )


def _projected(job: DeviceRun) -> Timed:
    return lambda record: (project(_verdicts(record), record.decoded, job.devices).seconds, {})


def _emulated(job: DeviceRun, stack: ExitStack) -> Timed:
    from harness.devices.emulation import emulate

    emulate(job.profile, job.devices, [True], _WARMUP_TOKENS)
    log = stack.enter_context(CycleLog(job.plan.directory)) if job.plan.request.timings else None

    def timed(record: Record) -> tuple[float, dict[str, float]]:
        run = emulate(job.profile, job.devices, _verdicts(record), record.decoded, timings=log is not None)
        found = StepArrays.of(run.result.steps)
        if (found.drafted, found.accepted, found.nodes) != (
            record.steps.drafted,
            record.steps.accepted,
            record.steps.nodes,
        ):
            raise RuntimeError("the emulated run did not follow the recorded trace")
        if log is not None:
            log.append(record.key, run.layout, run.result.steps, run.reports)
        return run.result.decode_s, phase_totals(run.result)

    return timed


def _verdicts(record: Record) -> list[bool]:
    return verdicts(record.steps) or [True]  # too short for a verification: none is asked for
