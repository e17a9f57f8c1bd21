"""Draft trees (W > 1): brute force, pruning, rescue of a branch, and what the width buys."""

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_reference import Script, check, random_tree

from methods.core import Transcript
from methods.pipeline.controller import PipelineController
from methods.pipeline.tree import DraftTree, Proposal

VOCAB = 6


@settings(max_examples=300, deadline=None)
@given(
    n=st.integers(1, 8),
    width=st.integers(1, 5),
    most=st.integers(1, 6),
    vocab=st.integers(2, VOCAB),
    seed=st.integers(0, 2**32),
    target=st.lists(st.integers(0, VOCAB - 1), min_size=30, max_size=30),
    cap=st.integers(0, 30),
    stop_ids=st.sets(st.integers(0, VOCAB - 1), max_size=1),
)
def test_random_trees_match_brute_force(n, width, most, vocab, seed, target, cap, stop_ids):
    target = tuple(token % vocab for token in target)
    check(Script(n, width, target, random_tree(seed, vocab, most), cap, frozenset(stop_ids)))


@pytest.mark.parametrize("n", [1, 2, 3, 8])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_oracle_and_anti_oracle_counts(n, width):
    target = tuple(range(41))

    def oracle(prefix):
        wrong = [Proposal(1000 + i, -5.0) for i in range(3)]
        return [*wrong, Proposal(len(prefix), -0.125)]

    pipeline = check(Script(n, width, target, oracle, cap=41))
    assert (pipeline.cycles, pipeline.fills) == (40 + n - 1, 1)
    anti = check(
        Script(n, width, target, lambda prefix: [Proposal(1000 + i, -1.0) for i in range(4)], cap=41)
    )
    assert (anti.cycles, anti.rejections) == (40 * n, 40)


SHARP = (-0.25, -2.0, -2.5, -3.0)  # about 0.78, 0.14, 0.08, 0.05; exact sums, as the brute force needs
FLAT = (-1.25, -1.375, -1.5, -1.625)


def noisy(target, first_right: float, sharp=SHARP):
    """Four candidates a node, the right one always among them and first with probability
    ``first_right``; off the target's path the drafter is unsure."""

    def propose(prefix):
        i = len(prefix)
        rng = random.Random(hash(prefix))
        if i >= len(target) or prefix != target[:i]:
            return [Proposal(rng.randrange(1000, 9000), logprob) for logprob in FLAT]
        rank = 0 if rng.random() < first_right else rng.randrange(1, 4)
        tokens = [1000 + rng.randrange(8000) for _ in sharp]
        tokens[rank] = target[i]
        return [Proposal(token, logprob) for token, logprob in zip(tokens, sharp, strict=True)]

    return propose


_rng = random.Random(1)
TARGET = tuple(_rng.randrange(1000) for _ in range(200))


def test_width_needs_fewer_cycles_if_the_right_token_is_never_first():
    cycles = [check(Script(4, width, TARGET, noisy(TARGET, 0.0), cap=200)).cycles for width in (1, 4)]
    assert cycles[0] == 4 * 199
    assert cycles[1] < 0.7 * cycles[0]


@pytest.mark.parametrize("n", [4, 8])
def test_alternatives_stay_alive_in_steady_state(n):
    pipeline = check(Script(n, 4, TARGET, noisy(TARGET, 0.8), cap=200))
    verified = [step for step in pipeline.steps if step.emitted]
    # The steady state: verifications whose root was itself drafted, not those that end a fill.
    steady = [step for before, step in pairwise(verified) if before.accepted]
    assert len(steady) > 100
    assert sum(step.drafted >= 2 for step in steady) > len(steady) / 2
    chain = check(Script(n, 1, TARGET, noisy(TARGET, 0.8), cap=200))
    assert pipeline.cycles < chain.cycles


def offer(*pairs):
    return [Proposal(token, math.log(p)) for token, p in pairs]


def test_accepted_branch_without_descendants_is_extended_at_once():
    """n = 3, W = 2. Behind the root (token 0): 1 and 2; the next level is 1's children only. The
    target takes 2: the flight is rescued from 2's own proposals, with one empty level, no flush."""
    tables = {(0,): offer((1, 0.9), (2, 0.1)), (0, 1): offer((3, 0.5), (4, 0.5)), (0, 2): offer((5, 1.0))}
    target = (0, 2, 5, 6)
    script = Script(3, 2, target, lambda prefix: tables.get(prefix, offer((9, 1.0))), cap=4)
    pipeline = check(script)
    assert [step.nodes for step in pipeline.steps] == [
        (1, 0, 0),  # 0
        (2, 1, 0),  # 1, 2
        (2, 2, 1),  # 3, 4 behind 1; now the target takes 2
        (1, 0, 1),  # 5 behind 2, entered from 2's proposals of cycle 2; the target takes 5
        (1, 1, 0),
        (1, 1, 1),
    ]
    assert [(s.drafted, s.accepted) for s in pipeline.steps] == [
        (0, 0),
        (0, 0),
        (2, 1),
        (1, 1),
        (0, 0),
        (1, 0),
    ]
    assert (pipeline.fills, pipeline.bubbles) == (1, 1)


def test_verdict_names_the_cache_entries_of_every_stage():
    pipeline = PipelineController(3, 1, 0, Transcript(9), width=3)
    root = pipeline.root
    pipeline.expand({root.id: offer((1, 0.5), (2, 0.4))})
    pipeline.end_cycle()
    first, second = pipeline.newest
    pipeline.expand({first.id: offer((3, 0.5)), second.id: offer((4, 0.6), (5, 0.4))})
    pipeline.end_cycle()
    assert [node.token for node in pipeline.newest] == [3, 4, 5]  # 0.25, 0.24, 0.16
    assert [node.token for node in pipeline.newest[1].path()] == [0, 2, 4]
    verdict = pipeline.commit(2, pipeline.candidate(2))
    assert [[node.token for node in verdict.seen_by(s)] for s in (1, 2, 3)] == [
        [0, 1, 2, 3, 4, 5],
        [0, 1, 2],
        [0],
    ]
    assert [verdict.kept_by(s) for s in (1, 2, 3)] == [[0, 2, 4, 5], [0, 2], [0]]
    assert pipeline.root is second


def test_order_within_a_level():
    tree = DraftTree(token=0, position=4, entered=1)
    tree.root.proposals = offer((1, 0.25), (2, 0.5), (1, 0.9), (3, 0.25))
    tree.grow(width=4, entered=2)
    # A repeated token counts once, with its first proposal; ties keep the drafter's order.
    assert [node.token for node in tree.newest] == [2, 1, 3]
    for node, p in zip(tree.newest, (0.25, 0.5, 0.5), strict=True):
        node.proposals = offer((7, p), (8, p))
    tree.grow(width=5, entered=3)
    assert [(node.parent.token, node.token) for node in tree.newest] == [
        (2, 7),
        (2, 8),
        (1, 7),
        (1, 8),
        (3, 7),
    ]


def test_impossible_proposals_keep_an_order():
    tree = DraftTree(token=0, position=4, entered=1)
    tree.root.proposals = [Proposal(1, -math.inf)]
    tree.grow(width=1, entered=2)
    tree.newest[0].proposals = [Proposal(2, -3.0), Proposal(3, -1.0)]
    tree.grow(width=1, entered=3)
    assert tree.newest[0].token == 3
