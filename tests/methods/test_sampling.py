"""One warping code, held to transformers' own warpers, and the draw from its result (C13)."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from methods.core import SamplingParams
from methods.decoding.sampling import Draws, pick, probabilities, target_token
from methods.errors import UsageError


def transformers_law(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Rows of logits [rows, vocab] through the warpers in transformers' order."""
    ids = torch.zeros(len(logits), 1, dtype=torch.long)
    scores = TemperatureLogitsWarper(params.temperature)(ids, logits)
    if params.top_k:
        scores = TopKLogitsWarper(params.top_k)(ids, scores)
    if params.top_p < 1:
        scores = TopPLogitsWarper(params.top_p)(ids, scores)
    return scores.softmax(-1)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (5, 1.0), (50, 1.0), (0, 0.9), (0, 0.1), (20, 0.7)])
def test_law_is_that_of_transformers(temperature: float, top_k: int, top_p: float) -> None:
    logits = 3 * torch.randn(64, 40, generator=torch.Generator().manual_seed(top_k))
    params = SamplingParams(temperature, top_k, top_p)
    mine, theirs = probabilities(logits, params), transformers_law(logits, params)
    assert torch.equal(mine > 0, theirs > 0)
    assert torch.allclose(mine, theirs, atol=1e-6)
    assert torch.allclose(mine.sum(-1), torch.ones(64))


def test_half_precision_logits_are_warped_in_float32() -> None:
    logits = torch.randn(30, generator=torch.Generator().manual_seed(1)).bfloat16()
    params = SamplingParams(0.7, 10, 0.9)
    law = probabilities(logits, params)
    assert law.dtype == torch.float32
    assert torch.equal(law, probabilities(logits.float(), params))


def test_ties_with_the_kth_largest_all_stay() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 2.0, 2.0, 0.0]])
    law = probabilities(logits, SamplingParams(1.0, top_k=3))
    assert (law > 0).tolist() == [[False, True, True, True, True, False]]
    assert torch.equal(law > 0, transformers_law(logits, SamplingParams(1.0, top_k=3)) > 0)


@pytest.mark.parametrize(("top_p", "kept"), [(0.49, 1), (0.51, 2), (0.74, 2), (0.76, 3), (0.99, 4)])
def test_mass_up_to_top_p_is_kept_and_the_token_that_crosses_it(top_p: float, kept: int) -> None:
    logits = torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log()
    params = SamplingParams(1.0, top_p=top_p)
    assert int((probabilities(logits, params) > 0).sum()) == kept
    assert torch.equal(probabilities(logits, params) > 0, transformers_law(logits, params) > 0)


def test_ties_at_the_top_p_boundary_are_cut_as_transformers_cuts_them() -> None:
    for top_p in (0.05, 0.3, 0.55, 0.8):
        params = SamplingParams(1.0, top_p=top_p)
        law = probabilities(torch.zeros(1, 10), params)
        assert torch.equal(law > 0, transformers_law(torch.zeros(1, 10), params) > 0)
        assert 0 < int((law > 0).sum()) < 10


def test_a_row_alone_and_in_a_batch_have_the_same_mask() -> None:
    """Target rows come alone or in a verification block, draft rows from another matrix."""
    logits = torch.randn(16, 100, generator=torch.Generator().manual_seed(2)).round(decimals=1)  # many ties
    params = SamplingParams(1.0, 20, 0.8)
    batch = probabilities(logits, params)
    assert all(torch.equal(batch[i], probabilities(logits[i], params)) for i in range(16))


def test_greedy_law_is_a_point_on_the_first_largest() -> None:
    law = probabilities(torch.tensor([1.0, 4.0, 4.0, 0.0]), SamplingParams())
    assert law.tolist() == [0.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": -0.1}, "temperature must be 0 or a number >= 1e-06, got -0.1"),
        ({"temperature": math.nan}, "temperature must be 0 or a number >= 1e-06"),
        ({"temperature": math.inf}, "temperature must be 0 or a number >= 1e-06"),
        ({"top_k": -1}, "top-k must be >= 0"),
        ({"top_p": 0.0}, r"top-p must be in \(0, 1\], got 0.0"),
        ({"top_p": 1.01}, r"top-p must be in \(0, 1\]"),
    ],
)
def test_parameters_outside_their_range_are_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SamplingParams(**changes)  # type: ignore[arg-type]


laws = st.lists(st.floats(0, 1, width=32), min_size=1, max_size=40).filter(lambda law: sum(law) > 0)
uniforms = st.floats(0, 1, exclude_max=True)


@settings(max_examples=300, deadline=None)
@given(laws, uniforms)
def test_pick_draws_the_quantile_and_never_a_token_without_mass(law: list[float], uniform: float) -> None:
    probs = torch.tensor(law)
    token = pick(probs, uniform)
    assert 0 <= token < len(law) and law[token] > 0
    cumulative = probs.double().cumsum(0)
    quantile = float(cumulative[-1]) * uniform
    assert float(cumulative[token]) > quantile
    assert token == 0 or float(cumulative[token - 1]) <= quantile


@settings(max_examples=100, deadline=None)
@given(laws, st.lists(uniforms, min_size=2, max_size=10))
def test_pick_rises_with_the_uniform(law: list[float], numbers: list[float]) -> None:
    probs = torch.tensor(law)
    tokens = [pick(probs, number) for number in sorted(numbers)]
    assert tokens == sorted(tokens)


def test_pick_at_the_largest_uniform_stays_inside() -> None:
    largest = math.nextafter(1.0, 0.0)
    assert pick(torch.tensor([0.3, 0.7, 0.0]), largest) == 1
    assert pick(torch.full((100_000,), 1e-5), largest) == 99_999


def test_pick_gives_every_token_its_share() -> None:
    probs = torch.tensor([0.1, 0.0, 0.4, 0.5])
    count = 1000
    drawn = [pick(probs, (i + 0.5) / count) for i in range(count)]
    assert [drawn.count(token) for token in range(4)] == [100, 0, 400, 500]


def test_draws_belong_to_a_position_and_a_seed() -> None:
    first, second = Draws(5), Draws(5)
    forwards = [first.target(i) for i in range(600)]
    assert [second.target(i) for i in reversed(range(600))] == forwards[::-1]
    assert forwards != [Draws(6).target(i) for i in range(600)]
    assert all(0 <= number < 1 for number in forwards)


def test_the_three_streams_leave_each_other_alone() -> None:
    used, unused = Draws(5), Draws(5)
    drafts = [used.draft() for _ in range(20)]
    tests = [used.acceptance() for _ in range(20)]
    assert len({*drafts, *tests}) == 40
    assert used.target(7) == unused.target(7)
    assert tests == [unused.acceptance() for _ in range(20)]
    assert drafts == [unused.draft() for _ in range(20)]


def test_target_token_is_the_pick_of_its_own_number() -> None:
    logits = torch.randn(50, generator=torch.Generator().manual_seed(3))
    params, draws = SamplingParams(0.8, 20, 0.9, seed=11), Draws(11)
    for index in range(20):
        expected = pick(probabilities(logits, params), draws.target(index))
        assert target_token(logits, params, Draws(11), index) == expected
    assert target_token(logits, SamplingParams(), draws, 0) == int(logits.argmax())
