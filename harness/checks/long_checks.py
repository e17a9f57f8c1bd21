"""Checks of what shows late only: long outputs, and one method object that decodes many prompts."""

from __future__ import annotations

from harness.checks import gates, worlds
from harness.checks.gates import GREEDY, WARM
from harness.checks.outcome import Measured
from harness.checks.sizes import Sizes
from harness.checks.state_checks import facts
from harness.checks.subject import Subject
from harness.checks.worlds import LONG_OUTPUT, Cell
from methods.core import SamplingParams
from methods.interface import DecodingMethod
from methods.models.target import Target
from methods.testing.progress import each

LATE = 128
"""Output tokens from which on it is late."""
DIFFERENT = 256
"""A vocabulary so large that some token comes for the first time late in an output."""


def ends(subject: Subject, sizes: Sizes) -> Measured:
    """C30, what C1, C3, C4 and C9 have no cell for: caps and stop ids late in an output, and seeds."""
    cases, bound = 0, "0 faults"
    for check in each((_late_caps, _late_stops, _late_seeds)):
        found = check(subject)
        cases += found.cases
        if found.fault is not None:
            return Measured(f"{cases} outputs", bound, f"{found.check}: {found.fault}")
    return Measured(f"{cases} caps, stop ids and seeds behind {LATE} tokens, 0 faults", bound)


def _late_caps(subject: Subject) -> gates.Finding:
    target = worlds.small_table(subject.given_n)
    prompt = worlds.prompt(52, target.vocab_size, seed=30)
    return gates.caps(subject.build(target, 3), worlds.reference(target), prompt, [LATE - 1, LATE, LATE + 1])


def _late_stops(subject: Subject) -> gates.Finding:
    """At T = 1: the output of the seed is cut at a token that is in it for the first time."""
    method = _on_many_tokens(subject)
    prompt = worlds.prompt(52, DIFFERENT, seed=31)
    whole = method.decode(prompt, WARM, LONG_OUTPUT).tokens
    late = [token for place, token in enumerate(whole) if place >= LATE and whole.index(token) == place]
    for number, stop in enumerate(late[:2], 1):
        result = method.decode(prompt, WARM, LONG_OUTPUT, (stop,))
        if result.tokens != whole[: whole.index(stop) + 1] or result.finish_reason != "stop":
            return gates.Finding(
                "stop ids", number, f"the output does not end at stop id {stop}, token {LATE} on"
            )
    if not late:
        return gates.Finding("stop ids", 0, f"no token is new in tokens {LATE} to {LONG_OUTPUT} at T = 1")
    return gates.Finding("stop ids", len(late[:2]))


def _late_seeds(subject: Subject) -> gates.Finding:
    """Equal seeds give equal tokens, others do not share a tail."""
    method = _on_many_tokens(subject)
    prompt = worlds.prompt(14, DIFFERENT, seed=32)
    outputs = [
        method.decode(prompt, SamplingParams(temperature=1.0, seed=seed), LONG_OUTPUT).tokens
        for seed in (5, 5, 6)
    ]
    if outputs[0] != outputs[1]:
        return gates.Finding("seeds", 2, "the same seed gives another output")
    if outputs[0][LATE:] == outputs[2][LATE:]:
        return gates.Finding("seeds", 3, f"two seeds give the same tokens from token {LATE} on")
    return gates.Finding("seeds", 3)


def _on_many_tokens(subject: Subject) -> DecodingMethod:
    return subject.build(worlds.small_table(subject.given_n, vocab=DIFFERENT, period=1), 3)


def many_prompts(subject: Subject, sizes: Sizes) -> Measured:
    """C31: one method object decodes prompts, the first ones again, and another object the same in the
    other order. At T = 0, on a table, where nothing rounds, the ids are also those of plain decoding: what
    is kept may outlive an object."""
    table = worlds.small_table(subject.given_n)
    targets = [table, worlds.family(sizes.families[0], worlds.FEW)]
    numbers = range(2 * len(LENGTHS))
    orders = [*numbers, *numbers[:2]], [*reversed(numbers)]
    decoded, bound = 0, "the same ids and traces"
    for target in each(targets):
        found: dict[int, tuple[object, ...]] = {}
        for order in orders:
            method = subject.build(target, 3)
            for number in order:
                cell, sampling = _call(number, target.vocab_size)
                result = facts(method.decode(cell.prompt, sampling, cell.tokens))
                decoded += 1
                fault = None
                if result != found.setdefault(number, result):
                    fault = "ids are others" if result[0] != found[number][0] else "trace is another"
                elif sampling.greedy and target is table and result[0] != _expected(table, cell):
                    fault = "ids are not AR's"
                if fault is not None:
                    where = f"{target.name}, a prompt of {len(cell.prompt)}, T = {sampling.temperature:g}"
                    return Measured(f"{decoded} outputs", bound, f"{where}: after other prompts its {fault}")
    return Measured(f"{decoded} outputs of {2 * len(targets)} objects in two orders, 0 differ", bound)


SAMPLINGS = (GREEDY, WARM, GREEDY, GREEDY, WARM)
LENGTHS = (14, 3, 130, 1, 600)
"""Of ``SAMPLINGS`` each; every length comes twice, so that what is kept by length is another prompt's."""


def _call(number: int, vocab: int) -> tuple[Cell, SamplingParams]:
    place = number % len(LENGTHS)
    return Cell(worlds.prompt(LENGTHS[place], vocab, seed=70 + number), 12), SAMPLINGS[place]


def _expected(target: Target, cell: Cell) -> list[int]:
    return worlds.reference(target).decode(cell.prompt, GREEDY, cell.tokens).tokens
