"""Checks of what a method may not do to others: change their target, or end their process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from harness.checks import worlds
from harness.checks.gates import GREEDY, WARM
from harness.checks.outcome import Measured
from harness.checks.replays import replay_fault
from harness.checks.sizes import Sizes
from harness.checks.small_world import make_tokenizer, save_prompts, save_target
from harness.checks.subject import Subject
from harness.records.files import read_records
from methods import registry
from methods.models.quiet import no_progress_bars
from methods.models.seal import Seal
from methods.testing.tiny import tiny_target

LENGTHS = (1, 12, 70)


def unchanged(subject: Subject, sizes: Sizes) -> Measured:
    """C32: building, decoding and replaying, on targets of the check's own."""
    outputs, fault = 0, None
    for name in sizes.families:
        target = tiny_target(name, worlds.LAYERS)
        target.tokenizer = make_tokenizer(adds_bos=True)
        seal, plain = Seal(target), registry.create("autoregressive", target)
        method = subject.build(target, 3)
        for length in LENGTHS:
            prompt = worlds.prompt(length, target.vocab_size, seed=length)
            for sampling in (GREEDY, WARM):
                method.decode(prompt, sampling, sizes.tokens)
                outputs += 1
            if method.can_replay(GREEDY):
                replay_fault(method, plain, prompt, GREEDY, sizes.tokens)
        if (difference := seal.difference()) is not None:
            fault = f"{target.name}: {difference}"
            break
    figure = f"{len(sizes.families)} targets with their tokenizers, {outputs} outputs"
    return Measured(figure, "nothing changed", fault)


PLUGIN = '''
import itertools, os, sys, time
from methods.decoding.prompt_lookup import Ngram
from methods.registry import register

def planted(name, end):
    class Planted(Ngram):
        """Prompt lookup that does so at prompts of an odd number of tokens."""

        def decode(self, prompt_ids, *given, **named):
            if len(prompt_ids) % 2:
                end()
            return super().decode(prompt_ids, *given, **named)

    Planted.__qualname__ = name
    register(name)(Planted)

planted("exits", lambda: sys.exit(0))
planted("leaves", lambda: os._exit(0))
planted("hangs", lambda: time.sleep(1000))
planted("stuck", lambda: any(itertools.repeat(False)))
'''

PROGRAM = """
import json, os, sys
import transformers.models.llama.modeling_llama  # once for all that follow
import harness.checks.cli
from harness.cli import guard
from harness.check import main as check
from harness.run import main as run

commands, parent = json.loads(sys.argv[1]), os.getpid()
for name, arguments in commands.items():
    main = check if name.endswith("check") else run
    code = guard.guarded(lambda: main(arguments), resumes=main is run, grace_s=1.0)
    if os.getpid() != parent:
        sys.exit(code)
    print(json.dumps([name, code]), flush=True)
"""
LIMIT_S = 2
"""Of a prompt that takes a hundredth of it."""
METHODS: Mapping[str, str | None] = {
    "exits": "SystemExit: 0",
    "leaves": None,
    "hangs": f"OutOfTime: no result within {LIMIT_S} s",
    "stuck": "OutOfTime: no result within the time limit, and the method could not be interrupted",
}
"""By name what the record of the prompt says; None where there is none, since the command failed."""
ENDING = ("exits", "leaves")
"""Those that do not hang."""


def endings(methods: Iterable[str] = tuple(METHODS), prelude: str = "") -> Measured:
    """C35, for planted ``methods`` in ``harness.run`` and those that end the process in ``harness.check``,
    too. ``prelude`` is run before them."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        (folder / "planted.py").write_text(PLUGIN)
        commands = _commands(folder, methods)
        done = subprocess.run(
            [sys.executable, "-c", prelude + PROGRAM, json.dumps(commands)],
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([text, *sys.path])},
        )
        codes = dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
        if codes.keys() != commands.keys():
            return Measured("", "exit code 1 each", f"the commands did not all end: {done.stderr[-500:]}")
        fault = next((f"{name} ended with {code}, not 1" for name, code in codes.items() if code != 1), None)
        found = fault or _records_fault(folder, methods)
        return Measured(f"{len(codes)} commands", "exit code 1 each", found)


def _commands(folder: Path, methods: Iterable[str]) -> dict[str, list[str]]:
    with no_progress_bars():
        target = save_target(folder / "target")
    prompts = save_prompts(folder / "data", "good day", "good days")
    shared = ["--target", str(target), "--data-dir", str(prompts), "--benchmark", "mt_bench", "--warmup", "0"]
    shared += ["--plugin", "planted", "--max-new-tokens", "8", "--timeout", f"{LIMIT_S}"]
    commands = {}
    for name in methods:
        commands[f"{name} in run"] = [*shared, "--method", name, "--results", str(folder / name)]
        if name in ENDING:
            commands[f"{name} in check"] = ["--plugin", "planted", "--method", name, "--only", "C8"]
    return commands


def _records_fault(folder: Path, methods: Iterable[str]) -> str | None:
    for name in methods:
        if (error := METHODS[name]) is None:
            continue
        errors = {record.error for record in read_records(folder / name)}
        # Behind the words stands where in the method it was raised.
        if {text and text.partition(" (")[0] for text in errors} != {None, error}:
            return f"{name}: one prompt's record should say {error!r} and one be whole; they say {errors}"
    return None
