"""Softmax attention of the target over the rollback cache: Llama, Qwen2/3, Qwen3.5, sliding windows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from methods.models.block import Block
from methods.models.fused import FusedLinear, RMSNorm
from methods.models.rotary import rotate
from methods.models.state import AttentionCache


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
        self.out = FusedLinear([module.o_proj])

    def new_cache(self, batch: int, like: Tensor) -> AttentionCache:
        return AttentionCache(batch, self.kv_heads, self.head_dim, like)

    def matrices(self) -> list[Tensor]:
        """The weights every token is multiplied with."""
        return [self.qkv.weight, self.out.weight]

    def __call__(self, x: Tensor, residual: Tensor, block: Block, cache: AttentionCache) -> Tensor:
        """``residual`` plus the attention of x, both [batch * count, hidden]; stores keys and values."""
        query, key, value, gate = self._project(x, block)
        cache.write(block.start, key, value)
        attended = nn.functional.scaled_dot_product_attention(
            self._folded(query),
            cache.keys.narrow(2, 0, block.end),
            cache.values.narrow(2, 0, block.end),
            attn_mask=block.mask(self.groups, self.window),
            scale=self.scale,
        )
        rows = self._unfolded(attended, block.count)
        if gate is not None:
            rows = rows * torch.sigmoid(gate)
        return self.out.add_to(residual, rows)

    def _folded(self, query: Tensor) -> Tensor:
        """[batch, count, kv_heads * groups, dim] -> [batch, kv_heads, groups * count, dim]."""
        batch, count = query.shape[:2]
        if count == 1:
            return query.view(batch, self.kv_heads, self.groups, self.head_dim)
        query = query.view(batch, count, self.kv_heads, self.groups, self.head_dim)
        return query.permute(0, 2, 3, 1, 4).reshape(batch, self.kv_heads, -1, self.head_dim)

    def _unfolded(self, attended: Tensor, count: int) -> Tensor:
        """[batch, kv_heads, groups * count, dim] -> [batch * count, kv_heads * groups * dim]."""
        if count > 1:
            attended = attended.view(-1, self.kv_heads, self.groups, count, self.head_dim)
            attended = attended.permute(0, 3, 1, 2, 4)
        return attended.reshape(-1, self.heads * self.head_dim)

    def _project(self, x: Tensor, block: Block) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Rotated query and key, value [batch, count, heads, head_dim]; the output gate
        [batch * count, heads * head_dim] if there is one."""
        projected = self.qkv(x)
        if self.q_norm is None and not self.gated:
            heads = projected.view(-1, block.count, self.heads + 2 * self.kv_heads, self.head_dim)
            turned = rotate(heads.narrow(2, 0, self.heads + self.kv_heads), block.cos, block.sin)
            query, key = turned.split((self.heads, self.kv_heads), 2)
            return query, key, heads.narrow(2, self.heads + self.kv_heads, self.kv_heads), None
        query, key, value = projected.split(self.qkv.sizes, -1)
        gate = None
        if self.gated:
            query, gate = query.view(x.shape[0], self.heads, -1).chunk(2, -1)
            gate = gate.reshape(x.shape[0], -1)
        query = query.reshape(-1, block.count, self.heads, self.head_dim)
        key = key.reshape(-1, block.count, self.kv_heads, self.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        query, key = rotate(query, block.cos, block.sin), rotate(key, block.cos, block.sin)
        return query, key, value.view(-1, block.count, self.kv_heads, self.head_dim), gate
