"""The two published decoder-layer layouts of drafters that follow their target's own sizes."""

from __future__ import annotations

from typing import Literal

from methods.drafting.decoder_layer import LayerConfig
from methods.target.shape import TargetShape

Layout = Literal["A", "B"]


def default_layout(shape: TargetShape) -> Layout:
    """B (gated attention, 1 + weight norms) for Qwen3.5 targets, A for all others."""
    return "B" if shape.model_type.startswith("qwen3_5") else "A"


def layer_config(shape: TargetShape, layout: Layout, intermediate: int | None = None) -> LayerConfig:
    """The decoder layer both published layouts build on the target's sizes."""
    return LayerConfig(
        hidden=shape.hidden,
        intermediate=intermediate or shape.intermediate,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        eps=shape.eps,
        attention_input=shape.hidden,
        gated=layout == "B",
        zero_centred_norm=layout == "B",
    )
