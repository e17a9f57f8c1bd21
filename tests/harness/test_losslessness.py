"""The tie rule, on real models: what rounding does is forgiven, small faults are not."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from harness.checks import worlds
from harness.checks.random_cases import Totals, draw, run_case
from harness.execution.losslessness import Doubt, doubts, judge
from methods import registry
from methods.core import SamplingParams
from methods.models.attention import Attention
from methods.models.rotary import signed
from methods.models.target import Target
from methods.testing.tiny import FAMILIES, tiny_target

GREEDY = SamplingParams()
PROMPT = [1, 2, 3, 1]
VOCAB = 64
DTYPES = (torch.float32, torch.bfloat16)


def output(target: Target, tokens: int, prompt: list[int] = PROMPT) -> list[int]:
    return worlds.reference(target).decode(prompt, GREEDY, tokens).tokens


@pytest.fixture(params=DTYPES, ids=str)
def llama(request) -> Target:
    """A target of its own, which a test may change."""
    return tiny_target("llama", 8, VOCAB, dtype=request.param)


def test_equal_outputs_need_no_target() -> None:
    assert judge(None, PROMPT, [1, 2], [1, 2]).status == "exact"
    assert judge(None, PROMPT, [], []).status == "exact"


@pytest.mark.parametrize("ids", [[], [1], [1, 2, 3]])
def test_output_of_another_length_is_a_mismatch(ids: list[int]) -> None:
    assert judge(None, PROMPT, [1, 2], ids).status == "mismatch"


@pytest.mark.parametrize(("gap", "forgiven"), [(0.0, True), (0.5, True), (0.51, False), (math.nan, False)])
def test_a_gap_up_to_the_allowance_is_forgiven(gap: float, forgiven: bool) -> None:
    assert Doubt(0, 1, 2, 3.0, gap, allowed=0.5).forgiven is forgiven


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_allowance_is_a_few_roundings_at_every_position(family: str, dtype: torch.dtype) -> None:
    target = worlds.family(family, VOCAB, dtype)
    ids = output(target, 40)
    others = [(token + 1) % VOCAB for token in ids]
    found = doubts(target, PROMPT, ids, others)
    assert {doubt.position for doubt in found} == set(range(40))
    assert {doubt.gap for doubt in doubts(target, PROMPT, ids, ids)} <= {0.0}, "the passes are AR's own"
    size = max(abs(doubt.logit) for doubt in found)
    for doubt in found:
        assert 0 < doubt.allowed < 64 * torch.finfo(dtype).eps * size
    assert len({doubt.allowed for doubt in found}) > 20, "each position has its own"


@pytest.mark.parametrize("prompt", [[1], [1, 2], list(range(1, 8)) * 20], ids=len)
@pytest.mark.parametrize("position", [0, 1, 11])
def test_the_gap_is_that_of_plain_decoding(prompt: list[int], position: int) -> None:
    target = worlds.family("llama", VOCAB, torch.float32)
    ids = output(target, 12, prompt)
    other = (ids[position] + 1) % VOCAB
    changed = [*ids[:position], other]
    found = judge(target, prompt, ids, changed).doubt
    with torch.inference_mode():
        logits = target.hf(torch.tensor([[*prompt, *ids[:position]]])).logits[0, -1]
    assert (found.position, found.token, found.best) == (position, other, ids[position])
    assert found.gap == pytest.approx(float(logits.max() - logits[other]), abs=1e-4)


def test_every_wrong_token_is_a_mismatch_also_after_a_tie(llama: Target) -> None:
    ids = output(llama, 24)
    twin = with_equal_rows(llama, ids[5])
    assert judge(llama, PROMPT, ids, [*ids[:5], twin]).status == "tie"
    went_on = [*ids[:5], twin, *output(llama, 18, [*PROMPT, *ids[:5], twin])]
    assert judge(llama, PROMPT, ids, went_on).status == "tie"
    for position in (6, 15, 23):
        wrong = [*went_on[:position], (went_on[position] + 1) % VOCAB, *went_on[position + 1 :]]
        verdict = judge(llama, PROMPT, ids, wrong)
        assert (verdict.status, verdict.doubt.position) == ("mismatch", position)


def test_a_reference_that_is_not_the_targets_is_a_mismatch(llama: Target) -> None:
    ids = output(llama, 12)
    wrong = [*ids[:4], (ids[4] + 1) % VOCAB, *ids[5:]]
    verdict = judge(llama, PROMPT, wrong, ids)
    assert (verdict.status, verdict.doubt.position, verdict.doubt.token) == ("mismatch", 4, wrong[4])


def with_equal_rows(target: Target, token: int) -> int:
    """Give another token, with the head's last row, the row of ``token``."""
    twin = VOCAB - 1 if token != VOCAB - 1 else VOCAB - 2
    with torch.inference_mode():
        target.head_weight[twin] = target.head_weight[token]
    return twin


def test_a_draft_tree_that_rounds_otherwise_is_a_tie() -> None:
    """A case that a rule which measures chains only calls a lost token."""
    case = draw(2, 1163)
    assert (case.method, case.family, case.bfloat16) == ("eagle3", "sliding", True)
    assert run_case(case, Totals()) is None


# Faults of small effect: each spoils what a method's passes do at or after one position, in all layers.

AT = 20


def rotate_one_position_further(attention, x, residual, block, cache):
    if block.start == AT:
        block = copy.copy(block)
        cos, sin = worlds.family("llama", VOCAB, x.dtype).rotary.rows(AT + 1, 1)
        block.cos, block.sin = cos[None, :, None], signed(sin)[None, :, None]
    return CALL(attention, x, residual, block, cache)


def hide_one_token(attention, x, residual, block, cache):
    if block.start > AT and block.count == 1:
        block = copy.copy(block)
        block.visible = torch.ones(1, 1, block.end, dtype=torch.bool)
        block.visible[..., AT] = False
        block._folded = {}
    return CALL(attention, x, residual, block, cache)


def keep_a_stale_value(attention, x, residual, block, cache):
    """As if a rejected draft had stayed in the cache."""
    rows = CALL(attention, x, residual, block, cache)
    if block.start == AT:
        cache.values[:, :, AT] = cache.values[:, :, AT - 1]
    return rows


CALL = Attention.__call__
SPOILED = (rotate_one_position_further, hide_one_token, keep_a_stale_value)
PROMPTS = [worlds.prompt(8, VOCAB, seed) for seed in range(3)]


def statuses(target: Target, expected: list[list[int]], found: list[list[int]]) -> list[str]:
    cases = zip(PROMPTS, expected, found, strict=True)
    return [judge(target, prompt, ar, ids).status for prompt, ar, ids in cases]


@pytest.mark.parametrize("fault", SPOILED, ids=lambda fault: fault.__name__)
def test_a_fault_at_one_position_is_not_forgiven(llama: Target, monkeypatch, fault) -> None:
    expected = [output(llama, 48, prompt) for prompt in PROMPTS]
    with monkeypatch.context() as patched:
        patched.setattr(Attention, "__call__", fault)
        found = [output(llama, 48, prompt) for prompt in PROMPTS]
    assert "mismatch" in statuses(llama, expected, found)


def test_weights_rounded_to_eight_bits_are_not_forgiven_in_float32() -> None:
    """One layer's. In bfloat16 it is less than what rounding does, so that float32 decides."""
    target = tiny_target("llama", 8, VOCAB)
    expected = [output(target, 48, prompt) for prompt in PROMPTS]
    rounded = tiny_target("llama", 8, VOCAB)
    with torch.inference_mode():
        for weight in rounded.layers[3].matrices():
            scale = weight.abs().amax(-1, keepdim=True) / 127
            weight.copy_((weight / scale).round() * scale)
    found = [output(rounded, 48, prompt) for prompt in PROMPTS]
    assert statuses(target, expected, found) == ["mismatch"] * len(PROMPTS)


def test_a_fault_of_the_engines_blocks_does_not_pass_for_rounding(llama: Target, monkeypatch) -> None:
    """Left in place while it is judged, in float32 and in bfloat16."""

    def blind_to_the_last_token(attention, x, residual, block, cache):
        if block.visible is not None and block.start:
            block = copy.copy(block)
            block.visible = block.visible.clone()
            block.visible[..., block.start - 1] = False
            block._folded = {}
        return CALL(attention, x, residual, block, cache)

    # A prompt that repeats, so that lookup always has a draft.
    prompts = [[*prompt, *prompt] for prompt in PROMPTS]
    method = registry.create("ngram", llama, {"m": 4, "longest": 1})
    expected = [output(llama, 48, prompt) for prompt in prompts]
    monkeypatch.setattr(Attention, "__call__", blind_to_the_last_token)
    found = [method.decode(prompt, GREEDY, 48).tokens for prompt in prompts]
    cases = zip(prompts, expected, found, strict=True)
    assert "mismatch" in [judge(llama, prompt, ar, ids).status for prompt, ar, ids in cases]
