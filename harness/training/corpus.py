"""The examples of a training run, from any mix of sources, and what the manifest says of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from harness.benchmarks.chat import Message
from harness.records.manifest import read_manifest
from harness.training.conversations import open_source
from harness.training.exclusion import ExclusionList
from harness.training.masking import NotAPrefix, to_examples
from methods.errors import UsageError
from methods.models.target import Target
from methods.training.observation import Example

ANSWERS = "answers.jsonl"
_CHARACTERS = 8
"""Per token no text is expected to have more: conversations beyond that are too long untokenised."""


@dataclass
class Counts:
    """What became of the conversations: used, on the exclusion list, too long, without a usable mask."""

    used: int = 0
    excluded: int = 0
    too_long: int = 0
    unusable: int = 0


@dataclass(frozen=True)
class Corpus:
    """``train`` and ``held_out`` never share an example; ``about`` is for the manifest."""

    train: list[Example]
    held_out: list[Example]
    about: dict[str, Any] = field(default_factory=dict)


def load_corpus(
    target: Target,
    names: Sequence[str],
    *,
    exclusion: ExclusionList,
    max_length: int,
    held_out: int,
    limit: int | None = None,
    thinking: bool = False,
) -> Corpus:
    """All examples of the sources ``names`` (see ``open_source``, or directories of ``generate``).

    Conversations longer than ``max_length`` tokens are left out, not cut. ``limit`` caps the
    conversations read of each source. The ``held_out`` examples are chosen by content, not by order.
    """
    examples: list[Example] = []
    sources = []
    for name in names:
        counts = Counts()
        if name and Path(name).is_dir():
            about, read = _generated(Path(name), target, limit)
        else:
            source = open_source(name)
            about = {"source": source.location, "identity": source.identity}
            read = _rendered(target, source.conversations, exclusion, counts, max_length, limit, thinking)
        for example in read:
            if len(example.ids) > max_length:
                counts.too_long += 1
                continue
            counts.used += 1
            examples.append(example)
        sources.append({**about, **asdict(counts)})
    examples = list({_digest(example): example for example in examples}.values())
    if not any(len(example.supervised()) for example in examples):
        raise UsageError(
            f"{', '.join(names)}: no conversation of at most {max_length} tokens has assistant tokens "
            f"to learn from ({json.dumps(sources)})"
        )
    ranked = sorted(examples, key=_digest)
    held_out = min(held_out, len(ranked) // 2)
    kept = {_digest(example) for example in ranked[:held_out]}
    train = [example for example in examples if _digest(example) not in kept]
    about = {
        "sources": sources,
        "sha256": hashlib.sha256("".join(_digest(example) for example in ranked).encode()).hexdigest(),
        "examples": len(train),
        "held_out": held_out,
        "supervised_tokens": sum(len(example.supervised()) for example in train),
        "exclusion": {"texts": len(exclusion.hashes), "sha256": exclusion.sha256},
    }
    return Corpus(train, ranked[:held_out], about)


def answer_example(prompt: Sequence[int], answer: Sequence[int]) -> Example:
    """The example of one generated answer."""
    mask = torch.zeros(len(prompt) + len(answer), dtype=torch.bool)
    mask[len(prompt) :] = True
    return Example(torch.tensor([*prompt, *answer], dtype=torch.long), mask)


def read_answers(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of an answer file; a torn last line is left out. ``UsageError`` names a damaged one."""
    if not path.exists():
        return
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            answer = json.loads(line)
            texts = answer["prompt"], answer["answer"]
            good = isinstance(answer["key"], str) and all(map(_is_text, texts))
        except (ValueError, RecursionError, TypeError, KeyError):
            good = False
        if not good:
            raise UsageError(
                f"{path}:{number} is no line of an answer file: it needs 'key', 'prompt' and 'answer'"
            )
        yield answer


def _is_text(ids: Any) -> bool:
    return isinstance(ids, list) and bool(ids) and all(type(token) is int and token >= 0 for token in ids)


def _generated(
    directory: Path, target: Target, limit: int | None
) -> tuple[dict[str, Any], Iterator[Example]]:
    manifest = read_manifest(directory)
    config = manifest["config"]
    if "temperatures" not in config:
        raise UsageError(f"{directory} was not written by 'generate': it holds another kind of run")
    made_by = config.get("target", {}).get("sha256")
    if made_by != target.hashes["sha256"]:
        raise UsageError(f"{directory} was generated by a target with sha256 {made_by}, not by {target.name}")
    about = {
        "source": "generated",
        "identity": manifest["fingerprint"],
        "generated_from": config["data"],
        "temperatures": config["temperatures"],
        "seed": config["seed"],
        "exclusion": config["exclusion"],
    }
    return about, islice(_examples(directory / ANSWERS, target.vocab_size), limit)


def _examples(path: Path, vocab: int) -> Iterator[Example]:
    for number, line in enumerate(read_answers(path), start=1):
        if max(*line["prompt"], *line["answer"]) >= vocab:
            raise UsageError(f"{path}:{number} has a token beyond the target's vocabulary of {vocab}")
        yield answer_example(line["prompt"], line["answer"])


def _rendered(
    target: Target,
    conversations: Any,
    exclusion: ExclusionList,
    counts: Counts,
    max_length: int,
    limit: int | None,
    thinking: bool,
) -> Iterator[Example]:
    messages: list[Message]
    for number, messages in enumerate(conversations):
        if limit is not None and number >= limit:
            return
        if exclusion.holds(messages):
            counts.excluded += 1
            continue
        if sum(len(message["content"]) for message in messages) > _CHARACTERS * max_length:
            counts.too_long += 1
            continue
        try:
            yield from to_examples(target.tokenizer, messages, target.stop_ids, thinking=thinking)
        except NotAPrefix:
            counts.unusable += 1


def _digest(example: Example) -> str:
    content = example.ids.numpy().tobytes() + example.mask.numpy().tobytes()
    return hashlib.sha256(content).hexdigest()
