"""Import of the authors' published format, from synthetic files of both layouts."""

import os

import authors_format
import pytest
import torch
from conftest import tiny_shape
from torch import nn

from methods.drafters.decoder_layer import RMSNorm
from methods.drafters.rotary import rotary_from_theta
from methods.drafters.source import resolve
from methods.drafters.tensors import file_sha256
from methods.errors import UsageError
from methods.spd import checkpoint

SHAPE = tiny_shape(rotary_dim=2, model_type="qwen3_5_text")
NORM, ROTARY = RMSNorm(16, 1e-6, zero_centred=True), rotary_from_theta(1e7, 2)
IDS = [0, 3, 4, 11, 19]


def contents(layout="B") -> dict:
    return authors_format.contents(SHAPE, layout, n=4, anchors=(0, 2, 5, 7), draft_ids=IDS)


def load(tmp_path, content, shape=SHAPE, **asked):
    path = tmp_path / "head.pt"
    torch.save(content, path)
    return checkpoint.load(path, shape, NORM, ROTARY, **asked)


@pytest.mark.parametrize("layout", ["A", "B"])
def test_both_layouts_load_and_the_passes_agree(tmp_path, layout):
    loaded = load(tmp_path, contents(layout), n=4, draft_layers=2)
    config = loaded.module.config
    assert config.layer.gated is config.layer.zero_centred_norm is (layout == "B")
    assert (config.layer.intermediate, config.window) == (40, 2048)
    assert config.aggregation.anchors == (0, 2, 5, 7)
    assert loaded.config.architecture["layout"] == layout
    assert loaded.config.training["base_model_path"] == "/somewhere/else"
    assert loaded.sha256 == file_sha256(tmp_path / "head.pt")
    assert loaded.module.vocabulary.ids.tolist() == IDS

    session = loaded.module.session()
    taps = torch.randn(12, 4, 16)
    for newest, flight in [(5, [0]), (6, [1, 0]), (7, [2, 1, 0]), (8, [3, 2, 1, 0]), (9, [3, 2, 1, 0])]:
        first = newest + 1 - len(flight)
        completed = taps[session.length : first] if first > session.length else None
        got = session.step(completed, taps[first : newest + 1], flight)
        expected = loaded.module.stateless(taps[: newest + 1], [4] * first + flight)
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def test_an_import_can_be_saved_in_our_format(tmp_path):
    loaded = load(tmp_path, contents("A"))
    checkpoint.save(tmp_path / "ours", loaded.module, SHAPE, loaded.config.training)
    again = checkpoint.load(tmp_path / "ours", SHAPE, NORM, ROTARY)
    assert again.module.config == loaded.module.config
    assert torch.equal(again.module.lm_head.weight, loaded.module.lm_head.weight)


def test_full_vocabulary_and_stage_layers_as_text(tmp_path):
    content = contents()
    del content["config"]["draft_token_ids"]
    content["config"] |= {"draft_vocab_size": 20, "stage_layers": "1;2;3;2", "torch_dtype": "x"}
    content["state_dict"]["lm_head.weight"] = torch.zeros(20, 16)
    loaded = load(tmp_path, content)
    assert loaded.module.vocabulary.is_full
    assert loaded.module.config.aggregation.stage_layers == (1, 2, 3, 2)
    assert loaded.config.training["ignored_config_keys"] == ["torch_dtype"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 10}, "version 10 .another architecture"),
        ({"version": 12}, "version 12 .announced upstream"),
        ({"version": 0}, "version 0 .unknown"),
        ({"version": None}, "version None"),
        ({"trained_with_use_deepest": False}, "trained_with_use_deepest is False"),
        ({"hidden_size": 32}, "hidden size 32, but tiny has 16"),
        ({"vocab_size": 99}, "vocabulary 99, but tiny has 20"),
        ({"draft_token_ids": [0, 4, 3, 11, 19]}, "not sorted"),
        ({"draft_token_ids": [0, 3, 4]}, "draft_vocab_size 5 does not match 3"),
        ({"aggr_feature_bound": [0, 2, 5, 8]}, "at most 7 for 8 layers"),
        ({"num_aggr_types": 5}, "num_aggr_types 5 for 4 anchors"),
        ({"num_stages": 3}, "num_stages 3 does not divide"),
        ({"stage_layers": [1, 1, 1, 1]}, "add up to 4"),
        ({"stage_layers": "a;b"}, "not a list of layer counts"),
        ({"num_spec_layers": "2"}, "num_spec_layers = '2' has the wrong type"),
        ({"num_spec_layers": 3}, r"missing spec_layers\.2\.input_layernorm\.weight"),
    ],
)
def test_an_unsuitable_configuration_is_refused_with_the_reason(tmp_path, change, message):
    content = contents()
    content["config"] |= change
    with pytest.raises(UsageError, match=message):
        load(tmp_path, content)


def test_tensors_and_top_level_are_strict(tmp_path):
    content = contents()
    del content["state_dict"]["aggr_projs.1.weight"]
    content["state_dict"]["norm.weight"] = torch.zeros(16)
    with pytest.raises(UsageError, match=r"missing aggr_projs\.1\.weight; unexpected norm\.weight"):
        load(tmp_path, content)
    with pytest.raises(UsageError, match="exactly state_dict and config"):
        load(tmp_path, contents() | {"optimizer": {}})
    content = contents()
    content["state_dict"]["spec_layers.0.self_attn.q_proj.weight"] = torch.zeros(24, 16)
    with pytest.raises(UsageError, match=r"q_proj has 24 rows; .* 16 \(layout A\) or 32 \(layout B\)"):
        load(tmp_path, content)


def test_the_run_must_match(tmp_path):
    with pytest.raises(UsageError, match="n = 4, but n = 8 is asked for"):
        load(tmp_path, contents(), n=8)


class Hostile:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (self.marker,)


def test_a_pickle_that_would_run_code_is_refused_and_not_run(tmp_path):
    marker = tmp_path / "ran"
    with pytest.raises(UsageError, match=r"mkdir") as caught:
        load(tmp_path, contents() | {"config": Hostile(str(marker))})
    assert not marker.exists()
    assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match="only tensors and plain values"):
        load(tmp_path, nn.Linear(2, 2))


def test_a_file_that_is_no_pickle_is_refused(tmp_path):
    (tmp_path / "head.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(UsageError, match=r"not a readable torch\.save file"):
        checkpoint.load(tmp_path / "head.pt", SHAPE, NORM, ROTARY)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("hf:owner/repo/Qwen3.5-4B_s8_l3.pt", ("owner/repo", "Qwen3.5-4B_s8_l3.pt", None)),
        ("hf:owner/repo@v11_open-perfectblend/a/b.pt", ("owner/repo", "a/b.pt", "v11_open-perfectblend")),
    ],
)
def test_hub_sources(monkeypatch, tmp_path, source, expected):
    seen = []

    def download(repo, file, revision):
        seen.append((repo, file, revision))
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    assert resolve(source) == tmp_path
    assert seen == [expected]


def test_hub_failures_are_one_line(monkeypatch):
    def download(*_, **__):
        raise OSError("no network\nwith a traceback")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    with pytest.raises(UsageError, match=r"^cannot fetch hf:a/b/c\.pt: no network$"):
        resolve("hf:a/b/c.pt")
    with pytest.raises(UsageError, match="allowed: hf:owner/name"):
        resolve("hf:only-a-name")
