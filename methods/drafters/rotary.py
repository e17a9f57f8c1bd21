"""Rotary tables for drafters: from the target's own module, or from a theta of the drafter's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Rotary = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Positions [rows] (int64) to cos and sin, each [rows, rotary_dim]."""


def rotary_from_theta(theta: float, rotary_dim: int, dtype: torch.dtype = torch.float32) -> Rotary:
    """Plain rotary embedding with frequencies theta^(-2i / rotary_dim), computed in float32."""
    frequencies = theta ** -(torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim)

    def rotary(positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions[:, None].float() * frequencies.to(positions.device)
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(dtype), angles.sin().to(dtype)

    return rotary


def rotary_from_target(module: Any, dtype: torch.dtype) -> Rotary:
    """The rotary embedding of a transformers model (its ``rotary_emb``), scaling rules included."""

    def rotary(positions: Tensor) -> tuple[Tensor, Tensor]:
        like = torch.empty(0, dtype=dtype, device=positions.device)
        cos, sin = module(like, positions[None])
        return cos[0], sin[0]

    return rotary
