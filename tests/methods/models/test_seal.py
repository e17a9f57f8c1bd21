"""A sealed target: whatever of it is changed is named, and what methods do to it is no change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import random_ids
from transformers.models.llama.modeling_llama import LlamaMLP

import methods.decoding.autoregressive
from harness.checks.small_world import make_tokenizer
from methods import registry
from methods.core import SamplingParams
from methods.decoding.autoregressive import Autoregressive
from methods.models.seal import Seal
from methods.models.target import Target
from methods.testing.tiny import FAMILIES, tiny_target


@pytest.fixture
def sealed() -> tuple[Target, Seal]:
    target = tiny_target("llama", 2)
    target.tokenizer = make_tokenizer(adds_bos=True)
    return target, Seal(target)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_and_buffer_is_held_to_the_last_element(family: str) -> None:
    target = tiny_target(family, 4)
    seal = Seal(target)
    for name, tensor in [*target.hf.named_parameters(), *target.hf.named_buffers()]:
        before = tensor.data.clone()
        tensor.data.view(-1)[-1] += 0.01
        assert seal.difference() == f"{name} was changed"
        tensor.data.copy_(before)
        assert seal.difference() is None


@pytest.mark.parametrize("family", FAMILIES)
def test_what_the_target_derives_from_weights_is_held_too(family: str) -> None:
    target = tiny_target(family, 4)
    layer = target.layers[0]
    derived = [target.final_norm._scaled, layer.input_norm._scaled, layer.post_norm._floor]
    if family == "hybrid":
        derived += [layer.mixer.decay, layer.mixer.conv_weight]
    seal = Seal(target)
    for tensor in derived:
        before = tensor.clone()
        tensor.mul_(2)
        assert "was changed" in (seal.difference() or "")
        tensor.copy_(before)
    target.rotary.rows(0, 9)[0][5] = 0
    assert seal.difference() == "target.rotary was changed"


@pytest.mark.parametrize("name", ["autoregressive", "ngram", "eagle3", "spd", "ppsd"])
def test_built_in_methods_change_nothing(name: str) -> None:
    target = tiny_target("hybrid")
    seal = Seal(target)
    options = {"untrained": True} if "untrained" in registry.option_names(name) else {}
    method = registry.create(name, target, options)
    for temperature in (0.0, 1.0):
        method.decode(random_ids(40), SamplingParams(temperature=temperature), 30)
    assert seal.difference() is None and seal.whole


def replace_layer(target: Target) -> None:
    target.layers[1] = target.layers[0]


CHANGES: dict[str, Callable[[Any], object]] = {
    "target.forward was added": lambda target: setattr(target, "forward", lambda *_: None),
    "target.final_norm was replaced": lambda target: setattr(
        target, "final_norm", target.layers[0].input_norm
    ),
    "target.final_norm.eps was 1e-06 and is 0.1": lambda target: setattr(target.final_norm, "eps", 0.1),
    "target.layers[1] was replaced": replace_layer,
    "length of target.layers was 2 and is 1": lambda target: target.layers.pop(),
    "target.head_weight was replaced": lambda target: setattr(
        target, "head_weight", target.head_weight.clone()
    ),
    "target.layers[0].mlp.down._transposed was replaced": lambda target: setattr(
        target.layers[0].mlp.down, "_transposed", target.layers[0].mlp.down.weight.t().clone()
    ),
    "model.layers.0.training was False and is True": lambda target: target.hf.model.layers[0].train(),
    "model.layers.0.self_attn.forward was added": lambda target: setattr(
        target.hf.model.layers[0].self_attn, "forward", print
    ),
    "_forward_hooks": lambda target: target.hf.model.norm.register_forward_hook(lambda *_: None),
    "lm_head was replaced": lambda target: setattr(target.hf, "lm_head", torch.nn.Linear(32, 64, False)),
    "config.rope_parameters was": lambda target: setattr(
        target.hf.config, "rope_parameters", {"rope_theta": 5.0}
    ),
    "generation_config.eos_token_id was": lambda target: setattr(
        target.hf.generation_config, "eos_token_id", 3
    ),
    "tokenizer was changed": lambda target: target.tokenizer.add_tokens(["<new>"]),
    "tokenizer.chat_template was": lambda target: setattr(target.tokenizer, "chat_template", "x"),
    "tokenizer.decode was added": lambda target: setattr(target.tokenizer, "decode", lambda *_, **__: ""),
    "tokenizer was replaced": lambda target: setattr(target, "tokenizer", make_tokenizer(adds_bos=True)),
}


@pytest.mark.parametrize("words", CHANGES)
def test_a_change_is_named(sealed: tuple[Target, Seal], words: str) -> None:
    target, seal = sealed
    assert seal.difference() is None
    CHANGES[words](target)
    found = seal.difference()
    assert found is not None and words in found


def test_replaced_functions_are_named(sealed: tuple[Target, Seal], monkeypatch: pytest.MonkeyPatch) -> None:
    _, seal = sealed
    for owner, name, words in (
        (Autoregressive, "decode", "methods.decoding.autoregressive.Autoregressive.decode was replaced"),
        (Target, "forward", "methods.models.target.Target.forward was replaced"),
        (
            methods.decoding.autoregressive,
            "target_token",
            "methods.decoding.autoregressive.target_token was replaced",
        ),
        (torch.nn.functional, "linear", "torch.nn.functional.linear was replaced"),
        (LlamaMLP, "forward", "transformers.models.llama.modeling_llama.LlamaMLP.forward was replaced"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, lambda *_: None)
            assert seal.difference() == words
    with monkeypatch.context() as patch:
        patch.setitem(registry._methods, "autoregressive", registry.get("ngram"))
        assert seal.difference() == "method autoregressive was replaced"
    decode = Autoregressive.decode.__wrapped__  # type: ignore[attr-defined]
    code = decode.__code__
    try:
        decode.__code__ = (lambda *_: None).__code__
        assert seal.difference() == "methods.decoding.autoregressive.Autoregressive.decode was replaced"
    finally:
        decode.__code__ = code
    assert seal.difference() is None


def test_settings_of_torch_are_held(sealed: tuple[Target, Seal]) -> None:
    _, seal = sealed
    torch.set_default_dtype(torch.float64)
    try:
        assert seal.difference() == "torch's default dtype was torch.float32 and is torch.float64"
    finally:
        torch.set_default_dtype(torch.float32)


def test_what_a_method_keeps_on_the_target_is_no_change(sealed: tuple[Target, Seal]) -> None:
    target, seal = sealed
    target.my_head = torch.nn.Linear(2, 2)  # type: ignore[attr-defined]
    target.my_function = lambda: None  # type: ignore[attr-defined]
    assert target.hashes and target.rotary.rows(0, 20_000)
    target.tokenizer("a text", truncation=True, max_length=3)
    assert seal.difference() is None


def test_contents_can_be_looked_at_in_turn(sealed: tuple[Target, Seal]) -> None:
    target, seal = sealed
    assert seal.whole
    assert seal.difference(0) is None and not seal.whole
    calls = 1
    while not seal.whole:
        assert seal.difference(0) is None
        calls += 1
    assert calls == len(seal._hashes)
    target.hf.lm_head.weight.data[0, 0] += 1
    found = [seal.difference(0) for _ in range(calls)]
    assert set(found) == {None, "lm_head.weight was changed"}
