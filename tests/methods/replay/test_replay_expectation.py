"""At T > 0 with drawn drafts: the expectation along AR outputs is that of the decode loop."""

import functools
import math
import statistics

import pytest
import torch
from conftest import random_ids

from harness.records.record import StepArrays
from methods import registry
from methods.core import SamplingParams
from methods.decoding.batched import Generator, Question
from methods.decoding.replay import KnownOutput, acceptance
from methods.testing.tiny import tiny_target

VOCAB, TOKENS, RUNS = 5, 7, 200
Z99 = 2.576
TARGET = tiny_target("llama", layers=4, vocab=VOCAB)
PROMPT = random_ids(5, VOCAB, 3)
CASES = [
    ("ppsd", {"n": 4}),
    ("spd", {"n": 4, "draft_layers": 1}),
    ("spd", {"n": 2, "draft_layers": 1, "schedule": "post-step"}),
    ("eagle3", {"m": 3}),
]
COLUMNS = ("drafted", "accepted", "target_layers", "draft_layers", "depth", "nodes")


def known(sampling: SamplingParams, tokens: int = TOKENS) -> KnownOutput:
    result = registry.create("autoregressive", TARGET).decode(PROMPT, sampling, tokens)
    return KnownOutput(TARGET, PROMPT, result.tokens, sampling, tokens)


@functools.cache
def known_outputs() -> list[KnownOutput]:
    """AR outputs of seeds the decode runs do not use; their target passes serve every case."""
    asked = [Question(seed, PROMPT, SamplingParams(1.0, seed=seed)) for seed in range(RUNS, 2 * RUNS)]
    answers = Generator(TARGET, 50, TOKENS, ()).answers(asked)
    return [KnownOutput(TARGET, PROMPT, a.ids, a.question.sampling, TOKENS) for a in answers]


def totals(steps):
    columns = StepArrays.of(steps)
    return {name: sum(getattr(columns, name)) for name in COLUMNS} | {"steps": len(steps)}


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_expectation_lies_in_the_interval_of_decode_runs(name, options):
    """200 seeded decode runs against AR outputs of 200 other seeds: the interval of the difference
    holds both sampling errors, 99 % for each figure."""
    method = registry.create(name, TARGET, {**options, "untrained": True})
    samplings = [SamplingParams(1.0, seed=seed) for seed in range(RUNS)]
    runs = [totals(method.decode(PROMPT, sampling, TOKENS).steps) for sampling in samplings]
    replays = [method.replay(given).expected for given in known_outputs()]
    for column in ("steps", *COLUMNS):
        decoded = [run[column] for run in runs]
        expected = [replay[column] for replay in replays]
        error = math.sqrt((statistics.variance(decoded) + statistics.variance(expected)) / RUNS)
        difference = abs(statistics.mean(decoded) - statistics.mean(expected))
        assert difference <= Z99 * error + 1e-9, column
    assert 0.05 < statistics.mean(replay["accepted"] / replay["depth"] for replay in replays) < 0.95


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_drawn_traces_have_the_expectation(name, options):
    """One known output, many draws: traces and expectation come from two pieces of code."""
    method = registry.create(name, TARGET, {**options, "untrained": True})
    given = known(SamplingParams(1.0, seed=4), tokens=16)
    draws, expected = [], {}
    for seed in range(300):
        given.sampling = SamplingParams(1.0, seed=seed)
        replayed = method.replay(given)
        draws.append(totals(replayed.steps))
        expected = replayed.expected
        assert sum(step.emitted for step in replayed.steps) == given.decoded
        assert expected["emitted"] == pytest.approx(given.decoded)
    for column in ("steps", *COLUMNS):
        values = [draw[column] for draw in draws]
        error = Z99 * statistics.stdev(values) / math.sqrt(len(values))
        assert abs(statistics.mean(values) - expected[column]) <= error + 1e-9, column


@pytest.mark.parametrize("drawn", [True, False])
def test_acceptance_against_its_definition(drawn):
    """The mean of ``given`` over the target's law is ``marginal``, for both proposal rules."""
    method = registry.create("ppsd", TARGET, {"n": 2, "untrained": True})
    given = known(SamplingParams(1.0, seed=1))
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(3))
    p = given.law[0].double()
    mean = 0.0
    for token in range(VOCAB):
        given.truth[0] = token
        found = acceptance(logits, method.head.vocabulary, given, [0], drawn)
        mean += float(p[token] * found.given)
    assert mean == pytest.approx(float(found.marginal), abs=1e-6)
    q = logits[0].softmax(-1).double()
    by_hand = torch.minimum(p, q).sum() if drawn else p[q.argmax()]
    assert float(found.marginal) == pytest.approx(float(by_hand), abs=1e-6)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_a_token_that_rounding_has_filtered_out(name, options):
    """AR drew it in a batch, where its logit was the last of the top k; in the replay it is not."""
    method = registry.create(name, TARGET, {**options, "untrained": True})
    given = known(SamplingParams(1.0, top_k=2, seed=1))
    outside = int(given.law[3].argmin())
    assert given.law[3, outside] == 0
    output = [*given.output_ids[:4], outside, *given.output_ids[5:]]
    replayed = method.replay(KnownOutput(TARGET, PROMPT, output, given.sampling, TOKENS))
    assert all(math.isfinite(value) for value in replayed.expected.values())
    assert all(0 <= value <= 1 for value in replayed.acceptance if value is not None)


def test_acceptance_by_position_is_a_probability():
    method = registry.create("eagle3", TARGET, {"m": 3, "untrained": True})
    replayed = method.replay(known(SamplingParams(1.0, seed=2)))
    found = [value for value in replayed.acceptance if value is not None]
    assert len(replayed.acceptance) == TOKENS - 1 and found
    assert all(0 <= value <= 1 for value in found)
