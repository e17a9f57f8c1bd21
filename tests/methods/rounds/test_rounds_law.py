"""C9: at T > 0 the joint law of three tokens is the target's.

Enumerated exactly, over every way the random choices of whole decode calls can fall; then sampled,
for the random numbers themselves.
"""

from __future__ import annotations

import itertools

import pytest
from round_worlds import rounds, table_target

from harness.checks import gates
from methods.core import SamplingParams
from methods.decoding.verification import Draft, DraftLaw
from methods.drafters.vocabulary import DraftVocabulary
from methods.testing.enumeration import distance, exact_law
from methods.testing.laws import joint_law
from methods.testing.scripted import random_laws
from methods.testing.scripted_rounds import ScriptedRounds, best_branches, drawn_branches

PLAIN = SamplingParams(temperature=1.0)
SAMPLINGS = {"plain": PLAIN, "top-k": SamplingParams(1.0, top_k=2), "top-p": SamplingParams(0.8, top_p=0.7)}
CLOSE = 1e-6
"""The laws are float32."""


def exact(method, target, params, cap):
    """Total variation between the law of the first three tokens of ``cap`` and the target's."""
    law = exact_law(lambda: tuple(method.decode([0, 1, 0], params, cap).tokens[:3]))
    blocks = itertools.product(range(target.vocab_size), repeat=3)
    return distance(law, dict(zip(blocks, joint_law(target.table, params).tolist(), strict=True)))


# Label, vocabulary, options, cap: with four tokens the first draft may be two deep.
METHODS = [
    ("ngram", 3, {}, 4),
    ("short chain", 3, {}, 4),
    ("short chain", 3, {"proposal": "point-mass"}, 4),
    ("short tree", 4, {}, 4),
    ("dynamic tree", 4, {}, 4),
    ("branches", 4, {"m": 1}, 3),
]


@pytest.mark.parametrize("params", SAMPLINGS)
@pytest.mark.parametrize(("label", "vocab", "options", "cap"), METHODS)
def test_exact_joint_law(label, vocab, options, cap, params):
    target = table_target(vocab, sharpness=1.0)
    assert exact(rounds(target, label, **options), target, SAMPLINGS[params], cap) < CLOSE


def test_exact_joint_law_of_branches_two_deep():
    target = table_target(3, sharpness=1.0)
    assert exact(rounds(target, "branches", width=2, m=2), target, SAMPLINGS["top-k"], 4) < CLOSE


@pytest.mark.parametrize("vocabulary", [DraftVocabulary(3), DraftVocabulary(3, [0, 2])])
def test_exact_joint_law_of_scripted_drafts(vocabulary):
    target = table_target(3, sharpness=1.0)
    law_of = random_laws(vocabulary.size, seed=5)
    chain = ScriptedRounds(target, drawn_branches(law_of, vocabulary, m=2))
    tree = ScriptedRounds(target, drawn_branches(law_of, vocabulary, m=1, width=3))
    fixed = ScriptedRounds.fixed(target, best_branches(law_of, vocabulary, m=2, width=2))
    for method, cap in ((chain, 4), (tree, 3), (fixed, 4)):
        for params in SAMPLINGS.values():
            assert exact(method, target, params, cap) < CLOSE


@pytest.mark.parametrize(("label", "params"), [("short chain", "plain"), ("branches", "top-p")])
def test_sampled_joint_law(label, params):
    """400 blocks of three tokens out of real random numbers, late in the output too."""
    target = table_target(5, sharpness=1.0)
    found = gates.law(rounds(target, label), target, SAMPLINGS[params], draws=400)
    assert found.passed, found


def test_a_wrong_acceptance_is_noticed_in_whole_decode_calls():
    """Seeded fault: the largest draft token, passed off as drawn."""
    target = table_target(3, sharpness=1.0)
    law_of, vocabulary = random_laws(3, seed=5), DraftVocabulary(3)

    def make(sampling, draws):
        def propose(so_far, budget):
            if not budget:
                return Draft()
            logits = law_of(so_far)
            law = DraftLaw(logits.softmax(-1), vocabulary, int(logits.argmax()))
            return Draft.chain([law.token], [law])

        return propose

    assert exact(ScriptedRounds(target, make), target, PLAIN, 3) > 0.01
