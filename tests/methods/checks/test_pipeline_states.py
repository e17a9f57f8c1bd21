"""C3, C4: after every verification each stage remembers what a fresh prefill would."""

import pytest
from check_worlds import PIPELINES, STAGES, family, in_turns, pipeline, scripted, table_target
from conftest import random_ids

from harness.checks.gates import GREEDY
from harness.checks.states import watch_states
from methods.core import SamplingParams
from methods.testing.tiny import FAMILIES

PROMPT = random_ids(5, seed=8)
BOUND = {"hybrid": 5e-5}
"""Of the difference; 1e-5 for all others. One prefill of Qwen3.5 runs the delta rule in chunks, which
differs from its stepwise form by that much before any rollback."""


def assert_states(run, target, prompt, tokens, verifications):
    report = watch_states(run, target, prompt, tokens)
    bound = BOUND.get(target.name.removeprefix("tiny-"), 1e-5)
    assert report.verifications == verifications
    assert report.logits <= bound
    assert report.memory <= bound


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("n", STAGES)
@pytest.mark.parametrize("name", FAMILIES)
def test_rollback_grid(name, n, width):
    """0, 1, ..., k acceptances between rejections, k enough to drain and refill every stage."""
    target = family(name)
    most = min(n, 3) + 1
    wrong = {run * (run + 3) // 2 + 1 for run in range(most + 1)}  # output tokens 1, 3, 6, 10 ...
    tokens = max(wrong) + 2
    method = scripted(target, n, lambda index: index not in wrong, tokens, width=width)
    assert_states(method.lockstep(PROMPT, GREEDY), target, PROMPT, tokens, tokens - 1)


@pytest.mark.parametrize("pattern", range(64))
def test_every_pattern_of_six_drafts(pattern):
    target = table_target()
    right = [bool(pattern >> index & 1) for index in range(6)]
    for n in (1, 2, 3):
        for width in (1, 3):
            method = scripted(target, n, lambda index: right[index % 6], 9, width=width)
            assert_states(method.lockstep([2, 0], GREEDY), target, [2, 0], 9, 8)


@pytest.mark.parametrize("label", PIPELINES)
@pytest.mark.parametrize("name", FAMILIES)
def test_untrained_drafters_at_temperature_one(name, label):
    target = family(name)
    for width in (1, 4):
        method = pipeline(target, label, 4, width=width)
        sampling = SamplingParams(temperature=1.0, seed=3)
        assert_states(method.lockstep(sampling), target, PROMPT, 6, 5)


def test_uneven_stages_and_the_last_token():
    target = family("hybrid")
    for width in (1, 4):
        method = scripted(target, 3, in_turns, 12, width=width, stage_layers=[5, 1, 2])
        assert_states(method.lockstep([7], GREEDY), target, [7], 12, 11)
