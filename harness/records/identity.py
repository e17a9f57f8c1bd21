"""Which code a run's records are of, and whether another run would be of the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harness.records.record import Mode
from methods import registry
from methods.drafters.source import HUB, resolve
from methods.errors import UsageError
from methods.source_code.code import DIGITS, Code, code_of

CHECKPOINT = "checkpoint"
"""What a drafter's files are called among the codes of a run."""
_REPLAY = ("methods.decoding.batched", "methods.decoding.replay")
"""How outputs of AR are decoded for replays, whatever the method."""
_DEVICES: Mapping[Mode, str] = {
    "emulate": "harness.devices.emulation",
    "project": "harness.devices.projection",
}
_NAMED = 3
"""As many differing files are named."""


def codes(methods: Iterable[str], mode: Mode) -> dict[str, Code]:
    """The code of registered methods by name, as records of ``mode`` depend on it."""
    others = _REPLAY if mode == "replay" else ()
    return {name: registry.code(name, *others) for name in methods}


def device_code(mode: Mode) -> Code:
    """The code that gives traces the times of other devices."""
    return code_of([_DEVICES[mode]])


def checkpoint_code(options: Mapping[str, Any]) -> dict[str, Code]:
    """The files of a local checkpoint that method ``options`` name, by content; {} without one.

    What a method says of its checkpoint need not cover all of its files.
    """
    source = options.get("checkpoint")
    if source is None or str(source).startswith(HUB):
        return {}
    try:
        path = resolve(str(source))
    except UsageError:  # it is for the method to say what it takes
        return {}
    return {CHECKPOINT: files_code(path)}


def files_code(path: Path) -> Code:
    """A file, or all files in a directory."""
    from methods.models.hashing import remembered_sha256  # needs torch

    try:
        if not path.is_dir():
            return Code({path.name: remembered_sha256([path])})
        files = sorted(file for file in path.rglob("*") if file.is_file())
        return Code({file.relative_to(path).as_posix(): remembered_sha256([file]) for file in files})
    except OSError as error:
        raise UsageError(f"cannot read {error.filename}: {error.strerror}") from error


def as_json(codes: Mapping[str, Code]) -> dict[str, Any]:
    return {name: {"sha256": code.sha256, "files": dict(code.files)} for name, code in codes.items()}


def is_json(value: Any) -> bool:
    """Whether a value has the form of ``as_json``."""
    return isinstance(value, dict) and all(
        isinstance(code, dict) and isinstance(code.get("sha256"), str) and isinstance(code.get("files"), dict)
        for code in value.values()
    )


def difference(stored: Mapping[str, Any], given: Mapping[str, Code]) -> str | None:
    """In words, what is not the same in a manifest's codes and in those ``given``; None if nothing is."""
    parts = []
    for name, code in given.items():
        known = stored.get(name, {"sha256": None, "files": {}})
        if known["sha256"] != code.sha256:
            there, here = known["sha256"] or "unknown", code.sha256
            files = code.differing(known["files"])
            more = f" and {len(files) - _NAMED} more" if len(files) > _NAMED else ""
            parts.append(
                f"{name} is {there[:DIGITS]} there and {here[:DIGITS]} here "
                f"({', '.join(files[:_NAMED])}{more} differ{'s' if len(files) == 1 else ''})"
            )
    return "; ".join(parts) or None
