"""Gated DeltaNet (Qwen3.5's linear attention) with a state that can be rolled back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.models.qwen3_5.modeling_qwen3_5 import (
    torch_chunk_gated_delta_rule,
    torch_recurrent_gated_delta_rule,
)

from methods.models.block import Block
from methods.models.fused import FusedLinear
from methods.models.quiet import hide_fallback_hints
from methods.models.state import RecurrentCache


class GatedDeltaNet:
    """A transformers Qwen3.5 linear-attention module run on ``RecurrentCache``.

    The state after a slot is the last ``kernel - 1`` inputs of the convolution [batch, channels,
    kernel - 1] and the recurrent matrix [batch, value_heads, key_dim, value_dim] in float32.
    Final tokens run through the chunked rule; tokens that may be rolled back run level by level,
    each from its own parent's state, since no mask can separate branches in a recurrent state.
    """

    def __init__(self, module: Any) -> None:
        hide_fallback_hints()
        self.projections = FusedLinear(
            [module.in_proj_qkv, module.in_proj_z, module.in_proj_b, module.in_proj_a]
        )
        self.key_dim: int = module.key_dim
        self.value_dim: int = module.value_dim
        self.head_k_dim: int = module.head_k_dim
        self.head_v_dim: int = module.head_v_dim
        self.kernel: int = module.conv_kernel_size
        self.conv_weight: Tensor = module.conv1d.weight.data.squeeze(1)  # [channels, kernel]
        self.decay: Tensor = -module.A_log.data.float().exp()
        self.dt_bias: Tensor = module.dt_bias.data
        self.norm: Any = module.norm
        self.out = FusedLinear([module.out_proj])

    def new_cache(self, batch: int, like: Tensor) -> RecurrentCache:
        return RecurrentCache()

    def matrices(self) -> list[Tensor]:
        """The weights every token is multiplied with."""
        return [self.projections.weight, self.out.weight]

    def __call__(self, x: Tensor, residual: Tensor, block: Block, cache: RecurrentCache) -> Tensor:
        """``residual`` plus the output for x, both [batch * count, hidden]; stores the states the
        block asks for."""
        if block.real is not None:
            x = x * block.real.reshape(-1, 1)
        projected = self.projections(x).view(-1, block.count, sum(self.projections.sizes))
        mixed, z, b, a = projected.split(self.projections.sizes, -1)
        beta = b.sigmoid()
        g = self.decay * F.softplus(a.float() + self.dt_bias)
        run = self._recorded if block.record else self._final
        core = run(mixed.transpose(1, 2), g, beta, block, cache)
        gate = z.reshape(-1, self.head_v_dim)
        normed = self.norm(core.reshape(-1, self.head_v_dim), gate)
        return self.out.add_to(residual, normed.view(x.shape[0], -1))

    def _final(self, mixed: Tensor, g: Tensor, beta: Tensor, block: Block, cache: RecurrentCache) -> Tensor:
        """All tokens at once; only the state after the last slot is kept."""
        conv, recurrent = self._parent(mixed, block.start - 1, cache)
        window = torch.cat((conv, mixed), -1)
        convolved = F.silu(F.conv1d(window, self.conv_weight[:, None], groups=window.shape[1]))
        query, key, value = self._heads(convolved.transpose(1, 2))
        rule = torch_recurrent_gated_delta_rule if block.count == 1 else torch_chunk_gated_delta_rule
        core, recurrent = rule(
            query, key, value, g=g, beta=beta, initial_state=recurrent,
            output_final_state=True, use_qk_l2norm_in_kernel=True,
        )  # fmt: skip
        cache.store(block.end - 1, (window[..., window.shape[-1] - self.kernel + 1 :], recurrent))
        return core

    def _recorded(
        self, mixed: Tensor, g: Tensor, beta: Tensor, block: Block, cache: RecurrentCache
    ) -> Tensor:
        """Level by level, all nodes of a level as one batch; the state after every slot is kept."""
        core = mixed.new_empty(1, block.count, self.value_dim // self.head_v_dim, self.head_v_dim)
        for level in block.levels():
            parents = [self._parent(mixed, block.parents[offset], cache) for offset in level]
            conv = torch.cat([state[0] for state in parents])
            recurrent = torch.cat([state[1] for state in parents])
            own = mixed[0, :, level].t()[..., None]  # [nodes, channels, 1]
            window = torch.cat((conv, own), -1)
            convolved = F.silu(F.conv1d(window, self.conv_weight[:, None], groups=window.shape[1]))
            query, key, value = self._heads(convolved.transpose(1, 2))
            out, recurrent = torch_recurrent_gated_delta_rule(
                query, key, value, g=g[0, level][:, None], beta=beta[0, level][:, None],
                initial_state=recurrent, output_final_state=True, use_qk_l2norm_in_kernel=True,
            )  # fmt: skip
            core[0, level] = out[:, 0]
            for i, offset in enumerate(level):
                cache.store(block.start + offset, (window[i : i + 1, :, 1:], recurrent[i : i + 1]))
        return core

    def _parent(self, mixed: Tensor, slot: int, cache: RecurrentCache) -> tuple[Tensor, Tensor]:
        """The state after ``slot``; zeros before the first token."""
        state = cache.after(slot)
        if state is not None:
            return state[0], state[1]
        batch, channels = mixed.shape[:2]
        conv = mixed.new_zeros(batch, channels, self.kernel - 1)
        shape = (batch, self.value_dim // self.head_v_dim, self.head_k_dim, self.head_v_dim)
        return conv, torch.zeros(shape, device=mixed.device)

    def _heads(self, convolved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key [batch, count, key_heads, key_dim] and value [.., value_heads, value_dim]."""
        query, key, value = convolved.split((self.key_dim, self.key_dim, self.value_dim), -1)
        return (
            query.unflatten(-1, (-1, self.head_k_dim)),
            key.unflatten(-1, (-1, self.head_k_dim)),
            value.unflatten(-1, (-1, self.head_v_dim)),
        )
