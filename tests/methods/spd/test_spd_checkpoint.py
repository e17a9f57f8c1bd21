"""C21 for our own files: strict tensors, the right target, the run's own n."""

import dataclasses
import json

import pytest
import torch
from conftest import tiny_shape
from safetensors.torch import load_file, save_file

from methods.drafters.decoder_layer import RMSNorm
from methods.drafters.rotary import rotary_from_theta
from methods.drafters.tensors import file_sha256
from methods.drafters.vocabulary import DraftVocabulary
from methods.errors import UsageError
from methods.spd import checkpoint
from methods.spd.aggregation import choose_anchors

SHAPE = tiny_shape(num_layers=6)
ARCHITECTURE = {
    "n": 4,
    "stage_layers": [2, 2, 1, 1],
    "anchors": [0, 2, 5],
    "draft_layers": 2,
    "layout": "A",
}
NORM, ROTARY = RMSNorm(16, 1e-6), rotary_from_theta(1e4, 8)


def make(layout="A", ids=(1, 2, 5)):
    return checkpoint.untrained(
        SHAPE,
        choose_anchors([2, 2, 1, 1]),
        2,
        DraftVocabulary(SHAPE.vocab, ids),
        torch.randn(20, 16, generator=torch.Generator().manual_seed(1)),
        NORM,
        ROTARY,
        layout=layout,
        window=9,
    )


@pytest.fixture
def saved(tmp_path):
    module = make()
    checkpoint.save(tmp_path, module, SHAPE, {"tokens": 123})
    return tmp_path, module


def tensor_file(directory):
    (path,) = directory.glob("draft-*.safetensors")
    return path


def rewrite(directory, content=None, **fields):
    """Change a checkpoint consistently, as a faulty writer would."""
    config = json.loads((directory / "draft.json").read_text())
    if content is not None:
        save_file(content, tensor_file(directory))
        config["tensors_sha256"] = file_sha256(tensor_file(directory))
    (directory / "draft.json").write_text(json.dumps(config | fields))


@pytest.mark.parametrize("layout", ["A", "B"])
@pytest.mark.parametrize("ids", [(1, 2, 5), None])
def test_round_trip(tmp_path, layout, ids):
    module = make(layout, ids)
    digest = checkpoint.save(tmp_path, module, SHAPE, {"tokens": 123, "data": "tiny"})
    loaded = checkpoint.load(tmp_path, SHAPE, NORM, ROTARY, n=4, stage_layers=[2, 2, 1, 1], draft_layers=2)
    assert loaded.sha256 == digest == file_sha256(tensor_file(tmp_path))
    assert loaded.config.training == {"tokens": 123, "data": "tiny"}
    assert loaded.module.config == module.config
    assert loaded.module.vocabulary.ids.tolist() == module.vocabulary.ids.tolist()
    taps = torch.randn(12, len(module.config.aggregation.anchors), 16)
    depths = [4] * 9 + [2, 1, 0]
    torch.testing.assert_close(loaded.module.stateless(taps, depths), module.stateless(taps, depths))
    assert all(parameter.requires_grad for parameter in loaded.module.parameters())
    half = checkpoint.load(tmp_path, SHAPE, NORM, ROTARY, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in half.module.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("field", "value"), [("heads", 0), ("head_dim", -8), ("eps", 0.0), ("kv_heads", -1), ("hidden", 0)]
)
def test_sizes_that_no_layer_has_are_named(saved, field, value):
    directory, _ = saved
    layer = json.loads((directory / "draft.json").read_text())["layer"]
    rewrite(directory, layer=layer | {field: value})
    with pytest.raises(UsageError, match=rf"draft.json: a decoder layer cannot have {field} = {value}"):
        checkpoint.load(directory, SHAPE, NORM, ROTARY)


@pytest.mark.parametrize("content", [b"\xff", b"[" * 99_999, b"[]"])
def test_a_damaged_configuration_is_named(saved, content):
    directory, _ = saved
    (directory / "draft.json").write_bytes(content)
    with pytest.raises(UsageError, match=r"draft\.json"):
        checkpoint.load(directory, SHAPE, NORM, ROTARY)


def test_a_second_save_replaces_the_first(saved):
    directory, module = saved
    with torch.no_grad():
        module.lm_head.weight.zero_()
    digest = checkpoint.save(directory, module, SHAPE, {})
    assert sorted(path.name for path in directory.iterdir()) == [
        f"draft-{digest[:16]}.safetensors",
        "draft.json",
    ]
    assert not checkpoint.load(directory, SHAPE, NORM, ROTARY).module.lm_head.weight.any()


def test_a_save_cut_off_before_the_end_leaves_the_earlier_checkpoint(saved, monkeypatch):
    directory, module = saved
    before = module.lm_head.weight.clone()
    with torch.no_grad():
        module.lm_head.weight.add_(1)

    def killed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("methods.drafters.checkpoint.json.dumps", killed)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(directory, module, SHAPE, {})
    assert torch.equal(checkpoint.load(directory, SHAPE, NORM, ROTARY).module.lm_head.weight, before)


def test_every_missing_unexpected_and_misshapen_tensor_is_listed(saved):
    directory, _ = saved
    tensors = load_file(tensor_file(directory))
    del tensors["lm_head.weight"], tensors["spec_layers.1.mlp.up_proj.weight"]
    tensors["extra.weight"] = torch.zeros(2)
    tensors["aggr_projs.0.weight"] = torch.zeros(3, 16)
    rewrite(directory, tensors)
    with pytest.raises(UsageError) as caught:
        checkpoint.load(directory, SHAPE, NORM, ROTARY)
    message = str(caught.value)
    for part in (
        "missing lm_head.weight",
        "missing spec_layers.1.mlp.up_proj.weight",
        "unexpected extra.weight",
        "aggr_projs.0.weight has shape [3, 16], not [16, 16]",
    ):
        assert part in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": 32}, "hidden size 16 .* 32"),
        ({"vocab": 21}, "vocabulary 20 .* 21"),
        ({"num_layers": 7}, "target layers 6 .* 7"),
        ({"sha256": "cccc"}, "target weights sha256 aaaa .* cccc"),
        ({"tokenizer_sha256": "cccc"}, "tokenizer sha256 bbbb .* cccc"),
        ({"sha256": "", "name": "other"}, r"target tiny \(tiny\), but this is other"),
    ],
)
def test_another_target_is_refused_by_name_with_both_values(saved, change, message):
    with pytest.raises(UsageError, match=message):
        checkpoint.load(saved[0], dataclasses.replace(SHAPE, **change), NORM, ROTARY)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"n": 8}, "n = 4, but n = 8"),
        ({"draft_layers": 3}, "draft layers = 2, but draft layers = 3"),
        ({"stage_layers": [1, 1, 2, 2]}, r"stage layers = \[2, 2, 1, 1\], but stage layers = \[1, 1, 2, 2\]"),
    ],
)
def test_another_run_is_refused_by_name_with_both_values(saved, asked, message):
    with pytest.raises(UsageError, match=message):
        checkpoint.load(saved[0], SHAPE, NORM, ROTARY, **asked)


def test_a_drafter_of_the_other_schedule_is_refused(tmp_path):
    checkpoint.save(tmp_path, make(), SHAPE, {"schedule": "post-step"})
    checkpoint.load(tmp_path, SHAPE, NORM, ROTARY, schedule="post-step")
    with pytest.raises(UsageError, match="schedule = post-step, but schedule = pre-step is asked"):
        checkpoint.load(tmp_path, SHAPE, NORM, ROTARY, schedule="pre-step")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"format_version": 2}, "format 2; this version reads 1"),
        ({"method": "ppsd"}, "for 'ppsd', not for 'spd'"),
        ({"surprise": 1}, "unknown key 'surprise'"),
        ({"layer": {"hidden": 16}}, "missing key 'heads'"),
        ({"draft_ids": [5, 1, 2]}, "not sorted"),
        ({"draft_ids": [1, 2, 99]}, "target id 99"),
        ({"draft_ids": [1, "2"]}, "draft_ids = .* has the wrong type"),
        ({"vocab": True}, "vocab = True has the wrong type"),
        ({"training_span": "long"}, "training_span = 'long' has the wrong type"),
        ({"architecture": {"n": 4}}, "architecture: missing key 'anchors'"),
        (
            {"architecture": ARCHITECTURE | {"stage_layers": [3, 3]}},
            r"\[3, 3\] are not n = 4 stages of 6 layers",
        ),
        ({"architecture": ARCHITECTURE | {"layout": "C"}}, "layout 'C'; allowed: A, B"),
        ({"architecture": ARCHITECTURE | {"anchors": "0"}}, "anchors = '0' has the wrong type"),
        ({"tensors": "../elsewhere.safetensors"}, "lacks the tensor file"),
        ({"tensors_sha256": "0" * 64}, "was written for 0000"),
    ],
)
def test_an_unusable_configuration_is_refused(saved, fields, message):
    rewrite(saved[0], **fields)
    with pytest.raises(UsageError, match=message):
        checkpoint.load(saved[0], SHAPE, NORM, ROTARY)


def test_no_checkpoint_at_all(tmp_path):
    with pytest.raises(UsageError, match=r"no checkpoint at .*gone; give a path or hf:"):
        checkpoint.load(tmp_path / "gone", SHAPE, NORM, ROTARY)
    with pytest.raises(UsageError, match=r"has no draft\.json"):
        checkpoint.load(tmp_path, SHAPE, NORM, ROTARY)
    (tmp_path / "draft.json").write_text("{")
    with pytest.raises(UsageError, match="not readable JSON"):
        checkpoint.load(tmp_path, SHAPE, NORM, ROTARY)


def test_a_torn_tensor_file_is_refused(saved):
    path = tensor_file(saved[0])
    path.write_bytes(path.read_bytes()[:100])
    rewrite(saved[0], tensors_sha256=file_sha256(path))
    with pytest.raises(UsageError, match="not a readable safetensors file"):
        checkpoint.load(saved[0], SHAPE, NORM, ROTARY)
