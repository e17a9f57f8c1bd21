"""Linear layers that read the same input, run as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class FusedLinear:
    """Several ``nn.Linear`` over one input as one matrix, rows in the order given.

    The modules' parameters become views of the fused matrix: the transformers model keeps working
    and no weight is stored twice.
    """

    def __init__(self, modules: Sequence[Any]) -> None:
        weights: list[Tensor] = [module.weight.data for module in modules]
        self.sizes = [weight.shape[0] for weight in weights]
        self.weight = torch.cat(weights)
        for module, part in zip(modules, self.weight.split(self.sizes), strict=True):
            module.weight.data = part
        self.bias: Tensor | None = None
        if all(getattr(module, "bias", None) is not None for module in modules):
            self.bias = torch.cat([module.bias.data for module in modules])

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., sum of the modules' outputs]."""
        return nn.functional.linear(x, self.weight, self.bias)


class RMSNorm:
    """A transformers RMSNorm as one fused call; ``1 + weight`` kinds have it folded in."""

    def __init__(self, module: Any) -> None:
        weight: Tensor = module.weight.data
        zero_centred = hasattr(module, "_norm")  # Qwen3.5 and Qwen3-Next multiply by 1 + weight
        self.weight = (1.0 + weight.float()).to(weight.dtype) if zero_centred else weight
        self.eps: float = getattr(module, "eps" if zero_centred else "variance_epsilon")

    def __call__(self, x: Tensor) -> Tensor:
        return nn.functional.rms_norm(x, self.weight.shape, self.weight, self.eps)
