"""Comparing what the project prints and stores with what it printed and stored before.

``pytest tests/golden --golden-update`` writes the files anew; the difference is then read in the commit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


def check_text(request: pytest.FixtureRequest, name: str, text: str) -> None:
    """``text`` must be the content of the golden file ``name``."""
    path = HERE / name
    if request.config.getoption("--golden-update"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"no golden file {name}: write it with --golden-update and read it"
    assert text == path.read_text(encoding="utf-8")


def check_json(request: pytest.FixtureRequest, name: str, value: Any) -> None:
    """``value`` as JSON, one line per entry of its outer dictionary, so that differences can be read."""
    lines = [f"{json.dumps(key)}: {json.dumps(entry, sort_keys=True)}" for key, entry in value.items()]
    check_text(request, name, "{\n" + ",\n".join(lines) + "\n}\n")
