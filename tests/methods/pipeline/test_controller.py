"""The chain (W = 1), the counting identities and the order of calls."""

import gc
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_reference import Script, check, execute, scripted_chain, simulate_chain

from methods.core import Transcript
from methods.errors import UsageError
from methods.pipeline.controller import PipelineController
from methods.pipeline.tree import Proposal

TARGET = tuple(range(10, 210, 2))  # even tokens: token + 1 is never the target's


def chain(n: int, right: list[bool], **options) -> Script:
    target = TARGET[: len(right)]
    return Script(n=n, width=1, target=target, propose=scripted_chain(target, right), **options)


@settings(max_examples=300, deadline=None)
@given(
    n=st.integers(1, 12),
    right=st.lists(st.booleans(), min_size=1, max_size=40),
    cap=st.integers(0, 45),
    stops=st.sets(st.integers(0, 50), max_size=3),
    prompt_length=st.integers(1, 5),
)
def test_random_accept_patterns_match_brute_force(n, right, cap, stops, prompt_length):
    stop_ids = frozenset(TARGET[i] for i in stops) | {TARGET[len(right) - 1]}
    script = chain(n, right, cap=cap, stop_ids=stop_ids, prompt_length=prompt_length)
    pipeline = check(script)
    counts, fills = simulate_chain(n, right, len(script.expected()))
    assert [(step.drafted, step.accepted, step.emitted) for step in pipeline.steps] == counts
    assert pipeline.fills == fills
    ending = int(bool(counts) and counts[-1] == (1, 0, 1))
    assert pipeline.rejections == pipeline.flushes + ending


@pytest.mark.parametrize("n", [1, 2, 3, 4, 8, 12])
@pytest.mark.parametrize("decoded", [1, 2, 7, 63])
def test_oracle_and_anti_oracle_counts(n, decoded):
    oracle = check(chain(n, [True] * (decoded + 1), cap=decoded + 1))
    assert (oracle.cycles, oracle.fills, oracle.rejections) == (decoded + n - 1, 1, 0)
    anti = check(chain(n, [False] * (decoded + 1), cap=decoded + 1))
    assert (anti.cycles, anti.fills, anti.rejections) == (n * decoded, decoded, decoded)


def test_one_rejection_by_hand():
    # n = 3: fill 2, accept, reject, fill 2, accept.
    pipeline = check(chain(3, [True, True, False, True], cap=4))
    assert [(s.drafted, s.accepted, s.emitted) for s in pipeline.steps] == [
        (0, 0, 0),
        (0, 0, 0),
        (1, 1, 1),
        (1, 0, 1),
        (0, 0, 0),
        (0, 0, 0),
        (1, 1, 1),
    ]
    assert [step.nodes for step in pipeline.steps][:5] == [
        (1, 0, 0),
        (1, 1, 0),
        (1, 1, 1),
        (1, 1, 1),
        (1, 0, 0),
    ]
    assert {(s.target_layers, s.draft_layers) for s in pipeline.steps} == {(1.0, 0.5)}
    assert [s.depth for s in pipeline.steps] == [0, 0, 1, 1, 0, 0, 1]


@pytest.mark.parametrize(
    ("cap", "stop_ids", "tokens", "reason"),
    [(0, [], [], "length"), (1, [], [10], "length"), (5, [10], [10], "stop")],
)
def test_runs_that_end_with_the_prefill_have_no_cycle(cap, stop_ids, tokens, reason):
    pipeline = check(chain(4, [True] * 9, cap=cap, stop_ids=frozenset(stop_ids)))
    assert (pipeline.transcript.tokens, pipeline.transcript.finish_reason) == (tokens, reason)
    assert (pipeline.cycles, pipeline.fills) == (0, 0)
    assert not any(pipeline.stage_work())


@pytest.mark.parametrize("n", [1, 2, 5])
def test_drafter_without_proposals_is_serial_decoding(n):
    script = Script(n=n, width=2, target=TARGET[:9], propose=lambda prefix: [], cap=9)
    pipeline = check(script)
    assert (pipeline.cycles, pipeline.fills, pipeline.rejections) == (8 * n, 8, 0)
    assert {(s.drafted, s.depth) for s in pipeline.steps} == {(0, 0)}
    # The drafter is charged only in cycles in which something entered.
    assert sum(s.draft_layers for s in pipeline.steps) == 0.5 * 8


def test_phases_reach_the_step():
    pipeline = PipelineController(2, 1, 7, Transcript(5), target_layers=4, draft_layers=1)
    pipeline.expand({pipeline.root.id: [Proposal(8, -0.1)]})
    pipeline.end_cycle({"target": 0.25})
    assert pipeline.steps[0].phases == {"target": 0.25}
    assert (pipeline.steps[0].target_layers, pipeline.steps[0].draft_layers) == (4, 1)


def test_record_travels_with_the_node():
    law = object()
    pipeline = PipelineController(2, 1, 7, Transcript(5))
    pipeline.expand({pipeline.root.id: [Proposal(8, -0.1, law)]})
    assert pipeline.candidates[0].record is law
    assert pipeline.candidates[0].position == 2


def test_candidate_may_be_rejected_by_name():
    pipeline = PipelineController(1, 1, 7, Transcript(5))
    pipeline.expand({pipeline.root.id: [Proposal(8, -0.1)]})
    verdict = pipeline.commit(9, None)
    assert (verdict.accepted, verdict.flushed, verdict.root.token) == (False, True, 9)


def test_calls_out_of_order_are_refused():
    pipeline = PipelineController(2, 1, 7, Transcript(2))
    with pytest.raises(RuntimeError, match="commit"):
        pipeline.commit(8, None)
    with pytest.raises(RuntimeError, match="end_cycle"):
        pipeline.end_cycle()
    pipeline.expand({pipeline.root.id: [Proposal(8, -0.1)]})
    with pytest.raises(RuntimeError, match="expand"):
        pipeline.expand({})
    pipeline.end_cycle()
    with pytest.raises(RuntimeError, match="expand"):
        pipeline.expand({})
    with pytest.raises(RuntimeError, match="end_cycle"):
        pipeline.end_cycle()
    with pytest.raises(ValueError, match="no candidate that carries token 9"):
        pipeline.commit(9, pipeline.candidates[0])
    assert pipeline.commit(8, pipeline.candidate(8)).finished
    with pytest.raises(RuntimeError, match="commit"):
        pipeline.commit(8, None)
    pipeline.end_cycle()
    with pytest.raises(RuntimeError, match="after the end"):
        pipeline.end_cycle()


def test_single_stage_needs_the_draft_before_the_verification():
    pipeline = PipelineController(1, 1, 7, Transcript(5))
    with pytest.raises(RuntimeError, match="commit"):
        pipeline.commit(8, None)


@pytest.mark.parametrize(("n", "width", "name"), [(0, 1, "stages"), (2, 0, "width")])
def test_unusable_shapes_are_refused(n, width, name):
    with pytest.raises(UsageError, match=name):
        PipelineController(n, 1, 7, Transcript(5), width=width)


def test_tokens_that_left_are_not_kept_alive():
    class Law:
        pass

    laws = []

    def propose(prefix):
        law = Law()
        laws.append(weakref.ref(law))
        return [Proposal(TARGET[len(prefix)], -0.1, law)]

    pipeline, _ = execute(Script(n=3, width=1, target=TARGET, propose=propose, cap=40))
    gc.collect()
    assert sum(law() is not None for law in laws) <= 4
    assert pipeline.cycles == 39 + 2
