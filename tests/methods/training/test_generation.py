from __future__ import annotations

import pytest
from conftest import random_ids, tiny

from methods import registry
from methods.interface import SamplingParams
from methods.training.generation import Answer, Generator, Question

STOP = 7


def answers(family: str, batch: int, temperature: float = 0.0, count: int = 9) -> dict[str, Answer]:
    target = tiny(family)
    questions = [
        Question(str(i), random_ids(3 + 2 * (i % 4), seed=i), temperature, seed=i) for i in range(count)
    ]
    engine = Generator(target, batch, 12, [STOP])
    return {answer.question.key: answer for answer in engine.answers(questions)}


@pytest.mark.parametrize("family", ["llama", "hybrid"])
def test_batched_answers_are_plain_decodings(family: str) -> None:
    method = registry.create("autoregressive", tiny(family))
    found = answers(family, batch=4)
    assert len(found) == 9
    for answer in found.values():
        want = method.decode(answer.question.prompt_ids, SamplingParams(), 12, [STOP])
        assert answer.ids == want.tokens
        assert answer.stopped == (want.finish_reason == "stop")


def test_sampled_answers_do_not_depend_on_the_batch() -> None:
    alone, together = answers("llama", 1, temperature=1.0), answers("llama", 5, temperature=1.0)
    assert {key: a.ids for key, a in alone.items()} == {key: a.ids for key, a in together.items()}
    assert alone["0"].ids != answers("llama", 1)["0"].ids


def test_sampling_follows_the_targets_law() -> None:
    target = tiny("llama")
    prompt = random_ids(4, seed=3)
    questions = [Question(str(i), prompt, 1.0, seed=i) for i in range(600)]
    engine = Generator(target, 100, 1, [])
    counts = [0.0] * 64
    for answer in engine.answers(questions):
        counts[answer.ids[0]] += 1 / 600
    hidden = target.prefill(prompt, target.new_state()).hidden
    law = target.logits(hidden[0, -1]).softmax(-1).tolist()
    assert sum(abs(p - q) for p, q in zip(law, counts, strict=True)) / 2 < 0.12
