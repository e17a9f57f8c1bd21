"""Programs that misbehave end in a verdict; the caller, its files and its output stay as they were."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from harness.benchmarks import humaneval, scoring
from harness.benchmarks.prompt import CodeProblem
from harness.benchmarks.scoring import sandbox
from harness.benchmarks.scoring.humaneval import HumanEvalPassAt1
from methods.errors import UsageError

PROBLEM = CodeProblem(
    "T/0", 'def add(a, b):\n    """Sum."""\n', "add", "def check(f):\n    assert f(2, 3) == 5, 'wrong sum'\n"
)
LIMITS = sandbox.Limits(time_s=1.0, memory_bytes=256 << 20, file_bytes=1 << 16)


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path, monkeypatch):
    """Everything the sandbox writes must be gone at the end."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(sandbox, "GRACE_S", 20.0)
    yield
    assert list(tmp_path.iterdir()) == []


def run(*body: str, limits: sandbox.Limits = LIMITS) -> sandbox.Verdict:
    return sandbox.check(PROBLEM, PROBLEM.prompt + "".join(f"    {line}\n" for line in body), limits)


def test_right_and_wrong_programs():
    assert run("return a + b") == sandbox.Verdict(True, "passed", run("return a + b").isolation)
    assert run("return a - b").result == "failed: wrong sum"
    assert run("return a +").passed is False


def test_a_real_problem_with_its_own_solution():
    row = next(iter(humaneval._installed_rows()))
    problem = humaneval._problem(row)
    assert sandbox.check(problem, problem.prompt + row.values["canonical_solution"]).passed


def test_endless_loop():
    started = time.monotonic()
    assert run("while True: pass").result == "timed out"
    assert time.monotonic() - started < LIMITS.time_s + sandbox.GRACE_S


def test_loop_that_switches_the_timer_off_is_killed():
    verdict = run("import signal", "signal.setitimer(signal.ITIMER_REAL, 0)", "while True: pass")
    assert (verdict.passed, verdict.result) == (False, "timed out")


def test_memory_bomb():
    assert not run("x = ['a' * 10**9]", "return a + b").passed
    assert not run("x = []", "while True: x.append(bytearray(10**7))").passed


def test_program_that_prints_without_end(capfd):
    verdict = run("import os", "while True:", "    print('x' * 10**5)", "    os.write(1, b'x' * 10**5)")
    assert not verdict.passed
    assert capfd.readouterr() == ("", "")


def test_large_files_are_refused_and_small_ones_removed():
    assert "File too large" in run("open('big', 'wb').write(b'x' * 10**6)", "return a + b").result
    assert run("open('small', 'w').write('x')", "return a + b").passed


def test_program_that_ends_its_process():
    for line in ("import os; os._exit(0)", "import ctypes; ctypes.string_at(0)"):
        assert run(line, "return a + b").result.startswith("failed: the program ended its process")
    assert not run("raise SystemExit(0)").passed


def test_nothing_of_the_callers_environment_is_seen(monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "value")
    seen = "assert 'SECRET_TOKEN' not in os.environ and 'PATH' not in os.environ"
    assert run("import os", seen, "return a + b").passed
    here = f"assert not os.path.samefile('.', {os.getcwd()!r})"
    assert run("import os", here, "return a + b").passed


@pytest.fixture
def with_seccomp():
    if "seccomp" not in run("return a + b").isolation:
        pytest.skip("this system has no seccomp filter")


@pytest.mark.usefixtures("with_seccomp")
@pytest.mark.parametrize(
    "attempt",
    [
        "import posix; posix.fork()",
        "import _posixsubprocess, posix; posix.posix_spawn('/bin/true', ['true'], {})",
        "import posix; posix.execv('/bin/true', ['true'])",
        "import socket; socket.socket()",
        "import posix; posix.kill(posix.getppid(), 0)",
    ],
)
def test_processes_sockets_and_signals_are_refused(attempt):
    assert "Operation not permitted" in run(attempt, "return a + b").result


@pytest.mark.usefixtures("with_seccomp")
def test_fork_bomb():
    verdict = run("import posix", "while True:", "    try: posix.fork()", "    except OSError: pass")
    assert not verdict.passed


def test_children_do_not_outlive_the_check(tmp_path_factory, monkeypatch):
    """Without seccomp a child is possible; the session is killed with it."""
    marker = tmp_path_factory.mktemp("marker") / "alive"
    weak = tmp_path_factory.mktemp("worker")
    for file in Path(sandbox._WORKER).parent.glob("sandbox_*.py"):
        shutil.copy(file, weak)
    limits = weak / "sandbox_limits.py"
    source = limits.read_text()
    for guard in (
        "_cap(resource.RLIMIT_NPROC, 1)",
        "call(_RESTRICT_SELF, rules, 0) == 0",
        "_SECCOMP_MODE_FILTER,",
    ):
        assert guard in source
    source = source.replace("_cap(resource.RLIMIT_NPROC, 1)", "pass")
    source = source.replace("call(_RESTRICT_SELF, rules, 0) == 0", "False")
    limits.write_text(source.replace("_SECCOMP_MODE_FILTER,", "-1,"))
    monkeypatch.setattr(sandbox, "_WORKER", weak / "sandbox_worker.py")
    child = f"(time.sleep(1.5), open({str(marker)!r}, 'w'))"
    verdict = run("import posix, time", f"if posix.fork() == 0: {child}", "return a + b")
    assert verdict.isolation == ("rlimits",)
    time.sleep(2)
    assert not marker.exists()


def test_forged_or_oversized_verdicts_do_not_break_the_reader():
    for line in (b"", b"\xff\xfe", b"[]", b'{"result": 1}', b"[" * 4096, b'{"result": "passed"'):
        assert sandbox._read(line, 0).passed is False
    assert sandbox._read(b'{"result": "passed", "isolation": []}', None).result == "timed out"


def test_metric_is_off_unless_allowed():
    problems = [{"task_id": "T/0", "prompt": PROBLEM.prompt, "entry_point": "add", "test": PROBLEM.test}] * 2
    answers = ["```python\ndef add(a, b):\n    return a + b\n```", "    return 0"]
    with pytest.raises(UsageError, match="--execute-code"):
        HumanEvalPassAt1().compute(predictions=answers, references=problems)
    found = HumanEvalPassAt1().compute(predictions=answers, references=problems, execute_code=True)
    assert found == {"accuracy": 0.5, "correct": [True, False], "results": ["passed", "failed: wrong sum"]}


def test_score_of_humaneval_answers(monkeypatch):
    answers = ["    return a + b", "anything"]
    monkeypatch.setattr(sandbox, "_run", lambda *_: pytest.fail("code was run"))
    assert scoring.score("humaneval", answers, [PROBLEM, None]) is None
    monkeypatch.undo()
    score = scoring.score("humaneval", answers, [PROBLEM, None], execute_code=True)
    assert score is not None
    assert (score.accuracy, score.correct) == (1.0, (True, None))
