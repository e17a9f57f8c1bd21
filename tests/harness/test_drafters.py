"""The checkpoint a preset gives a method: chosen by the method's options, and named when there is none."""

from __future__ import annotations

import json
from pathlib import Path
from types import MappingProxyType

import pytest

from harness.config.drafters import preset_checkpoint
from harness.config.presets import Preset, load_preset
from methods.drafters import source
from methods.drafters.checkpoint import described
from methods.errors import UsageError

SPD = "shipped:tiny/spd-n{n}-l{draft_layers}-{schedule}"
HUB = "hf:someone/heads/s{n}_l{draft_layers}.pt"


def preset(**checkpoints: str) -> Preset:
    return Preset("tiny", "some/model", "float32", 4, (2,), False, None, MappingProxyType(checkpoints))


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("spd-n8-l2-pre-step", "spd-n8-l10-pre-step", "spd-n8-l3-post-step", "eagle3"):
        (tmp_path / "tiny" / name).mkdir(parents=True)
        (tmp_path / "tiny" / name / "draft.json").write_text(json.dumps({"tensors_sha256": name}))
    monkeypatch.setattr(source, "_SHIPPED_ROOT", tmp_path)
    monkeypatch.delenv("SPD_BENCH_CHECKPOINTS", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"draft_layers": "2"}, "spd-n8-l2-pre-step"),
        ({"n": "8", "draft_layers": "3", "schedule": "post-step"}, "spd-n8-l3-post-step"),
        ({}, "spd-n8-l10-pre-step"),
    ],
)
def test_options_choose_the_shipped_checkpoint(root, options, name):
    chosen = preset_checkpoint(preset(spd=SPD), "spd", options)
    assert chosen == f"shipped:tiny/{name}"
    assert source.resolve(chosen) == root / "tiny" / name
    assert described(chosen)["tensors_sha256"] == name


def test_what_is_shipped_is_named_when_nothing_fits():
    wanted = (
        "no trained spd drafter for tiny with n = 4, schedule = pre-step is shipped (shipped: "
        "spd-n8-l10-pre-step, spd-n8-l2-pre-step, spd-n8-l3-post-step); give --checkpoint"
    )
    with pytest.raises(UsageError) as refused:
        preset_checkpoint(preset(spd=SPD), "spd", {"n": "4"})
    assert str(refused.value).startswith(wanted)
    for pattern in ("**", "*", "[1-9]"):
        with pytest.raises(UsageError, match="no trained spd drafter for tiny with n = 8, draft_layers = "):
            preset_checkpoint(preset(spd=SPD), "spd", {"draft_layers": pattern})
    with pytest.raises(UsageError, match=r"with n = 8 is shipped \(shipped: none\)"):
        preset_checkpoint(preset(ppsd="shipped:tiny/ppsd-n{n}"), "ppsd", {})


def test_outside_a_checkout_their_place_is_named(root, tmp_path_factory, monkeypatch):
    monkeypatch.setattr(source, "_SHIPPED_ROOT", tmp_path_factory.mktemp("packages") / "checkpoints")
    name = "shipped:tiny/eagle3"
    for take in (lambda: preset_checkpoint(preset(eagle3=name), "eagle3", {}), lambda: source.resolve(name)):
        monkeypatch.delenv("SPD_BENCH_CHECKPOINTS", raising=False)
        with pytest.raises(UsageError, match=r"results/checkpoints; set SPD_BENCH_CHECKPOINTS=DIR .* PATH"):
            take()
        monkeypatch.setenv("SPD_BENCH_CHECKPOINTS", "nowhere")
        with pytest.raises(UsageError, match="SPD_BENCH_CHECKPOINTS names nowhere, which is no folder"):
            take()
        monkeypatch.setenv("SPD_BENCH_CHECKPOINTS", str(root))
        take()
    assert source.resolve(name) == root / "tiny" / "eagle3"


@pytest.mark.parametrize("options", [{"checkpoint": "mine"}, {"untrained": "true"}])
def test_a_drafter_of_ones_own_is_left_alone(options):
    assert preset_checkpoint(preset(spd=SPD), "spd", {"n": "4"} | options) is None


def test_a_method_without_an_entry_has_none():
    assert preset_checkpoint(preset(spd=SPD), "ngram", {}) is None
    assert (
        preset_checkpoint(preset(eagle3="shipped:tiny/eagle3"), "eagle3", {"m": "3"}) == "shipped:tiny/eagle3"
    )


def test_a_hub_checkpoint_needs_every_option_in_its_name():
    both = {"n": "8", "draft_layers": "3"}
    assert preset_checkpoint(preset(spd=HUB), "spd", both) == "hf:someone/heads/s8_l3.pt"
    with pytest.raises(UsageError, match="preset tiny: spd needs --option draft_layers="):
        preset_checkpoint(preset(spd=HUB), "spd", {"n": "8"})


def test_the_papers_targets_take_the_authors_files():
    options = {"n": "8", "draft_layers": "3"}
    for size in ("4B", "9B"):
        chosen = preset_checkpoint(load_preset(f"qwen3.5-{size.lower()}"), "spd", options)
        assert chosen == f"hf:yuyijiong/speculative_pipeline_decoding/Qwen3.5-{size}_s8_l3.pt"
        assert described(chosen) == {}
