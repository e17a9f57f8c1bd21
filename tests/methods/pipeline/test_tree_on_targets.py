"""What W = 4 buys on a real target: branches survive verifications, and fewer cycles are needed."""

from __future__ import annotations

import functools
import random
from itertools import pairwise

import pytest
import torch
from conftest import random_ids, tiny

from methods import registry
from methods.core import SamplingParams
from methods.drafters.vocabulary import DraftVocabulary
from methods.models.partition import split_layers
from methods.testing.scripted import ScriptedDrafter, ScriptedPipeline

GREEDY = SamplingParams()
LAYERS, CAP = 4, 32
PROMPTS = [random_ids(1 + seed % 6, seed=seed) for seed in range(20)]
SURE = torch.tensor([2.0, 0.5, 0.0, -0.5])
UNSURE = torch.tensor([0.1, 0.0, -0.1, -0.2])


@functools.cache
def outputs(name: str) -> list[list[int]]:
    ar = registry.create("autoregressive", tiny(name, LAYERS))
    return [ar.decode(prompt, GREEDY, CAP).tokens for prompt in PROMPTS]


def mostly_second(output: list[int], vocab: int, first_right: float = 0.7):
    """The target's token comes first with probability ``first_right``, else among the next three; off
    the target's path the drafter is unsure."""

    def law_of(prefix):
        i = len(prefix)
        rng = random.Random(repr(list(prefix)))
        ranked = rng.sample(range(vocab), 4)
        sure = i < len(output) and list(prefix) == output[:i]
        if sure:
            ranked = [token for token in ranked if token != output[i]][:3]
            ranked.insert(0 if rng.random() < first_right else rng.randrange(1, 4), output[i])
        logits = torch.full((vocab,), -9.0)
        logits[ranked] = SURE if sure else UNSURE
        return logits

    return law_of


def decode(name: str, n: int, width: int, index: int):
    target = tiny(name, LAYERS)

    def drafter(prompt, sampling):
        law_of = mostly_second(outputs(name)[index], target.vocab_size)
        return ScriptedDrafter(law_of, DraftVocabulary(target.vocab_size))

    stages = split_layers(target.num_layers, n)
    pipeline = ScriptedPipeline(target, stages, drafter, rule="point-mass", width=width)
    result = pipeline.decode(PROMPTS[index], GREEDY, CAP)
    assert result.tokens == outputs(name)[index]
    return result.steps


@pytest.mark.parametrize(("name", "n"), [("llama", 4), ("hybrid", 2)])
def test_four_branches_need_fewer_cycles_than_one(name, n):
    prompts = range(20) if name == "llama" else range(4)
    cycles = {width: sum(len(decode(name, n, width, i)) for i in prompts) for width in (1, 4)}
    assert cycles[4] < 0.9 * cycles[1]


def test_several_candidates_are_alive_at_most_verifications():
    """In steady state: the root was itself drafted, so that the pipeline has not just been filled."""
    alive = []
    for index in range(len(PROMPTS)):
        verified = [step for step in decode("llama", 4, 4, index) if step.emitted]
        alive += [step.drafted for before, step in pairwise(verified) if before.accepted]
    assert len(alive) > 200
    assert sum(count > 1 for count in alive) > len(alive) / 2


def test_the_trace_counts_what_the_width_costs():
    narrow, wide = (decode("llama", 4, width, 0) for width in (1, 4))
    assert max(max(step.nodes) for step in narrow) == 1
    assert max(max(step.nodes) for step in wide) == 4
    assert all(len(step.nodes) == 4 for step in wide)
