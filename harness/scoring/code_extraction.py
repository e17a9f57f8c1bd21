"""From a chat answer to the text that completes a HumanEval prompt."""

from __future__ import annotations

import re
import textwrap
import warnings

from harness.benchmarks.prompt import CodeProblem

# An answer cut at the token limit leaves its last fence open.
_FENCE = re.compile(r"^[ \t]*```[ \t]*([\w+#.-]*)[^\n]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)
_PYTHON_TAGS = frozenset({"", "python", "python3", "py"})
_CODE_START = re.compile(r"^(?:from\s+\S+\s+import\b|import\s|def\s|class\s|async\s+def\s|@)", re.MULTILINE)
_INDENT = "    "


def completion(problem: CodeProblem, answer: str) -> str:
    """What to append to ``problem.prompt`` so that it runs: a function body or a whole new definition.

    Taken from the first fenced block that defines the function, else from the first Python block,
    else from the bare text. A definition goes below the prompt, which with its docstring as body is
    already valid, and replaces it; a body keeps or regains the indentation it needs. Trailing lines
    that are no Python (prose, a line cut at the token limit) are dropped.
    """
    text = answer.replace("\r\n", "\n")
    blocks = [body for tag, body in _FENCE.findall(text) if tag.lower() in _PYTHON_TAGS]
    for block in blocks:
        if _defines(problem, block):
            return "\n\n" + _valid_head(_dedent(block))
    if not blocks and _defines(problem, text):
        start = _CODE_START.search(text)
        return "\n\n" + _valid_head(text[start.start() :] if start else _dedent(text))
    return _body(problem, blocks[0], fenced=True) if blocks else _body(problem, text, fenced=False)


def _defines(problem: CodeProblem, code: str) -> bool:
    return re.search(rf"^[ \t]*def\s+{re.escape(problem.entry_point)}\s*\(", code, re.MULTILINE) is not None


def _body(problem: CodeProblem, code: str, *, fenced: bool) -> str:
    """Of the ways to read ``code`` as a body, the one of which most lines are valid."""
    code = code.strip("\n")
    # Chat models write a body unindented, or lose the indentation of its first line only.
    readings = [code] if code[:1].isspace() else [_INDENT + code]
    if not fenced:
        readings = [_before_dedent(readings[0])]
    readings.append(textwrap.indent(textwrap.dedent(code), _INDENT))
    heads = [_valid_head(reading, problem.prompt) for reading in readings]
    best = max(heads, key=lambda head: sum(1 for line in head.split("\n") if line.strip()))
    return best if best.strip() else code


def _valid_head(code: str, before: str = "") -> str:
    """``code`` up to the last line at which ``before + code`` is valid Python; "" if there is none."""
    lines = code.split("\n")
    for end in range(len(lines), 0, -1):
        head = "\n".join(lines[:end])
        if _compiles(before + head):
            return head
    return ""


def _before_dedent(code: str) -> str:
    """The lines up to the first that is not indented, where a body must have ended."""
    kept: list[str] = []
    for line in code.split("\n"):
        if line.strip() and not line[0].isspace():
            break
        kept.append(line)
    return "\n".join(kept)


def _dedent(code: str) -> str:
    """Unindented ``code``; left alone if it already is, since ``dedent`` also rewrites blank lines."""
    return textwrap.dedent(code) if code.lstrip("\n")[:1].isspace() else code


def _compiles(source: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, "<answer>", "exec")
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
        return False
    return True
