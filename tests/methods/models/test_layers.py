"""Our layers on our caches give the transformers model's own logits, however the tokens arrive."""

from __future__ import annotations

import pytest
import torch
from conftest import random_ids

from methods.errors import UsageError
from methods.models.layer import build_layers
from methods.models.passes import PassLog
from methods.models.target import Target

TOLERANCE = 1e-5


def reference(target: Target, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return target.hf(torch.tensor([ids])).logits[0]


def close(mine: torch.Tensor, theirs: torch.Tensor, scale: float = 1.0) -> bool:
    return float((mine - theirs).abs().max()) <= TOLERANCE * scale


def test_one_pass_equals_transformers(target: Target) -> None:
    ids = random_ids(33)
    hidden = target.forward(ids, target.new_state()).hidden
    assert close(target.logits(hidden)[0], reference(target, ids))


@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize("sizes", [[1] * 20, [7, 1, 1, 5, 6], [19, 1], [2, 16, 2]])
def test_any_split_of_the_tokens_equals_transformers(target: Target, sizes: list[int], record: bool) -> None:
    ids = random_ids(20, seed=1)
    state, parts, start = target.new_state(), [], 0
    for size in sizes:
        parts.append(target.forward(ids[start : start + size], state, record=record).hidden)
        start += size
    assert close(target.logits(torch.cat(parts, 1))[0], reference(target, ids))


def test_padded_batch_equals_single_rows(target: Target) -> None:
    rows = [random_ids(12, seed=2), random_ids(5, seed=3)]
    state = target.new_state(2, pad=torch.tensor([0, 7]))
    padded = torch.tensor([rows[0], [0] * 7 + rows[1]])
    target.forward(padded[:, :-1], state)
    logits = target.logits(target.forward(padded[:, -1:], state).hidden)[:, 0]
    for row, ids in zip(logits, rows, strict=True):
        assert close(row, reference(target, ids)[-1])


def test_taps_are_the_residual_stream(target: Target) -> None:
    ids = random_ids(9)
    with torch.no_grad():
        expected = target.hf(torch.tensor([ids]), output_hidden_states=True).hidden_states
    last = target.num_layers
    taps = target.forward(ids, target.new_state(), taps=range(last + 1)).taps
    assert sorted(taps) == list(range(last + 1))
    for index in range(last):
        # Rounding errors are relative, and the stream, unlike logits, is not near 1.
        assert close(taps[index], expected[index], float(expected[index].abs().max()))
    # transformers' last entry is normed; ours is the raw stream before the norm
    assert close(target.final_norm(taps[last]), expected[last])


def test_stages_in_sequence_equal_the_whole(target: Target) -> None:
    ids = random_ids(10)
    hidden = target.embed(ids)
    for first, last in [(0, 3), (3, 4), (4, 8)]:
        stage = target.stage(first, last)
        hidden, taps = stage.forward(hidden, stage.new_state(), taps=[first, last])
        assert sorted(taps) == [first, last]
    assert close(target.logits(hidden)[0], reference(target, ids))


def test_prefill_in_chunks(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = random_ids(23)
    monkeypatch.setattr("methods.models.target.PREFILL_CHUNK", 5)
    out = target.prefill(ids, target.new_state(), taps=[4])
    assert out.taps[4].shape == (1, 23, target.hidden_size)
    assert close(target.logits(out.hidden)[0, 0], reference(target, ids)[-1])


def test_fusing_keeps_the_transformers_model_alive(llama: Target) -> None:
    """The modules' weights are views of the fused ones: a change shows in both."""
    attention = llama.hf.model.layers[0].self_attn
    fused = llama.layers[0].mixer.qkv.weight
    assert attention.k_proj.weight.data_ptr() == fused[llama.layers[0].mixer.qkv.sizes[0] :].data_ptr()


def test_bad_prompts_are_refused(llama: Target) -> None:
    too_long = [1] * llama.context
    for ids, word in [([], "empty"), (too_long, "context"), ([64], "vocabulary"), ([-1], "vocabulary")]:
        with pytest.raises(UsageError, match=word):
            llama.prefill(ids, llama.new_state())


def test_unknown_family_is_refused(llama: Target) -> None:
    class Config:
        model_type = "gpt2"

    with pytest.raises(UsageError, match=r"gpt2.*allowed: llama"):
        build_layers(llama.hf.model, Config(), PassLog())
