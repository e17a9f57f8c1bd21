"""HumanEval: from what a chat model writes to what completes the prompt."""

from __future__ import annotations

import textwrap

import pytest

from harness.benchmarks import humaneval
from harness.benchmarks.prompt import CodeProblem
from harness.scoring.code_extraction import completion

PROMPT = 'from typing import List\n\n\ndef add(a: int, b: int) -> int:\n    """Sum."""\n'
PROBLEM = CodeProblem("T/0", PROMPT, "add", "")
BODY = "    total = a + b\n    return total\n"
WHOLE = PROMPT + BODY

ANSWERS = {
    "fenced definition": f"Sure! Here it is:\n\n```python\n{WHOLE}```\n\nIt adds `a` and `b`.",
    "fence without a tag": f"```\n{WHOLE}```",
    "indented fence": "1. Code:\n" + textwrap.indent(f"```python\n{WHOLE}```", "   "),
    "fence cut at the token limit": f"```python\n{WHOLE}",
    "definition in the second block": f"```python\nprint('usage')\n```\nthen\n```python\n{WHOLE}```",
    "shell block first": f"```bash\npip install x\n```\n```python\n{WHOLE}```",
    "windows line ends": f"```python\n{WHOLE}```".replace("\n", "\r\n"),
    "definition with a helper": f"```python\nimport math\n\ndef help(x):\n    return x\n\n{WHOLE}```",
    "bare definition": WHOLE,
    "bare definition in prose": f"Here is the code:\n\n{WHOLE}\nIt adds them, isn't it nice?",
    "definition with cut last line": f"```python\n{WHOLE}\nprint(add(1,",
    "fenced body": f"```python\n{BODY}```",
    "fenced body without indentation": f"```python\n{textwrap.dedent(BODY)}```",
    "fenced body then a helper": f"```python\n{BODY}\ndef help(x):\n    return x\n```",
    "body indented by two": textwrap.indent(textwrap.dedent(BODY), "  "),
    "unindented body then prose": f"{textwrap.dedent(BODY)}\nThis function adds two numbers.",
    "bare body": BODY,
    "body that lost its first indentation": BODY.lstrip(),
    "body then another function": f"{BODY}\ndef other():\n    return 1\n",
    "body then prose": f"{BODY}\nThis function adds two numbers.",
    "stripped body then prose": f"{BODY.lstrip()}\nThis function adds two numbers.",
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())
def test_every_form_becomes_a_working_program(answer):
    scope: dict = {}
    # The answers above are this file's own, so running them here is safe.
    exec(PROMPT + completion(PROBLEM, answer), scope)
    assert scope["add"](2, 3) == 5


@pytest.mark.parametrize(
    "answer", ["", "I cannot do that.", "```python\n```", "```python\ndef add(\n```", "\0"]
)
def test_hopeless_answers_are_passed_on_without_an_exception(answer):
    scope: dict = {}
    try:
        exec(PROMPT + completion(PROBLEM, answer), scope)
    except (SyntaxError, ValueError):
        return
    assert scope["add"](2, 3) is None


def test_deep_nesting_does_not_escape():
    assert isinstance(completion(PROBLEM, "```python\nreturn " + "(" * 50_000 + "```"), str)


def test_all_canonical_solutions_survive_as_body_and_as_definition():
    for row in humaneval._installed_rows():
        problem = humaneval._problem(row)
        solution = row.values["canonical_solution"]
        for answer in (solution, f"```python\n{problem.prompt}{solution}```"):
            program = problem.prompt + completion(problem, answer)
            compile(program, problem.task_id, "exec")
            assert solution.strip() in program, problem.task_id
