"""What a run is (its configuration and fingerprint) and where it came from (code, machine, versions)."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.records import identity
from harness.records.journal import write_whole
from harness.records.provenance import cpu_cores, cpu_model, gpu_names, package_commit, package_versions
from methods.errors import UsageError
from methods.source_code.code import Code

MANIFEST = "manifest.json"
FINGERPRINT_DIGITS = 8
"""How much of the fingerprint a directory name carries."""


def canonical(value: Any) -> str:
    """JSON with one spelling per value: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def fingerprint(config: Mapping[str, Any]) -> str:
    """sha256 [64 hex digits] of a configuration: everything that changes an output or a time."""
    return hashlib.sha256(canonical(config).encode()).hexdigest()


def invocation(argv: Sequence[str]) -> dict[str, Any]:
    """Where and by what one start of a run was made; no part of the fingerprint."""
    import torch

    return {
        "argv": list(argv),
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "code": package_commit(),
        "versions": package_versions(),
        "machine": {
            "platform": platform.platform(),
            "cpu": cpu_model(),
            "cores": cpu_cores(),
            "torch_threads": torch.get_num_threads(),
            "gpus": gpu_names(),
        },
        "pid": os.getpid(),
    }


def enter(
    directory: Path,
    config: Mapping[str, Any],
    start: Mapping[str, Any],
    code: Mapping[str, Code] | None = None,
) -> dict[str, Any]:
    """Make ``directory`` the run of ``config`` with ``code``, if it is to be of one code, or continue it if
    it already is.

    ``start`` is where this start comes from (``invocation`` and more). A new ``manifest.json``
    holds ``fingerprint``, ``config``, ``method_code``, the fields of ``start`` and ``resumed``, a list to
    which every continuation adds its own. Raises ``UsageError`` naming
    the first differing field if the directory holds another configuration, and both codes if its records
    are of other code. The caller holds the directory's lock.
    """
    config = json.loads(canonical(config))  # tuples become lists, as they will on reading
    path = directory / MANIFEST
    if path.exists():
        manifest = read_manifest(directory)
        difference = first_difference(manifest["config"], config)
        if difference is not None:
            name, stored, given = difference
            raise UsageError(
                f"{directory} holds another configuration: {name} is {stored} there and {given} here; "
                "choose another directory"
            )
        if code is not None:
            check_code(directory, manifest, code)
        manifest["resumed"].append(dict(start))
    else:
        if any(directory.glob("*.jsonl")):
            raise UsageError(f"{directory} holds records but no {MANIFEST}; choose another directory")
        manifest = {
            "fingerprint": fingerprint(config),
            "config": config,
            **({} if code is None else {"method_code": identity.as_json(code)}),
            **start,
            "resumed": [],
        }
    write_json(path, manifest)
    return manifest


def check_code(directory: Path, manifest: Mapping[str, Any], code: Mapping[str, Code]) -> None:
    """Raise ``UsageError`` if ``other_code`` finds any."""
    if (fault := other_code(manifest, code)) is not None:
        raise UsageError(f"{directory} holds {fault}; --fresh keeps them aside and begins anew")


def other_code(manifest: Mapping[str, Any], code: Mapping[str, Code]) -> str | None:
    """In words, how the records of a run are of other code than ``code``; None if they are of the same."""
    if (stored := manifest.get("method_code")) is None:
        commit = (manifest.get("code", {}).get("commit") or "unknown")[:FINGERPRINT_DIGITS]
        return f"records that do not say of which code they are (commit {commit})"
    difference = identity.difference(stored, code)
    return None if difference is None else f"records of other code: {difference}"


def finished(directory: Path, at: datetime) -> tuple[str, bool]:
    """When the run of ``directory`` was complete, which was ``at`` that time unless it is known; and whether
    it was known."""
    manifest = read_manifest(directory)
    known = "finished_at" in manifest
    if not known:
        manifest["finished_at"] = at.isoformat(timespec="seconds")
        write_json(directory / MANIFEST, manifest)
    return manifest["finished_at"], known


def read_manifest(directory: Path | str) -> dict[str, Any]:
    """The manifest of a run directory; ``UsageError`` if there is none or it is damaged."""
    path = Path(directory) / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {error}") from error
    kinds = {"fingerprint": str, "config": dict, "resumed": list}
    if not isinstance(manifest, dict) or not all(
        isinstance(manifest.get(key), kind) for key, kind in kinds.items()
    ):
        raise UsageError(f"{path} is not a run's manifest")
    if not identity.is_json(manifest.get("method_code", {})) or not _is_date(manifest.get("finished_at")):
        raise UsageError(f"{path} is damaged: its method_code or finished_at cannot be read")
    if manifest["fingerprint"] != fingerprint(manifest["config"]):
        raise UsageError(f"{path}: the fingerprint does not belong to the configuration")
    return manifest


def _is_date(value: object) -> bool:
    try:
        return value is None or (isinstance(value, str) and bool(datetime.fromisoformat(value)))
    except ValueError:
        return False


def first_difference(stored: Any, given: Any, name: str = "") -> tuple[str, str, str] | None:
    """(dotted name, stored value, given value) of the first field that differs; None if equal."""
    if isinstance(stored, dict) and isinstance(given, dict):
        for key in sorted(stored.keys() | given.keys()):
            inner = f"{name}.{key}" if name else key
            if key not in stored or key not in given:
                return inner, _shown(stored, key), _shown(given, key)
            difference = first_difference(stored[key], given[key], inner)
            if difference is not None:
                return difference
        return None
    return None if stored == given else (name, canonical(stored), canonical(given))


def _shown(values: Mapping[str, Any], key: str) -> str:
    return canonical(values[key]) if key in values else "absent"


def write_json(path: Path, value: Any) -> None:
    """``value`` as the whole content of ``path``; see ``write_whole``."""
    write_whole(path, json.dumps(value, indent=2, allow_nan=False) + "\n")
