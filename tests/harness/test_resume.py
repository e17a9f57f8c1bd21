"""A run killed at any moment and started again equals one that was never killed (check C25)."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import fake_world
import pytest

from harness.records.files import latest, read_baseline, read_file, read_records
from harness.records.record import BASELINE, RECORDS, Record
from harness.run import main

ROOT = Path(__file__).resolve().parents[2]
ARGUMENTS = [
    *("--method", "fake-draft", "--prompts", "3", "--turns", "all", "--temperature", "0"),
    *("--temperature", "1", "--max-new-tokens", "12", "--warmup", "1"),
]
TOTAL = 3 * 3 * 2 * 2


@pytest.fixture(scope="module", autouse=True)
def world():
    with pytest.MonkeyPatch.context() as patch:
        fake_world.install(patch.setattr)
        yield


def start(results: Path) -> subprocess.Popen[str]:
    """A run in a process of its own, slowed down so that it can be caught."""
    paths = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    program = str(Path(__file__).with_name("fake_run.py"))
    return subprocess.Popen(
        [sys.executable, program, "0.01", *ARGUMENTS, "--results", str(results)],
        env=os.environ | {"PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(results: Path) -> None:
    assert main([*ARGUMENTS, "--results", str(results)]) == 0


def lines(results: Path) -> int:
    path = results / "records.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for(results: Path, count: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while lines(results) < count and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    assert process.poll() is None, process.communicate()


def kill_after(results: Path, count: int) -> None:
    """Kill a run as soon as it has stored ``count`` records."""
    process = start(results)
    wait_for(results, count, process)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert count <= lines(results) < TOTAL, "killed too late to show anything"


def content(records: list[Record]) -> dict:
    """Records by key without their clocks; fails if a key comes twice."""
    found = {}
    for record in records:
        assert record.key not in found
        found[record.key] = dataclasses.replace(record, prefill_s=0.0, decode_s=0.0, phases={})
    return found


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> tuple[dict, dict]:
    results = tmp_path_factory.mktemp("whole")
    finish(results)
    found = content(read_records(results)), content(read_baseline(results))
    assert [len(part) for part in found] == [TOTAL, TOTAL]
    return found


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> Path:
    results = tmp_path_factory.mktemp("killed")
    kill_after(results, 4)
    return results


def assert_equal(results: Path, uninterrupted: tuple[dict, dict]) -> None:
    """The method's file, superseded lines included, holds each key once; both hold the same content.
    AR's line of the prompt that was cut off is superseded: its seconds belong to another start."""
    records, baseline = (read_file(results / f"{stem}.jsonl") for stem in (RECORDS, BASELINE))
    assert (content(records), content(latest(baseline))) == uninterrupted


def test_killed_twice_and_continued(tmp_path: Path, killed: Path, uninterrupted) -> None:
    results = shutil.copytree(killed, tmp_path / "run")
    kill_after(results, 17)
    finish(results)
    assert_equal(results, uninterrupted)


@pytest.mark.parametrize("cut", [1, 60, 400])
def test_killed_in_the_middle_of_a_line(tmp_path: Path, killed: Path, uninterrupted, cut: int) -> None:
    results = shutil.copytree(killed, tmp_path / "run")
    path = results / "records.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    finish(results)
    assert_equal(results, uninterrupted)


def test_killed_in_the_middle_of_the_baseline(tmp_path: Path, uninterrupted) -> None:
    """A torn AR line has no method record beside it, since AR is stored first."""
    finish(tmp_path)
    for stem, kept, torn in ((BASELINE, 7, 60), (RECORDS, 7, 0)):
        path = tmp_path / f"{stem}.jsonl"
        whole = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(whole[:kept]) + whole[kept][:torn])
    finish(tmp_path)
    assert_equal(tmp_path, uninterrupted)


def test_second_process_is_refused_while_the_first_runs(tmp_path: Path, capsys) -> None:
    first = start(tmp_path)
    try:
        wait_for(tmp_path, 1, first)
        before = (tmp_path / "manifest.json").read_bytes()
        assert main([*ARGUMENTS, "--results", str(tmp_path)]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err == f"error: results directory {tmp_path} is in use by process {first.pid}\n"
        assert (tmp_path / "manifest.json").read_bytes() == before
    finally:
        first.kill()
        first.communicate(timeout=60)
