"""The files of records in a run's directory, read back."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from harness.records.line import from_line
from harness.records.record import BASELINE, RECORDS, Key, Record
from methods.errors import UsageError


def read_records(directory: Path | str, stem: str = RECORDS) -> list[Record]:
    """All records of a run directory: ``<stem>.jsonl`` and the ``<stem>-*.jsonl`` of sharded ranks.

    Each key comes once; see ``latest``. A last line without its newline, left by a process killed
    in the middle of writing, is not a record. Raises ``UsageError`` with file and line number for a
    malformed line, and for a directory without any such file.
    """
    files = record_files(directory, stem)
    if not files:
        raise UsageError(f"no records in {directory}: expected {stem}.jsonl")
    return latest(record for file in files for record in read_file(file))


def read_baseline(directory: Path | str) -> list[Record]:
    """The records of the AR arm, empty if the run had none."""
    return read_records(directory, BASELINE) if record_files(directory, BASELINE) else []


def record_files(directory: Path | str, stem: str = RECORDS) -> list[Path]:
    directory = Path(directory)
    whole = directory / f"{stem}.jsonl"
    return [whole] * whole.exists() + sorted(directory.glob(f"{stem}-*.jsonl"))


def latest(records: Iterable[Record]) -> list[Record]:
    """Each key once, in order of first appearance: a later record replaces an earlier one, but an
    error never replaces a success."""
    by_key: dict[Key, Record] = {}
    for record in records:
        known = by_key.get(record.key)
        if known is None or record.error is None or known.error is not None:
            by_key[record.key] = record
    return list(by_key.values())


def torn(tail: bytes) -> bool:
    """Whether what follows the last newline is a record that never made it to the disk whole: its
    beginning, or the zeros that some file systems leave after a power cut."""
    return tail.startswith((b"{", b"\0"))


def read_file(path: Path) -> list[Record]:
    """The records of one file in the order written, superseded ones included."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    lines = content.split(b"\n")
    if torn(lines[-1]):
        lines[-1] = b""
    records = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            records.append(from_line(line))
        except UsageError as error:
            raise UsageError(
                f"{path}:{number}: {error}; delete this line and repeat the run's command: the rest is kept, "
                "and what the line held is decoded again"
            ) from error
    return records
