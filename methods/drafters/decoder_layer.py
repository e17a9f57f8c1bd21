"""The one decoder layer of every trained drafter, under autograd and at inference."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from methods.drafters.attention import attend
from methods.drafters.cache import LayerCache
from methods.errors import UsageError

KeyValues = tuple[Tensor, Tensor]
"""Keys and values, each [batch, kv_heads, length, head_dim]."""


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """Sizes and variants of a decoder layer.

    ``attention_input`` is the width q, k and v project from: ``hidden``, or ``2 * hidden`` for a
    head that reads two streams. ``gated``: q_proj has, per head, the query rows and then as many
    gate rows, and the attention output is scaled by sigmoid(gate) before o_proj.
    ``zero_centred_norm``: every RMSNorm of the layer multiplies by 1 + weight.
    """

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    attention_input: int
    qk_norm: bool = True
    gated: bool = False
    zero_centred_norm: bool = False

    def __post_init__(self) -> None:
        for name in ("hidden", "intermediate", "heads", "kv_heads", "head_dim", "eps", "attention_input"):
            value = getattr(self, name)
            if not isinstance(value, int | float if name == "eps" else int) or not 0 < value < math.inf:
                raise UsageError(f"a decoder layer cannot have {name} = {value!r}")
        if self.heads % self.kv_heads:
            raise UsageError(f"{self.heads} attention heads cannot share {self.kv_heads} key-value heads")


class RMSNorm(nn.Module):
    """Root-mean-square norm of the last dimension, times weight (Llama) or 1 + weight (Qwen3.5)."""

    def __init__(self, size: int, eps: float, zero_centred: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size) if zero_centred else torch.ones(size))
        self.eps = eps
        self.zero_centred = zero_centred

    def forward(self, x: Tensor) -> Tensor:
        if not self.zero_centred:
            # Under autocast x is half precision and the weight is not: the fused norm wants one dtype.
            return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)
        # 1 + weight would lose a half-precision weight's low bits, so it is formed in float32.
        scale = 1.0 + self.weight.float()
        return F.rms_norm(x.float(), self.weight.shape, scale, self.eps).to(x.dtype)


class MLP(nn.Module):
    """down(silu(gate(x)) * up(x)), no biases."""

    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [batch, rows, heads, head_dim] by cos and sin [(batch,) rows, rot].

    Rotates halves of the first ``rot`` dimensions; the rest passes unchanged.
    """
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    rot = cos.shape[-1]
    turned, rest = x[..., :rot], x[..., rot:]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat((-second, first), dim=-1) * sin
    return torch.cat((turned, rest), dim=-1) if rest.shape[-1] else turned


class Attention(nn.Module):
    """Grouped-query attention with optional per-head query/key norms and output gate."""

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.config = config
        heads, kv_heads, head_dim = config.heads, config.kv_heads, config.head_dim
        query_rows = heads * head_dim * (2 if config.gated else 1)
        self.q_proj = nn.Linear(config.attention_input, query_rows, bias=False)
        self.k_proj = nn.Linear(config.attention_input, kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(config.attention_input, kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(heads * head_dim, config.hidden, bias=False)
        if config.qk_norm:
            self.q_norm = RMSNorm(head_dim, config.eps, config.zero_centred_norm)
            self.k_norm = RMSNorm(head_dim, config.eps, config.zero_centred_norm)

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        mask: Tensor | None,
        past: LayerCache | KeyValues | None,
    ) -> tuple[Tensor, KeyValues]:
        query, gate = self.queries(x, cos, sin)
        key, value = self.keys_values(x, cos, sin)
        out = attend(query, *_with_past(past, key, value), mask)
        return self.output(out, gate), (key, value)

    def queries(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor | None]:
        """Rotated queries, and the output gate if any: [batch, rows, heads, head_dim] each."""
        query = self.q_proj(x).view(*x.shape[:2], self.config.heads, -1)
        gate = None
        if self.config.gated:
            query, gate = query.split(self.config.head_dim, dim=-1)
        if self.config.qk_norm:
            query = self.q_norm(query)
        return rotate(query, cos, sin), gate

    def keys_values(self, x: Tensor, cos: Tensor, sin: Tensor) -> KeyValues:
        """Rotated keys and the values of ``x``'s rows."""
        shape = (*x.shape[:2], self.config.kv_heads, self.config.head_dim)
        key, value = self.k_proj(x).view(shape), self.v_proj(x).view(shape)
        if self.config.qk_norm:
            key = self.k_norm(key)
        return rotate(key, cos, sin).transpose(1, 2), value.transpose(1, 2)

    def output(self, attended: Tensor, gate: Tensor | None) -> Tensor:
        """What attention adds to the residual [batch, rows, hidden]."""
        if gate is not None:
            attended = attended * gate.sigmoid()
        return self.o_proj(attended.flatten(2))


def _with_past(past: LayerCache | KeyValues | None, key: Tensor, value: Tensor) -> KeyValues:
    if past is None:
        return key, value
    if isinstance(past, LayerCache):
        return past.append(key, value)
    return torch.cat((past[0], key), dim=2), torch.cat((past[1], value), dim=2)


class DecoderLayer(nn.Module):
    """A pre-norm decoder layer: x += attention(norm(x)); x += mlp(norm(x))."""

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.config = config
        self.input_layernorm = RMSNorm(config.hidden, config.eps, config.zero_centred_norm)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden, config.eps, config.zero_centred_norm)
        self.mlp = MLP(config.hidden, config.intermediate)

    def forward(
        self,
        residual: Tensor,
        attention_input: Tensor | None,
        cos: Tensor,
        sin: Tensor,
        mask: Tensor | None = None,
        past: LayerCache | KeyValues | None = None,
    ) -> tuple[Tensor, KeyValues]:
        """Output [batch, rows, hidden] and the new keys and values.

        ``residual`` is [batch, rows, hidden]; ``attention_input`` [batch, rows, attention_input]
        is what q, k and v read, None for the normed residual. ``cos`` and ``sin`` are [rows, rot]
        or [batch, rows, rot]. ``mask`` as in ``attend``, over past and new keys. ``past`` is a
        cache the new rows are appended to (inference), earlier keys and values that stay part of
        the graph (training), or None.
        """
        if attention_input is None:
            attention_input = self.input_layernorm(residual)
        mixed, new = self.self_attn(attention_input, cos, sin, mask, past)
        return self.add_mlp(residual + mixed), new

    def add_mlp(self, residual: Tensor) -> Tensor:
        """The layer's second half."""
        return residual + self.mlp(self.post_attention_layernorm(residual))
