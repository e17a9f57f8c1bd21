"""Writing records so that a kill at any moment loses at most the line being written."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from harness.records.files import latest, read_file, torn
from harness.records.line import to_line
from harness.records.record import Key, Record
from methods.errors import UsageError


@contextmanager
def exclusive(directory: Path, lock: str = ".lock") -> Iterator[None]:
    """Hold ``directory``, created if need be, for this process; a second one gets ``UsageError``.
    Processes that share a run hold a ``lock`` file each.

    The kernel drops the lock with the process, so a killed run leaves nothing to clean up. The
    lock file itself stays: unlinking it would let two processes lock two files of one name.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory / lock, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UsageError(f"results directory {directory} is not writable: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
            raise UsageError(f"results directory {directory} is in use by process {holder}") from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def write_whole(path: Path, text: str) -> None:
    """Replace ``path`` by ``text`` in one step: a reader, and who comes after a kill, sees the old file
    or the whole new one. Raises ``UsageError`` if the disk refuses."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


class Journal:
    """An append-only record file and the records it already holds.

    Records of the files ``beside`` it count as held, too: other processes of the run wrote them.
    Opening cuts off a torn last line. The caller holds the directory (``exclusive``).
    """

    def __init__(self, path: Path, beside: Iterable[Path] = ()) -> None:
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from error
        try:
            self._cut_torn_line()
            self._beside = [other for other in beside if other != path]
            self._read()
        except BaseException:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def get(self, key: Key) -> Record | None:
        return self._records.get(key)

    def records(self) -> list[Record]:
        return list(self._records.values())

    def append(self, record: Record, *, replace: bool = False) -> None:
        """Store one record and force it to the disk.

        A key that is already there is refused unless ``replace``: then the new line supersedes the
        old one on reading. Raises ``UsageError`` if the disk takes no more; the file then ends
        after the last whole record.
        """
        if record.key in self._records and not replace:
            raise ValueError(f"{self.path}: record {record.key} is already there")
        end = self.end
        try:
            self._write(to_line(record))
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._descriptor, end)
            raise UsageError(
                f"cannot write {self.path}: {error.strerror}; "
                f"its {len(self._records)} records are kept, the same command continues"
            ) from error
        known = self._records.get(record.key)
        self._records[record.key] = record if known is None else latest([known, record])[0]

    @property
    def end(self) -> int:
        """The file's size in bytes: what is appended from now on lies behind it."""
        return os.fstat(self._descriptor).st_size

    def set_aside(self, end: int, why: str) -> int:
        """Move the lines behind byte ``end`` to the file ``<name>.set-aside``, which nothing reads, behind
        one that says ``why``; returns their number. The keys they held are open again."""
        lines = self.path.read_bytes()[end:]
        if not lines:
            return 0
        note = json.dumps({"set_aside": why, "at": datetime.now(UTC).isoformat(timespec="seconds")})
        with self.path.with_name(f"{self.path.name}.set-aside").open("ab") as file:
            file.write(note.encode() + b"\n" + lines)
            file.flush()
            os.fsync(file.fileno())
        os.ftruncate(self._descriptor, end)
        os.fsync(self._descriptor)
        self._read()
        return lines.count(b"\n")

    def _read(self) -> None:
        known = latest(record for file in (*self._beside, self.path) for record in read_file(file))
        self._records: dict[Key, Record] = {record.key: record for record in known}

    def _write(self, line: bytes) -> None:
        written = os.write(self._descriptor, line)
        while written < len(line):  # a nearly full disk takes a part first and fails on the rest
            written += os.write(self._descriptor, line[written:])
        os.fsync(self._descriptor)

    def _cut_torn_line(self) -> None:
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if torn(content[whole:]):
            os.ftruncate(self._descriptor, whole)
