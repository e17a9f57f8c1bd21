"""What the output and the steps of a decode call must satisfy, whatever the method: the first fault,
or None."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from methods.core import DecodeResult, Step
from methods.models.passes import Pass

_CLOSE = 1e-6
"""Relative: layers are sums of fractions where a drafter is measured in target layers."""


def output_fault(result: DecodeResult, cap: int, stop_ids: Sequence[int]) -> str | None:
    """Not more than ``cap`` tokens, nothing after a stop id, the right finish reason, and steps that
    account for all of it."""
    if not isinstance(result, DecodeResult):
        return f"decode returned {type(result).__name__}, not a DecodeResult"
    tokens = result.tokens
    if len(tokens) > cap:
        return f"the output holds {len(tokens)} tokens, the cap is {cap}"
    if any(token in stop_ids for token in tokens[:-1]):
        return "the output goes on after a stop id"
    stopped = bool(tokens) and tokens[-1] in stop_ids
    if result.finish_reason != ("stop" if stopped else "length"):
        ends = "ends" if stopped else "does not end"
        return f"the finish reason is {result.finish_reason!r}, and the output {ends} with a stop id"
    return trace_fault(result)


def trace_fault(result: DecodeResult) -> str | None:
    """C6 for any method: the steps account for the tokens."""
    steps = result.steps
    for index, step in enumerate(steps):
        if fault := _step_fault(step, steps[0]):
            return f"step {index} {fault}"
    emitted = sum(step.emitted for step in steps)
    expected = max(len(result.tokens) - 1, 0)
    if emitted != expected:
        return f"steps emit {emitted} tokens, the output holds {expected} after the prefill's"
    return None


def _step_fault(step: Step, first: Step) -> str | None:
    counts = (step.drafted, step.accepted, step.emitted, step.depth, *step.nodes)
    measured = (step.target_layers, step.draft_layers, *step.phases.values())
    if not all(isinstance(count, int) and count >= 0 for count in counts):
        return f"has a count that is no whole number >= 0: {step}"
    if not all(is_measured(value) for value in measured):
        return f"has layers or seconds that are no number >= 0: {step}"
    if step.accepted > step.drafted:
        return f"accepts {step.accepted} of {step.drafted} drafted nodes"
    if step.accepted > step.depth:
        return (
            f"accepts {step.accepted} tokens at depth {step.depth}; give Step its depth, the deepest draft "
            "position that was examined"
        )
    if step.emitted > step.accepted + 1:
        return f"emits {step.emitted} tokens; {step.accepted} were accepted, and the target adds one"
    if not step.nodes or len(step.nodes) != len(first.nodes):
        return f"has nodes {step.nodes}, step 0 {first.nodes}"
    return None


def is_measured(value: object) -> bool:
    """Whether ``value`` is a number of seconds or layers."""
    return isinstance(value, (int, float)) and math.isfinite(value) and value >= 0


def chain_fault(result: DecodeResult, n: int) -> str | None:
    """C6 for a pipeline of ``n`` stages at W = 1: cycles = N + (n - 1) * fills, N the decoded tokens
    and fills = 1 + the rejections that do not end the run."""
    if fault := trace_fault(result):
        return fault
    decoded = max(0, len(result.tokens) - 1)
    rejected = [step.depth > step.accepted for step in result.steps]
    fills = int(decoded > 0) + sum(rejected[:-1])
    expected = decoded + (n - 1) * fills
    if len(result.steps) != expected:
        return f"{len(result.steps)} cycles, not N + (n - 1) * fills = {decoded} + {n - 1} * {fills}"
    return None


def layers_fault(steps: Sequence[Step], layers: int) -> str | None:
    """What a trace can say of a target of ``layers`` layers at all, wherever it ran: every step that
    emits took a token through all of them, at most as many stages at a time as the step ran, and
    through the n stages of a pipeline one a cycle."""
    stages = len(steps[0].nodes) if steps else 1
    if stages > layers:
        return f"{stages} stages of a target of {layers} layers"
    early = next((i for i, step in enumerate(steps[: stages - 1]) if step.emitted), None)
    if early is not None:
        return f"step {early} emits a token that has not been through {stages} stages"
    capacity = sum(step.target_layers * sum(map(bool, step.nodes)) for step in steps)
    needed = layers * sum(step.emitted > 0 for step in steps)
    if capacity < needed * (1 - _CLOSE):
        return (
            f"target_layers of the steps, times the stages that ran, sum to {capacity:g}; the steps that "
            f"emit need {needed}, all {layers} layers each"
        )
    thin = next((i for i, step in enumerate(steps) if step.emitted > step.nodes[-1]), None)
    if thin is not None:
        step = steps[thin]
        return f"step {thin} emits {step.emitted} tokens of {step.nodes[-1]} nodes (Step.nodes: tokens run)"
    return None


def counted_fault(
    steps: Sequence[Step], passes: Iterable[Pass], prompt_tokens: int, layers: int
) -> str | None:
    """C34: the target's own count of what it ran after the prefill is what the steps say.

    Not more tokens or passes than it ran, nor fewer, and not fewer layers on the critical path. The
    stages of a pipeline take part in a cycle one after another, the first stage first, each on older
    tokens than the one before it: only such passes could have run beside each other.
    """
    _, decoding = by_phase(passes, prompt_tokens)
    if steps and len(steps[0].nodes) > 1:
        return _pipeline_fault(steps, decoding)
    return _serial_fault(steps, decoding, layers)


def by_phase(passes: Iterable[Pass], prompt_tokens: int) -> tuple[list[Pass], list[Pass]]:
    """The passes over the prompt, of whose tokens a layer runs each once, and those of the decoding."""
    ran: Counter[int] = Counter()
    prefill: list[Pass] = []
    decoding: list[Pass] = []
    for one in passes:
        if one.start < prompt_tokens and ran[one.first] + one.tokens <= prompt_tokens:
            ran[one.first] += one.tokens
            prefill.append(one)
        else:
            decoding.append(one)
    return prefill, decoding


def _serial_fault(steps: Sequence[Step], passes: Sequence[Pass], layers: int) -> str | None:
    """One pass after another. Layers that drafts ran through only count as the draft's."""
    calls, tokens = [0] * layers, [0] * layers
    for one in passes:
        for layer in range(one.first, one.last):
            calls[layer] += 1
            tokens[layer] += one.tokens
    whole, said = min(calls), sum(bool(step.nodes[0]) for step in steps)
    if said > whole:
        return f"the trace has {said} steps; the target ran {_count(whole, 'pass', 'es')} after the prefill"
    nodes = sum(step.nodes[0] for step in steps)
    if nodes != min(tokens):
        return f"the nodes of the trace sum to {nodes}; the target ran {_count(min(tokens), 'token')}"
    target = sum(step.target_layers for step in steps)
    if target < whole * layers * (1 - _CLOSE):
        return (
            f"target_layers sum to {target:g}; the target ran {_count(whole, 'pass', 'es')} of {layers} "
            f"layers after the prefill, one after another"
        )
    critical = target + sum(step.draft_layers for step in steps)
    if critical < sum(calls) * (1 - _CLOSE):
        return f"target_layers and draft_layers sum to {critical:g}; the target ran {sum(calls)} layers"
    return None


def _pipeline_fault(steps: Sequence[Step], passes: Sequence[Pass]) -> str | None:
    cycles = _cycles(passes)
    for index, (step, cycle) in enumerate(zip(steps, cycles, strict=False)):
        said, ran = [count for count in step.nodes if count], [one.tokens for one in cycle]
        if said != ran:
            return f"cycle {index}: the nodes of the trace are {step.nodes}; the stages ran {ran}"
        longest = max(one.layers for one in cycle)
        if step.target_layers < longest * (1 - _CLOSE):
            return f"cycle {index}: target_layers is {step.target_layers:g}; a stage ran {longest} layers"
    if len(steps) != len(cycles):
        return f"the trace has {len(steps)} cycles; the target ran {len(cycles)} one after another"
    return None


def _cycles(passes: Iterable[Pass]) -> list[list[Pass]]:
    """Passes that follow each other and could have run at the same time."""
    cycles: list[list[Pass]] = []
    for one in passes:
        before = cycles[-1][-1] if cycles else None
        if before is not None and before.last <= one.first and one.start < before.start:
            cycles[-1].append(one)
        else:
            cycles.append([one])
    return cycles


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{'' if number == 1 else plural}"
