import dataclasses

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RotaryEmbedding
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer, Qwen3_5TextRotaryEmbedding

from methods.drafters.attention import attend, causal_mask
from methods.drafters.cache import LayerCache
from methods.drafters.decoder_layer import DecoderLayer, LayerConfig
from methods.drafters.rotary import rotary_from_target, rotary_from_theta

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 64,
}
LAYER = LayerConfig(
    hidden=32, intermediate=48, heads=4, kv_heads=2, head_dim=16, eps=1e-6, attention_input=32
)


def randomise(module: nn.Module) -> None:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)


def layer_pair(family: str) -> tuple[DecoderLayer, nn.Module, nn.Module]:
    """Our layer, transformers' layer with the same weights, and its rotary module."""
    common = {"hidden": 32, "intermediate": 48, "heads": 4, "kv_heads": 2, "head_dim": 16}
    if family == "llama":
        config = LlamaConfig(**SIZES)
        theirs, rope = LlamaDecoderLayer(config, 0), LlamaRotaryEmbedding(config)
        ours = LayerConfig(**common, eps=config.rms_norm_eps, attention_input=32, qk_norm=False)
    elif family == "qwen3":
        config = Qwen3Config(**SIZES)
        theirs, rope = Qwen3DecoderLayer(config, 0), Qwen3RotaryEmbedding(config)
        ours = LayerConfig(**common, eps=config.rms_norm_eps, attention_input=32)
    else:
        rope_parameters = {
            "rope_type": "default",
            "rope_theta": 1e4,
            "partial_rotary_factor": 0.5,
            "mrope_section": [2, 1, 1],
        }
        config = Qwen3_5TextConfig(
            **SIZES, layer_types=["full_attention"] * 4, rope_parameters=rope_parameters
        )
        theirs, rope = Qwen3_5DecoderLayer(config, 0), Qwen3_5TextRotaryEmbedding(config)
        ours = LayerConfig(
            **common, eps=config.rms_norm_eps, attention_input=32, gated=True, zero_centred_norm=True
        )
    config._attn_implementation = "eager"
    randomise(theirs)
    layer = DecoderLayer(ours)
    layer.load_state_dict(theirs.state_dict())
    return layer, theirs, rope


@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3_5"])
@pytest.mark.parametrize("rows", [7, 70])
def test_equals_the_transformers_layer_of_the_same_weights(family, rows):
    layer, theirs, rope = layer_pair(family)
    x = torch.randn(2, rows, 32, generator=torch.Generator().manual_seed(2))
    positions = torch.arange(3, 3 + rows)
    causal = torch.zeros(rows, rows).masked_fill(~causal_mask(rows, rows), torch.finfo(torch.float32).min)
    with torch.no_grad():
        expected = theirs(
            x, attention_mask=causal[None, None], position_embeddings=rope(x, positions.expand(2, -1))
        )
        expected = expected[0] if isinstance(expected, tuple) else expected
        cos, sin = rotary_from_target(rope, torch.float32)(positions)
        got, (keys, values) = layer(x, None, cos, sin)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    assert keys.shape == values.shape == (2, 2, rows, 16)


def test_plain_rotary_equals_the_targets_module():
    _, _, rope = layer_pair("qwen3_5")
    positions = torch.tensor([0, 5, 900])
    for ours, theirs in zip(
        rotary_from_theta(1e4, 8)(positions),
        rotary_from_target(rope, torch.float32)(positions),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("gated", [False, True])
def test_cached_rows_equal_one_pass(gated):
    layer = DecoderLayer(dataclasses.replace(LAYER, gated=gated))
    randomise(layer)
    x = torch.randn(1, 40, 32, generator=torch.Generator().manual_seed(3))
    rotary = rotary_from_theta(1e4, 8)
    cache, pieces, start = LayerCache(), [], 0
    with torch.no_grad():
        whole, _ = layer(x, None, *rotary(torch.arange(40)))
        for count in (9, 1, 1, 17, 5, 7):
            rows = slice(start, start + count)
            out, _ = layer(x[:, rows], None, *rotary(torch.arange(start, start + count)), None, cache)
            pieces.append(out)
            start += count
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 5, 80])
def test_attention_equals_the_textbook_formula(rows):
    generator = torch.Generator().manual_seed(4)
    query = torch.randn(2, rows, 6, 8, generator=generator)
    keys, values = (torch.randn(2, 2, rows + 3, 8, generator=generator) for _ in range(2))
    mask = torch.rand(2, rows, rows + 3, generator=generator) < 0.6
    mask[..., 0] = True
    wide_keys, wide_values = (t.repeat_interleave(3, dim=1) for t in (keys, values))
    scores = query.transpose(1, 2) @ wide_keys.transpose(2, 3) / 8**0.5
    expected = scores.masked_fill(~mask[:, None], -torch.inf).softmax(-1) @ wide_values
    torch.testing.assert_close(attend(query, keys, values, mask), expected.transpose(1, 2))


def test_earlier_keys_and_values_stay_in_the_graph():
    layer = DecoderLayer(LAYER)
    randomise(layer)
    rotary = rotary_from_theta(1e4, 16)
    x = torch.randn(1, 6, 32, generator=torch.Generator().manual_seed(5), requires_grad=True)
    whole, _ = layer(x, None, *rotary(torch.arange(6)))
    _, past = layer(x[:, :4], None, *rotary(torch.arange(4)))
    tail, _ = layer(x[:, 4:], None, *rotary(torch.arange(4, 6)), None, past)
    torch.testing.assert_close(tail, whole[:, 4:], atol=1e-5, rtol=1e-5)
    (expected,) = torch.autograd.grad(whole[:, 4:].sum(), x, retain_graph=True)
    (got,) = torch.autograd.grad(tail.sum(), x)
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)
    assert got[:, :4].abs().sum() > 0


def test_every_parameter_gets_a_gradient_and_two_streams_feed_the_attention():
    layer = DecoderLayer(dataclasses.replace(LAYER, attention_input=64))
    x, both = torch.randn(1, 5, 32), torch.randn(1, 5, 64)
    out, _ = layer(x, both, *rotary_from_theta(1e4, 16)(torch.arange(5)))
    out.square().sum().backward()
    without = {name for name, parameter in layer.named_parameters() if parameter.grad is None}
    assert without == {"input_layernorm.weight"}
    assert layer.self_attn.q_proj.weight.shape == (64, 64)
