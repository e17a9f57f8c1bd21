"""``python -m harness.train generate``: the target answers the prompts of chat data."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from harness.benchmarks.chat import describe, render
from harness.records.journal import exclusive
from harness.records.manifest import enter, invocation
from harness.training.conversations import open_source
from harness.training.corpus import ANSWERS, read_answers
from harness.training.exclusion import ExclusionList, text_hash
from methods.core import SamplingParams
from methods.decoding.batched import Answer, Generator, Question
from methods.errors import UsageError
from methods.models.target import Target

_REPORT_S = 20.0


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """``prompts`` of ``data`` (first user turns of at most ``max_prompt`` tokens) are answered with up
    to ``max_new_tokens``; ``tokens`` ends the run once so many answer tokens exist."""

    data: str
    out: Path
    batch: int
    prompts: int | None
    tokens: int | None
    max_prompt: int
    max_new_tokens: int
    temperatures: tuple[float, ...]
    seed: int
    thinking: bool = False


def generate(target: Target, request: GenerateRequest, argv: Sequence[str]) -> int:
    """Write ``answers.jsonl`` and its manifest, continuing what is there; returns the answer tokens."""
    exclusion = ExclusionList.of_benchmarks()
    source = open_source(request.data)
    questions, dropped = _questions(target, request, source.conversations, exclusion)
    if not questions:
        raise UsageError(f"{request.data} has no prompt of at most {request.max_prompt} tokens")
    with exclusive(request.out):
        enter(
            request.out,
            {
                "target": target.fingerprint(),
                "chat": asdict(describe(target.tokenizer, thinking=request.thinking)),
                "data": {"source": source.location, "identity": source.identity, "prompts": len(questions)},
                "exclusion": {
                    "texts": len(exclusion.hashes), "sha256": exclusion.sha256, "dropped": dropped,
                },
                "temperatures": request.temperatures,
                "max_prompt": request.max_prompt,
                "max_new_tokens": request.max_new_tokens,
                "seed": request.seed,
            },
            invocation(argv),
        )  # fmt: skip
        return _answer_all(target, request, questions)


def _questions(
    target: Target, request: GenerateRequest, conversations: Any, exclusion: ExclusionList
) -> tuple[list[Question], int]:
    """The prompts to answer, each text once, and how many the exclusion list took out."""
    found: list[Question] = []
    seen: set[str] = set()
    dropped = 0
    for messages in conversations:
        if request.prompts is not None and len(found) >= request.prompts:
            break
        first = next(message for message in messages if message["role"] == "user")
        key = text_hash(first["content"])
        # Four characters a token and more are usual: texts beyond twice that need no tokenising.
        if key in seen or len(first["content"]) > 8 * request.max_prompt:
            continue
        seen.add(key)
        if exclusion.holds([first]):
            dropped += 1
            continue
        prompt = render(target.tokenizer, [first], thinking=request.thinking)
        if len(prompt) <= request.max_prompt:
            place = len(found)
            heat = request.temperatures[place % len(request.temperatures)]
            sampling = SamplingParams(heat, seed=request.seed * 1_000_003 + place)
            found.append(Question(key[:16], prompt, sampling))
    return found, dropped


def _answer_all(target: Target, request: GenerateRequest, questions: list[Question]) -> int:
    path = request.out / ANSWERS
    known = list(read_answers(path))
    _cut_torn_line(path)
    done = {line["key"] for line in known}
    total = sum(len(line["answer"]) for line in known)
    waiting = [question for question in questions if question.key not in done]
    _say(f"{len(done)} of {len(questions)} prompts answered, {total} tokens so far")
    engine = Generator(target, request.batch, request.max_new_tokens, target.stop_ids)
    start = reported = perf_counter()
    fresh = 0
    with path.open("a", encoding="utf-8") as file:
        for number, answer in enumerate(_until(engine.answers(waiting), request.tokens, total), 1):
            file.write(_line(answer))
            file.flush()
            fresh += len(answer.ids)
            now = perf_counter()
            if now - reported >= _REPORT_S:
                reported = now
                rate = engine.drawn / (now - start)
                left = tokens_left(request, total + fresh, len(waiting) - number, engine.drawn / number)
                _say(
                    f"{len(done) + number}/{len(questions)} prompts, {total + fresh} tokens, "
                    f"{rate:.0f} tok/s, about {max(1.0, left / rate / 60):.0f} min left"
                )
    return total + fresh


def tokens_left(request: GenerateRequest, tokens: int, prompts: int, length: float) -> float:
    """Roughly the tokens to draw until ``prompts`` are answered, too, or the budget is met by ``tokens``.

    ``length`` of an answer: all tokens drawn / answers that ended. Those at work count, since short answers
    end first; it is the mean if an answer is as likely to end at any of its tokens.
    """
    answers = prompts * min(request.max_new_tokens, length)
    return answers if request.tokens is None else min(answers, max(0, request.tokens - tokens))


def _until(answers: Iterator[Answer], budget: int | None, total: int) -> Iterator[Answer]:
    if budget is None:
        yield from answers
        return
    while total < budget:
        answer = next(answers, None)
        if answer is None:
            return
        total += len(answer.ids)
        yield answer


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _line(answer: Answer) -> str:
    question = answer.question
    return json.dumps({
        "key": question.key, "prompt": list(question.prompt_ids), "answer": answer.ids,
        "temperature": question.sampling.temperature, "stopped": answer.finish_reason == "stop",
    }) + "\n"  # fmt: skip


def _cut_torn_line(path: Path) -> None:
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)
