"""Published EAGLE-3 files, synthetic and tiny, in each naming and with each known trap."""

import json

import pytest
import torch
from conftest import tiny_shape
from safetensors.torch import save_file

from methods.eagle3 import checkpoint
from methods.errors import UsageError

SHAPE = tiny_shape(num_layers=36, intermediate=99, vocab=30, model_type="qwen3")
KEPT = [0, 2, 5, 9, 29]
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    # A trap: the tensors below have 6 dimensions per head.
    "head_dim": 4,
    "num_hidden_layers": 1,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
    "vocab_size": 30,
    "draft_vocab_size": 5,
    # Another: a head of its own is shipped all the same.
    "tie_word_embeddings": True,
}


def embed(ids):
    return torch.zeros(*ids.shape, 16)


def tensors(hidden=16, target=16) -> dict:
    shapes = {
        "fc.weight": (hidden, 3 * target),
        "midlayer.input_layernorm.weight": (hidden,),
        "midlayer.hidden_norm.weight": (hidden,),
        "midlayer.post_attention_layernorm.weight": (hidden,),
        "midlayer.self_attn.q_proj.weight": (24, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": (12, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": (12, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": (hidden, 24),
        "midlayer.mlp.gate_proj.weight": (24, hidden),
        "midlayer.mlp.up_proj.weight": (24, hidden),
        "midlayer.mlp.down_proj.weight": (hidden, 24),
        "norm.weight": (hidden,),
        "lm_head.weight": (5, hidden),
    }
    generator = torch.Generator().manual_seed(2)
    content = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    t2d = torch.zeros(30, dtype=torch.bool)
    t2d[KEPT] = True
    return content | {"d2t": torch.tensor(KEPT) - torch.arange(5), "t2d": t2d}


def write(directory, content=None, config=CONFIG, pickled=False):
    (directory / "config.json").write_text(json.dumps(config))
    content = tensors() if content is None else content
    if pickled:
        torch.save(content, directory / "pytorch_model.bin")
    else:
        save_file(content, directory / "model.safetensors")
    return directory


def rename(content, naming):
    def name(old):
        if naming == "speculators":
            return old.replace("midlayer.", "layers.0.")
        return f"model.{old}" if naming == "prefixed" and old != "lm_head.weight" else old

    return {name(old): value for old, value in content.items()}


@pytest.mark.parametrize("naming", ["safeai", "prefixed", "speculators"])
@pytest.mark.parametrize("pickled", [False, True])
def test_every_naming_loads_the_same_head(tmp_path, naming, pickled):
    config = CONFIG
    if naming == "speculators":
        flat = {k: v for k, v in CONFIG.items() if k != "draft_vocab_size"}
        config = {
            "speculators_model_type": "eagle3",
            "transformer_layer_config": flat,
            "draft_vocab_size": 5,
            "norm_before_residual": True,
            "eagle_aux_hidden_state_layer_ids": None,
        }
    loaded = checkpoint.load(write(tmp_path, rename(tensors(), naming), config, pickled), SHAPE, embed)
    head = loaded.module
    assert head.config.layer.head_dim == 6
    assert head.config.taps == (2, 18, 33)
    assert head.config.rope["rope_theta"] == 1e6
    assert head.config.norm_before_residual is (naming == "speculators")
    assert head.vocabulary.ids.tolist() == KEPT
    for name, value in head.state_dict().items():
        assert torch.equal(value, tensors()[name])
    assert len(loaded.sha256) == 64


@pytest.mark.parametrize("gone", [name for name in tensors() if name != "t2d"])
def test_one_missing_tensor_is_named(tmp_path, gone):
    content = tensors()
    del content[gone]
    with pytest.raises(UsageError, match=f"missing {gone}".replace(".", r"\.")):
        checkpoint.load(write(tmp_path, content), SHAPE, embed)


def test_unexpected_tensors_are_listed_and_rotary_buffers_are_not(tmp_path):
    extra = {"midlayer.self_attn.rotary_emb.inv_freq": torch.zeros(3)}
    checkpoint.load(write(tmp_path, tensors() | extra), SHAPE, embed)
    with pytest.raises(UsageError, match=r"unexpected midlayer\.self_attn\.q_proj\.bias"):
        content = tensors() | {"midlayer.self_attn.q_proj.bias": torch.zeros(24)}
        checkpoint.load(write(tmp_path, content), SHAPE, embed)


@pytest.mark.parametrize(
    ("changed_tensors", "changed_config", "message"),
    [
        ({"d2t": torch.zeros(5, dtype=torch.long)}, {}, "d2t is all zero"),
        ({"d2t": torch.zeros(4, dtype=torch.long)}, {}, r"d2t has shape \[4\]"),
        ({"t2d": torch.ones(30, dtype=torch.bool)}, {}, "t2d does not mark"),
        ({}, {"hidden_size": 32}, "hidden size 32, but tiny has 16"),
        ({}, {"target_hidden_size": 8}, "hidden size 8, but tiny has 16"),
        ({}, {"vocab_size": 31}, "vocabulary 31, but tiny has 30"),
        ({}, {"draft_vocab_size": 6}, r"draft_vocab_size 6, but lm_head\.weight has 5 rows"),
        ({}, {"num_hidden_layers": 2}, "num_hidden_layers 2; only one-layer"),
        ({}, {"hidden_act": "gelu"}, "only silu"),
        ({}, {"num_attention_heads": 5}, "24 rows for 5 heads"),
        ({}, {"rms_norm_eps": None}, "lacks rms_norm_eps"),
        ({}, {"fc_norm": True}, r"missing fc_norm\.0\.weight; missing fc_norm\.1\.weight"),
        ({}, {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [5, 9, 11]}}, "inputs or outputs"),
    ],
)
def test_unusable_heads_are_refused_by_name(tmp_path, changed_tensors, changed_config, message):
    directory = write(tmp_path, tensors() | changed_tensors, CONFIG | changed_config)
    with pytest.raises(UsageError, match=message):
        checkpoint.load(directory, SHAPE, embed)


@pytest.mark.parametrize(
    ("ids", "taps"), [([1, 17, 32], (2, 18, 33)), ([2, 18, 33], (2, 18, 33)), ([24, 30, 36], (24, 30, 36))]
)
def test_both_conventions_of_tap_ids(tmp_path, ids, taps):
    config = CONFIG | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids}}
    assert checkpoint.load(write(tmp_path, config=config), SHAPE, embed).module.config.taps == taps


def test_overrides(tmp_path):
    write(tmp_path, config=CONFIG | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [5, 9, 11]}})
    loaded = checkpoint.load(tmp_path, SHAPE, embed, draft_rope_theta=1e4, taps=[5, 9, 11], norm_output=True)
    assert loaded.module.config.rope["rope_theta"] == 1e4
    assert loaded.module.config.taps == (5, 9, 11)
    assert loaded.module.config.norm_output
    slow, fast = loaded.module.rotary, checkpoint.load(tmp_path, SHAPE, embed, taps=[5, 9, 11]).module.rotary
    assert not torch.allclose(slow(torch.tensor([9]))[0], fast(torch.tensor([9]))[0])
    with pytest.raises(UsageError, match=r"taps \[5, 9, 40\]; allowed: three indices from 0 to 36"):
        checkpoint.load(tmp_path, SHAPE, embed, taps=[5, 9, 40])


@pytest.mark.parametrize(("fc_norm", "expected"), [(False, False), (True, True)])
def test_norm_output_means_feedback_only_for_heads_with_fc_norm(tmp_path, fc_norm, expected):
    extra = {f"fc_norm.{i}.weight": torch.ones(16) for i in range(3)} if fc_norm else {}
    directory = write(tmp_path, tensors() | extra, CONFIG | {"norm_output": True, "fc_norm": fc_norm})
    assert checkpoint.load(directory, SHAPE, embed).module.config.norm_output is expected


def test_theta_in_rope_parameters_and_the_trainers_default(tmp_path):
    config = {k: v for k, v in CONFIG.items() if k != "rope_theta"}
    nested = config | {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    assert checkpoint.load(write(tmp_path, config=nested), SHAPE, embed).module.config.rope == {
        "rope_type": "default",
        "rope_theta": 5e5,
    }
    theta = checkpoint.load(write(tmp_path, config=config), SHAPE, embed).module.config.rope["rope_theta"]
    assert theta == 1e4


def test_a_narrower_head_needs_and_uses_its_own_embedding(tmp_path):
    content = tensors(hidden=12, target=16)
    config = CONFIG | {"hidden_size": 12, "target_hidden_size": 16}
    with pytest.raises(UsageError, match=r"missing embed_tokens\.weight"):
        checkpoint.load(write(tmp_path, content, config), SHAPE, embed)
    table = torch.randn(30, 12)
    head = checkpoint.load(
        write(tmp_path, content | {"embed_tokens.weight": table}, config), SHAPE, embed
    ).module
    assert torch.equal(head.embed(torch.tensor([7])), table[[7]])


def test_a_full_vocabulary_head_needs_no_map(tmp_path):
    content = tensors()
    del content["d2t"], content["t2d"]
    content["lm_head.weight"] = torch.zeros(30, 16)
    head = checkpoint.load(write(tmp_path, content, CONFIG | {"draft_vocab_size": 30}), SHAPE, embed).module
    assert head.vocabulary.is_full


def test_a_directory_without_a_head(tmp_path):
    with pytest.raises(UsageError, match=r"no readable config\.json"):
        checkpoint.load(tmp_path, SHAPE, embed)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(UsageError, match=r"none of model\.safetensors, pytorch_model\.bin"):
        checkpoint.load(tmp_path, SHAPE, embed)
