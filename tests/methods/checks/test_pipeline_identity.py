"""C1, C6: a pipeline gives AR's tokens whatever its drafter does; ``test_pipeline_grid`` has the grid."""

import pytest
import torch
from check_worlds import (
    PIPELINES,
    STAGES,
    UNEVEN,
    VOCAB,
    autoregressive,
    family,
    in_turns,
    pipeline,
    scripted,
    table_target,
)
from conftest import random_ids

from harness.checks import gates
from methods.core import SamplingParams
from methods.decoding.trace import chain_fault
from methods.testing.table_target import TableTarget
from methods.testing.tiny import FAMILIES

PROMPTS = [random_ids(1, seed=3), random_ids(11, seed=5)]
LONG = 24


def assert_identity(method, target, prompts, tokens, sampling=gates.GREEDY):
    finding = gates.identity(method, autoregressive(target), prompts, tokens, sampling)
    assert finding.passed, finding.fault
    return finding


@pytest.mark.parametrize("label", PIPELINES)
@pytest.mark.parametrize("name", FAMILIES)
def test_untrained_pipelines_over_uneven_stages(name, label):
    target = family(name)
    for n, stages in UNEVEN.items():
        method = pipeline(target, label, n, width=1 if n < 4 else 4, stage_layers=stages)
        assert method.describe()["stage_layers"] == [int(size) for size in stages.split(";")]
        assert_identity(method, target, PROMPTS, 5)


@pytest.mark.parametrize("n", STAGES)
@pytest.mark.parametrize("name", FAMILIES)
def test_long_runs_with_a_drafter_that_is_right_in_turns(name, n):
    """What untrained drafters never do: acceptances in a row, then a rejection in a full pipeline."""
    target = family(name)
    for width, prompt in zip((1, 4), PROMPTS, strict=True):
        method = scripted(target, n, in_turns, LONG, width=width)
        assert_identity(method, target, [prompt], LONG)


@pytest.mark.parametrize("n", STAGES)
@pytest.mark.parametrize("label", PIPELINES)
def test_cycles_of_a_chain(label, n):
    target = family("llama")
    for method in (pipeline(target, label, n), scripted(target, n, in_turns, LONG)):
        result = method.decode(PROMPTS[1], gates.GREEDY, 10)
        assert chain_fault(result, n) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("label", PIPELINES)
@pytest.mark.parametrize("width", [1, 4])
def test_point_mass_proposals_give_the_tokens_of_the_seed(label, width, dtype):
    """At T = 1 the target's own draws decide, whatever is drafted."""
    target = table_target(dtype=dtype)
    for n in (1, 2, 3):
        method = pipeline(target, label, n, width=width, proposal="point-mass")
        for sampling in (SamplingParams(1.0, seed=n), SamplingParams(0.8, top_k=3, top_p=0.9, seed=n)):
            assert_identity(method, target, [[0], [1, 2, 3]], 24, sampling)


@pytest.mark.parametrize("name", FAMILIES)
def test_point_mass_proposals_give_the_tokens_of_the_seed_on_models(name):
    target = family(name)
    for width in (1, 4):
        method = pipeline(target, "spd", 4, width=width, proposal="point-mass")
        assert_identity(method, target, PROMPTS, 8, SamplingParams(1.0, top_k=20, seed=5))


def test_prompts_longer_than_a_prefill_chunk(monkeypatch):
    for module in ("methods.pipeline.lockstep", "methods.models.target"):
        monkeypatch.setattr(f"{module}.PREFILL_CHUNK", 8)
    for name in ("hybrid", "sliding"):
        target = family(name)
        for label in PIPELINES:
            assert_identity(pipeline(target, label, 3), target, [random_ids(27, seed=1)], 6)


def test_a_context_that_ends_cuts_the_output():
    target = TableTarget(table_target().table, layers=3, context=20)
    prompt = random_ids(15, VOCAB)
    for width in (1, 4):
        result = scripted(target, 3, in_turns, LONG, width=width).decode(prompt, gates.GREEDY, LONG)
        assert len(result.tokens) == 5
        assert result.tokens == autoregressive(target).decode(prompt, gates.GREEDY, LONG).tokens
