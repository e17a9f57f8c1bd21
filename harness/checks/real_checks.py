"""Greedy identity on a real target and benchmark prompts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.checks.divergence import compare, counted
from harness.checks.gates import GREEDY
from harness.checks.outcome import Outcome
from harness.checks.subject import Subject
from methods import registry
from methods.decoding.trace import trace_fault
from methods.errors import ENDS_A_RUN, TargetChanged, describe_failure
from methods.interface import DecodingMethod
from methods.models.seal import Seal
from methods.models.target import Target

TOKENS = 64


@dataclass(frozen=True)
class RealWorld:
    """A loaded target with prompts and AR's greedy outputs, each cut at the target's own stop ids."""

    preset: str
    target: Target
    dtype: str
    prompts: list[list[int]]
    expected: list[list[int]]


def load(preset_name: str, dtype: str | None, prompts: int, data_dir: Path | None) -> RealWorld:
    """``UsageError`` for what cannot be had."""
    from harness.benchmarks.first_turns import first_turns
    from harness.config.presets import load_preset
    from methods.models import load_target

    preset = load_preset(preset_name)
    target = load_target(preset.target, dtype or preset.dtype)
    ids = first_turns(target, preset, prompts, data_dir)
    ar = registry.create("autoregressive", target)
    expected = [ar.decode(prompt, GREEDY, TOKENS, target.stop_ids).tokens for prompt in ids]
    return RealWorld(preset_name, target, dtype or preset.dtype, ids, expected)


def identity(subject: Subject, world: RealWorld, checkpoint: str | None) -> Outcome:
    """C1 in float32, C2 in half precision: every prompt exact, a tie or a mismatch; the first mismatch,
    or else the first tie, is told. ``UsageError`` if the method cannot be built on this target,
    ``TargetChanged`` if it changed it: the others' outputs would be of another one."""
    started = time.perf_counter()
    seal = Seal(world.target)
    method = _build(subject, world, checkpoint)
    statuses: list[str] = []
    told: dict[str, str] = {}
    fault, accepted, drafted = None, 0, 0
    try:
        for prompt, expected in zip(world.prompts, world.expected, strict=True):
            result = method.decode(prompt, GREEDY, TOKENS, world.target.stop_ids)
            found = compare(world.target, prompt, expected, result)
            statuses.append(found.status)
            accepted += sum(step.accepted for step in result.steps)
            drafted += sum(step.drafted for step in result.steps)
            if found.divergence is not None and statuses.count(found.status) == 1:
                told[found.status] = f"first {found.status}, prompt {len(statuses)}: {found.divergence}"
            fault = fault or trace_fault(result)
    except ENDS_A_RUN:
        raise
    except BaseException as error:
        fault = describe_failure(error, type(method).__module__)
    if "mismatch" in statuses:
        fault = fault or told.get("mismatch") or "an output ends at another place than plain decoding's"
    if (difference := seal.difference()) is not None:
        raise TargetChanged(f"{subject.label} changed the target {world.preset}: {difference}")
    figure = f"{counted(statuses)} of {len(world.prompts)} prompts, {_tokens(world.expected)} tokens"
    figure += f", {accepted} of {drafted} drafts accepted" if drafted else ""
    return Outcome(
        "C1" if world.dtype == "float32" else "C2",
        f"greedy identity on {world.preset}, {world.dtype}",
        f"{subject.label} on {world.preset}",
        "passed" if fault is None else "failed",
        figure,
        "0 mismatches",
        fault or told.get("tie", ""),
        time.perf_counter() - started,
    )


def _build(subject: Subject, world: RealWorld, checkpoint: str | None) -> DecodingMethod:
    options = dict(subject.options)
    if checkpoint is not None:
        options.pop("untrained", None)
        options["checkpoint"] = checkpoint
    return registry.create(subject.method, world.target, options)


def _tokens(outputs: Sequence[Sequence[int]]) -> int:
    return sum(map(len, outputs))
