"""MT-Bench answers reach FastChat's judge: one file per configuration, complete dialogues only."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from harness.execution.judge_answers import write_judge_answers
from harness.records.record import Record, StepArrays


def record(prompt_id: str, turn: int = 1, text: str = "", **changes: object) -> Record:
    base = Record(
        benchmark="mt_bench", prompt_id=prompt_id, turn=turn, temperature=0.0, width=1, repeat=0,
        prompt_ids=[1], output_ids=[2], finish_reason="stop", prefill_s=0.0, decode_s=0.0,
        steps=StepArrays(), lossless="exact", error=None, method="ngram", text=text,
    )  # fmt: skip
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def read(path: Path) -> dict[int, list[str]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {line["question_id"]: line["choices"][0]["turns"] for line in lines}


def test_one_file_per_configuration_with_the_turns_in_order(tmp_path: Path) -> None:
    records = [
        record("82", 2, "b"), record("82", 1, "a"), record("81", 1, "c"),
        record("81", 1, "warm", temperature=1.0),
        record("1", 1, "42", benchmark="gsm8k"),
    ]  # fmt: skip
    paths = write_judge_answers(tmp_path, records)
    assert [path.name for path in paths] == ["ngram-T0-W1-r0.jsonl", "ngram-T1-W1-r0.jsonl"]
    assert read(paths[0]) == {81: ["c"], 82: ["a", "b"]}
    assert read(paths[1]) == {81: ["warm"]}


def test_failed_turns_and_foreign_prompts_are_left_out(tmp_path: Path) -> None:
    records = [
        record("my-prompt", text="x"),
        record("83", 1, error="RuntimeError: no"),
        record("83", 2, "late"),
    ]
    (path,) = write_judge_answers(tmp_path, records)
    assert read(path) == {}


def test_a_run_without_mt_bench_writes_nothing(tmp_path: Path) -> None:
    assert write_judge_answers(tmp_path, [record("1", benchmark="gsm8k")]) == []
    assert not (tmp_path / "model_answer").exists()
