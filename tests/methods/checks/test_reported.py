"""The score of reported laws: small for true draws, whatever their sharpness, and large for wrong ones."""

import pytest
import torch

from harness.checks.reported import largest_score


def drawn(laws: torch.Tensor, reported: torch.Tensor, seed: int) -> list:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.multinomial(laws, 1, generator=generator)[:, 0].tolist()
    return list(zip(tokens, reported.double(), strict=True))


@pytest.mark.parametrize("sharpness", [0.0, 1.0, 4.0, 20.0, 1000.0])
def test_true_draws_score_low(sharpness):
    generator = torch.Generator().manual_seed(1)
    laws = (sharpness * torch.randn(250, 8, generator=generator)).softmax(-1)
    scores = [largest_score(drawn(laws, laws, seed)) for seed in range(20)]
    assert max(scores) < 4  # also says that none is NaN


@pytest.mark.parametrize("sharpness", [2.0, 4.0])
def test_draws_from_another_law_score_high(sharpness):
    generator = torch.Generator().manual_seed(1)
    logits = sharpness * torch.randn(250, 8, generator=generator)
    assert largest_score(drawn(logits.softmax(-1), (logits / 2).softmax(-1), 3)) > 4
