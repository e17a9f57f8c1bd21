"""Softmax attention of the target over the rollback cache: Llama, Qwen2/3, Qwen3.5, sliding windows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from methods.target.block import Block
from methods.target.fused import FusedLinear, RMSNorm
from methods.target.rotary import rotate
from methods.target.state import AttentionCache


class Attention:
    """A transformers attention module run on ``AttentionCache``.

    Query heads that share a key head are folded into rows, so that the cache is never repeated.
    """

    def __init__(self, module: Any, window: int | None) -> None:
        config = module.config
        self.head_dim: int = module.head_dim
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.groups = self.heads // self.kv_heads
        self.scale: float = module.scaling
        self.window = window
        self.gated = module.q_proj.weight.shape[0] == 2 * self.heads * self.head_dim
        self.qkv = FusedLinear([module.q_proj, module.k_proj, module.v_proj])
        self.q_norm = RMSNorm(module.q_norm) if hasattr(module, "q_norm") else None
        self.k_norm = RMSNorm(module.k_norm) if hasattr(module, "k_norm") else None
        self.out: nn.Module = module.o_proj

    def new_cache(self, batch: int, like: Tensor) -> AttentionCache:
        return AttentionCache(batch, self.kv_heads, self.head_dim, like)

    def __call__(self, x: Tensor, block: Block, cache: AttentionCache) -> Tensor:
        """[batch, count, hidden] -> [batch, count, hidden]; stores the block's keys and values."""
        batch, count, _ = x.shape
        query, key, value, gate = self._project(x, block)
        cache.keys[:, :, block.start : block.end] = key.transpose(1, 2)
        cache.values[:, :, block.start : block.end] = value.transpose(1, 2)
        # [batch, count, kv_heads * groups, dim] -> [batch, kv_heads, groups * count, dim]
        folded = query.view(batch, count, self.kv_heads, self.groups, self.head_dim)
        folded = folded.permute(0, 2, 3, 1, 4).reshape(batch, self.kv_heads, -1, self.head_dim)
        attended = nn.functional.scaled_dot_product_attention(
            folded,
            cache.keys[:, :, : block.end],
            cache.values[:, :, : block.end],
            attn_mask=block.mask(self.groups, self.window),
            scale=self.scale,
        )
        attended = attended.view(batch, self.kv_heads, self.groups, count, self.head_dim)
        attended = attended.permute(0, 3, 1, 2, 4).reshape(batch, count, -1)
        if gate is not None:
            attended = attended * torch.sigmoid(gate)
        return self.out(attended)

    def _project(self, x: Tensor, block: Block) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Rotated query and key, value [batch, count, heads, head_dim], and the output gate if any."""
        batch, count, _ = x.shape
        projected = self.qkv(x)
        if self.q_norm is None and not self.gated:
            heads = projected.view(batch, count, -1, self.head_dim)
            rotated = rotate(heads[:, :, : self.heads + self.kv_heads], block.cos, block.sin)
            value = heads[:, :, -self.kv_heads :]
            return rotated[:, :, : self.heads], rotated[:, :, self.heads :], value, None
        query, key, value = projected.split(self.qkv.sizes, -1)
        gate = None
        if self.gated:
            query, gate = query.reshape(batch, count, self.heads, -1).chunk(2, -1)
            gate = gate.reshape(batch, count, -1)
        query = query.reshape(batch, count, self.heads, self.head_dim)
        key = key.reshape(batch, count, self.kv_heads, self.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        query, key = rotate(query, block.cos, block.sin), rotate(key, block.cos, block.sin)
        return query, key, value.reshape(batch, count, self.kv_heads, self.head_dim), gate
