"""Heads in their authors' formats decode through the method's own options, or are refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from conftest import random_ids, tiny
from safetensors.torch import load_file, save_file
from test_published_heads import rename

from harness.checks import gates
from methods import registry
from methods.eagle3 import checkpoint as eagle3
from methods.errors import UsageError
from methods.training.optimizer import HeadOptimizer, OptimizerConfig

KEPT = [*range(0, 40, 2), 41, 50, 63]
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 40,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1, "hidden_act": "silu",
    "rms_norm_eps": 1e-5, "rope_theta": 1e4, "vocab_size": 64, "draft_vocab_size": len(KEPT),
}  # fmt: skip
NAMINGS = ["safeai", "prefixed", "speculators"]


def tensors() -> dict:
    shapes = {
        "fc.weight": (32, 96),
        "midlayer.input_layernorm.weight": (32,),
        "midlayer.hidden_norm.weight": (32,),
        "midlayer.post_attention_layernorm.weight": (32,),
        "midlayer.self_attn.q_proj.weight": (24, 64),
        "midlayer.self_attn.k_proj.weight": (12, 64),
        "midlayer.self_attn.v_proj.weight": (12, 64),
        "midlayer.self_attn.o_proj.weight": (32, 24),
        "midlayer.mlp.gate_proj.weight": (40, 32),
        "midlayer.mlp.up_proj.weight": (40, 32),
        "midlayer.mlp.down_proj.weight": (32, 40),
        "norm.weight": (32,),
        "lm_head.weight": (len(KEPT), 32),
    }
    generator = torch.Generator().manual_seed(2)
    content = {name: 0.3 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    t2d = torch.zeros(64, dtype=torch.bool)
    t2d[KEPT] = True
    return content | {"d2t": torch.tensor(KEPT) - torch.arange(len(KEPT)), "t2d": t2d}


def write(
    directory: Path, naming: str = "safeai", changed: dict | None = None, config: dict | None = None
) -> str:
    content = {name: value for name, value in {**tensors(), **(changed or {})}.items() if value is not None}
    layer = CONFIG | (config or {})
    if naming == "speculators":
        outside = {
            name: layer.pop(name) for name in ("draft_vocab_size", "target_hidden_size") if name in layer
        }
        layer = {
            "speculators_model_type": "eagle3",
            "transformer_layer_config": layer,
            "norm_before_residual": True,
            **outside,
        }
    (directory / "config.json").write_text(json.dumps(layer))
    save_file(rename(content, naming), directory / "model.safetensors")
    return str(directory)


@pytest.mark.parametrize("naming", NAMINGS)
@pytest.mark.parametrize("name", ["llama", "hybrid"])
def test_every_naming_decodes_the_targets_tokens(tmp_path, naming, name):
    target = tiny(name)
    path = write(tmp_path, naming)
    for width in (1, 4):
        method = registry.create("eagle3", target, {"checkpoint": path, "m": 3, "width": width})
        finding = gates.identity(
            method, registry.create("autoregressive", target), [random_ids(1), random_ids(8)], 14
        )
        assert finding.passed, finding.fault
    about = method.describe()
    assert about["checkpoint"] == path
    assert len(about["checkpoint_sha256"]) == 64
    assert (about["untrained"], about["proposal"]) == (False, "point-mass")
    assert method.head.config.layer.head_dim == 6
    assert method.head.config.norm_before_residual is (naming == "speculators")


def test_drafts_stay_within_the_draft_vocabulary(tmp_path):
    method = registry.create("eagle3", tiny("llama"), {"checkpoint": write(tmp_path), "m": 3, "width": 4})
    drafted = set()
    propose = type(method.session(gates.GREEDY, None)).propose

    class Session(type(method.session(gates.GREEDY, None))):
        def propose(self, budget):
            draft = propose(self, budget)
            drafted.update(draft.tokens)
            return draft

    method.session = lambda sampling, draws: Session(method.head, method.shape, sampling, draws)
    method.decode(random_ids(8), gates.GREEDY, 24)
    assert drafted
    assert drafted <= set(KEPT)


def test_overrides_reach_the_head(tmp_path):
    options = {"checkpoint": write(tmp_path), "draft_rope_theta": 5e5, "taps": "1;4;8"}
    method = registry.create("eagle3", tiny("llama"), options)
    assert method.head.config.rope["rope_theta"] == 5e5
    assert method.reads == (1, 4, 8)


@pytest.mark.parametrize(
    ("changed", "config", "message"),
    [
        ({"fc.weight": None}, {}, r"missing fc\.weight"),
        (
            {"lm_head.weight": None},
            {},
            r"missing lm_head\.weight, .*: draft vocabulary 23, the target's is 64",
        ),
        ({"midlayer.mlp.up_proj.weight": None}, {}, r"missing midlayer\.mlp\.up_proj\.weight"),
        ({"d2t": torch.zeros(len(KEPT), dtype=torch.long)}, {}, "d2t is all zero"),
        ({"d2t": None}, {}, "missing d2t for a draft vocabulary of 23 out of 64"),
        ({}, {"hidden_size": 48}, "hidden size 48, but tiny-llama has 32"),
        ({}, {"vocab_size": 65}, "vocabulary 65, but tiny-llama has 64"),
        ({}, {"num_attention_heads": 0}, "config.json does not describe an EAGLE-3 head"),
        ({}, {"num_attention_heads": "4"}, "config.json does not describe an EAGLE-3 head"),
        ({}, {"transformer_layer_config": 5}, "config.json does not describe an EAGLE-3 head"),
        ({}, {"intermediate_size": -1}, "a decoder layer cannot have intermediate = -1"),
        ({}, {"rms_norm_eps": "x"}, "a decoder layer cannot have eps = 'x'"),
        ({}, {"rope_scaling": {"rope_type": "zzz"}}, "rope .*zzz.* cannot be used"),
    ],
)
def test_unusable_files_are_refused_by_name(tmp_path, changed, config, message):
    path = write(tmp_path, "safeai", changed, config)
    with pytest.raises(UsageError, match=message):
        registry.create("eagle3", tiny("llama"), {"checkpoint": path})


HEADLESS = dict.fromkeys(("lm_head.weight", "d2t", "t2d"))
FULL = {"draft_vocab_size": 64}


def traced(source: str) -> tuple:
    """The head, tokens and trace of a greedy answer, and what the method says of itself."""
    method = registry.create("eagle3", tiny("llama"), {"checkpoint": source, "m": 3})
    found = method.decode(random_ids(8), gates.GREEDY, 16)
    trace = [(step.drafted, step.accepted) for step in found.steps]
    return method.head, (found.tokens, trace), method.describe()


@pytest.mark.parametrize("naming", NAMINGS)
@pytest.mark.parametrize("map_given", [False, True])
def test_a_head_left_out_is_the_targets(tmp_path, naming, map_given):
    """Draft for draft what a file drafts in which the target's rows are stored."""
    target = tiny("llama")
    identity = {"d2t": torch.zeros(64, dtype=torch.long), "t2d": torch.ones(64, dtype=torch.bool)}
    paths = [tmp_path / name for name in ("without", "with")]
    for path, head in zip(paths, (None, target.head_weight.clone()), strict=True):
        path.mkdir()
        write(path, naming, {**HEADLESS, **(identity if map_given else {}), "lm_head.weight": head}, FULL)
    (borrowed, drafted, about), (own, expected, plain) = (traced(str(path)) for path in paths)
    assert drafted == expected
    assert torch.equal(borrowed.lm_head.weight, own.lm_head.weight) and borrowed.vocabulary.is_full
    assert borrowed.lm_head.weight.data_ptr() == target.head_weight.data_ptr()  # lent, not copied
    assert about["borrowed_head"] is True and "borrowed_head" not in plain
    assert (borrowed.config.tied_head, own.config.tied_head) == (True, False)


def test_a_borrowed_head_is_neither_stored_nor_trained(tmp_path):
    target = tiny("llama")
    before = target.head_weight.clone()
    head, drafted, _ = traced(write(tmp_path, changed=HEADLESS, config=FULL))
    eagle3.save(tmp_path / "saved", head, target.shape, {})
    content = json.loads((tmp_path / "saved" / "draft.json").read_text())
    assert content["tied_head"] and "lm_head.weight" not in load_file(tmp_path / "saved" / content["tensors"])
    again, same, _ = traced(str(tmp_path / "saved"))
    assert same == drafted and again.config.tied_head

    optimizer = HeadOptimizer(head, OptimizerConfig("adamw", 0.1, 0.1, 0.1, 0.0, "linear", 1.0))
    for parameter in optimizer.parameters:
        parameter.grad = torch.ones_like(parameter)
    was = head.fc.weight.clone()
    optimizer.step(0.5)
    assert not torch.equal(head.fc.weight, was)
    assert torch.equal(target.head_weight, before) and torch.equal(head.lm_head.weight, before)


@pytest.mark.parametrize(
    ("changed", "config", "message"),
    [
        ({}, {"draft_vocab_size": 32}, "draft vocabulary 32, the target's is 64"),
        ({"d2t": torch.zeros(32, dtype=torch.long)}, FULL, "draft vocabulary 32, the target's is 64"),
        ({"t2d": torch.arange(64) < 32}, FULL, "draft vocabulary 32, the target's is 64"),
        ({}, FULL | {"vocab_size": 65}, "vocabulary 65, but tiny-llama has 64"),
        (
            {"embed_tokens.weight": torch.zeros(64, 24)},
            FULL | {"hidden_size": 24, "target_hidden_size": 32},
            "hidden size 24, the target's is 32",
        ),
        (
            {"embed_tokens.weight": torch.zeros(64, 32)},
            FULL | {"tie_word_embeddings": True},
            "leaves open which of the two is meant",
        ),
    ],
)
@pytest.mark.parametrize("naming", NAMINGS)
def test_a_head_that_cannot_be_borrowed_is_named(tmp_path, naming, changed, config, message):
    path = write(tmp_path, naming, HEADLESS | changed, config)
    with pytest.raises(UsageError, match=message):
        registry.create("eagle3", tiny("llama"), {"checkpoint": path})


def test_an_embedding_that_is_the_targets_head_leaves_nothing_open(tmp_path):
    rows = {"embed_tokens.weight": tiny("llama").head_weight.clone()}
    head, _, about = traced(
        write(tmp_path, changed=HEADLESS | rows, config=FULL | {"tie_word_embeddings": True})
    )
    assert head.config.own_embedding and about["borrowed_head"]
