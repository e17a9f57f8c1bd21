"""Whether stored records are of what would run now: the code of a row's method, and its drafter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.config.drafters import preset_checkpoint
from harness.config.presets import load_preset
from harness.execution.plan import AR
from harness.records import identity
from methods import registry
from methods.drafters.checkpoint import described
from methods.errors import UsageError
from methods.source_code.code import DIGITS
from paper_tables.plan import Row
from paper_tables.stored import Stored


def other_code(found: Stored, row: Row) -> str | None:
    """In words, how stored records are of other code than a row's method now; None if they are not."""
    stored_code = found.header.get("method_code")
    if stored_code is None:
        known = registry.is_builtin(row.method)  # measured by an earlier version, whose commit is known
        return None if known else "its stored records do not say of which code they are"
    now = identity.codes(dict.fromkeys([row.method, AR]), found.header["mode"])
    parts = [
        f"{name} is {str(stored_code.get(name))[:DIGITS]} there and {code.sha256[:DIGITS]} here"
        for name, code in now.items()
        if stored_code.get(name) != code.sha256
    ]
    return f"its stored records are of other code: {', '.join(parts)}" if parts else None


def says_no_code(found: Stored, row: Row) -> bool:
    lacks = found.reason is None and "method_code" not in found.header
    return lacks and registry.is_builtin(row.method)


def drafter(preset: str, row: Row) -> dict[str, str | None] | None:
    """A row's checkpoint, its own or the preset's, and the hash of its tensors (of all its files if it is
    the row's own) if they are at hand; None without one. Records made with another drafter are out of date.
    """
    options = {name: str(value) for name, value in row.options}
    if (own := options.get("checkpoint")) is not None:
        files = identity.checkpoint_code(options).get(identity.CHECKPOINT)
        return {"checkpoint": own, "sha256": None if files is None else files.sha256}
    try:
        source = preset_checkpoint(load_preset(preset), row.method, options)
    except UsageError:
        return None
    return (
        None if source is None else {"checkpoint": source, "sha256": described(source).get("tensors_sha256")}
    )


def training_of(drafter: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The supervised tokens a drafter of ``drafter`` has seen, and the hash of the data; None if unknown."""
    about = described(drafter["checkpoint"]).get("training", {}) if drafter else {}
    if not {"tokens_seen", "data"} <= about.keys():
        return None
    return {"tokens": about["tokens_seen"], "data": about["data"]["sha256"]}
