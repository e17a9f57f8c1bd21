"""From a conversation to token ids and the assistant's mask, without tags in the chat template."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from harness.benchmarks.chat import Message, by_own_template, render
from methods.training.observation import Example


class NotAPrefix(ValueError):
    """The template changes earlier text when a turn is added, so a turn's tokens cannot be told apart."""


def to_examples(
    tokenizer: Any, messages: Sequence[Message], stop_ids: Collection[int], *, thinking: bool = False
) -> list[Example]:
    """Examples whose masks cover exactly what the target would have generated: each assistant turn
    from after the opened prompt to its end-of-turn token.

    The mask is the difference between the conversation opened for a turn, as decoding renders it,
    and the conversation with that turn. Turns share an example as long as the template leaves earlier
    text as it was; else (templates that drop old thoughts) the later turn begins a new one. Raises
    ``NotAPrefix`` where a turn's own prompt is changed by its answer.
    """
    examples: list[Example] = []
    ids: list[int] = []
    mask: list[bool] = []
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        opened = render(tokenizer, messages[:index], thinking=thinking)
        answer = _answer(tokenizer, messages[: index + 1], opened, stop_ids, thinking)
        if ids and opened[: len(ids)] != ids:
            examples.append(_example(ids, mask))
            ids, mask = [], []
        mask += [False] * (len(opened) - len(ids)) + [True] * len(answer)
        ids = opened + answer
    return [*examples, _example(ids, mask)] if ids else examples


def _answer(
    tokenizer: Any, messages: Sequence[Message], opened: list[int], stop_ids: Collection[int], thinking: bool
) -> list[int]:
    closed = by_own_template(tokenizer, messages, thinking=thinking, opens_answer=False)
    bos = opened[:1] if opened[:1] == [tokenizer.bos_token_id] and closed[:1] != opened[:1] else []
    closed = bos + closed
    if closed[: len(opened)] != opened:
        raise NotAPrefix(f"the prompt of turn {len(messages)} is not the start of the answered conversation")
    answer = closed[len(opened) :]
    ends = [place for place, token in enumerate(answer) if token in stop_ids]
    return answer[: ends[0] + 1] if ends else answer


def _example(ids: list[int], mask: list[bool]) -> Example:
    return Example(torch.tensor(ids, dtype=torch.long), torch.tensor(mask))
