from __future__ import annotations

import pytest
import torch
from torch import nn

from methods.training.optimizer import HeadOptimizer, Muon, OptimizerConfig, orthogonalise

CONFIG = OptimizerConfig("muon", 1e-2, 1e-3, 1e-3, warmup=0.1, decay="linear", clip=1.0)


@pytest.mark.parametrize("compute", [torch.float32, torch.bfloat16])
def test_muon_is_torchs_but_for_its_precision(compute: torch.dtype) -> None:
    start = torch.randn(24, 16, generator=torch.Generator().manual_seed(0))
    mine, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    ours = Muon([mine], lr=0.01, compute=compute)
    torchs = torch.optim.Muon([theirs], lr=0.01, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    for seed in range(3):
        gradient = torch.randn(24, 16, generator=torch.Generator().manual_seed(seed + 1))
        mine.grad, theirs.grad = gradient.clone(), gradient.clone()
        ours.step()
        torchs.step()
    moved = (mine - start).norm()
    assert (mine - theirs).norm() < 0.02 * moved


def test_orthogonalise_moves_singular_values_near_one() -> None:
    matrix = torch.randn(40, 12, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalise(matrix))
    assert values.min() > 0.5 and values.max() < 1.5


@pytest.mark.parametrize("shape", [(24, 24), (24, 64), (120, 24)])
def test_orthogonalise_is_newton_schulz_for_singular_values_over_six_decades(shape: tuple[int, int]) -> None:
    draws = torch.Generator().manual_seed(0)
    left, _, right = torch.linalg.svd(torch.randn(shape, generator=draws), full_matrices=False)
    matrix = (left * torch.logspace(0, -6, 24)) @ right
    x = matrix.double() / matrix.double().norm()
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
    assert (orthogonalise(matrix) - x).norm() < 1e-3 * x.norm()


def test_rate_rises_then_falls_to_zero() -> None:
    assert [CONFIG.factor(p) for p in (0.0, 0.05, 0.1, 0.55, 1.0)] == pytest.approx([0, 0.5, 1, 0.5, 0])


def test_frozen_head_is_left_alone_and_norms_are_clipped() -> None:
    module = nn.Module()
    module.lm_head = nn.Linear(4, 6, bias=False)
    module.body = nn.Linear(4, 4, bias=True)
    head = module.lm_head.weight.detach().clone()
    config = OptimizerConfig("adamw", 1e-2, 1e-2, 0.0, warmup=0.0, decay="linear", clip=1.0)
    optimizer = HeadOptimizer(module, config)
    module.lm_head(module.body(torch.ones(2, 4))).square().mul(1e6).sum().backward()
    assert optimizer.step(0.5) > 1.0
    assert torch.equal(module.lm_head.weight, head)
    assert module.body.weight.grad is None


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    module = nn.Linear(3, 3, bias=False)
    before = module.weight.detach().clone()
    module.weight.grad = torch.full((3, 3), float("nan"))
    HeadOptimizer(module, CONFIG).step(0.5)
    assert torch.equal(module.weight, before)
