"""Eight conversations learnt by heart, and the decode loop finds the heads as good as the trainer does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import random_ids

from methods import registry
from methods.core import SamplingParams
from methods.drafters.vocabulary import DraftVocabulary
from methods.eagle3 import training as eagle3
from methods.eagle3.session import Eagle3Session
from methods.models.partition import split_layers
from methods.models.target import Target
from methods.ppsd import training as ppsd
from methods.spd import training as spd
from methods.testing.tiny import tiny_target
from methods.training.batches import Batches
from methods.training.observation import Example
from methods.training.optimizer import OptimizerConfig
from methods.training.task import HeadTask
from methods.training.trainer import Trainer, TrainerConfig

PROMPT, ANSWER, N = 6, 14, 4
VOCABULARY = DraftVocabulary(64)
RECIPE = OptimizerConfig("muon", lr=2e-2, vector_lr=1e-2, head_lr=7e-3, warmup=0.05, decay="linear", clip=1.0)


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target("llama", sharpness=2.0)


@pytest.fixture(scope="module")
def answers(target: Target) -> list[tuple[list[int], list[int]]]:
    method = registry.create("autoregressive", target)
    prompts = [random_ids(PROMPT, seed=seed) for seed in range(8)]
    return [(prompt, method.decode(prompt, SamplingParams(), ANSWER).tokens) for prompt in prompts]


def trained(
    target: Target, answers: list[tuple[list[int], list[int]]], task: HeadTask, steps: int
) -> list[float]:
    """Step acceptance of every draft step after ``steps`` steps on all answers."""
    examples = [Example(torch.tensor(p + a), torch.arange(len(p) + len(a)) >= len(p)) for p, a in answers]
    budget = steps * sum(len(example.supervised()) for example in examples)
    config = TrainerConfig(budget, 1024, 0)
    trainer = Trainer(target, VOCABULARY, [task], [RECIPE], Batches(examples, 8, 0), config)
    while not trainer.done:
        trainer.step()
    found = trainer.evaluate(examples)[task.label]
    return [each.rates()["step_acceptance"] for each in found]


def spd_task(schedule: str) -> Callable[[Target], HeadTask]:
    return lambda target: spd.SpdTask("spd", spd.initial_module(target, N, 2, VOCABULARY, None, 0), schedule)


def ppsd_task(target: Target) -> HeadTask:
    head = ppsd.initial_head(target, N, VOCABULARY, None, 0)
    return ppsd.PpsdTask("ppsd", head, split_layers(target.num_layers, N))


@pytest.mark.parametrize(
    ("method", "options", "build"),
    [
        ("spd", {"schedule": "pre-step"}, spd_task("pre-step")),
        ("spd", {"schedule": "post-step"}, spd_task("post-step")),
        ("ppsd", {}, ppsd_task),
    ],
)
def test_pipeline_heads_accept_what_the_trainer_says(
    target: Target,
    answers: list[tuple[list[int], list[int]]],
    method: str,
    options: dict[str, str],
    build: Callable[[Target], HeadTask],
    tmp_path: Path,
) -> None:
    task = build(target)
    assert trained(target, answers, task, 160)[0] >= 0.95
    task.save(tmp_path, target, {"tokens_seen": 1})
    decoder = registry.create(method, target, {"n": N, "checkpoint": str(tmp_path), **options})
    tokens = cycles = 0
    for prompt, answer in answers:
        result = decoder.decode(prompt, SamplingParams(), ANSWER)
        assert result.tokens == answer
        tokens += len(answer) - 1
        cycles += len(result.steps)
    # Without a rejection N tokens take N + n - 1 cycles, and each rejection costs n - 1 more.
    rejected = (cycles - tokens - len(answers) * (N - 1)) / (N - 1)
    assert 0 <= rejected / tokens <= 0.05


def test_eagle3_drafts_whole_rounds_it_was_trained_on(
    target: Target, answers: list[tuple[list[int], list[int]]]
) -> None:
    task = eagle3.Eagle3Task("eagle3", eagle3.initial_head(target, VOCABULARY, None, 0), steps=3)
    acceptance = trained(target, answers, task, 260)
    assert min(acceptance) >= 0.95
    drafted = right = 0
    for prompt, answer in answers:
        ids = torch.tensor(prompt + answer)
        taps = target.forward(ids, target.new_state(), taps=set(task.taps)).taps
        features = torch.cat([taps[tap][0] for tap in task.module.config.taps], -1)
        for root in range(len(prompt), len(ids) - 3, 4):
            session = Eagle3Session(task.module)
            out, logits = session.extend(features[:root], ids[1 : root + 1])
            for step in range(3):
                token = int(logits.argmax())
                drafted += 1
                right += token == int(ids[root + 1 + step])
                if step < 2:
                    out, logits = session.grow([step - 1], out, torch.tensor([token]))
    assert right / drafted >= 0.95
