"""Scores of draft-tree candidates, and trees that hold the parent of each of their nodes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from methods.drafters.candidates import ROOT, Candidates, top_logprobs


@pytest.mark.parametrize("offset", [0.0, 40.0])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.02)])
def test_log_probabilities_of_the_best(dtype, tolerance, offset):
    logits = (4 * torch.randn(5, 300, generator=torch.Generator().manual_seed(1)) + offset).to(dtype)
    logits[0, 7] = logits[0].max() + 20  # certain
    values, indices = top_logprobs(logits, 4)
    expected = logits.float().log_softmax(-1).gather(-1, indices)
    assert values.dtype == torch.float32
    assert torch.equal(logits.gather(-1, indices), logits.topk(4).values)
    torch.testing.assert_close(values, expected, atol=tolerance, rtol=0)
    assert (values <= 0).all()
    assert (values.diff(dim=-1) <= 0).all()
    assert float(values[0, 0]) == 0.0


def test_no_more_candidates_than_tokens():
    values, indices = top_logprobs(torch.zeros(1, 3), 8)
    assert indices.sort().values.tolist() == [[0, 1, 2]]
    torch.testing.assert_close(values.exp(), torch.full((1, 3), 1 / 3))


def test_scores_add_up_along_a_path():
    candidates = Candidates()
    assert candidates.add([ROOT], [[5, 6]], [[-0.5, -1.0]]) == range(0, 2)
    assert candidates.add([1, 0], [[7], [8]], [[-0.25], [-2.0]]) == range(2, 4)
    assert candidates.scores == [-0.5, -1.0, -1.25, -2.5]
    assert candidates.parents == [ROOT, ROOT, 1, 0]
    assert candidates.best(range(4), 3) == [0, 1, 2]
    assert candidates.tree([2, 1, 0]) == ([5, 6, 7], [-1, -1, 1])
    assert candidates.tree([2, 1]) == ([6, 7], [-1, 0])


@settings(max_examples=300, deadline=None)
@given(data=st.data(), width=st.integers(1, 4), levels=st.integers(1, 5))
def test_the_best_of_all_candidates_form_a_tree_even_with_ties(data, width, levels):
    """Certain tokens (log probability 0) tie with their parents."""
    candidates, beam = Candidates(), [ROOT]
    logprobs = st.lists(st.sampled_from([0.0, 0.0, -0.5, -1.0]), min_size=width, max_size=width)
    for _ in range(levels):
        offers = [sorted(data.draw(logprobs), reverse=True) for _ in beam]
        new = candidates.add(beam, [list(range(width)) for _ in beam], offers)
        beam = candidates.best(new, width)
        assert len(beam) == width
    chosen = candidates.best(range(len(candidates.tokens)), width * levels)
    assert len(chosen) == len(set(chosen)) == width * levels
    tokens, parents = candidates.tree(chosen)  # fails if a parent is missing
    assert all(parent < i for i, parent in enumerate(parents))
    left_out = set(range(len(candidates.tokens))) - set(chosen)
    worst = min(candidates.scores[number] for number in chosen)
    assert all(candidates.scores[number] <= worst for number in left_out)
    assert len(tokens) == len(chosen)
