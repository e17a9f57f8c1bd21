"""The wall-clock of a table's recorded runs on the devices of its profile, emulated and projected."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from harness.config.profiles import Profile, load_profile, profile_facts
from harness.devices.device_runs import DeviceMode, device_run, run
from harness.execution import runner
from harness.records.identity import device_code
from methods.errors import UsageError
from paper_tables import stored
from paper_tables.plan import Row
from paper_tables.runs import Sheet, drafter, found_on_devices, header, planned

_MODES: tuple[DeviceMode, ...] = ("project", "emulate")
_EXIT_HEAD_LAYERS = 1
"""Ls of a row that names none: a PPSD exit head."""


def fill(sheet: Sheet, rows: Sequence[Row]) -> None:
    """Project and emulate what is recorded and not stored yet, for the rows the profile has times of.

    Raises ``RunFailure`` if a process of an emulated run is lost; the next start continues.
    """
    if sheet.spec.profile is None:
        return
    profile = load_profile(sheet.spec.profile)
    for temperature in sheet.size.temperatures:
        for row in (row for row in rows if _has_times(profile, row)):
            recorded = sheet.find(row, temperature)
            if recorded is None or recorded.reason is not None:
                continue
            code = recorded.header.get("method_code")
            todo = [mode for mode in _MODES if not _done(sheet, row, temperature, mode, profile, code)]
            if todo:
                if sheet.shard.world > 1:
                    if sheet.shard.rank == 0:
                        print(f"{row.label}: start without a launcher to emulate it", file=sys.stderr)
                    continue
                _fill(sheet, row, temperature, todo, profile, code)


def _has_times(profile: Profile, row: Row) -> bool:
    options = dict(row.options)
    try:
        profile.pipeline(int(options["n"]), int(options.get("draft_layers", _EXIT_HEAD_LAYERS)))
    except (KeyError, UsageError):
        return False
    return True


def _done(
    sheet: Sheet, row: Row, temperature: float, mode: DeviceMode, profile: Profile, code: object
) -> bool:
    """``code`` is that of the recorded traces."""
    asked = {
        "argv": sheet.arguments(row, temperature),
        "drafter": drafter(sheet.preset, row),
        "profile": profile_facts(sheet.spec.profile or "", profile),
        "method_code": code,
        "device_code": device_code(mode).sha256,
    }
    return found_on_devices(sheet, row, temperature, mode, asked) is not None


def _fill(
    sheet: Sheet,
    row: Row,
    temperature: float,
    modes: Sequence[DeviceMode],
    profile: Profile,
    code: object,
) -> None:
    assert sheet.spec.profile is not None
    _, plan = planned(sheet, row, temperature)
    traces = runner.run(plan, sys.argv).records  # stored by now, unless only the tables' records were kept
    for mode in modes:
        print(f"T = {temperature:g}: {mode} {row.label} on {sheet.spec.profile}", file=sys.stderr)
        job = device_run(plan, mode, sheet.spec.profile)
        outcome = run(job, traces, sys.argv)
        made = {
            **header(sheet, row, temperature, job.plan),
            "profile": profile_facts(sheet.spec.profile, profile),
            "method_code": code,
            "device_code": device_code(mode).sha256,
        }
        stored.write(sheet.on_devices(row, temperature, mode), made, outcome.records, outcome.baseline)
