"""Muon for matrices, AdamW for the rest, and the learning rate as a function of progress."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

_NS_STEPS = 5
_NS_COEFFICIENTS = (3.4445, -4.775, 2.0315)
_MOMENTUM = 0.95

_LONG = 1.5
"""Columns per row from which Newton-Schulz on the Gram matrix is the cheaper way."""


@dataclass(frozen=True, slots=True)
class OptimizerConfig:
    """``kind`` "muon": matrices by Muon at ``lr``, vectors by AdamW at ``vector_lr``, the head over the
    vocabulary by AdamW at ``head_lr`` (0: left as it is). "adamw": everything at ``lr``. Parameters
    that need no gradient, such as a head that is the target's own, stay as they are.

    The rate rises over the first ``warmup`` share of the token budget, then falls to zero.
    """

    kind: Literal["muon", "adamw"]
    lr: float
    vector_lr: float
    head_lr: float
    warmup: float
    decay: Literal["linear", "cosine"]
    clip: float
    betas: tuple[float, float] = (0.9, 0.95)

    def factor(self, progress: float) -> float:
        """The multiple of the peak rate at ``progress`` in [0, 1] of the budget."""
        if progress < self.warmup:
            return progress / self.warmup
        left = min(1.0, (1.0 - progress) / max(1e-9, 1.0 - self.warmup))
        return max(0.0, left) if self.decay == "linear" else 0.5 - 0.5 * math.cos(math.pi * max(0.0, left))


class Muon(torch.optim.Optimizer):
    """``torch.optim.Muon`` (adjust_lr_fn="match_rms_adamw", no weight decay), orthogonalising in ``compute``.

    torch's orthogonalisation always runs in bfloat16, which is 12 to 50 times slower than float32
    on processors without a bfloat16 matrix product.
    """

    def __init__(self, params: Iterable[Tensor], lr: float, compute: torch.dtype = torch.float32) -> None:
        super().__init__(params, {"lr": lr})
        self._compute = compute

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(parameter.grad)
                buffer = state["momentum_buffer"]
                buffer.lerp_(parameter.grad, 1 - _MOMENTUM)
                update = orthogonalise(parameter.grad.lerp(buffer, _MOMENTUM).to(self._compute))
                # Each entry of the update then has the size AdamW's would have at the same rate.
                parameter.add_(update, alpha=-group["lr"] * 0.2 * math.sqrt(max(parameter.shape)))


def orthogonalise(matrix: Tensor) -> Tensor:
    """``matrix`` [rows, columns] with its singular values moved near 1 (Newton-Schulz)."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.mT if tall else matrix
    x = x / x.norm().clamp(min=1e-7)
    # In bfloat16 the Gram matrix's own rounding, multiplied by a^2 per step, would swamp small values.
    by_gram = x.dtype == torch.float32 and x.shape[1] >= _LONG * x.shape[0]
    x = _iterate_gram(x) if by_gram else _iterate(x)
    return x.mT if tall else x


def _iterate(x: Tensor) -> Tensor:
    a, b, c = _NS_COEFFICIENTS
    for _ in range(_NS_STEPS):
        gram = x @ x.mT
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def _iterate_gram(x: Tensor) -> Tensor:
    """The same on x's Gram matrix: every step is p(gram) @ x and all p(gram) commute, so the long side
    takes part in two products instead of two per step."""

    def polynomial() -> Tensor:
        a, b, c = _NS_COEFFICIENTS
        value = torch.addmm(gram, gram, gram, beta=b, alpha=c)
        value.diagonal().add_(a)
        return value

    gram = x @ x.mT
    product = step = polynomial()
    for _ in range(_NS_STEPS - 1):
        gram = step @ gram @ step
        step = polynomial()
        product = step @ product
    return product @ x


class HeadOptimizer:
    """The optimisers of one head's parameters. Gradients are scaled, clipped and used by ``step``."""

    def __init__(
        self, module: nn.Module, config: OptimizerConfig, compute: torch.dtype = torch.float32
    ) -> None:
        self.config = config
        groups: dict[str, list[nn.Parameter]] = {"matrix": [], "vector": [], "head": []}
        for name, parameter in module.named_parameters():
            kind = "head" if name == "lm_head.weight" else "matrix" if parameter.dim() == 2 else "vector"
            if kind == "head" and config.head_lr == 0:
                parameter.requires_grad_(False)
            if parameter.requires_grad:
                groups[kind].append(parameter)
        rates = {"matrix": config.lr, "vector": config.vector_lr, "head": config.head_lr}
        self._parts: list[torch.optim.Optimizer] = []
        by_adam = ["vector", "head"] if config.kind == "muon" else list(groups)
        if config.kind == "muon":
            self._parts.append(Muon(groups["matrix"], config.lr, compute))
        adam = [{"params": groups[kind], "lr": rates[kind]} for kind in by_adam if groups[kind]]
        if adam:
            self._parts.append(torch.optim.AdamW(adam, betas=config.betas, weight_decay=0.0))
        self._peaks = [[group["lr"] for group in part.param_groups] for part in self._parts]
        self.parameters = [p for kind in groups.values() for p in kind]

    def step(self, progress: float) -> float:
        """One update at ``progress`` of the budget; returns the gradient norm before clipping."""
        norm = float(nn.utils.clip_grad_norm_(self.parameters, self.config.clip))
        if math.isfinite(norm):
            factor = self.config.factor(progress)
            for part, peaks in zip(self._parts, self._peaks, strict=True):
                for group, peak in zip(part.param_groups, peaks, strict=True):
                    group["lr"] = peak * factor
                part.step()
        for parameter in self.parameters:
            parameter.grad = None
        return norm

    def state_dict(self) -> list[dict[str, Any]]:
        return [part.state_dict() for part in self._parts]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        for part, state in zip(self._parts, states, strict=True):
            part.load_state_dict(state)
