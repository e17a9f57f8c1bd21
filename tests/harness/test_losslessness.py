"""The tie rule, on numbers and on a real half-precision model."""

from __future__ import annotations

import pytest
import torch

from harness.checking import worlds
from harness.checking.random_cases import Totals, draw, run_case
from harness.losslessness import BLOCKS, classify, measured_status, probe
from methods.interface import SamplingParams
from methods.target.target import Target
from methods.target.tiny import FAMILIES


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


PROMPT = [1, 2, 3, 1]
VOCAB = worlds.VOCABULARIES[-1]


def output(target: Target, tokens: int) -> list[int]:
    return worlds.reference(target).decode(PROMPT, SamplingParams(), tokens).tokens


@pytest.fixture
def llama() -> Target:
    return worlds.family("llama", VOCAB, torch.bfloat16)


@pytest.mark.parametrize("family", FAMILIES)
def test_blocks_and_steps_differ_by_rounding_only(family: str) -> None:
    target = worlds.family(family, VOCAB, torch.float32)
    assert probe(target, PROMPT, output(target, 30), 3).block_step_difference < 1e-4


@pytest.mark.parametrize("kind", BLOCKS)
def test_a_difference_of_every_kind_of_block_is_measured(llama: Target, monkeypatch, kind) -> None:
    ids = output(llama, 30)
    levels, forked = kind
    rows = levels * (2 if forked else 1)
    whole = probe(llama, PROMPT, ids, 3).block_step_difference
    forward = Target.forward

    def moved(self, tokens, state, parents=None, record=False, taps=()):
        out = forward(self, tokens, state, parents, record, taps)
        if record and len(tokens) == rows and (parents is not None) == forked:
            out.hidden.zero_()
        return out

    monkeypatch.setattr(Target, "forward", moved)
    assert probe(llama, PROMPT, ids, 3).block_step_difference > whole + 0.01


@pytest.mark.parametrize("prompt", [[1], [1, 2], list(range(1, 8)) * 20])
@pytest.mark.parametrize("position", [0, 1, 11])
def test_probe_sees_the_logits_of_plain_decoding(prompt: list[int], position: int) -> None:
    llama = worlds.family("llama", VOCAB, torch.float32)
    ids = worlds.reference(llama).decode(prompt, SamplingParams(), 12).tokens
    there = probe(llama, prompt, ids, position)
    assert there.gap(ids[position]) == 0.0
    assert there.logits.shape == (llama.vocab_size,)
    with torch.inference_mode():
        expected = llama.hf(torch.tensor([[*prompt, *ids[:position]]])).logits[0, -1]
    torch.testing.assert_close(there.logits, expected, atol=1e-4, rtol=0)


def test_wrong_token_is_a_mismatch_on_a_real_model(llama: Target) -> None:
    ids = output(llama, 12)
    worst = int(probe(llama, PROMPT, ids, 5).logits.argmin())
    assert measured_status(llama, PROMPT, ids, ids) == "exact"
    assert measured_status(llama, PROMPT, ids, [*ids[:5], worst, *ids[6:]]) == "mismatch"
    assert measured_status(llama, PROMPT, ids, ids[:5]) == "mismatch"


def test_equal_logits_are_a_tie_on_a_real_model(llama: Target) -> None:
    ids = output(llama, 12)
    other = int(probe(llama, PROMPT, ids, 5).logits.argmin())
    kept = llama.head_weight.clone()
    with torch.inference_mode():
        llama.head_weight[other] = llama.head_weight[ids[5]]
    try:
        assert measured_status(llama, PROMPT, ids, [*ids[:5], other]) == "tie"
    finally:
        with torch.inference_mode():
            llama.head_weight.copy_(kept)


def test_a_draft_tree_that_rounds_otherwise_is_a_tie() -> None:
    """A case that a rule which measures chains only calls a lost token."""
    case = draw(2, 1163)
    assert (case.method, case.family, case.bfloat16) == ("eagle3", "sliding", True)
    assert run_case(case, Totals()) is None
