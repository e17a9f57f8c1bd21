"""The checks that any decoding method can be put to, through the one contract it has."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from methods.core import DecodeResult, SamplingParams
from methods.decoding.trace import trace_fault
from methods.interface import DecodingMethod
from methods.testing.enumeration import MOST_PATHS, EnumerationError, check_randomness, enumerate_law
from methods.testing.laws import Fit, block_counts, fit, joint_law
from methods.testing.progress import each
from methods.testing.table_target import TableTarget

GREEDY = SamplingParams()
WARM = SamplingParams(temperature=1.0, seed=3)
ROUNDING = 2e-6
"""Laws are float32."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check: ``cases`` looked at, and the first ``fault``, None if there is none.
    ``tokens`` were decoded, ``accepted`` of ``drafted`` draft nodes kept on the way."""

    check: str
    cases: int
    fault: str | None = None
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def passed(self) -> bool:
        return self.fault is None


def identity(
    method: DecodingMethod,
    reference: DecodingMethod,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    sampling: SamplingParams = GREEDY,
) -> Finding:
    """C1: the tokens of ``reference``. At T > 0 only for methods that draw the target's own token
    and compare (point-mass proposals), since those share ``Draws.target``."""

    results: list[DecodeResult] = []

    def faults() -> Iterator[str | None]:
        for prompt in prompts:
            expected = reference.decode(prompt, sampling, max_new_tokens).tokens
            result = method.decode(prompt, sampling, max_new_tokens)
            results.append(result)
            yield _difference(result, expected) or trace_fault(result)

    return _finding("identity", faults(), results)


def caps(
    method: DecodingMethod,
    reference: DecodingMethod,
    prompt: Sequence[int],
    limits: Sequence[int],
    sampling: SamplingParams = GREEDY,
) -> Finding:
    """C8: with every cap of ``limits``, as many of the reference's tokens and no more."""
    longest = reference.decode(prompt, sampling, max(limits)).tokens

    def faults() -> Iterator[str | None]:
        for limit in limits:
            result = method.decode(prompt, sampling, limit)
            fault = _difference(result, longest[:limit]) or trace_fault(result)
            if fault is None and result.finish_reason != "length":
                fault = f"finish reason {result.finish_reason!r}, not 'length'"
            yield fault and f"cap {limit}: {fault}"

    return _finding("caps", faults())


def stops(
    method: DecodingMethod,
    reference: DecodingMethod,
    prompt: Sequence[int],
    max_new_tokens: int,
    sampling: SamplingParams = GREEDY,
) -> Finding:
    """C7: the output ends with the first stop id, whichever token of it is declared one; also in a
    list of two, of which the later is not reached."""
    output = reference.decode(prompt, sampling, max_new_tokens).tokens

    def faults() -> Iterator[str | None]:
        for stop_ids in [(token,) for token in output] + list(zip(output[1:], output, strict=False)):
            expected = output[: 1 + min(output.index(token) for token in stop_ids)]
            result = method.decode(prompt, sampling, max_new_tokens, stop_ids)
            fault = _difference(result, expected) or trace_fault(result)
            if fault is None and result.finish_reason != "stop":
                fault = f"finish reason {result.finish_reason!r}, not 'stop'"
            yield fault and f"stop ids {stop_ids}: {fault}"

    return _finding("stops", faults())


def repeats(method: DecodingMethod, prompt: Sequence[int], max_new_tokens: int, seeds: int) -> Finding:
    """C12 and the second half of C11, on a target whose law is flat: at T = 1 the same seed gives the
    same tokens twice, and at no place do all seeds give the same token. ``seeds`` must be large
    enough for that not to happen by chance."""
    outputs = []

    def faults() -> Iterator[str | None]:
        for seed in range(seeds):
            sampling = SamplingParams(temperature=1.0, seed=seed)
            first, second = (method.decode(prompt, sampling, max_new_tokens).tokens for _ in range(2))
            outputs.append(first)
            yield None if first == second else f"seed {seed}: {first} and then {second}"
        yield from _constant_places(outputs)

    return _finding("repeats", faults())


def varies(method: DecodingMethod, prompt: Sequence[int], max_new_tokens: int, seeds: int) -> Finding:
    """The second half of C11 alone: at no place do all seeds give the same token."""
    sampled = (SamplingParams(temperature=1.0, seed=seed) for seed in range(seeds))
    outputs = [method.decode(prompt, sampling, max_new_tokens).tokens for sampling in sampled]
    return _finding("varies", _constant_places(outputs))


def _constant_places(outputs: Sequence[Sequence[int]]) -> Iterator[str | None]:
    for place, tokens in enumerate(zip(*outputs, strict=True)):
        constant = len(set(tokens)) == 1
        yield f"all {len(outputs)} seeds give {tokens[0]} at token {place}" if constant else None


def law(
    method: DecodingMethod,
    target: TableTarget,
    sampling: SamplingParams,
    draws: int,
    blocks_per_call: int = 40,
    prompts: Sequence[Sequence[int]] = (),
) -> Fit:
    """C9: the joint law of a block of tokens over at least ``draws`` blocks, the first of every call
    and later ones; the calls have seeds ``sampling.seed`` onwards, and ``prompts`` in turn, whose
    lengths are multiples of the period."""
    table = target.table
    given = prompts or [short_prompt(target)]
    outputs = []
    for call in each(range(-(-draws // blocks_per_call))):
        seeded = replace(sampling, seed=sampling.seed + call)
        outputs.append(method.decode(given[call % len(given)], seeded, blocks_per_call * table.period).tokens)
    return fit(block_counts(outputs, table), joint_law(table, sampling, target.logits_dtype))


@dataclass(frozen=True, slots=True)
class Followed:
    """C9 without noise. ``excess`` is the total variation between the joint law of the tokens and the
    target's, short of it by at most ``unseen``, the probability of what was not followed."""

    excess: float
    unseen: float
    paths: int


def followed_law(
    method: DecodingMethod,
    target: TableTarget,
    sampling: SamplingParams,
    max_new_tokens: int | None = None,
    prompt: Sequence[int] | None = None,
    most_paths: int = MOST_PATHS,
) -> Followed:
    """C9 by enumeration of what chance can do, the likeliest first: the joint law of the first ``period``
    tokens behind ``prompt``, whose length is a multiple of ``period``. For small vocabularies; rounding
    leaves about 1e-7.

    ``max_new_tokens`` (default ``period``) is the cap of the calls: with a larger one drafts may be
    deeper. Raises ``EnumerationError`` where enumeration cannot tell.
    """
    table = target.table
    cap = table.period if max_new_tokens is None else max_new_tokens
    given = short_prompt(target) if prompt is None else prompt

    def block(seed: int = sampling.seed) -> tuple[int, ...]:
        return tuple(method.decode(given, replace(sampling, seed=seed), cap).tokens[: table.period])

    check_randomness(block)
    blocks = itertools.product(range(table.vocab), repeat=table.period)
    law = dict(zip(blocks, joint_law(table, sampling, target.logits_dtype).tolist(), strict=True))
    found = enumerate_law(block, most_paths)
    if found.excess(law) > ROUNDING:
        # A method that keeps its drafts' laws elsewhere decides on drafts that look unread.
        every = enumerate_law(block, most_paths, every_draft=True)
        found = found if every.paths > most_paths else every
    whole = found.paths <= most_paths
    return Followed(found.excess(law), 0.0 if whole else max(0.0, 1 - found.followed), found.paths)


def law_distance(
    method: DecodingMethod,
    target: TableTarget,
    sampling: SamplingParams,
    max_new_tokens: int | None = None,
) -> float:
    """``followed_law`` of everything that can happen; ``EnumerationError`` if that is too much."""
    found = followed_law(method, target, sampling, max_new_tokens)
    if found.unseen:
        raise EnumerationError(f"more than {MOST_PATHS} ways for the choices to fall")
    return found.excess


def short_prompt(target: TableTarget) -> list[int]:
    """One token for each place of a block."""
    return [token % target.table.vocab for token in range(target.table.period)]


def _difference(result: DecodeResult, expected: Sequence[int]) -> str | None:
    if result.tokens == list(expected):
        return None
    pairs = enumerate(zip(result.tokens, expected, strict=False))
    place = next((i for i, (a, b) in pairs if a != b), min(len(result.tokens), len(expected)))
    return (
        f"token {place} differs: {result.tokens[place : place + 3]} for {list(expected[place : place + 3])}"
    )


def _finding(check: str, faults: Iterator[str | None], results: Sequence[DecodeResult] = ()) -> Finding:
    cases, first = 0, None
    for fault in faults:
        cases += 1
        if fault is not None:
            first = fault
            break
    steps = [step for result in results for step in result.steps]
    return Finding(
        check,
        cases,
        first,
        tokens=sum(len(result.tokens) for result in results),
        drafted=sum(step.drafted for step in steps),
        accepted=sum(step.accepted for step in steps),
    )
