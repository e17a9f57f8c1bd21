"""A trace against the target's own count: what is honest fits, what claims less than ran does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from methods.core import Step
from methods.decoding.trace import by_phase, counted_fault, layers_fault
from methods.models.passes import Pass

L, PROMPT = 8, 5


def ran(first: int, last: int, start: int, tokens: int = 1) -> Pass:
    return Pass(first, last, start, tokens, 0.0, 0.0)


def step(emitted: int, nodes: tuple[int, ...], layers: float = L, draft: float = 0) -> Step:
    return Step(emitted, max(0, emitted - 1), emitted, layers, draft, emitted, nodes)


PREFILL = ran(0, L, 0, PROMPT)
ROUNDS = [step(3, (4,)), step(1, (2,))]
ROUNDS_RAN = [PREFILL, ran(0, L, 5, 4), ran(0, L, 8, 2)]
PIPELINE = [
    step(0, (1, 0, 0), 4),
    step(0, (1, 1, 0), 4),
    step(1, (1, 1, 1), 4),
    step(1, (0, 1, 1), 4),
]
"""Three stages of 2, 4 and 2 layers; the third token's draft never comes."""
PIPELINE_RAN = [
    *(ran(0, 2, 0, PROMPT), ran(2, 6, 0, PROMPT), ran(6, L, 0, PROMPT)),
    ran(0, 2, 5),
    *(ran(0, 2, 6), ran(2, 6, 5)),
    *(ran(0, 2, 7), ran(2, 6, 6), ran(6, L, 5)),
    *(ran(2, 6, 7), ran(6, L, 6)),
]


def fault(steps: list[Step], passes: list[Pass]) -> str | None:
    return layers_fault(steps, L) or counted_fault(steps, passes, PROMPT, L)


def test_honest_traces_fit():
    assert fault(ROUNDS, ROUNDS_RAN) is None
    assert fault(PIPELINE, PIPELINE_RAN) is None
    assert fault([], [PREFILL]) is None
    assert fault([], []) is None


def test_a_prompt_in_parts_is_a_prefill():
    parts = [ran(0, L, 0, 3), ran(0, L, 3, 2)]
    assert by_phase([*parts, *ROUNDS_RAN[1:]], PROMPT) == (parts, ROUNDS_RAN[1:])
    assert fault(ROUNDS, [*parts, *ROUNDS_RAN[1:]]) is None


def test_a_prompt_known_in_part_is_a_prefill():
    assert fault(ROUNDS, [ran(0, L, 3, 2), *ROUNDS_RAN[1:]]) is None


@pytest.mark.parametrize("passes", [ROUNDS_RAN, PIPELINE_RAN], ids=["rounds", "pipeline"])
def test_a_pass_more_than_the_trace_has(passes):
    steps = ROUNDS if passes is ROUNDS_RAN else PIPELINE
    assert fault(steps, [*passes, ran(0, L, 9)]) is not None


@pytest.mark.parametrize("passes", [ROUNDS_RAN, PIPELINE_RAN], ids=["rounds", "pipeline"])
def test_a_pass_fewer_than_the_trace_has(passes):
    steps = ROUNDS if passes is ROUNDS_RAN else PIPELINE
    assert fault(steps, passes[:-1]) is not None
    assert fault(steps, passes[:-2]) is not None


def test_passes_over_the_prompt_count_once_as_prefill():
    """Else the target itself could draft, hidden as many prefills."""
    assert "sum to 6; the target ran 11 tokens" in fault(ROUNDS, [PREFILL, *ROUNDS_RAN])


@pytest.mark.parametrize("layers", [0, L / 2, L - 1e-3])
def test_fewer_layers_than_ran(layers):
    assert fault([replace(one, target_layers=layers) for one in ROUNDS], ROUNDS_RAN) is not None


def test_more_layers_than_ran_are_the_methods_own_loss():
    assert fault([replace(one, target_layers=2 * L) for one in ROUNDS], ROUNDS_RAN) is None


def test_rounds_that_claim_to_be_a_pipeline():
    claimed = [step(0, (1, 0), 4), step(1, (1, 1), 4), step(1, (1, 1), 4)]
    alone = [PREFILL, *(ran(0, L, 5 + i) for i in range(3))]
    assert "target_layers is 4; a stage ran 8" in fault(claimed, alone)
    in_stages = [PREFILL, *(one for i in range(3) for one in (ran(0, 4, 5 + i), ran(4, L, 5 + i)))]
    assert "the stages ran" in fault(claimed, in_stages)


def test_a_token_takes_a_cycle_for_every_stage():
    assert (
        layers_fault([step(1, (1, 1), 4)] * 2, L) == "step 0 emits a token that has not been through 2 stages"
    )
    assert layers_fault([step(0, (1,) * 9, 4)], L) == "9 stages of a target of 8 layers"


def test_a_pipeline_that_names_a_smaller_stage():
    claimed = [replace(one, target_layers=3) for one in PIPELINE]
    assert "target_layers is 3; a stage ran 4 layers" in fault(claimed, PIPELINE_RAN)


def test_tokens_of_the_stages():
    claimed = [*PIPELINE[:3], replace(PIPELINE[3], nodes=(1, 1, 1))]
    assert "cycle 3: the nodes of the trace are (1, 1, 1); the stages ran [1, 1]" in fault(
        claimed, PIPELINE_RAN
    )


def test_more_tokens_than_nodes():
    assert "emits 3 tokens of 1 nodes" in fault([step(3, (1,)), step(1, (2,))], ROUNDS_RAN)


def test_early_layers_that_draft_are_the_drafts():
    """Two drafts of three layers each, then all layers over root and drafts."""
    passes = [PREFILL, ran(0, 3, 5), ran(0, 3, 6), ran(0, L, 5, 3)]
    assert fault([step(3, (3,), L, 6)], passes) is None
    assert "sum to 8; the target ran 14 layers" in fault([step(3, (3,), L, 0)], passes)
    assert fault([step(3, (3,), 6, 8)], passes) is not None
