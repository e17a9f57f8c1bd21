"""Model-written programs, checked in processes of their own. Limits damage; not a security boundary.

The tests run in another process than the program, which gets their arguments and gives plain values
back: comparisons, builtins or results that it redefines are its own affair, and it cannot read them.

Contained: time (wall and CPU), memory, the size of each file, open files, output; what the program
leaves in its working directory; the caller's environment variables. On Linux (x86_64, aarch64) a
seccomp filter also refuses new processes, threads, sockets and signals to others; elsewhere only the
process-count limit does, and not for root. Where the kernel has Landlock (5.13 and later), nothing is
written outside the working directory and nothing read but the system's and Python's libraries.

Not contained: without Landlock the program can read, overwrite and delete whatever the calling user
can; it can fill a disk with many files within its time; without seccomp it has the network, and a
process that leaves the session outlives the check. Run untrusted models in a container or a virtual
machine.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from harness.benchmarks.prompt import CodeProblem
from methods.errors import UsageError

GRACE_S = 30.0
"""What a worker may need besides the program's own time: on a busy machine the start of the interpreter and
the loading of pandas."""

_CPU_GRACE_S = 5.0
_WORKER = Path(__file__).with_name("sandbox_worker.py")


@dataclass(frozen=True, slots=True)
class Limits:
    """What one program may use; a correct HumanEval answer needs a small part of it. The memory is its own,
    beside what the interpreter and libraries take."""

    time_s: float = 10.0
    memory_bytes: int = 1 << 30
    file_bytes: int = 1 << 20


@dataclass(frozen=True, slots=True)
class Verdict:
    """``result`` is "passed", "timed out" or "failed: <why>"; ``isolation`` what was in force."""

    passed: bool
    result: str
    isolation: tuple[str, ...] = ()


def check(problem: CodeProblem, program: str, limits: Limits | None = None) -> Verdict:
    """Run ``program``, the whole text, and call its function from the problem's tests.

    Whatever the program does ends in a ``Verdict`` within ``time_s`` + ``GRACE_S``. Raises
    ``UsageError`` on a system without POSIX resource limits.
    """
    if os.name != "posix":
        raise UsageError("HumanEval programs can only be run on Linux or macOS")
    limits = limits or Limits()
    directory = tempfile.mkdtemp(prefix="spd-bench-check-")
    try:
        with (
            tempfile.TemporaryFile() as job,
            tempfile.TemporaryFile() as tests,
            tempfile.TemporaryFile() as verdict,
        ):
            _write(tests, {"prompt": problem.prompt, "test": problem.test})
            _write(job, _job(problem, program, limits) | {"tests": tests.fileno()})
            code = _run(directory, job, tests, verdict, limits.time_s + GRACE_S)
            verdict.seek(0)
            return _read(verdict.read(4096), code)
    finally:
        # A tree can be made too deep to be walked; that must not look like a failure of the caller.
        with suppress(OSError, RecursionError):
            shutil.rmtree(directory)


def _job(problem: CodeProblem, program: str, limits: Limits) -> dict[str, Any]:
    cpu_s = math.ceil(limits.time_s + _CPU_GRACE_S)
    return asdict(limits) | {"program": program, "entry_point": problem.entry_point, "cpu_s": cpu_s}


def _write(file: IO[bytes], content: Any) -> None:
    file.write(json.dumps(content).encode())
    file.seek(0)


def _run(
    directory: str, job: IO[bytes], tests: IO[bytes], verdict: IO[bytes], deadline_s: float
) -> int | None:
    """The worker's exit code, None if it had to be killed. Files, not pipes: nothing can fill up."""
    environment = {"HOME": directory, "TMPDIR": directory, "OMP_NUM_THREADS": "1"}
    worker = subprocess.Popen(
        [sys.executable, "-I", "-B", str(_WORKER)],
        stdin=job,
        stdout=verdict,
        stderr=subprocess.DEVNULL,
        pass_fds=(tests.fileno(),),
        cwd=directory,
        env=environment,
        start_new_session=True,
    )
    try:
        return worker.wait(deadline_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        # The whole session, also after a normal end: the program and its children would live on.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()


def _read(line: bytes, code: int | None) -> Verdict:
    if code is None or code == -signal.SIGXCPU:
        return Verdict(False, "timed out")
    try:
        found = json.loads(line)
        result, isolation = str(found["result"]), tuple(map(str, found["isolation"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return Verdict(False, f"failed: the program ended its process (exit code {code})")
    return Verdict(result == "passed", result, isolation)
