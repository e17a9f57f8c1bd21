"""The target's own count of its passes, whoever runs its layers."""

import pytest
import torch
from conftest import tiny

from methods import registry
from methods.core import SamplingParams
from methods.models.passes import Pass, PassLog
from methods.testing.table_target import LawTable, TableTarget

LAYERS = 4


def seen(recording) -> list[tuple[int, int, int, int]]:
    return [(one.first, one.last, one.start, one.tokens) for one in recording.passes]


@pytest.fixture(params=["llama", "hybrid", "table"])
def target(request):
    if request.param == "table":
        return TableTarget(LawTable.random(5), LAYERS)
    return tiny(request.param, layers=LAYERS)


def test_a_pass_of_the_whole_target(target):
    state = target.new_state()
    with target.passes.recording() as recording, torch.no_grad():
        target.prefill([1, 2, 3], state)
        target.forward([1, 0], state, record=True)
    assert seen(recording) == [(0, LAYERS, 0, 3), (0, LAYERS, 3, 2)]
    assert all(one.layers == LAYERS and one.first_s < one.last_s for one in recording.passes)


def test_stages_are_passes_of_their_own(target):
    """Also where they run the same tokens one after the other, as a whole target would."""
    first, second = target.stage(0, 1), target.stage(1, LAYERS)
    states = first.new_state(), second.new_state()
    with target.passes.recording() as recording:
        hidden, _ = first.forward(target.embed([1, 2]), states[0])
        second.forward(hidden, states[1])
    assert seen(recording) == [(0, 1, 0, 2), (1, LAYERS, 0, 2)]


def test_rows_of_a_batch_are_tokens():
    target = tiny("llama", layers=LAYERS)
    with target.passes.recording() as recording:
        target.forward(torch.tensor([[1, 2], [3, 4], [5, 6]]), target.new_state(3))
    assert seen(recording) == [(0, LAYERS, 0, 6)]


def test_layers_called_by_hand_are_seen():
    target = tiny("llama", layers=LAYERS)
    state = target.new_state()
    with target.passes.recording() as recording:
        hidden, block = target.embed([1, 2]), state.block(2, None, False)
        for layer, cache in zip(target.layers[:3], state.caches, strict=False):
            hidden = layer(hidden, block, cache)
    assert seen(recording) == [(0, 3, 0, 2)]


def test_the_transformers_model_is_seen_and_left_as_it_was():
    target = tiny("llama", layers=LAYERS)
    with target.passes.recording() as recording, torch.no_grad():
        cache = target.hf(torch.tensor([[1, 2, 3]]), use_cache=True).past_key_values
        target.hf(torch.tensor([[4]]), past_key_values=cache)
    assert seen(recording) == [(0, LAYERS, 0, 3), (0, LAYERS, 3, 1)]
    with torch.no_grad():
        target.hf(torch.tensor([[1]]))
    assert len(recording.passes) == 2
    assert not any(module._forward_pre_hooks for module in target.hf.modules())


def test_nothing_is_kept_outside_a_recording():
    target = tiny("llama", layers=LAYERS)
    registry.create("autoregressive", target).decode([1], SamplingParams(), 3)
    with target.passes.recording() as recording:
        pass
    assert recording.passes == []


def test_an_inner_recording_is_none_of_the_outer():
    log = PassLog()
    with log.recording() as outer:
        log.ran(0, 0, 1)
        with log.recording() as inner:
            log.ran(0, 1, 1)
        log.ran(1, 0, 1)
    assert seen(outer) == [(0, 2, 0, 1)]
    assert seen(inner) == [(0, 1, 1, 1)]


def test_passes_are_values():
    assert Pass(0, 2, 5, 1, 0.0, 0.5).layers == 2
