"""What a drafter must know of its target: sizes and identity, without the weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from methods.errors import UsageError


@dataclass(frozen=True, slots=True)
class TargetShape:
    """Sizes of a target's text model and the identity of its files.

    ``sha256`` is of the weights and ``tokenizer_sha256`` of the tokenizer, "" when unknown.
    ``rotary_dim`` is the number of leading head dimensions that rotary embedding turns.
    """

    name: str
    sha256: str
    tokenizer_sha256: str
    num_layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    eps: float
    rotary_dim: int
    model_type: str

    @classmethod
    def from_config(
        cls, config: Any, name: str = "", sha256: str = "", tokenizer_sha256: str = ""
    ) -> TargetShape:
        """From a transformers configuration: Llama, Qwen3, Qwen3-MoE, Qwen3.5 and their like.

        Raises ``UsageError`` naming the field that a usable configuration lacks.
        """
        text = config.get_text_config()
        heads = _field(text, "num_attention_heads")
        hidden = _field(text, "hidden_size")
        head_dim = getattr(text, "head_dim", None) or hidden // heads
        rope = getattr(text, "rope_parameters", None) or {}
        partial = rope.get("partial_rotary_factor") or getattr(text, "partial_rotary_factor", None) or 1.0
        return cls(
            name=name or getattr(config, "_name_or_path", ""),
            sha256=sha256,
            tokenizer_sha256=tokenizer_sha256,
            num_layers=_field(text, "num_hidden_layers"),
            hidden=hidden,
            intermediate=_intermediate(text),
            heads=heads,
            kv_heads=getattr(text, "num_key_value_heads", None) or heads,
            head_dim=head_dim,
            vocab=_field(text, "vocab_size"),
            eps=_field(text, "rms_norm_eps"),
            rotary_dim=int(head_dim * partial),
            model_type=text.model_type,
        )


def _field(config: Any, name: str) -> Any:
    value = getattr(config, name, None)
    if value is None:
        raise UsageError(f"target configuration ({config.model_type}) has no {name}")
    return value


def _intermediate(config: Any) -> int:
    """The dense MLP width; a mixture of experts without one lends the width it activates."""
    if dense := getattr(config, "intermediate_size", None):
        return dense
    shared = getattr(config, "shared_expert_intermediate_size", None) or 0
    return _field(config, "moe_intermediate_size") * _field(config, "num_experts_per_tok") + shared
