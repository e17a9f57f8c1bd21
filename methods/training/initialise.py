"""Starting a drafter's layers from the target's own, and not from noise."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from methods.drafters.decoder_layer import LayerConfig, RMSNorm
from methods.models.target import Target


def as_in_target(config: LayerConfig, target: Target) -> LayerConfig:
    """``config`` with query and key norms only where the target's attention has them: a norm it
    lacks would change what the copied projections compute."""
    mixers = [getattr(layer, "self_attn", None) for layer in target.hf.model.layers]
    attention = [mixer for mixer in mixers if mixer is not None]
    return dataclasses.replace(config, qk_norm=any(hasattr(mixer, "q_norm") for mixer in attention))


@torch.no_grad()
def set_norm(norm: RMSNorm | nn.Module, weight: Tensor) -> None:
    """Copy the factors [hidden] a norm multiplies by, in the norm's own convention."""
    assert isinstance(norm, RMSNorm)
    norm.weight.copy_(weight.float() - 1.0 if norm.zero_centred else weight)
