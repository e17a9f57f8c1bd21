"""C1, C6, C11, C12, C14: a draft-then-verify method gives AR's tokens, whatever it drafts."""

import itertools
from dataclasses import replace

import pytest
from conftest import random_ids, tiny
from fitted_head import CAP, KNOWN, PROMPTS, fitted, outputs
from round_worlds import EAGLE3, LAYERS, autoregressive, family, rounds, table_target

from harness.checks import gates
from harness.checks.gates import GREEDY
from methods.core import SamplingParams
from methods.decoding.rounds import RoundMethod
from methods.decoding.trace import trace_fault
from methods.models.state import State
from methods.models.target import Target
from methods.testing.scripted import sometimes
from methods.testing.scripted_rounds import ScriptedRounds, knowing_chain, knowing_tree
from methods.testing.tiny import FAMILIES

LABELS = ["ngram", *EAGLE3]


def assert_greedy(method, prompt):
    """The output is what one pass over it calls for, token by token. Returns the steps."""
    target = method.target
    result = method.decode(prompt, GREEDY, CAP)
    tokens = [*prompt, *result.tokens]
    logits = target.logits(target.forward(tokens[:-1], target.new_state()).hidden)[0]
    assert len(result.tokens) == CAP
    assert logits[len(prompt) - 1 :].argmax(-1).tolist() == result.tokens
    assert trace_fault(result) is None
    return result.steps


def assert_same_output(method, prompts, expected):
    """Returns the number of rounds over all prompts."""
    count = 0
    for prompt, tokens in zip(prompts, expected, strict=True):
        result = method.decode(prompt, GREEDY, len(tokens))
        assert result.tokens == tokens
        assert trace_fault(result) is None
        count += len(result.steps)
    return count


@pytest.mark.parametrize("label", ["ngram", "short chain", "short tree"])
@pytest.mark.parametrize("name", FAMILIES)
def test_twenty_prompts(name, label):
    """AR's tokens; fitted heads are often right, so that runs are accepted and cut at every depth."""
    options = EAGLE3.get(label, {})
    method = rounds(family(name), label) if label == "ngram" else fitted(name, LAYERS, **options)
    count = assert_same_output(method, PROMPTS[:KNOWN], outputs(name, LAYERS))
    for prompt in PROMPTS[KNOWN:]:
        count += len(assert_greedy(method, prompt))
    decoded = len(PROMPTS) * (CAP - 1)
    # Little repeats in the hybrid's outputs, so prompt lookup saves few rounds there.
    assert 0.2 * decoded < count < (0.99 if label == "ngram" else 0.95) * decoded


@pytest.mark.parametrize("label", ["chain", "long chain", "tree", "dynamic tree", "branches"])
@pytest.mark.parametrize("name", FAMILIES)
def test_other_shapes(name, label):
    assert_same_output(fitted(name, LAYERS, **EAGLE3[label]), PROMPTS[:2], outputs(name, LAYERS)[:2])


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("name", FAMILIES)
def test_untrained_heads_and_eight_layers(name, label):
    target = tiny(name)
    finding = gates.identity(
        rounds(target, label), autoregressive(target), [random_ids(1), random_ids(7)], 16
    )
    assert finding.passed, finding.fault


@pytest.mark.parametrize("label", LABELS)
def test_point_mass_proposals_give_the_tokens_of_the_seed(label):
    """At T = 1 the target's own draws decide, whatever is drafted."""
    for target, cap in ((table_target(), 24), (family("hybrid"), 8)):
        options = {} if label == "ngram" else {"proposal": "point-mass"}
        method = rounds(target, label, **options)
        prompts = [[1], [0, 1, 2, 0, 1, 2, 3]]
        for sampling in (SamplingParams(1.0, seed=4), SamplingParams(0.8, top_k=3, top_p=0.9, seed=9)):
            finding = gates.identity(method, autoregressive(target), prompts, cap, sampling)
            assert finding.passed, finding.fault


@pytest.mark.parametrize("label", LABELS)
def test_seeds(label):
    """C12 and C11: the same seed repeats, others differ; T -> 0 is T = 0."""
    target = table_target()
    finding = gates.repeats(rounds(target, label), [0, 1, 2], 18, seeds=16)
    assert finding.passed, finding.fault
    cold = SamplingParams(temperature=1e-6, seed=3)
    expected = autoregressive(target).decode([0, 1, 2], GREEDY, 24).tokens
    assert rounds(target, label).decode([0, 1, 2], cold, 24).tokens == expected


def traced(method, prompt, cap, sampling=GREEDY):
    result = method.decode(prompt, sampling, cap)
    return result.tokens, [(s.drafted, s.accepted, s.emitted, s.depth, s.nodes) for s in result.steps]


@pytest.mark.parametrize("name", ["llama", "hybrid"])
def test_a_tree_of_width_one_is_the_chain(name, monkeypatch):
    """C14: the beam code at W = 1, and a chain verified as a tree."""
    target = family(name)
    for sampling in (GREEDY, SamplingParams(temperature=1.0, seed=2)):
        chain = fitted(name, LAYERS, m=5, proposal="point-mass")
        expected = [traced(chain, prompt, 24, sampling) for prompt in PROMPTS[:2]]
        for rerank in (False, True):
            method = fitted(name, LAYERS, m=5, proposal="point-mass")
            method.shape = replace(method.shape, rerank=rerank)
            drafter = type(method.session(sampling, None))
            with monkeypatch.context() as patch:
                patch.setattr(drafter, "_chain", lambda self, levels: self._tree(levels))
                patch.setattr("methods.decoding.verification.Draft.is_chain", False)
                assert [traced(method, prompt, 24, sampling) for prompt in PROMPTS[:2]] == expected
    output = outputs(name, LAYERS)[3]
    right = sometimes(0.7, seed=1)
    chain, tree = (
        ScriptedRounds.fixed(target, knowing_chain(output, 64, 6, right)),
        ScriptedRounds.fixed(target, knowing_tree(output, 64, 6, 1, right)),
    )
    assert traced(chain, PROMPTS[3], CAP) == traced(tree, PROMPTS[3], CAP)


@pytest.mark.parametrize("name", FAMILIES)
def test_scripted_trees(name):
    """Bushy trees in any order, the right path anywhere in them or nowhere."""
    target = family(name)
    for i, (prompt, output) in enumerate(zip(PROMPTS[:3], outputs(name, LAYERS), strict=False)):
        propose = knowing_tree(output, 64, m=6, width=5, right=sometimes(0.8, seed=i), seed=i)
        assert assert_same_output(ScriptedRounds.fixed(target, propose), [prompt], [output]) < 40


def test_prompts_longer_than_a_prefill_chunk_and_a_context_that_ends(monkeypatch):
    monkeypatch.setattr("methods.models.target.PREFILL_CHUNK", 8)
    monkeypatch.setattr("methods.eagle3.session._CHUNK", 8)
    for name, label in itertools.product(("hybrid", "sliding"), ("ngram", "short chain", "short tree")):
        target = family(name)
        for prompt, cap in ((random_ids(27, seed=1), 10), (random_ids(target.context - 5, seed=2), 12)):
            method = rounds(target, label)
            finding = gates.identity(method, autoregressive(target), [prompt], cap)
            assert finding.passed, finding.fault


# Seeded faults.


def check_scripted_hybrid():
    prompt, output = PROMPTS[2], outputs("hybrid", LAYERS)[2]
    propose = knowing_tree(output, 64, m=5, width=4, right=sometimes(0.9))
    assert_same_output(ScriptedRounds.fixed(family("hybrid"), propose), [prompt], [output])


def test_a_tree_verified_as_a_chain_is_noticed(monkeypatch):
    forward = Target.forward
    monkeypatch.setattr(
        Target, "forward", lambda self, ids, state, parents=None, **rest: forward(self, ids, state, **rest)
    )
    with pytest.raises(AssertionError):
        check_scripted_hybrid()


def test_slots_kept_by_number_instead_of_by_path_are_noticed(monkeypatch):
    monkeypatch.setattr(State, "keep", lambda self, slots: self.rollback(self.committed + len(slots)))
    with pytest.raises(AssertionError):
        check_scripted_hybrid()


def test_a_token_counted_twice_is_noticed(monkeypatch):
    step = RoundMethod._step
    monkeypatch.setattr(
        RoundMethod,
        "_step",
        lambda self, draft, verified, emitted, phases: step(self, draft, verified, emitted + 1, phases),
    )
    with pytest.raises(AssertionError):
        check_scripted_hybrid()
