"""HumanEval: from what a chat model writes to the program that its problem's tests call.

``code_answers.jsonl`` has answers to "complete ``add``" in the many forms in which chat models give them, and
whether the program in each is right.
"""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any

import pytest

from harness.benchmarks import humaneval
from harness.benchmarks.prompt import CodeProblem
from harness.benchmarks.scoring.code_extraction import program

PROMPT = 'from typing import List\n\n\ndef add(a: int, b: int) -> int:\n    """Sum."""\n'
PROBLEM = CodeProblem("T/0", PROMPT, "add", "")
LINES = Path(__file__).with_name("code_answers.jsonl").read_text(encoding="utf-8").splitlines()
CASES: list[dict[str, Any]] = [json.loads(line) for line in LINES]


@pytest.mark.filterwarnings("ignore:coroutine 'add' was never awaited")
@pytest.mark.parametrize("case", CASES, ids=[case["kind"] for case in CASES])
def test_the_program_of_an_answer(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    scope: dict[str, Any] = {}
    try:
        # The answers are this test's own, so running them here is safe.
        exec(program(PROBLEM, case["answer"]), scope)
        found = scope["add"](2, 3)
    except ImportError:
        found = None
    assert (found == 5) is case["right"]


@pytest.mark.parametrize(
    "unit",
    ["x = 1 y\n", "```\n", "```python\ndef add(:\n", "[\n", "import a\n", '"""', "@\n", "\0", "> ```\n"],
)
def test_long_answers_take_no_long_time(unit: str) -> None:
    started = time.monotonic()
    program(PROBLEM, unit * 1000)
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    "answer", ["", "I cannot do that.", "```python\n```", "```python\ndef add(\n```", "\0"]
)
def test_hopeless_answers_are_passed_on_without_an_exception(answer):
    scope: dict = {}
    try:
        exec(program(PROBLEM, answer), scope)
    except (SyntaxError, ValueError):
        return
    assert scope["add"](2, 3) is None


def test_deep_nesting_does_not_escape():
    assert isinstance(program(PROBLEM, "```python\nreturn " + "(" * 50_000 + "```"), str)


def test_all_canonical_solutions_survive_as_body_and_as_definition():
    for row in humaneval._installed_rows():
        problem = humaneval._problem(row)
        solution = row.values["canonical_solution"]
        for answer in (solution, f"```python\n{problem.prompt}{solution}```"):
            source = program(problem, answer)
            compile(source, problem.task_id, "exec")
            assert source.startswith(problem.prompt) and solution.strip() in source, problem.task_id
