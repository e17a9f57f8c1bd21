"""Raw rows of a prompt source: JSON objects with the bytes' hash and where each one stood."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.benchmarks.prompt import SourceKind
from methods.errors import UsageError


@dataclass(frozen=True, slots=True)
class Row:
    """One JSON object; ``place`` names it in an error message ("questions.jsonl line 3")."""

    values: Mapping[str, Any]
    place: str

    def text(self, key: str) -> str:
        """The non-empty text under ``key``; ``UsageError`` names the place otherwise."""
        value = self._get(key)
        if not isinstance(value, str) or not value.strip():
            raise UsageError(f"{self.place}: {key!r} must be non-empty text, got {value!r:.60}")
        return value

    def identifier(self, key: str) -> str:
        """The text or whole number under ``key``, as text."""
        value = self._get(key)
        if isinstance(value, bool) or not isinstance(value, int | str) or value == "":
            raise UsageError(f"{self.place}: {key!r} must be text or a whole number, got {value!r:.60}")
        return str(value)

    def texts(self, key: str) -> tuple[str, ...]:
        """The non-empty list of non-empty texts under ``key``."""
        value = self._get(key)
        good = isinstance(value, list) and value and all(isinstance(v, str) and v.strip() for v in value)
        if not good:
            raise UsageError(f"{self.place}: {key!r} must be a list of non-empty texts, got {value!r:.60}")
        return tuple(value)

    def optional_texts(self, key: str) -> tuple[str, ...]:
        """The list of texts under ``key``; empty if there is none."""
        value = self.values.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise UsageError(f"{self.place}: {key!r} must be a list of texts, got {value!r:.60}")
        return tuple(value)

    def _get(self, key: str) -> Any:
        if key not in self.values:
            raise UsageError(f"{self.place}: key {key!r} is missing; found: {', '.join(sorted(self.values))}")
        return self.values[key]


@dataclass(frozen=True, slots=True)
class Rows:
    """All rows of one source, in its order."""

    kind: SourceKind
    location: str
    sha256: str
    revision: str | None
    rows: tuple[Row, ...]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)


def parse_jsonl(
    data: bytes, kind: SourceKind, location: str, *, file: str, revision: str | None = None
) -> Rows:
    """JSON objects, one a line; blank lines are skipped.

    Raises ``UsageError`` with ``file`` and line number for a malformed line, and for no line at all.
    """
    rows = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            place = f"{file} line {number}"
            rows.append(Row(_object(line, place), place))
    if not rows:
        raise UsageError(f"{file} holds no prompts: one JSON object a line is needed")
    return Rows(kind, location, hashlib.sha256(data).hexdigest(), revision, tuple(rows))


def read_directory(directory: Path, benchmark: str) -> Rows:
    """``<directory>/<benchmark>/question.jsonl`` in the FastChat / EAGLE format."""
    path = directory / benchmark / "question.jsonl"
    try:
        data = path.read_bytes()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UsageError(f"no prompts for {benchmark}: cannot read {path} ({reason})") from error
    return parse_jsonl(data, "dir", str(path), file=str(path))


def _object(line: bytes, place: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
        json.dumps(value, ensure_ascii=False).encode()  # no tokenizer takes half a surrogate pair
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{place} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{place} must be a JSON object, got {type(value).__name__}")
    return value
