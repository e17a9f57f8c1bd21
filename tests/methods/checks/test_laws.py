"""What a sample of a given size can tell."""

from __future__ import annotations

import pytest
import torch

from methods.testing.laws import SMALLEST_P, chi_square, visible


@pytest.mark.parametrize("draws", [240, 4000])
def test_a_law_as_far_off_as_is_visible_fails_and_a_nearer_one_needs_more_draws(draws):
    law = torch.full((8,), 1 / 8, dtype=torch.float64)
    off = visible(law, draws)
    other = law + off / 4 * torch.tensor([1, -1] * 4)
    generator = torch.Generator().manual_seed(0)
    samples = torch.multinomial(other.repeat(300, 1), draws, True, generator=generator)
    failed = [chi_square(torch.bincount(sample, minlength=8), law) <= SMALLEST_P for sample in samples]
    assert sum(failed) >= 298
    assert visible(law, 4 * draws) == pytest.approx(off / 2, rel=1e-3)


def test_a_law_of_rare_cells_alone_shows_nothing():
    assert visible(torch.full((125,), 1 / 125, dtype=torch.float64), 4) == 1
