import pytest
from transformers import GPTNeoXConfig, LlamaConfig, Qwen3MoeConfig
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5Config
from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeTextConfig

from methods.drafters.layouts import default_layout
from methods.errors import UsageError
from methods.models.shape import TargetShape


def test_llama_head_dim_follows_from_hidden_and_heads():
    config = LlamaConfig(hidden_size=576, num_attention_heads=9, num_key_value_heads=3, num_hidden_layers=30)
    shape = TargetShape.from_config(config, "m", "aa", "bb")
    assert (shape.name, shape.sha256, shape.tokenizer_sha256) == ("m", "aa", "bb")
    assert (shape.num_layers, shape.heads, shape.kv_heads) == (30, 9, 3)
    assert (shape.head_dim, shape.rotary_dim) == (64, 64)
    assert default_layout(shape) == "A"


def test_qwen3_5_reads_the_text_model_and_its_partial_rotary():
    text = {
        "hidden_size": 2560,
        "intermediate_size": 9216,
        "num_hidden_layers": 32,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            "mrope_section": [11, 11, 10],
        },
    }
    shape = TargetShape.from_config(Qwen3_5Config(text_config=text), "Qwen/Qwen3.5-4B")
    assert (shape.hidden, shape.intermediate, shape.num_layers) == (2560, 9216, 32)
    assert (shape.head_dim, shape.rotary_dim, shape.vocab) == (256, 64, 248320)
    assert default_layout(shape) == "B"


def test_mixture_of_experts_lends_a_dense_width():
    dense = TargetShape.from_config(Qwen3MoeConfig(intermediate_size=777))
    assert dense.intermediate == 777
    routed = Qwen3_5MoeTextConfig(
        moe_intermediate_size=100, num_experts_per_tok=3, shared_expert_intermediate_size=50
    )
    assert not hasattr(routed, "intermediate_size")
    assert TargetShape.from_config(routed).intermediate == 350


def test_a_lacking_field_is_named():
    with pytest.raises(UsageError, match=r"gpt_neox.* has no rms_norm_eps"):
        TargetShape.from_config(GPTNeoXConfig())
