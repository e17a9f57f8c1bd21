"""Benchmark prompts must not be trained on: found by hash of their normalised text."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from harness import benchmarks
from harness.benchmarks.chat import Message
from harness.benchmarks.hub import HubUnavailable, fetch_rows
from harness.benchmarks.prompt import CodeProblem, Prompt

_PARAGRAPH = re.compile(r"\n\s*\n")


@dataclass(frozen=True, slots=True)
class ExclusionList:
    """Hashes of every text to keep out."""

    hashes: frozenset[str]

    @classmethod
    def of_texts(cls, texts: Iterable[str]) -> ExclusionList:
        return cls(frozenset(text_hash(text) for text in texts))

    @classmethod
    def of_benchmarks(cls) -> ExclusionList:
        """Every turn and every code problem of all benchmarks, from the pinned wheels and, where it
        answers, the hub: whole sets, not only the prompts a run takes."""
        return cls.of_texts(text for prompt in _prompts() for text in _texts(prompt))

    @property
    def sha256(self) -> str:
        """Identity of the list."""
        return hashlib.sha256("\n".join(sorted(self.hashes)).encode()).hexdigest()

    def holds(self, messages: Sequence[Message]) -> bool:
        """Whether a user message, or a paragraph of one, is on the list."""
        return any(
            text_hash(part) in self.hashes
            for message in messages
            if message["role"] == "user"
            for part in (message["content"], *_PARAGRAPH.split(message["content"]))
        )


def text_hash(text: str) -> str:
    """sha256 of the letters and digits of ``text``, without case: layout and punctuation do not count."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    return hashlib.sha256("".join(filter(str.isalnum, plain)).encode()).hexdigest()


def _texts(prompt: Prompt) -> Iterator[str]:
    yield from prompt.turns
    if isinstance(prompt.reference, CodeProblem):
        yield prompt.reference.prompt


def _prompts() -> Iterator[Prompt]:
    for name in benchmarks.names():
        benchmark = benchmarks.get(name)
        yield from benchmark.wheel_prompts(benchmark.wheel_rows())
        try:
            yield from benchmark.hub_prompts(fetch_rows(benchmark.hub))
        except HubUnavailable:
            continue
