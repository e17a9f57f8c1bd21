"""What a process of the sandbox may do. No call below can be taken back by the process itself.

Used by ``sandbox_worker.py`` only, and like it without an import of this package.
"""

import ctypes
import os
import platform
import resource
import sys
import sysconfig
from collections.abc import Callable, Iterator

OPEN_FILES = 64

# System calls a checked function has no use for: new processes and programs, sessions, sockets, signals
# to others, others' memory, looser limits. In the order: clone, clone3, execve, execveat, setsid, setpgid,
# socket, io_uring_setup, kill, tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo, pidfd_open,
# pidfd_send_signal, pidfd_getfd, ptrace, process_vm_readv, process_vm_writev, unshare, setrlimit,
# prlimit64; x86 also fork, vfork. Pairs of sockets (asyncio has one) reach nobody else.
_ARM_CALLS = (
    *(220, 435, 221, 281, 157, 154, 198, 425, 129, 130, 131, 138, 240, 434, 424, 438, 117, 270, 271, 97),
    *(164, 261),
)
_X86_CALLS = (
    *(56, 435, 59, 322, 112, 109, 41, 425, 62, 200, 234, 129, 297, 434, 424, 438, 101, 310, 311, 272),
    *(160, 302, 57, 58),
)
_ARCHITECTURES = {"x86_64": (0xC000003E, _X86_CALLS), "aarch64": (0xC00000B7, _ARM_CALLS)}

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_LOAD_WORD, _JUMP_EQUAL, _JUMP_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050001  # the last one is "fail with EPERM"
_NUMBER_OFFSET, _ARCHITECTURE_OFFSET = 0, 4
_FOREIGN_NUMBERS = 0x40000000  # the x32 calls of x86_64: the same calls under other numbers

# Landlock: its calls have the same numbers everywhere. Rights on files, and how many each ABI knows.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIRECTORY, _TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
_DEVICES = 1 << 6 | 1 << 11
_KNOWN_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1}
_ALL_RIGHTS = (1 << 15) - 1
_SYSTEM = (
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/share/zoneinfo",
    "/etc/localtime",
    "/dev/urandom",
)
_PACKAGES = ("site-packages", "dist-packages")


class _Instruction(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("value", ctypes.c_uint32),
    ]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.POINTER(_Instruction))]


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("rights", ctypes.c_uint64), ("descriptor", ctypes.c_int32)]


def limit_resources(cpu_s: int, memory_bytes: int, file_bytes: int) -> None:
    """``memory_bytes`` come on top of what is mapped already: the interpreter and what it has loaded."""
    _cap(resource.RLIMIT_CPU, cpu_s)
    _cap(resource.RLIMIT_FSIZE, file_bytes)
    _cap(resource.RLIMIT_NOFILE, OPEN_FILES)
    _cap(resource.RLIMIT_CORE, 0)
    _cap(resource.RLIMIT_NPROC, 1)
    if sys.platform != "darwin":  # macOS refuses it
        _cap(resource.RLIMIT_AS, _mapped_bytes() + memory_bytes)


def _cap(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def _mapped_bytes() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 0


def _no_new_privileges() -> bool:
    prctl = ctypes.CDLL(None).prctl
    prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    return prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0


def confine_files(directory: str, libraries: list[str]) -> bool:
    """Of the file system leave ``directory`` to write to and, to read, the standard library, ``libraries``
    and the system's own; False where the kernel has no Landlock (before 5.13, or switched off)."""
    if sys.platform != "linux":
        return False
    call = ctypes.CDLL(None).syscall
    abi = call(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if abi < 1:
        return False
    known = _KNOWN_RIGHTS.get(abi, _ALL_RIGHTS)
    rules = call(_CREATE_RULESET, ctypes.byref(ctypes.c_uint64(known)), ctypes.c_size_t(8), 0)
    if rules < 0:
        return False
    for path, rights in _rights(directory, libraries):
        _allow(call, rules, path, rights & known)
    done = _no_new_privileges() and call(_RESTRICT_SELF, rules, 0) == 0
    os.close(rules)
    return done


def _rights(directory: str, libraries: list[str]) -> Iterator[tuple[str, int]]:
    read = _READ_FILE | _READ_DIRECTORY | _EXECUTE
    yield directory, _ALL_RIGHTS & ~_DEVICES
    yield os.devnull, _READ_FILE | _WRITE_FILE
    for path in (*_SYSTEM, *libraries):
        yield path, read
    standard = sysconfig.get_path("stdlib")
    yield standard, _READ_DIRECTORY
    # Not its packages: the problems with their solutions are among them.
    for name in os.listdir(standard):
        if name not in _PACKAGES:
            yield os.path.join(standard, name), read


def _allow(call: Callable[..., int], rules: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what is not there needs no right
    if not os.path.isdir(path):
        rights &= _READ_FILE | _WRITE_FILE | _EXECUTE | _TRUNCATE
    call(_ADD_RULE, rules, 1, ctypes.byref(_PathRule(rights, descriptor)), 0)
    os.close(descriptor)


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
    if not _no_new_privileges():
        return False
    prctl = ctypes.CDLL(None).prctl
    prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    return prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(program), 0, 0) == 0
