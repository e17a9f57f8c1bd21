"""Table 2's emulated and projected columns: filled from recorded runs, kept as records of their own."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from replay_world import install

from harness.devices import device_runs, emulation
from harness.devices.projection import project
from paper_tables import current, devices, runs
from paper_tables.measured import ON_DEVICES
from paper_tables.plan import SPECS, Row, Size
from paper_tables.runs import Sheet
from paper_tables.stored import read

AR = Row.of("AR", "autoregressive")
ON_PROFILE = Row.of("SPD n=4 Ls=4", "spd", n=4, draft_layers=4, untrained=True)
NOT_ON_IT = Row.of("SPD n=4 Ls=2", "spd", n=4, draft_layers=2, untrained=True)
PPSD = Row.of("PPSD n=4", "ppsd", n=4, untrained=True)
ROWS = (AR, ON_PROFILE, NOT_ON_IT, PPSD)


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Devices that take twice what the projection says, and the tokens they were asked for."""
    asked: list[int] = []

    def twice(job, stack):
        def timed(record):
            asked.append(record.decoded)
            seconds = project(device_runs._verdicts(record), record.decoded, job.devices).seconds
            return 2 * seconds, {}

        return timed

    monkeypatch.setattr(device_runs, "_emulated", twice)
    monkeypatch.setattr(emulation, "emulate", None)
    return asked


@pytest.fixture
def sheet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sheet:
    install(monkeypatch)
    monkeypatch.setattr(current, "load_preset", lambda name: runs_preset)
    size = Size(prompts={0.0: 2}, max_new_tokens=10, folder="small")
    return Sheet(SPECS["2"], "small", size, "smollm2-135m", tmp_path / "tables", tmp_path / "runs")


class runs_preset:
    checkpoints: dict[str, str] = {}  # noqa: RUF012


def speedups(sheet: Sheet) -> dict:
    cells, reasons = runs.measured(sheet, ROWS)
    assert not reasons
    return {
        cell.row: [cell.figures.get(name) for name in ON_DEVICES.values()]
        for cell in cells
        if cell.benchmark == "overall"
    }


def test_columns_are_filled_where_the_profile_has_times(sheet: Sheet, emulated: list[int]) -> None:
    runs.fill(sheet, ROWS)
    devices.fill(sheet, ROWS)
    found = speedups(sheet)
    assert found.pop(ON_PROFILE) is not None
    assert all(figures == [None, None] for figures in found.values()) and len(found) == 3
    in_time, projected = speedups(sheet)[ON_PROFILE]
    assert projected.value == pytest.approx(2 * in_time.value)
    assert emulated == [9] * 6  # two prompts of three benchmarks
    about = read(sheet.on_devices(ON_PROFILE, 0.0, "emulate")).header
    assert about["profile"]["name"] == "qwen3.5-4b" and about["profile"]["ar_s"] == 0.0284
    assert {"machine", "code", "fingerprint", "argv"} <= set(about) and about["mode"] == "emulate"


def test_a_second_start_runs_nothing(sheet: Sheet, emulated: list[int], monkeypatch) -> None:
    runs.fill(sheet, ROWS)
    devices.fill(sheet, ROWS)
    monkeypatch.setattr(devices, "planned", None)
    devices.fill(sheet, ROWS)
    assert len(emulated) == 6


def test_a_changed_profile_is_emulated_again(sheet: Sheet, emulated: list[int], monkeypatch) -> None:
    runs.fill(sheet, ROWS)
    devices.fill(sheet, ROWS)
    path = sheet.on_devices(ON_PROFILE, 0.0, "emulate")
    before = path.read_text()
    slower = dataclasses.replace(devices.load_profile("qwen3.5-4b"), hop_s=0.001)
    monkeypatch.setattr(devices, "load_profile", lambda name: slower)
    monkeypatch.setattr(device_runs, "load_profile", lambda name: slower)
    monkeypatch.setattr(runs, "load_profile", lambda name: slower)
    assert set(speedups(sheet)[ON_PROFILE]) == {None}, "figures on other devices are not shown"
    devices.fill(sheet, ROWS)
    assert len(emulated) == 12 and path.read_text() != before


def test_the_tables_records_are_enough(sheet: Sheet, emulated: list[int], tmp_path: Path) -> None:
    runs.fill(sheet, ROWS)
    devices.fill(sheet, ROWS)
    shown = speedups(sheet)
    (tmp_path / "runs").rename(tmp_path / "gone")
    assert speedups(sheet) == shown
    lines = sheet.on_devices(ON_PROFILE, 0.0, "project").read_text().splitlines()
    assert len(lines) == 7 and json.loads(lines[0])["columns"][-2:] == ["ar_decode_s", "ar_tokens"]
