"""A method written outside the package, in sixty lines or fewer, passes the checks of those inside."""

import itertools
import sys
from pathlib import Path

import pytest
from conftest import random_ids
from round_worlds import autoregressive, family, table_target

from harness.checks import gates
from methods import registry
from methods.core import SamplingParams
from methods.decoding.replay import KnownOutput
from methods.errors import UsageError
from methods.testing.enumeration import distance, exact_law
from methods.testing.laws import joint_law
from methods.testing.tiny import FAMILIES


@pytest.fixture
def draft_model(monkeypatch):
    known = {name: registry.get(name) for name in registry.names()}  # finds the built-in ones first
    monkeypatch.setattr(registry, "_methods", known)
    monkeypatch.delitem(sys.modules, "draft_model", raising=False)
    registry.load_plugin("draft_model")
    return lambda target, **options: registry.create("draft-model", target, options)


def test_it_is_small():
    assert len(Path(__file__).with_name("draft_model.py").read_text().splitlines()) <= 60


@pytest.mark.parametrize("name", FAMILIES)
def test_identity_of_outputs(draft_model, name):
    target = family(name)
    method = draft_model(target, family="hybrid" if name == "hybrid" else "llama")
    for prompt, cap in ((random_ids(1), 20), (random_ids(6), 20)):
        finding = gates.identity(method, autoregressive(target), [prompt], cap)
        assert finding.passed, finding.fault


def test_a_target_that_drafts_for_itself_is_always_right(draft_model):
    target = family("llama")
    result = draft_model(target, layers=4).decode(random_ids(6), gates.GREEDY, 21)
    assert [step.accepted for step in result.steps] == [3] * 5
    assert {step.draft_layers for step in result.steps} == {12}


def test_drafts_accepted_by_chance_are_not_replayed_as_if_they_were_not(draft_model):
    target, sampling = family("llama"), SamplingParams(1.0, seed=3)
    prompt, method = random_ids(6), draft_model(target)
    output = autoregressive(target).decode(prompt, sampling, 12).tokens
    with pytest.raises(UsageError, match="'draft-model' accepts by chance: it cannot be replayed at T > 0"):
        method.replay(KnownOutput(target, prompt, output, sampling, 12))
    greedy = autoregressive(target).decode(prompt, gates.GREEDY, 12).tokens
    replayed = method.replay(KnownOutput(target, prompt, greedy, gates.GREEDY, 12))
    decoded = method.decode(prompt, gates.GREEDY, 12).steps
    assert [step.accepted for step in replayed.steps] == [step.accepted for step in decoded]


def test_ends_of_output(draft_model):
    target = table_target()
    method = draft_model(target)
    for finding in (
        gates.stops(method, autoregressive(target), [0, 1, 2], 12),
        gates.caps(method, autoregressive(target), [0, 1, 2], [0, 1, 2, 4, 5]),
        gates.repeats(method, [0, 1, 2], 9, seeds=16),
    ):
        assert finding.passed, finding.fault


def test_exact_joint_law(draft_model):
    target, params = table_target(3, sharpness=1.0), SamplingParams(temperature=1.0)
    method = draft_model(target, m=2)
    law = exact_law(lambda: tuple(method.decode([0, 1, 2], params, 4).tokens[:3]))
    blocks = itertools.product(range(3), repeat=3)
    assert distance(law, dict(zip(blocks, joint_law(target.table, params).tolist(), strict=True))) < 1e-6
