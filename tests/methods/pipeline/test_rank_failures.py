"""A rank that dies, hangs or cannot load ends the run soon, with one message and no orphan."""

import dataclasses
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from conftest import random_ids, tiny
from torch.distributed import HashStore

from methods import registry
from methods.core import SamplingParams
from methods.errors import RunFailure, UsageError
from methods.models.files import weights_sha256
from methods.models.parts import DirectorySource
from methods.models.target import Target
from methods.pipeline.distributed import ranks as ranks_module
from methods.pipeline.distributed import transport
from methods.pipeline.distributed.launcher import put
from methods.pipeline.distributed.progress import PROMPT, Progress
from methods.pipeline.distributed.rank import beat_key
from methods.pipeline.distributed.ranks import Ranks
from methods.pipeline.distributed.transport import socket_mesh
from methods.pipeline.distributed.watch import SILENT_S, STUCK_S, Watch

pytestmark = pytest.mark.slow

LIMIT_S = 10.0
KILLS = int(os.environ.get("KILLS", "4"))
"""How many random kills: a few in every run of the tests, twenty before a release."""


def method(target=None, **options):
    options = {"n": 2, "untrained": True, "runtime": "distributed", **options}
    return registry.create("spd", target or tiny("llama"), options)


@pytest.fixture(autouse=True)
def none_left():
    yield
    if ranks_module._running is not None:
        ranks_module._running.close()


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists() and "zombie" not in _status(pid)]


def _status(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return "zombie"


def later(seconds: float, action) -> list[float]:
    """Run ``action`` in a thread after ``seconds``; the list receives the moment it ran."""
    moment: list[float] = []

    def act():
        time.sleep(seconds)
        moment.append(time.monotonic())
        action()

    threading.Thread(target=act, daemon=True).start()
    return moment


def decode_forever(pipeline) -> None:
    while True:
        pipeline.decode(random_ids(6), SamplingParams(), 30)


@pytest.mark.parametrize("seed", range(KILLS))
def test_a_killed_rank_ends_the_run(seed):
    chance = random.Random(seed)
    pipeline = method()
    ranks = Ranks.of(pipeline.distributed.job.layout)
    pids = [process.pid for process in ranks.processes]
    victim = chance.randrange(3)
    moment = later(chance.uniform(0.0, 6.0), lambda: os.kill(pids[victim], signal.SIGKILL))
    with pytest.raises(RunFailure, match=rf"rank {victim} .*was killed by signal 9 \(SIGKILL\)"):
        decode_forever(pipeline)
    assert time.monotonic() - moment[0] < LIMIT_S
    assert not alive(pids)


def test_a_rank_that_dies_while_nothing_is_asked_interrupts_the_main_thread():
    pipeline = method()
    pipeline.decode(random_ids(6), SamplingParams(), 3)
    ranks = Ranks.of(pipeline.distributed.job.layout)
    moment = later(0.2, ranks.processes[2].kill)
    with pytest.raises(RunFailure, match=r"rank 2 \(drafter\) was killed"):
        while True:
            time.sleep(0.1)
    assert time.monotonic() - moment[0] < LIMIT_S


def test_a_stopped_rank_is_named():
    pipeline = method()
    pipeline.decode(random_ids(6), SamplingParams(), 3)
    pids = [process.pid for process in Ranks.of(pipeline.distributed.job.layout).processes]
    moment = later(0.5, lambda: os.kill(pids[1], signal.SIGSTOP))
    with pytest.raises(RunFailure, match=r"rank 1 \(stage 2\) does not respond"):
        decode_forever(pipeline)
    assert time.monotonic() - moment[0] < LIMIT_S
    assert not alive(pids)


def test_a_rank_that_cannot_load_is_named(tmp_path):
    whole = tiny("llama")
    whole.hf.save_pretrained(tmp_path)
    hashes = {"sha256": weights_sha256(tmp_path), "tokenizer_sha256": ""}
    source = DirectorySource(str(tmp_path), torch.float32, False, hashes)
    pipeline = method(Target(whole.hf, None, "saved", hashes, source))
    job = pipeline.distributed.job
    other = dataclasses.replace(source, hashes={**hashes, "sha256": "f" * 64})
    pipeline.distributed.job = dataclasses.replace(
        job, workload=dataclasses.replace(job.workload, source=other)
    )
    with pytest.raises(RunFailure, match=r"rank \d \(.*\) failed: UsageError: target .* has weights"):
        pipeline.decode(random_ids(6), SamplingParams(), 3)


def test_ranks_that_were_idle_are_not_taken_for_stuck():
    watch, store = Watch.__new__(Watch), HashStore()
    watch._seen, watch._world, watch.layout, watch._decoding_since = {}, 2, None, None

    def fault(now: float) -> str | None:
        for rank in range(2):
            put(store, beat_key(rank), [now, 1, True, "waiting for a prompt"])
        return watch._fault(store, now)

    assert fault(0.0) is None and fault(60.0) is None
    watch._decoding_since = 100.0
    assert fault(100.1) is None, "what they do now is not known before their next sign of life"
    assert "no rank has moved for 8 s (rank 0: waiting for a prompt" in fault(100.0 + STUCK_S + 0.1)


def test_a_long_prompt_is_not_taken_for_a_stuck_rank():
    watch, store = Watch.__new__(Watch), HashStore()
    watch._seen, watch._world, watch.layout, watch._decoding_since = {}, 2, None, 0.0
    doing = {0: PROMPT, 1: "waiting for a chunk of the prompt"}

    def fault(now: float) -> str | None:
        for rank in range(2):
            put(store, beat_key(rank), [now, 1, True, doing[rank]])
        return watch._fault(store, now)

    assert fault(0.0) is None and fault(10 * STUCK_S) is None
    doing[0] = "waiting for taps"
    assert "no rank has moved" in fault(11 * STUCK_S)


def test_waiting_gives_back_what_a_rank_was_doing():
    progress = Progress()
    for patient in (True, False):
        progress.begin("something", patient)
        with progress.waiting("a message"):
            assert (progress.doing, progress.patient) == ("waiting for a message", True)
        assert (progress.doing, progress.patient) == ("something", patient)


SCRIPT = """
import os, signal, sys, time
from methods import registry
from methods.core import SamplingParams
from methods.pipeline.distributed.ranks import Ranks
from methods.testing.tiny import tiny_target

options = {"n": 2, "untrained": True, "runtime": "distributed"}
pipeline = registry.create("spd", tiny_target("llama"), options)
pipeline.decode([1, 2, 3], SamplingParams(), 3)
print(*(p.pid for p in Ranks.of(pipeline.distributed.job.layout).processes), flush=True)
"""
"""A program with ranks of its own, which it names."""


@contextmanager
def started(then: str) -> Iterator[tuple[subprocess.Popen, list[int]]]:
    """``SCRIPT`` and ``then`` in a session of their own, and the ranks' process ids. It ends with the test,
    whatever becomes of that."""
    command = [sys.executable, "-c", SCRIPT + then]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()  # not to the end: the ranks hold it open too
        pids = [int(pid) for pid in line.split()]
        assert len(pids) == 3
        yield process, pids
    finally:
        process.kill()
        process.wait()


def gone(pids: list[int]) -> bool:
    deadline = time.monotonic() + LIMIT_S
    while alive(pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not alive(pids)


def test_ranks_do_not_survive_the_process_that_started_them():
    with started("os.kill(os.getpid(), signal.SIGKILL)") as (process, pids):
        assert process.wait() == -signal.SIGKILL
        assert gone(pids)


def test_an_interrupt_from_the_keyboard_reaches_all_and_ends_all():
    code = (
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background jobs ignore it
        "try:\n    while True:\n        pipeline.decode([1, 2, 3], SamplingParams(), 400)\n"
        "except KeyboardInterrupt:\n    sys.exit(130)\n"
    )
    with started(code) as (process, pids):
        time.sleep(0.5)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(LIMIT_S) == 130
        assert gone(pids)


def test_a_run_that_was_stopped_as_a_whole_goes_on():
    code = (
        "end = time.monotonic() + 14\n"
        "while time.monotonic() < end:\n    pipeline.decode([1, 2, 3], SamplingParams(), 50)\n"
    )
    with started(code) as (process, pids):
        time.sleep(0.5)
        os.killpg(process.pid, signal.SIGSTOP)
        time.sleep(STUCK_S + 1)
        os.killpg(process.pid, signal.SIGCONT)
        assert process.wait(60) == 0
        assert gone(pids)


def test_the_watchers_own_pause_is_nobodys_fault():
    watch, store = Watch.__new__(Watch), HashStore()
    watch._seen, watch._world, watch.layout, watch._decoding_since = {}, 1, None, 0.0
    put(store, beat_key(0), [1, 1, False, "decoding"])
    assert watch._fault(store, 0.0) is None
    watch._forget(100.0)
    assert watch._fault(store, 101.0) is None
    assert "does not respond" in watch._fault(store, 101.0 + SILENT_S)


def test_ranks_start_where_files_are_few(monkeypatch):
    monkeypatch.setattr(transport, "_files_allowed", lambda: 1024)
    assert [len(ends) for ends in socket_mesh(31)] == [0] * 31
    few = socket_mesh(3)
    assert [sorted(ends) for ends in few] == [[1, 2], [0, 2], [0, 1]]
    for end in (end for ends in few for end in ends.values()):
        end.close()


def test_a_port_in_use_is_refused_before_ranks_start(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setenv("MASTER_PORT", str(port))
        with pytest.raises(UsageError, match=f"port {port} for the ranks' rendezvous is in use"):
            method().decode(random_ids(6), SamplingParams(), 3)


def test_a_world_of_another_size_is_refused_before_anything_loads(monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "x", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=r"WORLD_SIZE is 4; n = 2 with layout n\+1 needs 3 ranks"):
        registry.get("spd").Options(n=2, untrained=True, runtime="distributed")
