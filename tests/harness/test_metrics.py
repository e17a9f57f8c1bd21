"""Figures against values computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from harness.analysis import metrics
from harness.analysis.estimate import Estimate
from harness.records.record import Record, StepArrays

LAYERS = 8


def record(
    prompt_id: str,
    emitted: list[int],
    *,
    target: float = LAYERS,
    draft: float = 0,
    accepted: list[int] | None = None,
    depth: list[int] | None = None,
    nodes: list[int] | None = None,
    decode_s: float = 1.0,
    **changes,
) -> Record:
    count = len(emitted)
    values = {
        "benchmark": "gsm8k",
        "prompt_id": prompt_id,
        "turn": 1,
        "temperature": 0.0,
        "width": 1,
        "repeat": 0,
        "prompt_ids": [1],
        "output_ids": [0] * (sum(emitted) + 1),
        "finish_reason": "length",
        "prefill_s": 100.0,
        "decode_s": decode_s,
        "steps": StepArrays(
            drafted=accepted or [0] * count,
            accepted=accepted or [0] * count,
            emitted=emitted,
            target_layers=[target] * count,
            draft_layers=[draft] * count,
            depth=depth or [0] * count,
            nodes=nodes or [1] * count,
        ),
        "lossless": "exact",
        "error": None,
        "num_layers": LAYERS,
    }
    return Record(**(values | changes))


def figures(estimate: Estimate | None) -> tuple[float, float]:
    assert estimate is not None
    return estimate.pooled, estimate.prompt_mean


def test_autoregressive_is_one() -> None:
    records = [record("a", [1] * 5), record("b", [1] * 2)]
    for metric in (metrics.s0, metrics.s, metrics.l_acc):
        assert figures(metric(records)) == (1.0, 1.0)
    assert figures(metrics.nodes_per_stage(records)) == (1.0, 1.0)
    assert metrics.step_acceptance(records) is None
    assert metrics.conditional_acceptance(records, 1) is None


def test_rounds_of_a_chain() -> None:
    # a: 6 tokens in 2 rounds, b: 1 token in 1 round; a round costs L = 8 and 1 layer * 4 drafts.
    records = [record("a", [4, 2], draft=4), record("b", [1], draft=4)]
    assert figures(metrics.l_acc(records)) == (pytest.approx(7 / 3), pytest.approx((3 + 1) / 2))
    assert figures(metrics.s(records)) == (
        pytest.approx(7 * 8 / (3 * 12)),
        pytest.approx((6 * 8 / 24 + 8 / 12) / 2),
    )
    l_acc = metrics.l_acc(records).pooled
    assert metrics.s(records).pooled == pytest.approx(l_acc * 8 / (1 * 4 + 8)), "the paper's S_eagle"


def test_nodes_are_shared_by_the_stages_and_steps() -> None:
    # a: 4 stages ran 4 + 8 nodes in two cycles; b: 2 in one.
    records = [record("a", [1, 1], nodes=[4, 8], stages=4), record("b", [1], nodes=[2], stages=4)]
    assert figures(metrics.nodes_per_stage(records)) == (14 / 12, (1.5 + 0.5) / 2)
    assert metrics.nodes_per_stage([record("a", [])]) is None


def test_cycles_of_a_uniform_pipeline() -> None:
    # n = 4 stages of 2 layers, 6 tokens in 10 cycles.
    emitted = [1, 1, 0, 0, 0, 1, 1, 1, 0, 1]
    assert metrics.l_acc([record("a", emitted, target=2)]).pooled == pytest.approx(4 * 6 / 10)
    serial = [record("a", emitted, target=2, draft=1)]
    assert metrics.s(serial).pooled == pytest.approx(2.4 * 8 / (1 * 4 + 8)), "the paper's S_ppsd"
    assert metrics.s0(serial).pooled == pytest.approx(2.4)
    assert metrics.cycles(serial) == 10


def test_cycles_of_an_uneven_pipeline_count_their_largest_stage() -> None:
    # 8 layers at n = 3 are 3, 3, 2: a full pipeline gives 8 / 3 per token, not 3.
    assert metrics.l_acc([record("a", [1] * 9, target=3)]).pooled == pytest.approx(8 / 3)


def test_step_and_conditional_acceptance() -> None:
    # Three drafts a round: accepted all, the first only (the second was rejected), none.
    records = [record("a", [4, 2, 1], accepted=[3, 1, 0], depth=[3, 2, 1])]
    assert metrics.step_acceptance(records).pooled == pytest.approx(4 / 6)
    by_depth = [metrics.conditional_acceptance(records, d) for d in (1, 2, 3, 4)]
    assert [e and e.pooled for e in by_depth] == [pytest.approx(2 / 3), 0.5, 1.0, None]
    assert metrics.flushes(records) == 2


def test_conditional_acceptance_of_an_unexamined_depth_is_no_rejection() -> None:
    records = [record("a", [2, 1], accepted=[1, 0], depth=[1, 1])]
    assert metrics.conditional_acceptance(records, 2) is None
    assert metrics.conditional_acceptance(records, 1).pooled == 0.5


def test_tokens_per_second_leave_prefill_out() -> None:
    records = [record("a", [1] * 9, decode_s=3.0), record("b", [1], decode_s=2.0)]
    assert figures(metrics.tok_per_s(records)) == (2.0, (3.0 + 0.5) / 2)
    assert metrics.tokens(records) == 10


def test_speedup_is_paired_pooled_and_per_prompt() -> None:
    ar = [
        record("a", [1] * 10, decode_s=10.0),
        record("b", [1] * 10, decode_s=30.0),
        record("only ar", [1] * 10, decode_s=1e6),
        record("b", [1] * 10, decode_s=1e6, repeat=1),
    ]
    method = [
        record("a", [1] * 10, decode_s=5.0, width=4),
        record("b", [1] * 20, decode_s=20.0, width=4),
        record("only method", [1] * 10, decode_s=1e-6),
        record("b", [1] * 20, decode_s=1e-6, temperature=1.0),
    ]
    # Pooled (40 / 20) / (25 / 30); a: 1.0 / 0.5, b: 3.0 / 1.0.
    assert figures(metrics.wallclock_speedup(method, ar)) == (pytest.approx(2.4), pytest.approx(2.5))
    assert metrics.wallclock_speedup(method, []) is None


def test_records_of_one_prompt_are_summed_before_its_ratio() -> None:
    records = [record("a", [3]), record("a", [1], repeat=1), record("b", [4])]
    assert figures(metrics.l_acc(records)) == (pytest.approx(8 / 3), pytest.approx((2 + 4) / 2))
    assert metrics.l_acc(records).prompts == metrics.prompts(records) == 2


def test_equal_ids_of_two_benchmarks_are_two_prompts() -> None:
    assert metrics.l_acc([record("1", [1]), record("1", [1], benchmark="mt_bench")]).prompts == 2


def test_failed_records_are_left_out_and_counted() -> None:
    good, bad = record("a", [2, 2]), record("b", [], error="boom", output_ids=[], decode_s=0.0)
    assert metrics.l_acc([good, bad]) == metrics.l_acc([good])
    assert (metrics.failed([good, bad]), metrics.prompts([good, bad])) == (1, 1)
    assert metrics.l_acc([bad]) is None


def test_prompt_without_decoded_tokens_has_no_ratio_of_its_own() -> None:
    records = [record("a", [2]), record("b", [], decode_s=0.0), record("c", [4])]
    assert figures(metrics.l_acc(records)) == (3.0, 3.0)
    assert figures(metrics.tok_per_s(records)) == (3.0, 3.0)
    assert metrics.l_acc([records[1]]) is None


def test_accuracy_needs_every_score() -> None:
    scored = [record("a", [1], score=1.0), record("b", [1], score=0.0)]
    assert figures(metrics.accuracy(scored)) == (0.5, 0.5)
    assert metrics.accuracy([*scored, record("c", [1])]) is None


def test_interval_of_two_prompts_is_known() -> None:
    """Two prompts with ratios 1 and 3: a resample is (1, 1), mixed or (3, 3) with 1/4, 1/2, 1/4, so
    the 2.5 and 97.5 percentiles are the extremes."""
    estimate = metrics.l_acc([record("a", [1]), record("b", [3])])
    assert estimate.pooled_interval == (1.0, 3.0)
    assert estimate.prompt_mean_interval == (1.0, 3.0)


def test_interval_equals_a_plain_bootstrap() -> None:
    rng = np.random.default_rng(7)
    emitted = [[int(x) for x in rng.integers(1, 6, size=rng.integers(1, 9))] for _ in range(30)]
    records = [record(str(i), row) for i, row in enumerate(emitted)]
    counts = np.random.default_rng(3).multinomial(30, np.full(30, 1 / 30), size=500)
    pooled, means = [], []
    for draw in counts:
        chosen = [emitted[i] for i in np.repeat(np.arange(30), draw)]
        pooled.append(sum(map(sum, chosen)) / sum(map(len, chosen)))
        means.append(np.mean([sum(row) / len(row) for row in chosen]))
    estimate = metrics.l_acc(records, resamples=500, seed=3)
    assert estimate.pooled_interval == pytest.approx(tuple(np.percentile(pooled, [2.5, 97.5])))
    assert estimate.prompt_mean_interval == pytest.approx(tuple(np.percentile(means, [2.5, 97.5])))
    assert estimate.pooled_interval[0] < estimate.pooled < estimate.pooled_interval[1]


def test_interval_is_reproducible_and_absent_for_one_prompt() -> None:
    records = [record(str(i), [i % 3 + 1]) for i in range(10)]
    assert metrics.s0(records) == metrics.s0(records)
    assert metrics.s0(records[:1]).pooled_interval is None
    repeats = [record("a", [1]), record("a", [3], repeat=1)]
    assert metrics.s0(repeats).pooled_interval is None, "repeats of one prompt are no sample of prompts"


def test_ratio_of_speedups_is_each_against_its_own_baseline() -> None:
    """Speedups of 2 on a machine five times slower and of 3, over the prompt both runs timed."""
    slow = [record("a", [5, 5], decode_s=25.0), record("b", [4], decode_s=1.0)]
    slow_ar = [record("a", [1] * 10, decode_s=50.0)]
    fast, fast_ar = [record("a", [10], decode_s=3.0)], [record("a", [1] * 10, decode_s=9.0)]
    pairs = [metrics.timed_pairs(*each) for each in ((slow, slow_ar), (fast, fast_ar))]
    assert figures(metrics.speedup_ratio(*pairs)) == (1.5, 1.5)
    assert metrics.speedup_ratio(*reversed(pairs)).pooled == pytest.approx(2 / 3)
    assert metrics.speedup_ratio(pairs[0], []) is None


def test_beside_are_the_records_of_the_same_prompts() -> None:
    ar = [record("a", [1]), record("b", [1]), record("c", [1], error="boom")]
    assert metrics.beside([record("a", [2]), record("c", [2])], ar) == ar[:1]
    assert metrics.timed_pairs([record("a", [2], decode_s=None)], ar) == []


def test_time_of_phases_in_units_of_ar_s_token() -> None:
    """0.3 s of draft and 0.6 s of target for 10 tokens, where AR takes 0.05 s for each."""
    mine = [record("a", [10], phases={"draft": 0.3, "target": 0.6})]
    ar = [record("a", [1] * 10, decode_s=0.5)]
    assert metrics.phase_time(mine, ar, ["draft"]).pooled == pytest.approx(0.6)
    assert metrics.phase_time(mine, ar, ["draft", "target", "verify"]).pooled == pytest.approx(1.8)
    assert metrics.phase_time(mine, [], ["draft"]) is None


def test_an_estimate_in_words() -> None:
    assert Estimate(1.5, 1.4, 1).shown() == "1.50"
    assert Estimate(10.25, 1.4, 2, (9.04, 11.0)).shown(1) == "10.2 [9.0, 11.0]"


def test_no_token_after_the_prefills_has_no_speed() -> None:
    alone = record("a", [], decode_s=0.001)
    assert metrics.tok_per_s([alone]) is None
    assert metrics.tok_per_s([alone, alone]) is None
    assert figures(metrics.tok_per_s([alone, record("b", [3, 3], decode_s=2.0)])) == (3.0, 3.0)
