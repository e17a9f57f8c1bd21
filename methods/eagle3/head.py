"""The EAGLE-3 draft head as published (arXiv 2503.01840), with the variants in circulation.

Slot t pairs the target's features at position t with the embedding of token t + 1, sits at rotary
position t and predicts token t + 2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from methods.drafters.cache import LayerCache
from methods.drafters.decoder_layer import DecoderLayer, KeyValues, LayerConfig, RMSNorm
from methods.drafters.rotary import Rotary, rotary_from_target
from methods.drafters.vocabulary import DraftVocabulary
from methods.errors import UsageError


def default_taps(num_layers: int) -> tuple[int, int, int]:
    """Residual-stream indices low, middle, high: 2, L // 2 and L - 3, clipped for tiny targets."""
    low, middle, high = 2, num_layers // 2, num_layers - 3
    return min(low, num_layers - 1), middle, max(high, middle)


@dataclass(frozen=True, slots=True)
class Eagle3Config:
    """What defines a head besides its weights.

    ``taps`` are residual-stream indices (0 = embedding, k = output of layer k - 1) in the order of
    concatenation. ``layer.attention_input`` is twice ``layer.hidden``. ``rope`` is a transformers
    rope_parameters dictionary. Variants: ``norm_before_residual``, the residual is the normed
    feature; ``norm_before_fc``, one norm over all target features; ``fc_norm``, one per feature
    (EAGLE-3.1); ``norm_output``, the normed output is fed back and goes to the head (EAGLE-3.1).
    ``own_embedding``: the head has its own token embedding instead of the target's.
    ``tied_head``: the rows over the vocabulary are the target's own; they are neither trained nor stored.
    """

    layer: LayerConfig
    target_hidden: int
    taps: tuple[int, int, int]
    rope: Mapping[str, Any]
    window: int | None = None
    fc_bias: bool = False
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    own_embedding: bool = False
    tied_head: bool = False

    def __post_init__(self) -> None:
        if self.layer.hidden != self.target_hidden and not self.own_embedding:
            raise UsageError(
                f"EAGLE-3 head of hidden size {self.layer.hidden} on a target of {self.target_hidden} "
                "needs an embed_tokens of its own"
            )


def rotary_for(config: Eagle3Config, dtype: torch.dtype) -> Rotary:
    """The head's own rotary embedding: its theta often differs from the target's."""
    layer = config.layer
    llama = LlamaConfig(
        hidden_size=layer.hidden,
        num_attention_heads=layer.heads,
        head_dim=layer.head_dim,
        rope_parameters=dict(config.rope),
    )
    return rotary_from_target(LlamaRotaryEmbedding(llama), dtype)


class Eagle3Layer(DecoderLayer):
    """The decoder layer whose attention reads norm(embedding) | norm(feature)."""

    def __init__(self, config: LayerConfig, norm_before_residual: bool) -> None:
        super().__init__(config)
        self.hidden_norm = RMSNorm(config.hidden, config.eps)
        self.norm_before_residual = norm_before_residual

    def mix(
        self,
        feature: Tensor,
        embedding: Tensor,
        cos: Tensor,
        sin: Tensor,
        mask: Tensor | None,
        past: LayerCache | KeyValues | None,
    ) -> tuple[Tensor, KeyValues]:
        """Layer output and new keys and values for both inputs [batch, rows, hidden]."""
        normed = self.hidden_norm(feature)
        both = torch.cat((self.input_layernorm(embedding), normed), dim=-1)
        residual = normed if self.norm_before_residual else feature
        return self(residual, both, cos, sin, mask, past)


class Eagle3Head(nn.Module):
    """fc over three target features, one ``Eagle3Layer``, final norm and a draft-vocabulary head.

    ``embed`` maps target ids to the target's token embeddings; unused with an embedding of the
    head's own.
    """

    def __init__(
        self,
        config: Eagle3Config,
        vocabulary: DraftVocabulary,
        embed: Callable[[Tensor], Tensor],
        rotary: Rotary,
    ) -> None:
        super().__init__()
        hidden, eps = config.layer.hidden, config.layer.eps
        self.config = config
        self.vocabulary = vocabulary
        self.rotary = rotary
        # In a tuple, or an embedding that is a module would join the parameters.
        self._frozen = (embed,)
        if config.norm_before_fc:
            self.input_norm = RMSNorm(3 * config.target_hidden, eps)
        if config.fc_norm:
            self.fc_norm = nn.ModuleList(RMSNorm(config.target_hidden, eps) for _ in range(3))
        self.fc = nn.Linear(3 * config.target_hidden, hidden, bias=config.fc_bias)
        self.midlayer = Eagle3Layer(config.layer, config.norm_before_residual)
        self.norm = RMSNorm(hidden, eps)
        self.lm_head = nn.Linear(hidden, vocabulary.size, bias=False)
        if config.own_embedding:
            self.embed_tokens = nn.Embedding(vocabulary.target_vocab, hidden)

    def embed(self, ids: Tensor) -> Tensor:
        """Embeddings [..., hidden] of target ids."""
        return self.embed_tokens(ids) if self.config.own_embedding else self._frozen[0](ids)

    def fuse(self, features: Tensor) -> Tensor:
        """The layer's feature input [..., hidden] from target taps [..., 3 * target_hidden]."""
        if self.config.norm_before_fc:
            features = self.input_norm(features)
        if self.config.fc_norm:
            chunks = features.chunk(3, dim=-1)
            features = torch.cat([n(c) for n, c in zip(self.fc_norm, chunks, strict=True)], dim=-1)
        return self.fc(features)

    def slots(
        self,
        feature: Tensor,
        next_ids: Tensor,
        positions: Tensor,
        mask: Tensor | None = None,
        past: LayerCache | KeyValues | None = None,
    ) -> tuple[Tensor, KeyValues]:
        """Outputs [batch, rows, hidden] to feed back, and the new keys and values.

        ``feature`` [batch, rows, hidden] is ``fuse``'s result or an earlier output; ``next_ids``
        [batch, rows] are the tokens after each slot's position; ``positions`` [rows].
        """
        cos, sin = self.rotary(positions)
        out, new = self.midlayer.mix(feature, self.embed(next_ids), cos, sin, mask, past)
        return (self.norm(out) if self.config.norm_output else out), new

    def logits(self, out: Tensor) -> Tensor:
        """Draft logits [..., draft_vocab] of ``slots``' outputs."""
        return self.lm_head(out if self.config.norm_output else self.norm(out))
