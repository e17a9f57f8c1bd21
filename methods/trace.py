"""What the output and the steps of a decode call must satisfy, whatever the method: the first fault,
or None."""

from __future__ import annotations

from collections.abc import Sequence

from methods.interface import DecodeResult


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
    emitted = sum(step.emitted for step in steps)
    expected = max(len(result.tokens) - 1, 0)
    if emitted != expected:
        return f"steps emit {emitted} tokens, the output holds {expected} after the prefill's"
    for index, step in enumerate(steps):
        if not 0 <= step.accepted <= step.drafted:
            return f"step {index} accepts {step.accepted} of {step.drafted} drafted nodes"
        if step.accepted > step.depth:
            return (
                f"step {index} accepts {step.accepted} tokens at depth {step.depth}; give Step its depth, "
                "the deepest draft position that was examined"
            )
        if min(step.emitted, step.target_layers, step.draft_layers) < 0:
            return f"step {index} has a negative count: {step}"
        if not step.nodes or len(step.nodes) != len(steps[0].nodes) or min(step.nodes) < 0:
            return f"step {index} has nodes {step.nodes}, step 0 {steps[0].nodes}"
    return None


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
