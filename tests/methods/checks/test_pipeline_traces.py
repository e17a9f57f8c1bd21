"""C5-C8, C14, C23, C27: what a pipeline counts, where it ends, and what its clocks measure."""

import itertools
from types import SimpleNamespace

import pytest
from check_worlds import (
    PIPELINES,
    STAGES,
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
from methods.drafters.vocabulary import DraftVocabulary
from methods.models.partition import split_layers
from methods.pipeline import lockstep
from methods.testing.scripted import (
    ScriptedDrafter,
    ScriptedPipeline,
    always,
    knows_output,
    never,
    random_laws,
    sometimes,
)

PROMPT = [0, 1, 2]
DECODED = 24
STAGES_3 = (1, 2, 3)
"""All splits of a table target of three layers."""


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("series", [False, True], ids=["beside", "series"])
@pytest.mark.parametrize("n", STAGES)
def test_oracle_anti_oracle_and_mixed(n, series, width):
    target = table_target(layers=8)
    wrong = {3, 4, 9, 17}
    cycles = {}
    for name, right in (("oracle", always), ("anti", never), ("mixed", lambda i: i not in wrong)):
        method = scripted(target, n, right, DECODED + 1, series=series, width=width)
        finding = gates.identity(method, autoregressive(target), [PROMPT], DECODED + 1)
        assert finding.passed, finding.fault
        result = method.decode(PROMPT, gates.GREEDY, DECODED + 1)
        cycles[name] = len(result.steps)
        if width == 1:
            assert chain_fault(result, n) is None
    # L_acc = n * N / cycles: its maximum, 1, and the count in between.
    assert cycles["oracle"] == DECODED + n - 1
    assert cycles["anti"] == n * DECODED
    assert cycles["mixed"] == DECODED + (n - 1) * (1 + len(wrong))


def test_a_last_token_that_is_rejected_starts_no_fill():
    target = table_target()
    for last in (always, lambda i: i != DECODED):
        method = scripted(target, 3, last, DECODED + 1)
        assert len(method.decode(PROMPT, gates.GREEDY, DECODED + 1).steps) == DECODED + 2


def all_kinds(target, n, cap):
    """Untrained drafters of every kind and one that is right in turns."""
    for width in (1, 4):
        yield from (pipeline(target, label, n, width=width) for label in PIPELINES)
        yield scripted(target, n, in_turns, cap, width=width)


@pytest.mark.parametrize("n", STAGES_3)
def test_stop_ids(n):
    target = table_target(sharpness=2.0)
    reference = autoregressive(target)
    prompt = [1, 0]
    for method in all_kinds(target, n, 14):
        finding = gates.stops(method, reference, prompt, 14)
        assert finding.passed, finding.fault
        assert finding.cases == 14 + 13


@pytest.mark.parametrize("n", [3, 8])
def test_stop_ids_where_no_token_repeats(n):
    """Every position can be the end: in the fill, in a run of acceptances, after a rejection."""
    target, prompt = family("hybrid"), random_ids(3, seed=1)
    output = autoregressive(target).decode(prompt, gates.GREEDY, 10).tokens
    assert len(set(output)) == 10
    for width in (1, 4):
        method = scripted(target, n, in_turns, 10, width=width)
        finding = gates.stops(method, autoregressive(target), prompt, 10)
        assert finding.passed, finding.fault


@pytest.mark.parametrize("n", STAGES_3)
def test_caps(n):
    target = table_target()
    for method in all_kinds(target, n, 64):
        limits = [0, 1, 2, n, n + 1, 63, 64] if method.name == "scripted" else [0, 1, 2, n, n + 1, 9]
        finding = gates.caps(method, autoregressive(target), PROMPT, limits)
        assert finding.passed, finding.fault


def test_caps_and_stops_at_temperature_one():
    target = table_target()
    sampling = SamplingParams(temperature=1.0, seed=4)
    for label in PIPELINES:
        method = pipeline(target, label, 3, proposal="point-mass")
        for finding in (
            gates.caps(method, autoregressive(target), PROMPT, [0, 1, 2, 3, 9], sampling),
            gates.stops(method, autoregressive(target), PROMPT, 9, sampling),
        ):
            assert finding.passed, finding.fault
        sampled = pipeline(target, label, 3)
        longest = sampled.decode(PROMPT, sampling, 20).tokens
        for cap in (0, 1, 2, 7):
            assert sampled.decode(PROMPT, sampling, cap).tokens == longest[:cap]
        cut = sampled.decode(PROMPT, sampling, 20, stop_ids=(longest[6],))
        assert cut.tokens == longest[: longest.index(longest[6]) + 1]


@pytest.mark.parametrize("name", ["llama", "hybrid"])
@pytest.mark.parametrize("n", [1, 3, 8])
def test_a_tree_of_width_one_is_the_chain(name, n):
    target = family(name)
    prompt = random_ids(4, seed=2)

    def traces(tree):
        results = [
            scripted(target, n, in_turns, 16, tree=tree).decode(prompt, gates.GREEDY, 16),
            *(untrained(target, label, n, sampling, tree) for label in PIPELINES for sampling in SEEDED),
        ]
        return [(result.tokens, [bare(step) for step in result.steps]) for result in results]

    def untrained(target, label, n, sampling, tree):
        method = pipeline(target, label, n)
        return ScriptedPipeline(
            target, method.stage_layers, lambda *_: method.drafter(), "sampled", tree=tree
        ).decode(prompt, sampling, 6)

    assert traces(tree=True) == traces(tree=False)


SEEDED = (gates.GREEDY, SamplingParams(temperature=1.0, seed=2))


def bare(step):
    return (step.drafted, step.accepted, step.emitted, step.target_layers, step.draft_layers, step.nodes)


class SlowDrafter(ScriptedDrafter):
    """Lets 10 ms pass on ``clock`` in every draft, and 70 ms at the start of a sequence."""

    clock: SimpleNamespace

    def start(self, prompt, tree):
        self.clock.now += 0.07

    def draft(self, pipeline, features):
        self.clock.now += 0.01
        return super().draft(pipeline, features)


@pytest.mark.parametrize("series", [False, True], ids=["beside", "series"])
@pytest.mark.parametrize("n", STAGES_3)
def test_a_wait_in_the_drafter_is_draft_time_and_nothing_else(monkeypatch, n, series):
    clock = SimpleNamespace(now=1.0)
    monkeypatch.setattr(lockstep, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    drafter = SlowDrafter(random_laws(VOCAB), DraftVocabulary(VOCAB), series=series)
    drafter.clock = clock
    method = ScriptedPipeline(table_target(), split_layers(3, n), lambda *_: drafter)
    result = method.decode(PROMPT, gates.GREEDY, 12)
    drafted = [step.nodes[0] > 0 for step in result.steps]
    assert [step.phases["draft"] for step in result.steps] == pytest.approx([0.01 * d for d in drafted])
    assert {step.phases[name] for step in result.steps for name in ("target", "verify")} == {0.0}
    assert result.decode_s == pytest.approx(0.01 * sum(drafted))
    assert result.prefill_s == pytest.approx(0.07)


def test_a_wait_in_a_stage_or_in_the_verification_is_not_draft_time(monkeypatch):
    for owner, phase in ((lockstep.StageRunner, "run"), (lockstep.Lockstep, "_verify")):
        clock = SimpleNamespace(now=1.0)
        original = getattr(owner, phase)

        def slow(*args, original=original, clock=clock):
            clock.now += 0.01
            return original(*args)

        with monkeypatch.context() as patch:
            patch.setattr(lockstep, "time", SimpleNamespace(perf_counter=lambda clock=clock: clock.now))
            patch.setattr(owner, phase, slow)
            result = pipeline(table_target(), "spd", 3).decode(PROMPT, gates.GREEDY, 8)
        name = {"run": "target", "_verify": "verify"}[phase]
        others = {"target", "draft", "verify"} - {name}
        assert {step.phases[other] for step in result.steps for other in others} == {0.0}
        assert sum(step.phases[name] for step in result.steps) == pytest.approx(result.decode_s) != 0


def l_acc(result, n):
    return n * (len(result.tokens) - 1) / len(result.steps)


def test_a_better_drafter_has_a_higher_acceptance_length():
    target, vocabulary = table_target(layers=8), DraftVocabulary(VOCAB)
    output = autoregressive(target).decode(PROMPT, gates.GREEDY, 121).tokens
    for n in (2, 4, 8):
        lengths = []
        for law_of in (
            random_laws(VOCAB, seed=2),
            knows_output(output, VOCAB, sometimes(0.6)),
            knows_output(output, VOCAB, sometimes(0.9)),
        ):
            drafter = ScriptedDrafter(law_of, vocabulary)
            method = ScriptedPipeline(target, split_layers(8, n), lambda *_, d=drafter: d)
            lengths.append(l_acc(method.decode(PROMPT, gates.GREEDY, 121), n))
        assert all(worse < 0.9 * better for worse, better in itertools.pairwise(lengths))


def test_width_changes_the_trace_and_raises_acceptance():
    target = table_target(layers=4)
    drafter = ScriptedDrafter(random_laws(VOCAB, seed=2), DraftVocabulary(VOCAB))
    results = [
        ScriptedPipeline(target, [1] * 4, lambda *_: drafter, width=width).decode(PROMPT, gates.GREEDY, 121)
        for width in (1, 4)
    ]
    assert results[0].tokens == results[1].tokens
    assert l_acc(results[1], 4) > 1.3 * l_acc(results[0], 4)
    assert max(max(step.nodes) for step in results[1].steps) == 4


@pytest.mark.parametrize("label", PIPELINES)
def test_width_changes_the_trace_of_every_method(label):
    target = table_target()
    chain, tree = (pipeline(target, label, 3, width=w).decode(PROMPT, gates.GREEDY, 60) for w in (1, 4))
    assert chain.tokens == tree.tokens
    assert len(tree.steps) < len(chain.steps)
