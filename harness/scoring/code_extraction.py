"""From a chat answer to the text that completes a HumanEval prompt."""

from __future__ import annotations

import re
import textwrap
import warnings
from collections.abc import Iterator

from harness.benchmarks.prompt import CodeProblem

# An answer cut at the token limit leaves its last fence open; the language tag is dropped.
_FENCE = re.compile(r"^[ \t]*```[ \t]*([\w+#.-]*)[^\n]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)
_PYTHON_TAGS = frozenset({"", "python", "python3", "py"})
_CODE_START = re.compile(r"^(?:from\s+\S+\s+import\b|import\s|def\s|class\s|async\s+def\s|@)", re.MULTILINE)


def completion(problem: CodeProblem, answer: str) -> str:
    """What to append to ``problem.prompt`` so that it runs: a function body or a whole new definition.

    Taken from the first fenced block that defines the function, else from the first Python block,
    else from the bare text. A definition is appended below the prompt, which with its docstring as
    body is already valid, and replaces it; a body keeps or regains the indentation it needs.
    """
    code = _code(problem, answer)
    if _defines(problem, code):
        return "\n\n" + _longest_valid(code)
    for candidate in _bodies(code):
        if _compiles(problem.prompt + candidate):
            return candidate
    return code


def _code(problem: CodeProblem, answer: str) -> str:
    text = answer.replace("\r\n", "\n")
    blocks = [body for tag, body in _FENCE.findall(text) if tag.lower() in _PYTHON_TAGS]
    for block in blocks:
        if _defines(problem, block):
            return textwrap.dedent(block)
    if blocks:
        return blocks[0]
    if _defines(problem, text):
        start = _CODE_START.search(text)
        return text[start.start() :] if start else textwrap.dedent(text)
    return text


def _defines(problem: CodeProblem, code: str) -> bool:
    return re.search(rf"^[ \t]*def\s+{re.escape(problem.entry_point)}\s*\(", code, re.MULTILINE) is not None


def _longest_valid(code: str) -> str:
    """``code`` without trailing lines of prose; unchanged if no such cut makes it valid."""
    lines = code.split("\n")
    for end in range(len(lines), 0, -1):
        head = "\n".join(lines[:end])
        if _compiles(head):
            return head
    return code


def _bodies(code: str) -> Iterator[str]:
    """Ways to read ``code`` as a body: as it is, without what follows it, re-indented."""
    code = code.strip("\n")
    yield code
    yield _before_dedent(code)
    # Tokenizers and chat models tend to lose the indentation of the first line only.
    lifted = "    " + code.lstrip()
    yield lifted
    yield _before_dedent(lifted)
    yield textwrap.indent(textwrap.dedent(code), "    ")


def _before_dedent(code: str) -> str:
    """The lines up to the first that is not indented, where a body must have ended."""
    kept: list[str] = []
    for line in code.split("\n"):
        if line.strip() and not line[0].isspace():
            break
        kept.append(line)
    return "\n".join(kept)


def _compiles(source: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, "<answer>", "exec")
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
        return False
    return True
