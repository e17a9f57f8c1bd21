"""Small random targets of every supported family: for checks and tests, in memory and in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from methods.errors import UsageError
from methods.models.parts import Part
from methods.models.target import Target

FAMILIES = ("llama", "qwen3", "hybrid", "moe", "sliding")
"""hybrid: Qwen3.5 (Gated DeltaNet and full attention); moe: Qwen3-MoE; sliding: Mistral, window 8."""


def tiny_target(
    family: str,
    layers: int = 8,
    vocab: int = 64,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    sharpness: float = 1.0,
) -> Target:
    """A randomly initialised target with ``layers`` layers.

    ``sharpness`` scales the head so that greedy choices are no near-ties and T = 1 is not flat.
    """
    model = tiny_model(family, layers, vocab, seed, sharpness)
    source = TinySource(family, layers, vocab, seed, dtype, sharpness)
    return Target(model.to(dtype), name=f"tiny-{family}", source=source)


def tiny_model(family: str, layers: int = 8, vocab: int = 64, seed: int = 0, sharpness: float = 1.0) -> Any:
    """The transformers model of ``tiny_target``, in float32; ``UsageError`` for an unknown family."""
    if family not in FAMILIES:
        raise UsageError(f"unknown tiny family {family!r}; allowed: {', '.join(FAMILIES)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _model(family, layers, vocab)
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.data.add_(0.1 * torch.randn_like(parameter))
        if family != "hybrid":
            # Small embeddings let the layers decide; the delta rule would amplify rounding then.
            model.model.embed_tokens.weight.data.mul_(0.2)
        model.lm_head.weight.data.mul_(sharpness)
    model.generation_config.eos_token_id = None
    return model


@dataclass(frozen=True)
class TinySource:
    """A tiny target by what it is built from: any process builds the same."""

    family: str
    layers: int
    vocab: int
    seed: int
    dtype: torch.dtype
    sharpness: float

    def load(self, part: Part, device: torch.device) -> Target:
        """The whole target, whatever ``part``: it is smaller than the bookkeeping would be."""
        return tiny_target(self.family, self.layers, self.vocab, self.seed, self.dtype, self.sharpness)


def _model(family: str, layers: int, vocab: int) -> Any:
    import transformers as hf  # which imports a family when its name is first used

    common: dict[str, Any] = {
        "vocab_size": vocab,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 1024,
        "initializer_range": 0.07 if family == "hybrid" else 0.2,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    if family == "llama":
        return hf.LlamaForCausalLM(hf.LlamaConfig(**common))
    if family == "sliding":
        return hf.MistralForCausalLM(hf.MistralConfig(**common, sliding_window=8))
    if family == "qwen3":
        return hf.Qwen3ForCausalLM(hf.Qwen3Config(**common))
    if family == "moe":
        return hf.Qwen3MoeForCausalLM(hf.Qwen3MoeConfig(**common, **_MOE))
    kinds = ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(layers)]
    return hf.Qwen3_5ForCausalLM(hf.Qwen3_5TextConfig(**common, **_HYBRID, layer_types=kinds))


_MOE: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "norm_topk_prob": True,
}
_HYBRID: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": {
        "rope_theta": 10000.0,
        "rope_type": "default",
        "partial_rotary_factor": 0.5,
        "mrope_section": [1, 1, 0],
    },
}
