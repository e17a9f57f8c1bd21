"""The command of the README on the real default target, killed at random moments and continued."""

from __future__ import annotations

import dataclasses
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.records.files import read_file
from harness.records.record import Record

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "harness.run", "--method", "autoregressive", "--prompts", "2"]
TOKENS = 8

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("smollm2")]


def start(results: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, "--max-new-tokens", str(TOKENS), "--results", str(results)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def contents(results: Path) -> dict:
    """Records by key without their clocks; the file holds each key once."""
    records: list[Record] = read_file(results / "records.jsonl")
    found = {r.key: dataclasses.replace(r, prefill_s=0.0, decode_s=0.0) for r in records}
    assert len(found) == len(records)
    return found


def test_killed_at_random_moments_and_continued(tmp_path: Path) -> None:
    started = time.monotonic()
    whole = start(tmp_path / "whole")
    out, err = whole.communicate(timeout=300)
    took = time.monotonic() - started
    assert whole.returncode == 0, err
    expected = contents(tmp_path / "whole")
    assert len(expected) == 6 and {len(r.output_ids) for r in expected.values()} <= set(range(1, TOKENS + 1))
    last = json.loads(out.splitlines()[-1])
    assert (last["method"], last["preset"]) == ("autoregressive", "smollm2-135m")
    assert [line["benchmark"] for line in last["results"]] == ["mt_bench", "gsm8k", "humaneval", "overall"]
    assert "\nbenchmark " in out and "prompt" in err and "tok/s" in err
    assert "Loading" not in err and "Converting" not in err

    moments = random.Random(1)
    for _ in range(2):
        process = start(tmp_path / "killed")
        time.sleep(moments.uniform(0.3, 0.9) * took)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    process = start(tmp_path / "killed")
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert contents(tmp_path / "killed") == expected
    again = json.loads(out.splitlines()[-1])
    assert [line["tokens"] for line in again["results"]] == [line["tokens"] for line in last["results"]]
