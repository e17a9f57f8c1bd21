"""The two published decoder-layer layouts of drafters that follow their target's own sizes."""

from __future__ import annotations

from typing import Literal

from methods.drafters.decoder_layer import LayerConfig
from methods.models.shape import TargetShape

Layout = Literal["A", "B"]


def default_layout(shape: TargetShape) -> Layout:
    """B (gated attention, 1 + weight norms) for Qwen3.5 targets, A for all others."""
    return "B" if shape.model_type.startswith("qwen3_5") else "A"


def layer_config(
    shape: TargetShape,
    layout: Layout = "A",
    intermediate: int | None = None,
    streams: int = 1,
    qk_norm: bool = True,
) -> LayerConfig:
    """The decoder layer that published drafters build on the target's sizes; its attention reads
    ``streams`` hidden states side by side."""
    return LayerConfig(
        hidden=shape.hidden,
        intermediate=intermediate or shape.intermediate,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        eps=shape.eps,
        attention_input=streams * shape.hidden,
        qk_norm=qk_norm,
        gated=layout == "B",
        zero_centred_norm=layout == "B",
    )
