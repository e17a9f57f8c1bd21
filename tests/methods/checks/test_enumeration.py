"""Enumeration that is cut short, and drafts that nobody reads: what is said of the law stays true."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

from methods.core import SamplingParams
from methods.decoding.sampling import Draws
from methods.decoding.verification import DraftLaw
from methods.drafters.vocabulary import DraftVocabulary
from methods.testing.enumeration import distance, enumerate_law, exact_law

T1 = SamplingParams(temperature=1.0)
LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0])
LAW = LOGITS.softmax(-1).tolist()


def draft(draws: Draws) -> DraftLaw:
    return DraftLaw.draw(LOGITS, DraftVocabulary(4), T1, draws)


def two_tokens() -> tuple[int, int]:
    draws = Draws(0)
    return draft(draws).token, draft(draws).token


def read(count: int, of: int) -> tuple[int, ...]:
    """``of`` drafts, of which the laws of the first ``count`` are read and their tokens told."""
    draws = Draws(0)
    drafts = [draft(draws) for _ in range(of)]
    return tuple(one.token for one in drafts[:count] if one.probs.numel())


PAIRS = {(a, b): LAW[a] * LAW[b] for a in range(4) for b in range(4)}


def test_the_likeliest_beginnings_come_first_and_what_was_not_followed_is_known():
    found = enumerate_law(partial(read, 2, 2), most_paths=5)
    assert found.paths == 6  # one more, since there are more
    assert found.followed == pytest.approx(sum(PAIRS[pair] for pair in found.law), abs=1e-6)
    assert found.followed > 0.75
    assert found.excess(PAIRS) < 1e-6


def test_a_wrong_law_shows_in_a_part_of_the_ways():
    found = enumerate_law(partial(read, 2, 2), most_paths=5)
    wrong = {key: 1 / 16 for key in PAIRS}
    whole, unseen = distance(PAIRS, wrong), 1 - found.followed
    assert whole - unseen <= found.excess(wrong) <= whole
    assert found.excess(wrong) > 0.3


def test_drafts_that_nobody_reads_cost_no_ways():
    found = enumerate_law(partial(read, 2, 5), most_paths=100)
    assert found.paths == len(PAIRS)
    assert found.law == pytest.approx(PAIRS, abs=1e-6)


def test_drafts_whose_tokens_are_told_unread_are_followed_on_demand():
    run: Callable[[], tuple[int, int]] = two_tokens
    assert enumerate_law(run, 100).followed == pytest.approx(1)
    assert enumerate_law(run, 100, every_draft=True).law == pytest.approx(PAIRS, abs=1e-6)


def test_what_is_decided_by_an_unread_draft_makes_every_draft_count():
    def run() -> tuple[int, ...]:
        draws = Draws(0)
        hidden, shown = draft(draws), draft(draws)
        told = (shown, hidden) if hidden.token == 0 else (hidden, shown)
        return tuple(one.token for one in told if one.probs.numel())

    assert sum(exact_law(run).values()) == pytest.approx(1, abs=1e-6)
    expected: dict[tuple[int, ...], float] = {}
    for (hidden, shown), probability in PAIRS.items():
        told = (shown, hidden) if hidden == 0 else (hidden, shown)
        expected[told] = expected.get(told, 0.0) + probability
    assert exact_law(run) == pytest.approx(expected, abs=1e-6)
