"""How guarded commands end: 0 only after their work, signals passed on, hangs killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli import time_limit
from harness.cli.time_limit import OutOfTime, limit
from harness.records.files import read_baseline, read_records

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import itertools, os, sys, time
from harness.cli import guard
from harness.cli.time_limit import OutOfTime, finished, limit

def caught(seconds, body):
    try:
        with limit(seconds, "a prompt"):
            body()
        print("went on")
    except OutOfTime as error:
        print(f"caught: {error}")
    return 1

def interrupted():
    try:
        print(os.getpid(), flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        print("interrupted")
        return 130

"""
HEEDS = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
"""
"""A test run in the background, or under nohup, ignores one of them and hands that on."""
STUCK = "any(itertools.repeat(False))"


def start(command: str, resumes: bool = False) -> subprocess.Popen[str]:
    """A program that is nothing but the guarded ``command``, in a process group of its own."""
    code = PROGRAM + f"sys.exit(guard.guarded(lambda: {command}, resumes={resumes}, grace_s=0.3))"
    return subprocess.Popen(
        [sys.executable, "-c", HEEDS + code],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ends(command: str, resumes: bool = False) -> tuple[int, str, str]:
    process = start(command, resumes)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("0", 0, ""),
        ("3", 3, ""),
        ("os._exit(0)", 1, "error: the process was ended with exit code 0, before its work was done\n"),
        (
            "caught(None, lambda: os._exit(0))",
            1,
            "error: the process was ended with exit code 0 during a prompt, before its work was done\n",
        ),
        ("os._exit(5)", 5, ""),
        ("os.execv('/bin/true', ['true'])", 1, "before its work was done"),
        ("os.abort()", 134, "error: the process was ended by signal 6 (SIGABRT)\n"),
        ("os.kill(os.getpid(), 15)", -15, ""),
        ("[finished(), os._exit(0)]", 0, ""),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
    ],
)
def test_nothing_but_finished_work_gives_0(command: str, code: int, words: str) -> None:
    returned, out, err = ends(command)
    assert (returned, out) == (code, "")
    assert err == words if words.startswith("error") or not words else words in err


@pytest.mark.parametrize(
    "module", ["harness.run", "harness.check", "harness.soak", "harness.bench", "paper_tables"]
)
def test_every_command_that_runs_methods_is_guarded(module: str) -> None:
    code = f"""
import os, runpy
from harness.cli import entry
entry.exit_code = lambda *_: os._exit(0)
runpy.run_module({module!r}, run_name="__main__")
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "error: the process was ended with exit code 0, before its work was done\n"


def test_input_and_output_are_the_commands() -> None:
    process = start("print(sys.stdin.read().upper()) or 0")
    assert process.communicate("typed", timeout=60)[0] == "TYPED\n"
    assert process.returncode == 0


def test_a_limit_ends_what_hangs_in_python() -> None:
    assert ends("caught(0.2, lambda: time.sleep(60))") == (1, "caught: no result within 0.2 s\n", "")
    assert ends("caught(None, lambda: None)") == (1, "went on\n", "")


def test_what_cannot_be_interrupted_is_killed() -> None:
    line = "error: a prompt hangs and cannot be interrupted; the process was killed\n"
    assert ends(f"caught(0.2, lambda: {STUCK})") == (1, "", line)


def test_a_command_that_resumes_passes_over_it() -> None:
    code, out, err = ends(f"caught(0.2, lambda: {STUCK})", resumes=True)
    assert (code, err) == (1, "a prompt: hangs and cannot be interrupted; going on without it\n")
    assert out == "caught: no result within the time limit, and the method could not be interrupted\n"


@pytest.mark.parametrize("whole_group", [True, False])
def test_ctrl_c_interrupts_once(whole_group: bool) -> None:
    process = start("interrupted()")
    assert process.stdout is not None
    process.stdout.readline()
    (os.killpg if whole_group else os.kill)(process.pid, signal.SIGINT)
    assert process.communicate(timeout=60) == ("interrupted\n", "")
    assert process.returncode == 130


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_ends_both(kind: signal.Signals) -> None:
    process = start("interrupted()")
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.send_signal(kind)
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == -kind
    deadline = time.monotonic() + 30
    while Path(f"/proc/{child}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not Path(f"/proc/{child}").exists()


def test_a_limit_is_no_exception_and_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limit, "_AGAIN_S", 0.1)
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(OutOfTime), limit(0.05, "stubborn"):
        try:
            time.sleep(60)
        except BaseException:
            time.sleep(60)
    assert signal.getsignal(signal.SIGALRM) is before


def test_another_timer_goes_on_behind_a_limit() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda *_: heard.append(1))
    timer = signal.setitimer(signal.ITIMER_REAL, 30)  # the test runner's own
    try:
        with limit(5, "short"):
            pass
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 30
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with limit(5, "longer than the other timer"):
            time.sleep(0.1)
        time.sleep(0.1)
        assert heard == [1]
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timer)


def test_outside_the_main_thread_there_is_no_alarm() -> None:
    before, done = signal.getsignal(signal.SIGALRM), []

    def body() -> None:
        with limit(60, "elsewhere"):
            done.append(signal.getsignal(signal.SIGALRM) is before)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert done == [True]


RUNS = """
import os, sys
import torch  # once for all
import fake_world
from harness.cli import guard
from harness.run import main

fake_world.install()
parent = os.getpid()
for method in sys.argv[2:]:
    line = f"--method {method} --benchmark gsm8k --max-new-tokens 8 --warmup 0 --timeout 1"
    line += f" --results {sys.argv[1]}/{method}"
    print(method, flush=True)
    code = guard.guarded(lambda: main(line.split()), resumes=True, grace_s=0.3)
    if os.getpid() != parent:
        sys.exit(code)
    print(code, flush=True)
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, int, bool]]:
    """Of a method: the run's directory, its exit code, and whether its last line but that was the summary."""
    results = tmp_path_factory.mktemp("runs")
    methods = ["fake-exits", "fake-leaves", "fake-hangs", "fake-stuck"]
    paths = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    done = subprocess.run(
        [sys.executable, "-c", RUNS, str(results), *methods],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    lines = done.stdout.splitlines()
    starts = [lines.index(method) for method in methods]

    def of(method: str) -> tuple[Path, int, bool]:
        start = methods.index(method)
        part = lines[starts[start] : starts[start + 1] if start + 1 < len(starts) else None]
        summed = part[-2].startswith("{") and json.loads(part[-2])["method"] == method
        return results / method, int(part[-1]), summed

    return of


@pytest.mark.parametrize(
    ("method", "error"),
    [
        ("fake-exits", "SystemExit: 0"),
        ("fake-hangs", "OutOfTime: no result within 1 s"),
        ("fake-stuck", "OutOfTime: no result within the time limit, and the method could not be interrupted"),
    ],
)
def test_a_method_that_exits_or_hangs_fails_its_prompts(runs, method: str, error: str) -> None:
    directory, code, summed = runs(method)
    assert (code, summed) == (1, True)
    said = [r.error and r.error.partition(" (fake_world.py:")[0] for r in read_records(directory)]
    assert said == [None, error, None, error]
    assert [r.error for r in read_baseline(directory)] == [None] * 4


def test_a_method_that_ends_the_process_fails_the_command(runs) -> None:
    directory, code, summed = runs("fake-leaves")
    assert (code, summed) == (1, False)
    assert [r.error for r in read_records(directory)] in ([None], [])
