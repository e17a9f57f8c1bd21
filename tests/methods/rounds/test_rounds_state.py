"""C3, C4: after every verification the target remembers, and the session is told, what a fresh
prefill of the committed tokens gives."""

from __future__ import annotations

import pytest
from conftest import random_ids
from fitted_head import PROMPTS, fitted, outputs
from round_worlds import EAGLE3, LAYERS, autoregressive, family, rounds, table_target

from harness.checks.gates import GREEDY
from harness.checks.round_states import watch_rounds
from methods.core import SamplingParams
from methods.decoding.rounds import RoundMethod
from methods.testing.scripted import sometimes
from methods.testing.scripted_rounds import ScriptedRounds, knowing_chain, knowing_tree
from methods.testing.tiny import FAMILIES

BOUND = {"tiny-hybrid": 5e-5}
"""Of every difference; 1e-5 for all others. One prefill of Qwen3.5 runs the delta rule in chunks, which
differs from its stepwise form by that much before any rollback."""


def check_states(method: RoundMethod, prompt, cap, sampling=GREEDY) -> int:
    """Decode with a comparison after every verification; returns their number."""
    report = watch_rounds(method, prompt, cap, sampling)
    bound = BOUND.get(method.target.name, 1e-5)
    assert report.memory <= bound
    assert report.logits <= bound
    return report.verifications


PROMPT = random_ids(5, seed=8)


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_rollback_grid(name, tree):
    """0, 1, ..., k of k drafts accepted, k = 4, and again: 4 twice in a row."""
    target = family(name)
    wrong = {1, 3, 6, 10, 20}  # after 0, 1, 2, 3 and then 4 + 4 accepted
    cap = 23
    output = autoregressive(target).decode(PROMPT, GREEDY, cap).tokens

    def right(index):
        return index not in wrong

    script = knowing_tree(output, 64, 4, 4, right) if tree else knowing_chain(output, 64, 4, right)
    accepted: list[int] = []
    method = ScriptedRounds.fixed(target, script, reads=(0, 2, LAYERS))
    accepted = [step.accepted for step in method.decode(PROMPT, GREEDY, cap).steps]
    assert accepted[:7] == [0, 1, 2, 3, 4, 4, 1]
    assert check_states(method, PROMPT, cap) == len(accepted) - 1


@pytest.mark.parametrize("label", ["short chain", "short tree", "dynamic tree"])
@pytest.mark.parametrize("name", FAMILIES)
def test_fitted_heads(name, label):
    method = fitted(name, LAYERS, **EAGLE3[label])
    assert check_states(method, PROMPTS[4], 16) > 1


@pytest.mark.parametrize("label", ["ngram", "chain", "tree", "branches"])
def test_temperature_one(label):
    sampling = SamplingParams(temperature=1.0, seed=3)
    for target in (family("hybrid"), table_target()):
        assert check_states(rounds(target, label), [1, 2, 1], 40, sampling) > 1


def test_features_of_the_wrong_rows_are_noticed(monkeypatch):
    """Seeded fault: the accepted nodes' features without the root's."""
    rows = RoundMethod._rows

    def shifted(self, taps, rows_=slice(None)):
        return rows(self, taps, [row + 1 for row in rows_] if isinstance(rows_, list) else rows_)

    method = fitted("llama", LAYERS, m=3)
    output = outputs("llama", LAYERS)[4]
    method = ScriptedRounds.fixed(family("llama"), knowing_chain(output, 64, 4, sometimes(0.5)), reads=(2,))
    monkeypatch.setattr(RoundMethod, "_rows", shifted)
    with pytest.raises((AssertionError, IndexError)):
        check_states(method, PROMPTS[4], 16)


def test_an_uncommitted_round_is_noticed(monkeypatch):
    """Seeded fault: the rejected drafts stay in the state."""
    target = family("llama")
    output = outputs("llama", LAYERS)[4]
    method = ScriptedRounds.fixed(target, knowing_chain(output, 64, 4, sometimes(0.5)))
    monkeypatch.setattr("methods.models.state.State.keep", lambda self, slots: None)
    with pytest.raises(AssertionError):
        check_states(method, PROMPTS[4], 16)
