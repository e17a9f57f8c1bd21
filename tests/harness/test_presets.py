"""Presets: every shipped one loads; every faulty one is refused by the name of its key."""

from __future__ import annotations

import dataclasses

import pytest

from harness.config import presets
from harness.config.presets import Preset, load_preset, parse_preset, preset_names
from methods.errors import UsageError

GOOD = """
target = "some/model"
dtype = "float32"
num_layers = 4
stop_ids = [2, 7]
thinking = false
"""


@pytest.mark.parametrize(
    ("name", "target", "dtype", "num_layers"),
    [
        ("smollm2-135m", "smollm2-135m", "float32", 30),
        ("qwen3.5-4b", "Qwen/Qwen3.5-4B", "bfloat16", 32),
        ("qwen3.5-9b", "Qwen/Qwen3.5-9B", "bfloat16", 32),
    ],
)
def test_shipped_presets(name, target, dtype, num_layers):
    preset = load_preset(name)
    assert (preset.name, preset.target, preset.dtype, preset.num_layers) == (name, target, dtype, num_layers)
    assert (preset.stop_ids, preset.thinking) == ("generation_config", False)


def test_every_file_is_a_preset():
    assert {"smollm2-135m", "qwen3.5-4b", "qwen3.5-9b"} <= set(preset_names())
    for name in preset_names():
        assert load_preset(name).name == name


def test_unknown_preset_lists_what_exists():
    for name in ("nope", "../presets/smollm2-135m", ""):
        with pytest.raises(UsageError, match=r"known: .*qwen3\.5-4b, qwen3\.5-9b, smollm2-135m"):
            load_preset(name)


def test_all_fields():
    text = GOOD + 'chat_template = "vicuna_v1.1"\n[checkpoints]\nspd = "someone/head"\n'
    assert parse_preset("tiny", text) == Preset(
        name="tiny",
        target="some/model",
        dtype="float32",
        num_layers=4,
        stop_ids=(2, 7),
        thinking=False,
        chat_template="vicuna_v1.1",
        checkpoints={"spd": "someone/head"},
    )


def test_presets_cannot_be_changed():
    preset = load_preset("smollm2-135m")
    with pytest.raises(dataclasses.FrozenInstanceError):
        preset.target = "other"
    with pytest.raises(TypeError):
        preset.checkpoints["spd"] = "other"


@pytest.mark.parametrize("key", ["target", "dtype", "num_layers", "stop_ids", "thinking"])
def test_missing_key_is_named(key):
    text = "\n".join(line for line in GOOD.splitlines() if not line.startswith(key))
    with pytest.raises(UsageError, match=f"preset 'tiny': key '{key}' is missing"):
        parse_preset("tiny", text)


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("target", "5", "non-empty text"),
        ("target", '" "', "non-empty text"),
        ("dtype", '"float16"', "one of float32, bfloat16"),
        ("dtype", "32", "one of float32, bfloat16"),
        ("dtype", "[]", "one of float32, bfloat16"),
        ("num_layers", "0", "a whole number >= 1"),
        ("num_layers", "4.0", "a whole number >= 1"),
        ("num_layers", "true", "a whole number >= 1"),
        ("stop_ids", '"eos"', '"generation_config" or a list of token ids'),
        ("stop_ids", "[]", '"generation_config" or a list of token ids'),
        ("stop_ids", "[-1]", '"generation_config" or a list of token ids'),
        ("stop_ids", '["2"]', '"generation_config" or a list of token ids'),
        ("thinking", '"no"', "true or false"),
        ("chat_template", "1", "non-empty text"),
        ("checkpoints", '"path"', "a table of method name = checkpoint"),
        ("checkpoints", "{spd = 1}", "a table of method name = checkpoint"),
    ],
)
def test_wrong_type_is_named_with_what_is_allowed(key, value, wanted):
    kept = [line for line in GOOD.splitlines() if not line.startswith(key)]
    with pytest.raises(UsageError) as caught:
        parse_preset("tiny", "\n".join([*kept, f"{key} = {value}"]))
    assert f"preset 'tiny': key '{key}' must be {wanted}, got " in str(caught.value)


def test_unknown_key_and_broken_text():
    with pytest.raises(UsageError, match="unknown key 'layers'; known: target, dtype, num_layers"):
        parse_preset("tiny", GOOD + "layers = 4\n")
    with pytest.raises(UsageError, match="unknown key 'name'"):
        parse_preset("tiny", GOOD + 'name = "other"\n')
    with pytest.raises(UsageError, match="preset 'tiny' is not valid TOML"):
        parse_preset("tiny", "target = ")


def test_every_field_has_a_rule():
    assert set(presets._RULES) == {entry.name for entry in dataclasses.fields(Preset)} - {"name"}
