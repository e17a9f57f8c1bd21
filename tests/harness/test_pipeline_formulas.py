"""S0 and S of pipeline traces, made by hand and decoded, equal the paper's formulas."""

from __future__ import annotations

import pytest
from conftest import random_ids, tiny
from test_metrics import record

from harness.analysis import metrics
from harness.records.record import Record, StepArrays
from methods import registry
from methods.core import DecodeResult, SamplingParams, Step
from methods.decoding.replay import KnownOutput
from methods.drafters.vocabulary import DraftVocabulary
from methods.models.partition import split_layers
from methods.testing.scripted import ScriptedDrafter, ScriptedPipeline, knows_output

LAYERS = 8
EXACT = 1e-12
SCHEDULES = {"spd": False, "spd post-step": True, "ppsd": True}
"""Method -> whether its drafter is in series with the stages."""


def as_record(result: DecodeResult, prompt_id: str = "a") -> Record:
    return record(
        prompt_id,
        [step.emitted for step in result.steps],
        output_ids=result.tokens,
        steps=StepArrays.of(result.steps),
        num_layers=LAYERS,
    )


def expected(name: str, n: int, draft_layers: int, decoded: int, cycles: int) -> tuple[float, float]:
    """(S0, S) of the paper for uniform stages: L_acc = n N / K, S_spd = L_acc as long as the draft
    module fits beside a stage, and L_acc * L / (Ls * n + L) for a drafter in series."""
    l_acc = n * decoded / cycles
    if SCHEDULES[name]:
        return l_acc, l_acc * LAYERS / (draft_layers * n + LAYERS)
    # Beside the stages a cycle costs the longer of the two.
    return l_acc, l_acc * (LAYERS / n) / max(LAYERS / n, draft_layers)


def assert_figures(records: list[Record], s0: float, s: float) -> None:
    found = metrics.s0(records), metrics.l_acc(records), metrics.s(records)
    assert all(estimate is not None for estimate in found)
    assert [estimate.pooled for estimate in found if estimate] == pytest.approx([s0, s0, s], abs=EXACT)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("n", "draft_layers"), [(4, 1), (4, 2), (8, 1), (2, 3)])
def test_trace_made_by_hand(name: str, n: int, draft_layers: int) -> None:
    # A fill, two acceptances, a rejection, a fill, one more token: N = 4 in 2 (n - 1) + 4 cycles.
    fill = [0] * (n - 1)
    emitted = [*fill, 1, 1, 1, *fill, 1]
    excess = draft_layers if SCHEDULES[name] else max(0, draft_layers - LAYERS // n)
    steps = [Step(token, 0, token, LAYERS // n, excess) for token in emitted]
    result = DecodeResult([7] * 5, steps, 0.0, 0.0, "length")
    assert_figures([as_record(result)], *expected(name, n, draft_layers, 4, 2 * (n - 1) + 4))


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("n", "draft_layers"), [(1, 1), (2, 1), (4, 3), (8, 1), (8, 3)])
def test_decoded_trace(name: str, n: int, draft_layers: int) -> None:
    target = tiny("llama")
    prompt = random_ids(4, seed=1)

    def decode(tokens: int, wrong: set[int]) -> DecodeResult:
        plain = ScriptedPipeline(target, [LAYERS], drafter([], set()))
        output = plain.decode(prompt, SamplingParams(), tokens).tokens
        return ScriptedPipeline(target, split_layers(LAYERS, n), drafter(output, wrong)).decode(
            prompt, SamplingParams(), tokens
        )

    def drafter(output: list[int], wrong: set[int]):
        law_of = knows_output(output, target.vocab_size, lambda index: index not in wrong)
        vocabulary = DraftVocabulary(target.vocab_size)
        return lambda *_: ScriptedDrafter(law_of, vocabulary, SCHEDULES[name], draft_layers)

    results = [decode(12, {4, 5}), decode(7, {3})]
    # N = 11 with 2 rejections and 6 with 1, each rejection one more fill of n - 1 cycles.
    cycles = (11 + 3 * (n - 1)) + (6 + 2 * (n - 1))
    assert sum(len(result.steps) for result in results) == cycles
    records = [as_record(result, str(i)) for i, result in enumerate(results)]
    assert_figures(records, *expected(name, n, draft_layers, 17, cycles))


@pytest.mark.parametrize(
    ("stages", "layout", "layers"),
    [("2;2;2;2", "n+1", 1), ("2;2;2;2", "n", 3), ("1;2;2;3", "n", 1), ("1;1;1;5", "n", 0)],
)
def test_a_drafter_on_the_device_of_stage_1_costs_its_layers_there(stages, layout, layers) -> None:
    # Three draft layers: beside stage 1 they come on top of its own, not beside the largest stage.
    options = {"n": 4, "draft_layers": 3, "stage_layers": stages, "layout": layout, "untrained": True}
    spd = registry.create("spd", tiny("llama"), options)
    result = spd.decode(random_ids(4), SamplingParams(), 6)
    assert {step.draft_layers for step in result.steps if step.nodes[0]} == {layers}
    known = KnownOutput(tiny("llama"), random_ids(4), result.tokens, SamplingParams(), 6)
    assert [s.draft_layers for s in spd.replay(known).steps] == [s.draft_layers for s in result.steps]


def test_uneven_stages_cost_their_largest() -> None:
    # Stages 1, 5, 2 with 3 draft layers beside: max(5, 3) = 5 layers a cycle; in series 5 + 3.
    target = tiny("llama")
    for series, layers in ((False, 5), (True, 8)):
        law_of = knows_output([], target.vocab_size, lambda index: True)
        drafter = ScriptedDrafter(law_of, DraftVocabulary(target.vocab_size), series, layers=3)
        method = ScriptedPipeline(target, [1, 5, 2], lambda *_, d=drafter: d)
        result = method.decode([3], SamplingParams(), 6)
        cycles = len(result.steps)
        assert_figures([as_record(result)], 5 * LAYERS / (5 * cycles), 5 * LAYERS / (layers * cycles))
