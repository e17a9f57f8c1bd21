"""One decoder layer of the target: norm, token mixer, norm, MLP, each added to the residual stream."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from methods.errors import UsageError
from methods.models.attention import Attention
from methods.models.block import Block
from methods.models.delta_net import GatedDeltaNet
from methods.models.fused import FusedLinear, RMSNorm
from methods.models.passes import PassLog
from methods.models.state import LayerCache

SUPPORTED = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "qwen3_5", "qwen3_5_text", "qwen3_5_moe_text")


class Layer:
    """A transformers decoder layer run on our rollback caches, its own weights and modules inside."""

    def __init__(self, module: Any, window: int | None, index: int, passes: PassLog) -> None:
        self._index, self._passes = index, passes
        self.input_norm = RMSNorm(module.input_layernorm)
        self.post_norm = RMSNorm(module.post_attention_layernorm)
        self.mixer: Any
        if hasattr(module, "linear_attn"):
            self.mixer = GatedDeltaNet(module.linear_attn)
        else:
            self.mixer = Attention(module.self_attn, window)
        self.mlp: GatedMLP | Experts
        self.mlp = GatedMLP(module.mlp) if hasattr(module.mlp, "gate_proj") else Experts(module.mlp)

    def new_cache(self, batch: int, like: Tensor) -> LayerCache:
        return self.mixer.new_cache(batch, like)

    def matrices(self) -> list[Tensor]:
        """The weights every token is multiplied with. ``UsageError`` for a mixture of experts, which
        has a different set for each token."""
        return [*self.mixer.matrices(), *self.mlp.matrices()]

    def __call__(self, x: Tensor, block: Block, cache: LayerCache) -> Tensor:
        """Residual stream [batch, count, hidden] before the layer -> after it."""
        rows = x.reshape(-1, x.shape[-1])
        self._passes.ran(self._index, block.start, len(rows))
        rows = self.mixer(self.input_norm(rows), rows, block, cache)
        return self.mlp(self.post_norm(rows), rows).view(x.shape)


class GatedMLP:
    """down(act(gate(x)) * up(x)) with gate and up in one matrix."""

    def __init__(self, module: Any) -> None:
        self.gate_up = FusedLinear([module.gate_proj, module.up_proj])
        self.down = FusedLinear([module.down_proj])
        self.act = F.silu if isinstance(module.act_fn, nn.SiLU) else module.act_fn

    def matrices(self) -> list[Tensor]:
        return [self.gate_up.weight, self.down.weight]

    def __call__(self, x: Tensor, residual: Tensor) -> Tensor:
        """``residual`` plus the MLP of x, both [rows, hidden]."""
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down.add_to(residual, self.act(gate).mul_(up))


class Experts:
    """A mixture of experts, run by transformers' own module."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def matrices(self) -> list[Tensor]:
        raise UsageError("a mixture of experts has no fixed set of matrices per token")

    def __call__(self, x: Tensor, residual: Tensor) -> Tensor:
        """``residual`` plus the experts' output for x, both [rows, hidden]."""
        return residual + self._module(x[None])[0]


def build_layers(model: Any, config: Any, passes: PassLog) -> list[Layer]:
    """Layers of a transformers causal LM, which tell ``passes`` what they run. ``UsageError`` for a
    family whose layers differ."""
    if config.model_type not in SUPPORTED:
        raise UsageError(
            f"target family {config.model_type!r} is not supported; allowed: {', '.join(SUPPORTED)}"
        )
    return [Layer(module, _window(config, index), index, passes) for index, module in enumerate(model.layers)]


def _window(config: Any, index: int) -> int | None:
    """The sliding window of layer ``index``, or None for full attention."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return window if kinds[index] == "sliding_attention" else None
    if not getattr(config, "use_sliding_window", True):
        return None
    return window
