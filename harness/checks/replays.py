"""Whether a replayed trace is the decode loop's, step for step."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from methods.core import DecodeResult, SamplingParams
from methods.decoding.replay import KnownOutput
from methods.interface import DecodingMethod


def replay_fault(
    method: DecodingMethod,
    reference: DecodingMethod,
    prompt_ids: Sequence[int],
    sampling: SamplingParams,
    max_new_tokens: int,
    stop_ids: Sequence[int] = (),
) -> tuple[DecodeResult, str | None]:
    """C28: decode, replay from ``reference``'s output, compare. For T = 0 and point-mass proposals.

    Returns what was decoded and the fault, None if there is none.
    """
    known = reference.decode(prompt_ids, sampling, max_new_tokens, stop_ids).tokens
    decoded = method.decode(prompt_ids, sampling, max_new_tokens, stop_ids)
    if decoded.tokens != known:
        return decoded, "the decoded tokens are not those of the reference"
    cap = method.target.room(prompt_ids, max_new_tokens)
    replayed = method.replay(KnownOutput(method.target, prompt_ids, known, sampling, cap))
    if replayed.expected is not None:
        return decoded, "the replay holds an expectation where the output determines the trace"
    steps = [dataclasses.replace(step, phases={}) for step in decoded.steps]
    if len(steps) != len(replayed.steps):
        return decoded, f"{len(replayed.steps)} steps replayed, {len(steps)} decoded"
    for number, (mine, theirs) in enumerate(zip(replayed.steps, steps, strict=True), 1):
        if mine != theirs:
            return decoded, f"step {number} is {mine} replayed, {theirs} decoded"
    return decoded, None
