"""From user messages to prompt ids: the tokenizer's chat template, or a FastChat one by name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast

from methods.errors import UsageError

if TYPE_CHECKING:
    from fastchat.conversation import Conversation
    from transformers import PreTrainedTokenizerBase


class Message(TypedDict):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """What a record says of the way prompts were rendered.

    ``thinking`` is what was asked of the template, ``thinking_switch`` whether it looks at that.
    """

    kind: Literal["tokenizer", "fastchat"]
    name: str | None
    template_sha256: str
    adds_bos: bool
    thinking: bool
    thinking_switch: bool


def render(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    template: str | None = None,
    *,
    thinking: bool = False,
) -> list[int]:
    """Ids of the conversation, open for the assistant's next turn: [prompt tokens].

    Nothing is added that the template does not add itself, a system prompt included. The ids start
    with exactly one BOS if the tokenizer or the template puts one. ``template`` names a FastChat
    conversation template and then replaces the tokenizer's own.

    Raises ``UsageError`` for an unknown name, and for a tokenizer without a template if none is named.
    """
    if template is not None:
        ids = _render_fastchat(tokenizer, messages, template)
    else:
        _own_template(tokenizer)
        ids = by_own_template(tokenizer, messages, thinking=thinking, opens_answer=True)
    return _with_one_bos(tokenizer, ids)


def by_own_template(
    tokenizer: Any, messages: Sequence[Message], *, thinking: bool, opens_answer: bool
) -> list[int]:
    """What the tokenizer's own template makes of the conversation, ``opens_answer`` with the assistant's
    next turn begun; no token is added or taken away."""
    # return_dict is spelt out: its default differs between releases of transformers.
    encoded = tokenizer.apply_chat_template(
        cast(list[dict[str, str]], list(messages)),
        add_generation_prompt=opens_answer,
        enable_thinking=thinking,
        tokenize=True,
        return_dict=True,
    )
    return list(encoded["input_ids"])


def next_turn(messages: Sequence[Message], answer: str, user: str) -> list[Message]:
    """The conversation after ``answer``, with the user's next message."""
    return [*messages, {"role": "assistant", "content": answer}, {"role": "user", "content": user}]


def template_hash(tokenizer: PreTrainedTokenizerBase, template: str | None = None) -> str:
    """sha256 of the template text, or of all fields of the named FastChat template."""
    if template is None:
        text = _own_template(tokenizer)
    else:
        text = json.dumps(asdict(_conversation(template)), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def describe(
    tokenizer: PreTrainedTokenizerBase, template: str | None = None, *, thinking: bool = False
) -> ChatFormat:
    """How ``render`` with the same arguments makes prompts, for the record."""
    return ChatFormat(
        kind="tokenizer" if template is None else "fastchat",
        name=template,
        template_sha256=template_hash(tokenizer, template),
        adds_bos=_adds_bos(tokenizer),
        thinking=thinking,
        thinking_switch=template is None and "enable_thinking" in _own_template(tokenizer),
    )


def _own_template(tokenizer: PreTrainedTokenizerBase) -> str:
    if not tokenizer.chat_template:
        raise UsageError(
            f"tokenizer {tokenizer.name_or_path or type(tokenizer).__name__!r} has no chat template; name a "
            "FastChat conversation template, for example vicuna_v1.1, llama-2, qwen-7b-chat or zero_shot"
        )
    return tokenizer.get_chat_template()


def _conversation(name: str) -> Conversation:
    # Only this module of fastchat: its model package would load every model adapter.
    from fastchat.conversation import conv_templates, get_conv_template

    if name not in conv_templates:
        known = ", ".join(sorted(conv_templates))
        raise UsageError(f"unknown FastChat conversation template {name!r}; known: {known}")
    return get_conv_template(name)


def _render_fastchat(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], template: str
) -> list[int]:
    conversation = _conversation(template)
    roles = {"user": conversation.roles[0], "assistant": conversation.roles[1]}
    for message in messages:
        if message["role"] == "system":
            conversation.set_system_message(message["content"])
        else:
            conversation.append_message(roles[message["role"]], message["content"])
    conversation.append_message(conversation.roles[1], None)
    # A BOS written out in the template becomes its id here; the tokenizer's own is added later.
    return list(tokenizer(conversation.get_prompt(), add_special_tokens=False)["input_ids"])


def _adds_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    if tokenizer.bos_token_id is None:
        return False
    return list(tokenizer("")["input_ids"])[:1] == [tokenizer.bos_token_id]


def _with_one_bos(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> list[int]:
    bos = tokenizer.bos_token_id
    body = 0
    while bos is not None and body < len(ids) and ids[body] == bos:
        body += 1
    return [bos, *ids[body:]] if body or _adds_bos(tokenizer) else ids
