"""Prompt ids: one BOS, the template's own text and nothing else, earlier answers kept (check C22)."""

from __future__ import annotations

import subprocess
import sys

import pytest

from harness.benchmarks import chat
from harness.checks.small_world import BOS, TEMPLATE, make_tokenizer
from methods.errors import UsageError

USER = [{"role": "user", "content": "hi there"}]


def text_of(tokenizer, ids: list[int]) -> str:
    return tokenizer.decode(ids)


@pytest.mark.parametrize("adds_bos", [True, False])
@pytest.mark.parametrize("written", ["", "{{ bos_token }}", "{{ bos_token }}{{ bos_token }}"])
def test_exactly_one_bos_where_there_is_one(adds_bos, written):
    tokenizer = make_tokenizer(adds_bos=adds_bos, template=written + TEMPLATE)
    ids = chat.render(tokenizer, USER)
    assert ids.count(tokenizer.bos_token_id) == int(adds_bos or bool(written))
    start = BOS if adds_bos or written else ""
    assert text_of(tokenizer, ids) == f"{start}[user]hi there</s>[assistant](quiet)"


def test_tokenizer_without_bos():
    tokenizer = make_tokenizer(adds_bos=False, has_bos=False)
    assert tokenizer.bos_token_id is None
    assert text_of(tokenizer, chat.render(tokenizer, USER)) == "[user]hi there</s>[assistant](quiet)"


def test_ids_are_plain_integers():
    ids = chat.render(make_tokenizer(adds_bos=True), USER)
    assert type(ids) is list and all(type(token) is int for token in ids)


def test_thinking_is_off_unless_asked_for():
    tokenizer = make_tokenizer(adds_bos=False)
    assert "(quiet)" not in text_of(tokenizer, chat.render(tokenizer, USER, thinking=True))


def test_second_turn_contains_the_first_answer():
    tokenizer = make_tokenizer(adds_bos=True)
    messages = chat.next_turn(USER, "first answer", "and now?")
    expected = f"{BOS}[user]hi there</s>[assistant]first answer</s>[user]and now?</s>[assistant](quiet)"
    assert text_of(tokenizer, chat.render(tokenizer, messages)) == expected
    assert USER == [{"role": "user", "content": "hi there"}]


def test_fastchat_template_by_name_for_a_tokenizer_without_one():
    tokenizer = make_tokenizer(adds_bos=True, template=None)
    messages = chat.next_turn(USER, "first answer", "and now?")
    text = text_of(tokenizer, chat.render(tokenizer, messages, "vicuna_v1.1"))
    assert text.startswith(f"{BOS}A chat between a curious user")
    assert text.endswith(" USER: hi there ASSISTANT: first answer</s>USER: and now? ASSISTANT:")


def test_fastchat_template_that_writes_a_bos_itself():
    tokenizer = make_tokenizer(adds_bos=True, template=None)
    assert chat._conversation("llama2-chinese").get_prompt().startswith(BOS)
    ids = chat.render(tokenizer, USER, "llama2-chinese")
    assert ids.count(tokenizer.bos_token_id) == 1 and ids[0] == tokenizer.bos_token_id


def test_fastchat_system_message_is_the_users():
    tokenizer = make_tokenizer(adds_bos=False, template=None)
    messages = [{"role": "system", "content": "Be brief."}, *USER]
    text = text_of(tokenizer, chat.render(tokenizer, messages, "vicuna_v1.1"))
    assert text == "Be brief. USER: hi there ASSISTANT:"


def test_no_template_and_unknown_name_are_usage_errors():
    tokenizer = make_tokenizer(adds_bos=True, template=None)
    for call in (chat.render, lambda t, _: chat.template_hash(t), lambda t, _: chat.describe(t)):
        with pytest.raises(UsageError, match=r"has no chat template; name a FastChat .*vicuna_v1\.1"):
            call(tokenizer, USER)
    with pytest.raises(
        UsageError, match=r"unknown FastChat conversation template 'nope'; known: .*vicuna_v1\.1"
    ):
        chat.render(tokenizer, USER, "nope")


def test_names_the_error_message_suggests_exist():
    for name in ("vicuna_v1.1", "llama-2", "qwen-7b-chat", "zero_shot"):
        assert chat._conversation(name).name == name


def test_template_hash_follows_the_template():
    one = chat.template_hash(make_tokenizer(adds_bos=True))
    assert one == chat.template_hash(make_tokenizer(adds_bos=False))
    assert one != chat.template_hash(make_tokenizer(adds_bos=True, template=TEMPLATE + " "))
    named = {
        chat.template_hash(make_tokenizer(adds_bos=True), name) for name in ("vicuna_v1.1", "qwen-7b-chat")
    }
    assert len(named | {one}) == 3


def test_description_for_the_record():
    tokenizer = make_tokenizer(adds_bos=True)
    own = chat.describe(tokenizer)
    assert own == chat.ChatFormat("tokenizer", None, chat.template_hash(tokenizer), True, False, True)
    named = chat.describe(tokenizer, "qwen-7b-chat")
    assert (named.kind, named.name, named.thinking_switch) == ("fastchat", "qwen-7b-chat", False)
    plain = chat.describe(make_tokenizer(adds_bos=False, template="{{ messages }}"))
    assert (plain.adds_bos, plain.thinking_switch) == (False, False)


def test_fastchat_import_stays_light():
    code = (
        "import sys\nfrom harness.benchmarks import chat\nchat._conversation('vicuna_v1.1')\n"
        "print(sorted({'torch', 'transformers', 'fastchat.model'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
