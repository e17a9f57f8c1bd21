"""The command line of every entry: its flags and their texts are what people's scripts rest on."""

from __future__ import annotations

import runpy
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
def test_help(command: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    module, *rest = command.split()
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "argv", [module, *rest, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    assert ended.value.code == 0
    check_text(request, f"help/{command.replace(' ', '-')}.txt", capsys.readouterr().out)
