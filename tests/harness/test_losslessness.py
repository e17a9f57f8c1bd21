"""The tie rule, on numbers and on a real half-precision model."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from harness.losslessness import classify, measured_status, probe


def never(position: int, token: int) -> float:
    raise AssertionError("equal outputs need no measurement")


def test_equal_outputs_are_exact() -> None:
    assert classify([1, 2], [1, 2], never, 0.0) == "exact"
    assert classify([], [], never, 0.0) == "exact"


@pytest.mark.parametrize(("gap", "status"), [(0.0, "tie"), (0.5, "tie"), (0.51, "mismatch")])
def test_tie_is_a_gap_within_twice_the_difference(gap: float, status: str) -> None:
    asked = []

    def gap_fn(position: int, token: int) -> float:
        asked.append((position, token))
        return gap

    assert classify([5, 6, 7, 8], [5, 6, 9, 1], gap_fn, 0.25) == status
    assert asked == [(2, 9)], "only the first differing token counts: later ones have another prefix"


@pytest.mark.parametrize("ids", [[1], [1, 2, 3]])
def test_output_of_another_length_is_a_mismatch(ids: list[int]) -> None:
    assert classify([1, 2], ids, never, 1e9) == "mismatch"


@pytest.fixture(scope="module")
def model():
    """A tiny bfloat16 Llama, on one thread: its matrices are too small to share."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
    )
    yield LlamaForCausalLM(config).to(torch.bfloat16).eval()
    torch.set_num_threads(threads)


def test_block_and_step_differ_by_rounding_only(model: LlamaForCausalLM) -> None:
    ids = list(range(1, 30))
    half = probe(model, ids).block_step_difference
    full = probe(model.float(), ids).block_step_difference
    model.to(torch.bfloat16)
    assert half < 0.1  # 0 on processors that round a block and a step alike
    assert full < 1e-5


def test_a_difference_between_block_and_step_is_measured(model: LlamaForCausalLM) -> None:
    def shift(module: torch.nn.Module, inputs: tuple[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
        return out + 0.25 * (out.shape[1] > 1)

    hook = model.float().lm_head.register_forward_hook(shift)
    try:
        assert probe(model, list(range(1, 30))).block_step_difference == pytest.approx(0.25, abs=1e-4)
    finally:
        hook.remove()
        model.to(torch.bfloat16)


@pytest.mark.parametrize("length", [1, 2, 30])
def test_probe_sees_the_logits_after_its_ids(model: LlamaForCausalLM, length: int) -> None:
    ids = list(range(1, length + 1))
    with torch.inference_mode():
        expected = model.float()(torch.tensor([ids])).logits[0, -1]
    there = probe(model, ids)
    model.to(torch.bfloat16)
    torch.testing.assert_close(there.logits, expected)
    assert there.gap(int(expected.argmax())) == 0.0
    assert there.gap(int(expected.argmin())) == pytest.approx(
        float(expected.max() - expected.min()), abs=1e-5
    )


def test_wrong_token_is_a_mismatch_on_a_real_model(model: LlamaForCausalLM) -> None:
    prompt = list(range(1, 20))
    with torch.inference_mode():
        order = model(torch.tensor([prompt])).logits[0, -1].float().argsort(descending=True).tolist()
    assert measured_status(model, prompt, [order[0], 3], [order[0], 3]) == "exact"
    assert measured_status(model, prompt, [order[0], 3], [order[-1], 3]) == "mismatch"
    assert measured_status(model, prompt, [order[0], 3], [order[0]]) == "mismatch"


def test_equal_logits_are_a_tie_on_a_real_model(model: LlamaForCausalLM) -> None:
    prompt = list(range(1, 20))
    with torch.inference_mode():
        order = model(torch.tensor([prompt])).logits[0, -1].float().argsort(descending=True).tolist()
        rows = model.lm_head.weight
        kept = rows.clone()
        rows[order[-1]] = rows[order[0]]
    try:
        assert measured_status(model, prompt, [order[0]], [order[-1]]) == "tie"
    finally:
        with torch.inference_mode():
            rows.copy_(kept)
