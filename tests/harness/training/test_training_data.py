"""Conversations, masks and exclusion, without a network."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.benchmarks import hub
from harness.training.conversations import as_messages, open_source, parse_records
from harness.training.exclusion import ExclusionList, text_hash
from harness.training.masking import NotAPrefix, to_examples
from methods.errors import UsageError

END, EOT_TEXT = 1, "<end>"


class CharTokenizer:
    """One id per character, ``<end>`` is 1; ``drop`` renders earlier answers without their middle."""

    name_or_path = "chars"
    bos_token_id = None
    chat_template = "chars"

    def __init__(self, drop: bool = False, rewrite: bool = False) -> None:
        self.drop, self.rewrite = drop, rewrite

    def get_chat_template(self) -> str:
        return self.chat_template

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        ids: list[int] = []
        for index, part in enumerate(text.split(EOT_TEXT)):
            ids += [END] * (index > 0) + [ord(char) for char in part]
        return {"input_ids": ids}

    def apply_chat_template(
        self, messages: list[dict[str, str]], add_generation_prompt: bool, **_: Any
    ) -> dict[str, list[int]]:
        text = ""
        for index, message in enumerate(messages):
            content = message["content"]
            if self.drop and message["role"] == "assistant" and index < len(messages) - 1:
                content = content[:1]
            text += f"{message['role'][0]}:{content}{EOT_TEXT}\n"
        opened = "A:" if self.rewrite else "a:"
        return self(text + (opened if add_generation_prompt else ""))


def chat(*turns: str) -> list[Any]:
    return [{"role": ("user", "assistant")[i % 2], "content": turn} for i, turn in enumerate(turns)]


def shown(example: Any) -> str:
    return "".join(chr(i) for i in example.ids[example.mask].tolist())


def test_mask_covers_answers_and_their_end_of_turn() -> None:
    (example,) = to_examples(CharTokenizer(), chat("hi", "yes", "and", "no"), [END])
    assert shown(example) == "yes\x01no\x01"
    assert (
        example.ids.tolist() == CharTokenizer()("u:hi<end>\na:yes<end>\nu:and<end>\na:no<end>")["input_ids"]
    )


def test_a_template_that_drops_earlier_text_gives_an_example_per_turn() -> None:
    examples = to_examples(CharTokenizer(drop=True), chat("hi", "yes", "and", "no"), [END])
    assert [shown(example) for example in examples] == ["yes\x01", "no\x01"]


def test_a_prompt_changed_by_its_own_answer_is_no_prefix() -> None:
    with pytest.raises(NotAPrefix):
        to_examples(CharTokenizer(rewrite=True), chat("hi", "yes"), [END])


def test_rows_in_both_spellings_and_unusable_tails() -> None:
    sharegpt = {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}
    openai = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    assert as_messages(sharegpt) == as_messages(openai) == chat("a", "b")
    assert as_messages({"messages": chat("a", "b", "c")}) == chat("a", "b")
    assert as_messages({"messages": chat("a", " ")}) == []
    assert as_messages({"conversations": [{"from": "gpt", "value": "b"}]}) == []


def test_records_are_read_up_to_the_cut() -> None:
    text = json.dumps([{"id": 1}, {"id": "}, {"}, {"id": 3}], indent=1)
    assert [record["id"] for record in parse_records(text[:-6])] == [1, "}, {"]


def test_file_source_and_its_faults(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({"messages": chat("a", "b")}) + "\n\n")
    assert list(open_source(str(path)).conversations) == [chat("a", "b")]
    path.write_text('{"text": "a"}\n')
    with pytest.raises(UsageError, match="line 1: needs 'messages'"):
        list(open_source(str(path)).conversations)
    with pytest.raises(UsageError, match="unknown training data 'sharegtp'; allowed: sharegpt"):
        open_source("sharegtp")


FAULTY_FILES = {
    b"": "holds no prompts",
    b"\xff\xfe\x00\n": "line 1 is not valid JSON",
    b"[" * 99_999: "line 1 is not valid JSON",
    b"[1]\n": "line 1 must be a JSON object",
}


@pytest.mark.parametrize(("content", "message"), FAULTY_FILES.items(), ids=range(len(FAULTY_FILES)))
def test_a_faulty_file_is_named_with_its_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=f"chats.jsonl {message}"):
        list(open_source(str(path)).conversations)


def test_line_separators_within_a_text_end_no_line(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({"messages": chat("a\u2028b", "c\x85d")}, ensure_ascii=False) + "\n")
    assert list(open_source(str(path)).conversations) == [chat("a\u2028b", "c\x85d")]


def test_turns_that_are_no_objects_are_an_unusable_tail() -> None:
    assert as_messages({"messages": [*chat("a", "b"), "c", 1]}) == chat("a", "b")


def test_hub_source(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Rows(list):  # type: ignore[type-arg]
        _fingerprint = "abc"

    def load_dataset(repo: str, config: str | None, split: str, revision: str) -> Rows:
        asked.append((repo, config, split, revision))
        if repo == "no/such":
            raise ConnectionError("the hub is away\nlong story")
        return Rows([{"messages": chat("a", "b")}, {"messages": []}])

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    monkeypatch.setattr(hub, "_ask_revision", lambda repo: "c0ffee")
    source = open_source("ultrachat")
    assert list(source.conversations) == [chat("a", "b")]
    assert (source.location, source.identity) == ("hub:HuggingFaceH4/ultrachat_200k/train_sft", "abc")
    open_source("some/set:test")
    assert asked == [
        ("HuggingFaceH4/ultrachat_200k", None, "train_sft", "c0ffee"),
        ("some/set", None, "test", "c0ffee"),
    ]
    with pytest.raises(UsageError, match=r"no/such cannot be loaded from the hub \(the hub is away\)"):
        open_source("no/such")


def test_exclusion_ignores_layout_and_finds_paragraphs() -> None:
    kept_out = ExclusionList.of_texts(["Write a limerick, please!", "x" * 30])
    assert kept_out.holds(chat("write  a LIMERICK please", "no"))
    assert kept_out.holds(chat("Do this:\n\nWrite a limerick, please!\n\nThanks", "no"))
    assert not kept_out.holds(chat("Write a sonnet, please!", "Write a limerick, please!"))
    assert text_hash("A b") == text_hash("ab.")
    assert kept_out.sha256 != ExclusionList.of_texts(["other"]).sha256
