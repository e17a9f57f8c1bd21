"""The matrices and norms of a target, in as few operations per token as exactness allows.

At one token per pass every operation is small and finds cold caches, since the weights have just run
through them: their number counts, not their size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


class FusedLinear:
    """One ``nn.Linear``, or several over the same input as one matrix with the rows in that order.

    The modules' parameters become views of the fused matrix: the transformers model keeps working
    and no weight is stored twice.
    """

    def __init__(self, modules: Sequence[Any]) -> None:
        weights: list[Tensor] = [module.weight.data for module in modules]
        self.sizes = [weight.shape[0] for weight in weights]
        self.weight = torch.cat(weights) if len(weights) > 1 else weights[0]
        for module, part in zip(modules, self.weight.split(self.sizes), strict=True):
            module.weight.data = part
        self.bias: Tensor | None = None
        if all(getattr(module, "bias", None) is not None for module in modules):
            self.bias = torch.cat([module.bias.data for module in modules])
        self._transposed = self.weight.t()

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, in] -> [rows, sum of the modules' outputs]."""
        if self.bias is not None:
            return torch.addmm(self.bias, x, self._transposed)
        return torch.mm(x, self._transposed)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """``residual`` [rows, out] plus the product with x [rows, in]."""
        total = torch.addmm(residual, x, self._transposed)
        return total if self.bias is None else total + self.bias


class RMSNorm:
    """A transformers RMSNorm in few operations; ``1 + weight`` kinds have it folded in."""

    def __init__(self, module: Any) -> None:
        weight: Tensor = module.weight.data
        zero_centred = hasattr(module, "_norm")  # Qwen3.5 and Qwen3-Next multiply by 1 + weight
        self.weight = (1.0 + weight.float()).to(weight.dtype) if zero_centred else weight
        self.eps: float = getattr(module, "eps" if zero_centred else "variance_epsilon")
        size = weight.shape[-1]
        self._scaled = self.weight.float() * size**0.5
        self._floor = torch.tensor((size * self.eps) ** 0.5, device=weight.device)

    def __call__(self, x: Tensor) -> Tensor:
        """[..., size] -> [..., size].

        On the CPU torch composes its RMSNorm of nine operations. Here it is x / hypot(|x|, sqrt(size eps))
        times sqrt(size) weight, the same number in four.
        """
        if x.is_cuda or x.requires_grad:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        wide = x.float()
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        return torch.div(wide, torch.hypot(length, self._floor)).mul_(self._scaled).to(x.dtype)
