"""The SPD authors' file format and what such a draft module computes.

Written from the published description without the package's own modules, so that the importer and
everything behind it have something independent to agree with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from methods.models.shape import TargetShape

Content = dict[str, Any]


def contents(
    shape: TargetShape,
    layout: str,
    *,
    n: int,
    anchors: Sequence[int],
    draft_ids: Sequence[int],
    draft_layers: int = 2,
    intermediate: int = 40,
    std: float = 0.2,
) -> Content:
    """What a file of version 11 holds, with random weights in bfloat16 for a target of ``shape``.

    Layout A: q_proj has the query rows alone and the norms multiply by weights near 1. Layout B:
    per head as many gate rows follow the query's, and the norms multiply by 1 + weight, near 0.
    """
    h, rows, kv = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        f"aggr_projs.{i}.weight": (h, (i + 1) * h) for i in range(len(anchors))
    }
    for j in range(draft_layers):
        layer = {
            "input_layernorm": (h,),
            "post_attention_layernorm": (h,),
            "self_attn.q_proj": ((2 if layout == "B" else 1) * rows, h),
            "self_attn.k_proj": (kv, h),
            "self_attn.v_proj": (kv, h),
            "self_attn.o_proj": (h, rows),
            "self_attn.q_norm": (shape.head_dim,),
            "self_attn.k_norm": (shape.head_dim,),
            "mlp.gate_proj": (intermediate, h),
            "mlp.up_proj": (intermediate, h),
            "mlp.down_proj": (h, intermediate),
        }
        shapes |= {f"spec_layers.{j}.{name}.weight": size for name, size in layer.items()}
    shapes["lm_head.weight"] = (len(draft_ids), h)
    generator = torch.Generator().manual_seed(5)
    tensors = {name: torch.randn(size, generator=generator) * std for name, size in shapes.items()}
    if layout == "A":
        tensors |= {name: 1 + value for name, value in tensors.items() if "norm" in name}
    return {
        "state_dict": {name: value.bfloat16() for name, value in tensors.items()},
        "config": {
            "version": 11,
            "hidden_size": h,
            "vocab_size": shape.vocab,
            "draft_vocab_size": len(draft_ids),
            "num_stages": n,
            "num_spec_layers": draft_layers,
            "num_aggr_types": len(anchors),
            "aggr_feature_bound": list(anchors),
            "trained_with_use_deepest": True,
            "base_model_path": "/somewhere/else",
            "draft_token_ids": list(draft_ids),
        },
    }


def draft_logits(
    content: Content,
    shape: TargetShape,
    final_norm: Tensor,
    rope_theta: float,
    features: Tensor,
    depths: Sequence[int],
) -> Tensor:
    """Draft logits [draft_vocab] behind the last position, in float64: one plain causal pass.

    ``features`` [positions, anchors, hidden] are the residual stream at the file's anchors and
    ``depths`` the stages each position has completed; what a position has not reached is not read.
    ``final_norm`` [hidden] is what the target's final norm multiplies by.
    """
    weights = {name: value.double() for name, value in content["state_dict"].items()}
    config = content["config"]
    stage = shape.num_layers // config["num_stages"]
    rows = []
    for feature, depth in zip(features.double(), depths, strict=True):
        kind = max(i for i, anchor in enumerate(config["aggr_feature_bound"]) if anchor <= depth * stage)
        rows.append(weights[f"aggr_projs.{kind}.weight"] @ feature[: kind + 1].flatten())
    x = torch.stack(rows)
    for j in range(config["num_spec_layers"]):
        x = _layer(
            x,
            {k.split(".", 2)[2]: v for k, v in weights.items() if k.startswith(f"spec_layers.{j}.")},
            shape,
            rope_theta,
        )
    return weights["lm_head.weight"] @ (_unit(x[-1], shape.eps) * final_norm.double())


def _layer(x: Tensor, w: dict[str, Tensor], shape: TargetShape, rope_theta: float) -> Tensor:
    count, heads, kv_heads, size = len(x), shape.heads, shape.kv_heads, shape.head_dim
    gated = w["self_attn.q_proj.weight"].shape[0] == 2 * heads * size

    def norm(values: Tensor, name: str) -> Tensor:
        return _unit(values, shape.eps) * (w[f"{name}.weight"] + (1 if gated else 0))

    def rotated(values: Tensor) -> Tensor:
        dim = shape.rotary_dim
        angle = torch.arange(count)[:, None] / rope_theta ** (torch.arange(0, dim, 2).double() / dim)
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        a, b, rest = values.split([dim // 2, dim // 2, size - dim], -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)

    normed = norm(x, "input_layernorm")
    query = (normed @ w["self_attn.q_proj.weight"].T).view(count, heads, -1)
    query, gate = query[..., :size], query[..., size:]
    key = (normed @ w["self_attn.k_proj.weight"].T).view(count, kv_heads, size)
    value = (normed @ w["self_attn.v_proj.weight"].T).view(count, kv_heads, size)
    query, key = rotated(norm(query, "self_attn.q_norm")), rotated(norm(key, "self_attn.k_norm"))
    key, value = (part.repeat_interleave(heads // kv_heads, 1) for part in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query, key) / size**0.5
    scores = scores.masked_fill(torch.ones(count, count).triu(1).bool(), -torch.inf)
    out = torch.einsum("hqk,khd->qhd", scores.softmax(-1), value)
    if gated:
        out = out * gate.sigmoid()
    x = x + out.flatten(1) @ w["self_attn.o_proj.weight"].T
    normed = norm(x, "post_attention_layernorm")
    up = torch.nn.functional.silu(normed @ w["mlp.gate_proj.weight"].T) * (normed @ w["mlp.up_proj.weight"].T)
    return x + up @ w["mlp.down_proj.weight"].T


def _unit(x: Tensor, eps: float) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt()
