"""The command line of every entry: its flags and their texts are what people's scripts rest on."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from golden import check_text

COMMANDS = (
    "harness.run",
    "harness.train",
    "harness.train generate",
    "harness.train publish",
    "harness.check",
    "harness.soak",
    "harness.bench",
    "harness.compare",
    "harness.report",
    "harness.project",
    "paper_tables",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_help(command: str, request: pytest.FixtureRequest) -> None:
    argv = [sys.executable, "-m", *command.split(), "--help"]
    shown = subprocess.run(argv, capture_output=True, text=True, env=os.environ | {"COLUMNS": "100"})
    assert shown.returncode == 0, shown.stderr
    check_text(request, f"help/{command.replace(' ', '-')}.txt", shown.stdout)
