"""Prompts shared by the processes of a launcher: a record file each, merged by whoever reads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import fake_world
import pytest
from test_resume import ARGUMENTS, TOTAL, content
from torch.distributed import HashStore

from harness.checks.small_world import save_prompts, save_target
from harness.compare import Run
from harness.execution.sharding import ALONE, Shard, join
from harness.records.files import read_baseline, read_file, read_records
from harness.records.manifest import read_manifest
from harness.records.record import BASELINE, RECORDS
from harness.report.arms import read_arms
from harness.run import main
from methods.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]


def together(world: int, body):
    """``body(shard)`` in a thread per process; results by rank."""
    store, found = HashStore(), {}

    def run(rank: int) -> None:
        try:
            found[rank] = body(Shard(rank, world, store))
        except UsageError as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in reversed(range(world))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    return [found[rank] for rank in range(world)]


def test_every_prompt_belongs_to_one_process() -> None:
    shards = [Shard(rank, 3) for rank in range(3)]
    assert [[shard.holds(i) for shard in shards].count(True) for i in range(7)] == [1] * 7
    assert [shard.own("records") for shard in shards] == ["records-0", "records-1", "records-2"]
    assert ALONE.own("records") == "records" and all(ALONE.holds(i) for i in range(7))


def test_the_first_goes_first_and_the_last_is_waited_for() -> None:
    order: list[str] = []

    def body(shard: Shard) -> None:
        with shard.first():
            time.sleep(0.05 if shard.rank == 0 else 0.0)
            order.append(f"in {shard.rank}")
        time.sleep(0.05 * shard.rank)
        order.append(f"work {shard.rank}")
        shard.gather()
        if shard.rank == 0:
            order.append("gathered")

    together(3, body)
    assert order[0] == "in 0" and order[-1] == "gathered" and len(order) == 7


def test_all_follow_the_first_ones_word() -> None:
    assert together(3, lambda shard: shard.agreed(lambda: [shard.rank, "x"])) == [[0, "x"]] * 3
    assert ALONE.agreed(lambda: 7) == 7


def test_if_the_first_fails_nobody_waits() -> None:
    def body(shard: Shard) -> str:
        with shard.first():
            if shard.rank == 0:
                raise UsageError("no target")
        return "went on"

    first, second = together(2, body)
    assert str(first) == "no target" and "process 1 cannot go on: process 0 failed" in str(second)


def test_without_a_launcher_a_process_is_alone(monkeypatch) -> None:
    for name, value in (("RANK", "x"), ("WORLD_SIZE", "abc"), ("MASTER_PORT", "-1")):
        with monkeypatch.context() as patch:
            for known, usual in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_PORT", "29500")):
                patch.setenv(known, usual)
            patch.setenv(name, value)
            with pytest.raises(UsageError, match=f"{name} is '{value}'"):
                join()
    with monkeypatch.context() as patch:  # what a shell has left over is no launcher
        patch.setenv("RANK", "1")
        patch.setenv("WORLD_SIZE", "2")
        patch.delenv("MASTER_ADDR", raising=False)
        assert join() is ALONE
    monkeypatch.delenv("RANK", raising=False)
    assert join() is ALONE
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert join() is ALONE


def torchrun(*program: str) -> subprocess.Popen[str]:
    """Two processes on this host, threads and interface as in a launcher's script."""
    paths = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.Popen(
        [*launcher, *program],
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_two_processes_on_a_tiny_target_give_the_records_of_one(tmp_path: Path) -> None:
    target = save_target(tmp_path / "target")
    prompts = save_prompts(tmp_path / "prompts", "one two three one two", "a b a b a b", "x y z x y z")
    line = [
        "--target",
        str(target),
        "--data-dir",
        str(prompts),
        "--method",
        "ngram",
        "--max-new-tokens",
        "12",
    ]
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    assert main([*line, "--results", str(alone)]) == 0
    process = torchrun("-m", "--", "harness.run", *line, "--results", str(shared))
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert len(list(shared.glob("records-?.jsonl"))) == len(list(shared.glob("baseline-?.jsonl"))) == 2
    assert [len(read_file(shared / f"records-{rank}.jsonl")) for rank in (0, 1)] == [5, 4]
    assert content(read_records(shared)) == content(read_records(alone))
    assert content(read_baseline(shared)) == content(read_baseline(alone))
    assert read_manifest(shared)["config"]["processes"] == read_manifest(shared)["processes"] == 2
    (last,) = [json.loads(text) for text in out.splitlines() if text.startswith("{")]
    assert last["results"][-1]["prompts"] == 9, "one process tells of all prompts"
    lines = [run["results"] for run in map(summary_of, (shared, alone))]
    assert [row["S0"] for row in lines[0]] == [row["S0"] for row in lines[1]]
    assert len(Run.read(shared).records) == 9
    assert [len(arm.records) for arm in read_arms([shared])[0]] == [9]


def summary_of(directory: Path) -> dict:
    return json.loads((directory / "summary.json").read_text())


@pytest.mark.slow
def test_killed_and_continued_equals_a_run_alone(tmp_path: Path, monkeypatch) -> None:
    program = [str(Path(__file__).with_name("fake_run.py")), "0.05", *ARGUMENTS]
    shared = tmp_path / "shared"
    process = torchrun(*program, "--results", str(shared))
    locks = [shared / ".lock-0", shared / ".lock-1"]
    deadline = time.monotonic() + 120
    # The first process may have stored so much before the second holds its lock.
    while not (stored(shared) >= 6 and all(lock.exists() and lock.read_text() for lock in locks)):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    for victim in (process.pid, *(int(lock.read_text()) for lock in locks)):
        os.kill(victim, signal.SIGKILL)
    process.communicate(timeout=60)
    assert 6 <= stored(shared) < TOTAL
    process = torchrun(*program, "--results", str(shared))
    _, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    with monkeypatch.context() as patch:
        fake_world.install(patch.setattr)
        assert main([*ARGUMENTS, "--results", str(tmp_path / "alone")]) == 0
    for stem in (RECORDS, BASELINE):
        files = [read_file(shared / f"{stem}-{rank}.jsonl") for rank in (0, 1)]
        assert content(files[0] + files[1]) == content(read_records(tmp_path / "alone", stem))


def stored(directory: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in directory.glob("records-?.jsonl"))
