"""What a report compares: the methods of its runs, each with AR beside it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.analysis.comparable import check, check_prompts
from harness.execution.plan import AR
from harness.records.manifest import FINGERPRINT_DIGITS, read_manifest
from harness.records.record import Record
from harness.records.status import read_run


@dataclass(frozen=True)
class Arm:
    """The records of one method at one width in one run; ``baseline`` are AR's beside it, if any: its own
    if it is AR."""

    name: str
    run: str
    mode: str
    records: list[Record]
    baseline: list[Record]

    def at(self, temperature: float) -> list[Record]:
        return [record for record in self.records if record.temperature == temperature]

    @property
    def is_ar(self) -> bool:
        return bool(self.records) and self.records[0].method == AR


def read_arms(directories: Sequence[Path]) -> tuple[list[Arm], list[dict[str, Any]]]:
    """The arms of all runs, and the runs' manifests."""
    arms, manifests = [], []
    for directory in directories:
        manifest = read_manifest(directory)
        manifests.append(manifest | {"directory": directory.name})
        records, baseline = read_run(directory, is_ar=manifest["config"]["method"] == AR)
        mode = manifest["config"].get("mode", "decode")
        widths = sorted({record.width for record in records})
        for width in widths:
            mine = [record for record in records if record.width == width]
            name = label(manifest, width if len(widths) > 1 or width > 1 else None)
            arms.append(Arm(name, directory.name, mode, mine, baseline))
    check((manifest["directory"], manifest["config"]) for manifest in manifests)
    check_prompts((arm.run, [*arm.records, *arm.baseline]) for arm in arms)
    names = Counter(arm.name for arm in arms)
    return [
        arm if names[arm.name] == 1 else replace(arm, name=f"{arm.name} ({_short(arm.run)})") for arm in arms
    ], manifests


def _short(run: str) -> str:
    """What tells a run's directory apart: the fingerprint at its end, or all of a name of one's own."""
    found = re.search(rf"-([0-9a-f]{{{FINGERPRINT_DIGITS}}})$", run)
    return found[1] if found else run


def label(manifest: dict[str, Any], width: int | None = None) -> str:
    """The method of a run with the options that tell methods of one name apart."""
    config = manifest["config"]
    options = next(iter(config["widths"].values()))["options"]
    shown = {"n": "n", "m": "m", "draft_layers": "Ls", "schedule": "schedule"}
    parts = [config["method"].replace(AR, "AR")]
    parts += [
        f"{text}={options[name]}"
        for name, text in shown.items()
        if options.get(name) is not None and options[name] != "pre-step"
    ]
    parts += [f"W={width}"] if width is not None else []
    parts += ["(untrained)"] if options.get("untrained") else []
    return " ".join(parts)
