"""C5 - C8: how many rounds a drafter of known quality needs, where the output ends, what is counted."""

from __future__ import annotations

import pytest
from conftest import random_ids
from round_worlds import EAGLE3, LAYERS, autoregressive, family, rounds, table_target

from harness.checks import gates
from harness.checks.gates import GREEDY
from methods.core import SamplingParams
from methods.decoding.trace import trace_fault
from methods.decoding.verification import Draft
from methods.errors import UsageError
from methods.testing.scripted import always, never, sometimes
from methods.testing.scripted_rounds import ScriptedRounds, knowing_chain, knowing_tree, rounds_by_hand

CAP = 41
PROMPT = random_ids(4, vocab=6, seed=21)


def output(target, cap=CAP):
    return autoregressive(target).decode(PROMPT, GREEDY, cap).tokens


def script(target, m, right, width=0):
    if width:
        return knowing_tree(output(target), target.vocab_size, m, width, right)
    return knowing_chain(output(target), target.vocab_size, m, right)


@pytest.mark.parametrize("m", [1, 3, 7])
@pytest.mark.parametrize("name", ["llama", "hybrid"])
def test_oracle_anti_oracle_and_mixed(name, m):
    target = family(name)
    for right, expected in (
        (always, -(-(CAP - 1) // (m + 1))),
        (never, CAP - 1),
        (sometimes(0.7, seed=m), None),
    ):
        by_hand = rounds_by_hand(right, m, CAP)
        assert expected in (None, len(by_hand))
        for width in (0, 3):
            result = ScriptedRounds.fixed(target, script(target, m, right, width)).decode(PROMPT, GREEDY, CAP)
            assert result.tokens == output(target)
            assert [(s.accepted, s.emitted) for s in result.steps] == [(a, a + 1) for _, a in by_hand]
            assert trace_fault(result) is None
            if not width:
                assert [step.drafted for step in result.steps] == [row[0] for row in by_hand]
            for step, (levels, accepted) in zip(result.steps, by_hand, strict=True):
                # The last accepted node of a tree may have no children to decide on.
                assert step.depth in ({accepted, accepted + 1} if width else {min(accepted + 1, levels)})
                assert step.nodes == (1 + step.drafted,)
                assert (step.target_layers, step.draft_layers) == (LAYERS, 0)
                assert set(step.phases) == {"draft", "target", "verify"}


LABELS = ["ngram", *EAGLE3]


@pytest.mark.parametrize("label", [*LABELS, "scripted chain", "scripted tree"])
def test_where_the_output_ends(label):
    """C7, C8: at every stop id and cap, accepted blocks of five included."""
    target = table_target()
    if label.startswith("scripted"):
        right = sometimes(0.85, seed=4)
        method = ScriptedRounds.fixed(target, script(target, 5, right, 3 if "tree" in label else 0))
    else:
        method = rounds(target, label, **({} if label == "ngram" else {"proposal": "point-mass"}))
    reference = autoregressive(target)
    for finding in (
        gates.stops(method, reference, PROMPT, 24),
        gates.caps(method, reference, PROMPT, [0, 1, 2, 5, 6, 7, 40, 41]),
        gates.caps(method, reference, PROMPT, [0, 1, 2, 9], SamplingParams(temperature=1.0, seed=6)),
    ):
        assert finding.passed, finding.fault


def test_the_trace_is_cut_where_the_output_is():
    """A stop id as second of five accepted tokens: two accepted, no token of the target's own."""
    target = family("llama")
    whole = output(target)
    method = ScriptedRounds.fixed(target, script(target, 5, always))
    place = next(i for i in range(8, 12) if whole[i] not in whole[:i])  # in the second round: tokens 7 to 12
    result = method.decode(PROMPT, GREEDY, CAP, [whole[place]])
    assert result.tokens == whole[: place + 1]
    assert result.finish_reason == "stop"
    last = result.steps[-1]
    assert (last.drafted, last.accepted, last.emitted, last.depth) == (5, place - 6, place - 6, place - 6)


def test_a_drafter_is_not_asked_for_more_than_is_wanted():
    """The target's own token always ends the output."""
    asked: list[tuple[int, int]] = []

    def propose(so_far, budget):
        asked.append((len(so_far), budget))
        return Draft()

    ScriptedRounds.fixed(table_target(), propose).decode(PROMPT, GREEDY, 6)
    assert asked == [(1, 4), (2, 3), (3, 2), (4, 1), (5, 0)]


@pytest.mark.parametrize("label", LABELS)
def test_layers_of_a_round(label):
    target = table_target()
    result = rounds(target, label).decode(PROMPT, GREEDY, 20)
    m = EAGLE3.get(label, {}).get("m", 0)
    done = 1
    for step in result.steps:
        assert step.target_layers == target.num_layers
        assert step.draft_layers == (0 if label == "ngram" else min(m, 20 - done - 1))
        assert step.drafted <= m * EAGLE3.get(label, {}).get("width", 1) or label == "ngram"
        done += step.emitted


@pytest.mark.parametrize("label", ["ngram", "chain"])
def test_prompts_that_cannot_be_decoded(label):
    target = table_target()
    for prompt, message in (
        ([], "the prompt is empty"),
        ([0] * target.context, "at most"),
        ([0] * (target.context + 3), "at most"),
        ([target.vocab_size], "outside the vocabulary"),
    ):
        with pytest.raises(UsageError, match=message):
            rounds(target, label).decode(prompt, GREEDY, 4)
