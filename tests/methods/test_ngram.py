"""Prompt lookup: the longest, then the latest earlier occurrence decides; each token is looked at once."""

from __future__ import annotations

import pytest
import torch
from conftest import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from methods import registry
from methods.core import SamplingParams
from methods.decoding.prompt_lookup import NgramOptions, NgramSession
from methods.errors import UsageError


def drafted(parts: list[list[int]], budget: int = 99, **options: int) -> list[int]:
    session = NgramSession(NgramOptions(**options))
    for part in parts:
        session.observe(part, torch.empty(0))
    draft = session.propose(budget)
    assert draft.is_chain
    assert (draft.laws, draft.layers) == (None, 0)
    return list(draft.tokens)


def brute_force(history: list[int], m: int, longest: int) -> list[int]:
    for size in range(longest, 0, -1):
        for start in range(len(history) - size - 1, -1, -1):
            if history[start : start + size] == history[len(history) - size :]:
                return history[start + size : start + size + m]
    return []


@settings(max_examples=300, deadline=None)
@given(
    history=st.lists(st.integers(0, 3), min_size=1, max_size=40),
    cuts=st.lists(st.integers(1, 8), max_size=12),
    m=st.integers(1, 6),
    longest=st.integers(1, 4),
    budget=st.integers(0, 8),
)
def test_every_history_against_brute_force(history, cuts, m, longest, budget):
    parts, rest = [], history
    for cut in cuts:
        if len(rest) > cut:
            parts.append(rest[:cut])
            rest = rest[cut:]
    assert drafted([*parts, rest], budget, m=m, longest=longest) == brute_force(
        history, min(m, budget), longest
    )


def test_a_match_overlapping_the_end_is_copied_as_far_as_there_is_text():
    assert drafted([[7, 7]], m=5) == [7]
    assert drafted([[1, 2, 1, 2, 1]], m=5) == [2, 1]


def test_no_match_is_an_ordinary_step():
    method = registry.create("ngram", tiny("llama"))
    result = method.decode([3], SamplingParams(), 2)
    assert [(step.drafted, step.emitted, step.nodes) for step in result.steps] == [(0, 1, (1,))]


def test_a_text_that_repeats_is_nearly_free():
    """Tiny greedy targets fall into loops; a loop that is known costs one round per m + 1 tokens."""
    target = tiny("llama")
    expected = registry.create("autoregressive", target).decode([3, 3], SamplingParams(), 120).tokens
    result = registry.create("ngram", target, {"m": 5}).decode([3, 3], SamplingParams(), 120)
    assert result.tokens == expected
    assert len(result.steps) < 90
    assert {step.emitted for step in result.steps} >= {1, 6}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"m": 0}, "m must be >= 1"),
        ({"longest": 0}, "longest must be 1 to 64"),
        ({"longest": 65}, "longest must be 1 to 64"),
    ],
)
def test_options_that_cannot_be_used(options, message):
    with pytest.raises(UsageError, match=message):
        registry.create("ngram", tiny("llama"), options)
