"""The name of a run's directory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from harness.cli.arguments import RunRequest
from harness.records.manifest import FINGERPRINT_DIGITS, fingerprint


def run_name(request: RunRequest, config: dict[str, Any]) -> str:
    """``<preset>-<method>-<options>-<fingerprint>``: one directory per configuration."""
    options = [f"{name}{Path(text).name}" for name, text in sorted(request.options.items())]
    widths = [f"width{'_'.join(map(str, request.widths))}"] if request.widths else []
    where = request.preset or Path(request.target or "").name
    mode = [request.mode] if request.mode != "decode" else []
    name = "-".join(
        [where, request.method, *options, *widths, *mode, fingerprint(config)[:FINGERPRINT_DIGITS]]
    )
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name)
