"""Whole runs on a tiny target: resume, refusals, recipes, the command line."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import random_ids, tiny

from harness import train as command
from harness.config.recipes import Recipe, load_recipe, parse_recipe, recipe_names
from harness.records.manifest import enter
from harness.training.cli import TrainRequest, parse
from harness.training.corpus import ANSWERS, load_corpus
from harness.training.exclusion import ExclusionList
from harness.training.generate import GenerateRequest, generate, tokens_left
from harness.training.heads import parse_head
from harness.training.session import CURVE, STATE, TrainingSession
from methods import registry
from methods.errors import UsageError
from methods.training.trainer import StepReport, Trainer

NOTHING = ExclusionList.of_texts(["a benchmark prompt"])


@pytest.fixture(autouse=True)
def no_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExclusionList, "of_benchmarks", classmethod(lambda cls: NOTHING))


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    """A directory as ``generate`` leaves it, with made-up answers."""
    directory = tmp_path / "answers"
    directory.mkdir()
    config = {
        "target": tiny("llama").fingerprint(), "data": {"source": "made up"}, "temperatures": [0.0],
        "seed": 0, "exclusion": {"sha256": "0"},
    }  # fmt: skip
    enter(directory, config, {})
    lines = [
        {"key": str(i), "prompt": random_ids(5, seed=i), "answer": random_ids(9, seed=100 + i)}
        for i in range(12)
    ]
    (directory / ANSWERS).write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"key": "to')
    return directory


def recipe() -> Recipe:
    small = load_recipe("small")
    return dataclasses.replace(
        small,
        vocabulary=32,
        tokens=160,
        sequences=4,
        micro_tokens=30,
        held_out=3,
        eval_every=64,
        max_length=64,
        compute="float32",
    )


def request(answers: Path, out: Path, **changes: Any) -> TrainRequest:
    heads = tuple(parse_head(text) for text in ("spd:n=4,layers=1", "eagle3:steps=3", "ppsd:n=4"))
    made = TrainRequest("small", heads, (str(answers),), None, None, None, out, 0, False, None)
    return dataclasses.replace(made, **changes)


def losses(out: Path) -> dict[int, Any]:
    entries = [json.loads(line) for line in (out / CURVE).read_text().splitlines()]
    return {entry["step"]: entry["loss"] for entry in entries if "loss" in entry}


def test_killed_and_resumed_gives_the_same_curve(
    answers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    summary = command.train(tiny("llama"), request(answers, whole), recipe(), [])

    class Killed(BaseException):
        pass

    plain_step, plain_save = Trainer.step, TrainingSession._save

    def step(self: Trainer) -> StepReport:
        if self.progress.step == 3:
            monkeypatch.setattr(TrainingSession, "_save", lambda self: None)  # a kill saves nothing
            raise Killed
        return plain_step(self)

    monkeypatch.setattr("harness.training.session._CHECKPOINT_S", 0.0)
    monkeypatch.setattr(Trainer, "step", step)
    with pytest.raises(Killed):
        command.train(tiny("llama"), request(answers, parts), recipe(), [])
    with (parts / CURVE).open("a") as file:
        file.write('{"step": 4, "loss": {"spd": 99}}\n{"step": 5')
    monkeypatch.setattr(Trainer, "step", plain_step)
    monkeypatch.setattr(TrainingSession, "_save", plain_save)
    resumed = command.train(tiny("llama"), request(answers, parts), recipe(), [])
    assert losses(parts) == losses(whole)
    assert len(losses(whole)) == 5
    for label, head in summary["heads"].items():
        assert resumed["heads"][label]["held_out"] == head["held_out"]


def test_a_stop_request_ends_after_the_step_and_saves(
    answers: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    plain_step, whole, out = Trainer.step, tmp_path / "whole", tmp_path / "run"
    command.train(tiny("llama"), request(answers, whole), recipe(), [])

    def step(self: Trainer) -> StepReport:
        if self.progress.step == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return plain_step(self)

    monkeypatch.setattr(Trainer, "step", step)
    with pytest.raises(KeyboardInterrupt):
        command.train(tiny("llama"), request(answers, out), recipe(), [])
    assert len(losses(out)) == 2
    monkeypatch.setattr(Trainer, "step", plain_step)
    command.train(tiny("llama"), request(answers, out), recipe(), [])
    assert losses(out) == losses(whole)


def test_heads_load_in_the_decode_loop_and_say_how_they_were_made(answers: Path, tmp_path: Path) -> None:
    out, target = tmp_path / "run", tiny("llama")
    summary = command.train(target, request(answers, out), recipe(), [])
    spd = Path(summary["heads"]["spd-n4-l1"]["checkpoint"])
    method = registry.create("spd", target, {"n": 4, "checkpoint": str(spd)})
    assert method.module.config.window == 64  # type: ignore[attr-defined]
    made = json.loads((spd / "draft.json").read_text())["training"]
    assert made["tokens_seen"] == summary["tokens"] >= 160
    assert made["data"]["held_out"] == 3 and made["data"]["examples"] == 9
    assert made["trained_together"] == ["spd-n4-l1", "eagle3-s3", "ppsd-n4"]
    assert len(summary["heads"]["eagle3-s3"]["held_out"]) == 3


def test_further_heads_take_the_draft_vocabulary_of_an_earlier_one(answers: Path, tmp_path: Path) -> None:
    first = command.train(tiny("llama"), request(answers, tmp_path / "first"), recipe(), [])
    earlier = first["heads"]["eagle3-s3"]["checkpoint"]
    (answers / ANSWERS).write_text(
        json.dumps({"key": "0", "prompt": [1], "answer": list(range(2, 60))}) + "\n"
    )
    ids = {}
    for name, source in (("counted", None), ("taken", earlier)):
        asked = request(answers, tmp_path / name, vocabulary=source)
        command.train(tiny("llama"), asked, dataclasses.replace(recipe(), held_out=0), [])
        ids[name] = json.loads((tmp_path / name / "heads" / "ppsd-n4" / "draft.json").read_text())[
            "draft_ids"
        ]
    assert ids["taken"] == json.loads((Path(earlier) / "draft.json").read_text())["draft_ids"]
    assert ids["taken"] != ids["counted"]
    with pytest.raises(UsageError, match="no checkpoint at"):
        command.train(tiny("llama"), request(answers, tmp_path / "x", vocabulary="nowhere"), recipe(), [])


@pytest.mark.parametrize("content", [b"", b"half a file", None])
def test_a_damaged_state_is_named(answers: Path, tmp_path: Path, content: bytes | None) -> None:
    out, target = tmp_path / "run", tiny("llama")
    command.train(target, request(answers, out), recipe(), [])
    if content is None:
        torch.save([1], out / STATE)
    else:
        (out / STATE).write_bytes(content)
    with pytest.raises(UsageError, match=r"cannot continue from .*state.pt; delete it"):
        command.train(target, request(answers, out), recipe(), [])


def test_a_torn_curve_is_cut(answers: Path, tmp_path: Path) -> None:
    out, target = tmp_path / "run", tiny("llama")
    command.train(target, request(answers, out), recipe(), [])
    whole = losses(out)
    with (out / CURVE).open("ab") as file:
        file.write(b'{"step": 1, "loss": {"eagle3": 1.0}\n\xff}')
    command.train(target, request(answers, out), recipe(), [])
    assert losses(out) == whole


@pytest.mark.parametrize(
    "line",
    [
        b"\xff",
        b"[]",
        b'{"key": 1}',
        b'{"key": "a", "prompt": "x", "answer": []}',
        b'{"key": "a", "prompt": [1], "answer": []}',
        b'{"key": "a", "prompt": [1], "answer": [-5]}',
    ],
)
def test_a_damaged_answer_is_named(answers: Path, line: bytes) -> None:
    file = answers / ANSWERS
    file.write_bytes(line + b"\n" + file.read_bytes())
    with pytest.raises(UsageError, match=r"answers.jsonl:1 is no line of an answer file"):
        load_corpus(tiny("llama"), [str(answers)], exclusion=NOTHING, max_length=64, held_out=2)


@pytest.mark.parametrize("token", [64, 10**30])
def test_an_answer_in_another_vocabulary_is_named(answers: Path, token: int) -> None:
    file = answers / ANSWERS
    line = json.dumps({"key": "a", "prompt": [1], "answer": [token]})
    file.write_text(f"{line}\n{file.read_text()}")
    with pytest.raises(UsageError, match=r"answers.jsonl:1 has a token beyond the target's vocabulary of 64"):
        load_corpus(tiny("llama"), [str(answers)], exclusion=NOTHING, max_length=64, held_out=2)


def test_a_limit_holds_for_generated_answers_too(answers: Path) -> None:
    corpus = load_corpus(tiny("llama"), [str(answers)], exclusion=NOTHING, max_length=64, held_out=2, limit=3)
    assert corpus.about["sources"][0]["used"] == 3


def test_another_kind_of_run_is_no_data(answers: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command.train(tiny("llama"), request(answers, out), recipe(), [])
    with pytest.raises(UsageError, match="was not written by 'generate'"):
        load_corpus(tiny("llama"), [str(out)], exclusion=NOTHING, max_length=64, held_out=2)


def test_another_configuration_is_refused(answers: Path, tmp_path: Path) -> None:
    out, target = tmp_path / "run", tiny("llama")
    command.train(target, request(answers, out), recipe(), [])
    with pytest.raises(UsageError, match="holds another configuration: seed"):
        command.train(target, request(answers, out, seed=5), recipe(), [])


def test_answers_of_another_target_are_refused(answers: Path) -> None:
    with pytest.raises(UsageError, match="was generated by a target with sha256"):
        load_corpus(tiny("qwen3"), [str(answers)], exclusion=NOTHING, max_length=64, held_out=2)


def test_nothing_short_enough_is_an_error(answers: Path) -> None:
    with pytest.raises(UsageError, match="no conversation of at most 5 tokens has assistant tokens"):
        load_corpus(tiny("llama"), [str(answers)], exclusion=NOTHING, max_length=5, held_out=2)


def test_held_out_examples_are_not_trained_on(answers: Path) -> None:
    corpus = load_corpus(tiny("llama"), [str(answers)] * 2, exclusion=NOTHING, max_length=64, held_out=4)
    held = {tuple(example.ids.tolist()) for example in corpus.held_out}
    trained = [tuple(example.ids.tolist()) for example in corpus.train]
    assert len(held) == 4 and len(trained) == len(set(trained)) == 8 and not held & set(trained)


class Tokenizer:
    """Byte-sized chat: every character is an id below 64."""

    name_or_path, bos_token_id, chat_template, backend_tokenizer = "tiny", None, "x", None

    def get_chat_template(self) -> str:
        return "x"

    def get_vocab(self) -> dict[str, int]:
        return {}

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [ord(char) % 64 for char in text]}

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> dict[str, list[int]]:
        return self("".join(f"{m['role'][0]}{m['content']}" for m in messages) + "a")


def test_generation_resumes_and_keeps_benchmark_prompts_out(tmp_path: Path) -> None:
    target = tiny("llama")
    source = tmp_path / "chats.jsonl"
    prompts = [f"question {i}" for i in range(6)] + ["A benchmark prompt!", "question 3"]
    rows = [
        {"messages": [{"role": "user", "content": p}, {"role": "assistant", "content": "a"}]} for p in prompts
    ]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    wanted = GenerateRequest(str(source), tmp_path / "out", 3, None, 12, 40, 4, (0.0, 1.0), 0)
    target.tokenizer = Tokenizer()
    try:
        first = generate(target, wanted, [])
        lines = (tmp_path / "out" / ANSWERS).read_text()
        assert 12 <= first < 24
        (tmp_path / "out" / ANSWERS).write_text(lines + '{"torn')
        assert generate(target, dataclasses.replace(wanted, tokens=None), []) == 24
    finally:
        target.tokenizer = None
    written = [json.loads(line) for line in (tmp_path / "out" / ANSWERS).read_text().splitlines()]
    assert len(written) == len({line["key"] for line in written}) == 6
    assert (tmp_path / "out" / ANSWERS).read_text().startswith(lines)
    config = json.loads((tmp_path / "out" / "manifest.json").read_text())["config"]
    assert config["exclusion"] == {"texts": 1, "sha256": NOTHING.sha256, "dropped": 1}
    corpus = load_corpus(target, [str(tmp_path / "out")], exclusion=NOTHING, max_length=64, held_out=1)
    assert corpus.about["supervised_tokens"] == 5 * 3


def test_what_is_left_to_generate_ends_at_the_budget_and_at_the_cap() -> None:
    """20,000 prompts of up to 320 tokens, of a budget of 90,000 tokens 30,000 are there."""
    request = parse(["generate", "--out", "x", "--tokens", "90000"])[1]
    assert isinstance(request, GenerateRequest)
    assert tokens_left(request, 30_000, 20_000, 250.0) == 60_000
    assert tokens_left(request, 90_001, 20_000, 250.0) == 0
    assert tokens_left(request, 30_000, 100, 250.0) == 25_000  # the prompts run out before
    # After one short answer of a batch whose rows all have 30 tokens, answers count with their cap.
    assert tokens_left(dataclasses.replace(request, tokens=None), 12, 100, 96 * 30 / 1) == 100 * 320


@pytest.mark.parametrize("name", recipe_names())
def test_shipped_recipes_load(name: str) -> None:
    assert load_recipe(name).optimizer_for("spd").lr > 0


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("max_length = 512", "max_lenth = 512", "unknown key 'max_lenth'"),
        ("max_length = 512", "", "key 'max_length' is missing"),
        ('kind = "muon"', 'kind = "sgd"', "optimizer: key 'kind' must be one of muon, adamw"),
        ("sequences = 4", "sequences = 8.5", "key 'sequences' must be a whole number"),
    ],
)
def test_faulty_recipes_name_the_key(old: str, new: str, message: str) -> None:
    from importlib import resources

    text = resources.files("harness.config.recipes").joinpath("small.toml").read_text()
    assert old in text
    with pytest.raises(UsageError, match=message):
        parse_recipe("mine", text.replace(old, new))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--out", "x", "--head", "medusa"], "unknown head 'medusa'; allowed: spd, eagle3, ppsd"),
        (["--out", "x", "--head", "spd:m=3"], "cannot read 'm=3'; allowed: n=..., layers=..., schedule=..."),
        (["--out", "x", "--head", "spd:n=0"], "n must be a whole number >= 1"),
        (["--out", "x", "--head", "spd:n=2,n=4"], "n is given twice"),
        (["--out", "x", "--head", "eagle3:steps=100000"], "steps must be <= 64, got 100000"),
        (["--out", "x", "--head", "spd", "--head", "spd:n=8"], "head spd-n8-l3 is given twice"),
        (["--out", "x"], "required: --head"),
        (["generate", "--out", "x", "--temperature", "-1"], "argument --temperature: must be a number >= 0"),
    ],
)
def test_wrong_command_lines(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(argv) == 2
    assert message in capsys.readouterr().err


def test_command_line_defaults() -> None:
    choice, made = parse(["--head", "spd:n=4,layers=2,schedule=post-step", "--out", "x"])
    assert isinstance(made, TrainRequest)
    assert (choice.preset, made.recipe, made.data) == ("smollm2-135m", "small", ("sharegpt",))
    assert made.heads[0].label == "spd-n4-l2-post-step"
