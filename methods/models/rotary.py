"""Rotary position embedding of the target, as a table over positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from methods.errors import UsageError

_LENGTH_DEPENDENT = ("dynamic", "longrope")


class Rotary:
    """cos / sin rows [positions, rotary_dim], computed by the model's own module and kept.

    Raises ``UsageError`` for RoPE types whose angles depend on the length of the sequence: a
    cached key would then be wrong as soon as the sequence grows.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
        kind = getattr(module, "rope_type", "default")
        if kind in _LENGTH_DEPENDENT:
            raise UsageError(f"RoPE type {kind!r} depends on the sequence length and is not supported")
        self._module = module
        self._like = torch.empty(1, dtype=dtype, device=device)
        self._cos = torch.empty(0, 0, dtype=dtype, device=device)
        self._sin = self._cos

    @property
    def dim(self) -> int:
        """How many dimensions of each head are rotated."""
        self._reserve(1)
        return self._cos.shape[-1]

    def rows(self, start: int, count: int) -> tuple[Tensor, Tensor]:
        """cos and sin [count, rotary_dim] of consecutive positions."""
        self._reserve(start + count)
        return self._cos[start : start + count], self._sin[start : start + count]

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [..., rotary_dim] of any positions [...]."""
        self._reserve(int(positions.max()) + 1)
        return self._cos[positions], self._sin[positions]

    def _reserve(self, length: int) -> None:
        if length <= self._cos.shape[0]:
            return
        length = max(1024, 1 << (length - 1).bit_length())
        # Made in a decode call, the table may be used in training later: no inference tensors.
        with torch.inference_mode(False), torch.no_grad():
            positions = torch.arange(length, device=self._like.device)[None]
            cos, sin = self._module(self._like, position_ids=positions)
            # Readers in other threads go by the length of cos: it comes last.
            self._sin = sin[0].contiguous()
            self._cos = cos[0].contiguous()


def signed(sin: Tensor) -> Tensor:
    """``sin`` [..., rotary_dim] with its first half negated, as ``rotate`` takes it."""
    first, second = sin.chunk(2, -1)
    return torch.cat((-first, second), -1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first ``rotary_dim`` dimensions of x [..., heads, head_dim], pass the rest.

    ``cos`` and ``signed`` sin are [..., 1, rotary_dim]; the halves are rotated as in transformers'
    Llama, the minus sign of the second one moved into the table.
    """
    dim = cos.shape[-1]
    if dim < x.shape[-1]:
        return torch.cat((rotate(x[..., :dim], cos, sin), x[..., dim:]), -1)
    return torch.addcmul(x * cos, x.roll(dim // 2, -1), sin)
