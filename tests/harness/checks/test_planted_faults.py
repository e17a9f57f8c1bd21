"""``harness.check`` and ``harness.run`` say no to methods with a fault, and yes to what they spoil."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import planted_faults
import pytest

from harness.checks.small_world import save_prompts, save_target
from methods import registry
from methods.models.target import PREFILL_CHUNK

for each in planted_faults.SEEN_BY:
    registry._methods.pop(each)  # they are for the program below, not for tests that share this process
TESTS = Path(__file__).resolve().parents[2]
PROGRAM = """
import json, os, sys
import harness.checks.cli, harness.execution.runner, methods.testing.tiny
import transformers.models.llama.modeling_llama
from harness.cli import guard
from harness.check import main as check
from harness.run import main as run

METHODS = {name: harness.checks.cli.registry.get(name) for name in harness.checks.cli.registry.names()}
parent = os.getpid()
for name, command, arguments in json.loads(sys.argv[1]):
    main = check if command == "check" else run
    code = guard.guarded(lambda: main(arguments))
    if os.getpid() != parent:
        sys.exit(code)
    print(json.dumps([name, command, code]), flush=True)
"""
"""Every command in a child of its own, since some of them spoil what they share."""
SHORT, LONG, OUTPUT = "good day", "long " * (PREFILL_CHUNK // 4), 140


@pytest.fixture(scope="module")
def codes(tmp_path_factory) -> dict[tuple[str, str], int]:
    """Exit codes by method and command."""
    folder = tmp_path_factory.mktemp("planted")
    target = save_target(folder / "target", context=2 * PREFILL_CHUNK)
    prompts = save_prompts(folder / "data", SHORT, SHORT[::-1], LONG)
    checked = ["--size", "quick", "--plugin", "planted_faults", "--only"]
    ran = ["--target", str(target), "--data-dir", str(prompts), "--benchmark", "mt_bench", "--warmup", "0"]
    ran += ["--plugin", "planted_faults", "--max-new-tokens", str(OUTPUT)]
    every = ",".join(sorted(set(planted_faults.SEEN_BY.values())))
    commands = []
    for name, only in [("autoregressive", every), *planted_faults.SEEN_BY.items()]:
        commands.append((name, "check", [*checked, only, "--method", name]))
        commands.append((name, "run", [*ran, "--method", name, "--results", str(folder / name)]))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(commands)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ
        | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)])},
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('["')]
    found = {(name, command): code for name, command, code in lines}
    assert len(found) == len(commands), done.stderr[-2000:]
    return found


@pytest.mark.repeats
@pytest.mark.parametrize("name", planted_faults.SEEN_BY)
@pytest.mark.parametrize("command", ["check", "run"])
def test_a_fault_is_refused(codes, name, command):
    assert codes[name, command] == 1


@pytest.mark.repeats
@pytest.mark.parametrize("command", ["check", "run"])
def test_without_a_fault_it_is_not(codes, command):
    assert codes["autoregressive", command] == 0


def test_they_are_twenty():
    assert len(planted_faults.SEEN_BY) == 20
