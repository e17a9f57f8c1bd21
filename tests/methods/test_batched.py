"""Batched answers are those of decoding one prompt at a time."""

import pytest
from conftest import random_ids

from methods import registry
from methods.core import SamplingParams
from methods.decoding.batched import Generator, Question
from methods.errors import UsageError

CAP = 24


def single(target, question, cap, stop_ids):
    method = registry.create("autoregressive", target)
    return method.decode(question.prompt_ids, question.sampling, cap, stop_ids)


def questions(temperature, count=7):
    return [
        Question(i, random_ids(3 + 5 * (i % 4), seed=i), SamplingParams(temperature, seed=100 + i))
        for i in range(count)
    ]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_equal_to_single_decoding(target, temperature):
    """Prompts of uneven length, more than fit at once, ending at stop ids and at the cap."""
    asked = questions(temperature)
    stop_ids = [single(target, asked[1], CAP, ()).tokens[6]]
    answers = list(Generator(target, 3, CAP, stop_ids).answers(asked))
    assert sorted(answer.question.key for answer in answers) == list(range(len(asked)))
    for answer in answers:
        reference = single(target, answer.question, CAP, stop_ids)
        assert answer.ids == reference.tokens
        assert answer.finish_reason == reference.finish_reason
    assert len({len(answer.ids) for answer in answers}) > 1


@pytest.mark.parametrize("batch", [8, 16, 24])
def test_rows_that_end_with_their_first_token_while_others_run(llama, batch):
    """Their place is filled again before anything is stepped."""
    asked = questions(1.0, 60)
    firsts = [single(llama, question, 1, ()).tokens[0] for question in asked]
    stop_ids = sorted(set(firsts), key=firsts.count)[-6:]
    answers = list(Generator(llama, batch, 8, stop_ids).answers(asked))
    late = [
        answer.question.key for answer in answers if len(answer.ids) == 1 and answer.question.key >= batch
    ]
    assert late, "none ended with its first token after a refill"
    for answer in answers:
        assert answer.ids == single(llama, answer.question, 8, stop_ids).tokens
    assert len(answers) == len(asked)


@pytest.mark.parametrize("cap", [0, 1, 2])
def test_small_caps(llama, cap):
    answers = list(Generator(llama, 4, cap, ()).answers(questions(0.0, 6)))
    assert [len(answer.ids) for answer in answers] == [cap] * 6


def test_context_ends_an_answer(llama):
    prompt = random_ids(llama.context - 3)
    (answer,) = Generator(llama, 2, CAP, ()).answers([Question("long", prompt)])
    assert len(answer.ids) == 3 and answer.finish_reason == "length"


def test_empty_prompt_is_refused(llama):
    with pytest.raises(UsageError, match="empty"):
        list(Generator(llama, 2, CAP, ()).answers([Question("none", [])]))


def test_sampling_follows_the_targets_law(llama):
    prompt = random_ids(4, seed=3)
    asked = [Question(i, prompt, SamplingParams(1.0, seed=i)) for i in range(600)]
    counts = [0.0] * 64
    for answer in Generator(llama, 100, 1, ()).answers(asked):
        counts[answer.ids[0]] += 1 / 600
    hidden = llama.prefill(prompt, llama.new_state()).hidden
    law = llama.logits(hidden[0, -1]).softmax(-1).tolist()
    assert sum(abs(p - q) for p, q in zip(law, counts, strict=True)) / 2 < 0.12
