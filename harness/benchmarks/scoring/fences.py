"""Fenced blocks of a chat answer, closed where a reader of the code would close them."""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from dataclasses import dataclass

# Also behind prose or a list's marker; what follows the opening has no fence of its own.
_OPENING = re.compile(r"^(?P<before>[^`~]*)(?P<fence>`{3,}|~{3,})(?P<info>[^`]*)$")
_ONE_LINE = re.compile(r"^\s*```(?P<code>[^`\s][^`]*)```\s*$")
_PYTHON_TAGS = frozenset({"", "python", "python3", "py", "py3", "python2", "ipython", "pycon"})
_MARKDOWN_TAGS = frozenset({"markdown", "md"})
_QUOTED = re.compile(r"^[ \t]*> ?(?:```|~~~)", re.MULTILINE)
_QUOTE_MARK = re.compile(r"^[ \t]*>(?!>>) ?", re.MULTILINE)
_ENDS_TRIED = 16
"""How many later fences may be taken for the end of a block that is no Python up to the first."""

_UNREADABLE = (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError)


@dataclass(frozen=True, slots=True)
class Block:
    """``code`` without its fences and its common indentation; ``python`` unless its tag says otherwise."""

    code: str
    python: bool


def fenced_blocks(text: str) -> tuple[list[Block], str]:
    """The fenced blocks of ``text`` in order, and ``text`` without them.

    A fence in a docstring closes nothing: of the fences that may close a block, the first counts
    up to which the block is Python, else the first. An answer cut at the token limit leaves its
    last block open.
    """
    if _QUOTED.search(text):
        text = _QUOTE_MARK.sub("", text)
    lines, blocks, rest, start = text.split("\n"), [], [], 0
    while start < len(lines):
        line = lines[start]
        if single := _ONE_LINE.match(line):
            blocks.append(_block(single["code"], ""))
            start += 1
            continue
        opening = _OPENING.match(line)
        if opening is None:
            rest.append(line)
            start += 1
            continue
        rest.append(opening["before"])
        code, start = _read(lines, start + 1, opening["fence"])
        if _tag(opening["info"]) in _MARKDOWN_TAGS:
            blocks += fenced_blocks(code)[0]
        else:
            blocks.append(_block(code, opening["info"]))
    return blocks, "\n".join(rest)


def parse(code: str) -> ast.Module | None:
    """The syntax tree of ``code``, None if it is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(code)
    except _UNREADABLE:
        return None


def unindented(code: str) -> str:
    """``code`` without its common indentation; left alone if it has none, since ``dedent`` also rewrites
    blank lines."""
    return textwrap.dedent(code) if code.lstrip("\n")[:1].isspace() else code


def _block(code: str, info: str) -> Block:
    code = unindented(code)
    if code.lstrip().startswith(">>> ") and parse(code) is None:
        code = _session(code)
    return Block(code, _tag(info) in _PYTHON_TAGS)


def _session(code: str) -> str:
    """The input of an interactive session, which is what it shows for code."""
    from doctest import script_from_examples  # slow to import

    try:
        return script_from_examples(code)
    except ValueError:
        return code


def _tag(info: str) -> str:
    """The language of a fence: "python" of "{.python title=a.py}"."""
    return re.split(r"[^\w+#-]", info.lstrip("{. \t"), maxsplit=1)[0].lower()


def _read(lines: list[str], start: int, fence: str) -> tuple[str, int]:
    """The code of a block that begins at line ``start``, and the line behind it."""
    ends: list[tuple[str, int]] = []
    for number in range(start, len(lines)):
        if (closed := _closing(lines[number], fence)) is not None:
            own, behind = closed
            ends.append(("\n".join([*lines[start:number], *own]), number + behind))
            if len(ends) == _ENDS_TRIED:
                break
    ends.append(("\n".join(lines[start:]), len(lines)))
    readable = (end for end in ends if parse(unindented(end[0])) is not None)
    return next(readable, None) or _longest(ends)


def _closing(line: str, fence: str) -> tuple[list[str], int] | None:
    """What of ``line`` still belongs to the block, and whether the line is used up; None if it closes
    nothing. A block left open ends at the next opening; some models close behind their last line."""
    text = line.strip()
    if text.startswith(fence):
        return [], 1 if not text.strip(fence[0]) else 0
    if text.endswith(fence):
        return [line.rstrip()[: -len(fence)]], 1
    return None


def _longest(ends: list[tuple[str, int]]) -> tuple[str, int]:
    """Of blocks that are no Python, the one with the most lines that are, the first of several: cut in
    the middle, a block with a fence in its docstring is more than what stands before that."""
    if len(ends) == 1:
        return ends[0]
    return max(ends, key=lambda end: valid_head(unindented(end[0])).count("\n"))


def valid_head(code: str, before: str = "") -> str:
    """``code`` up to the last line at which ``before + code`` compiles; "" if there is none."""
    lines = code.split("\n")
    end = len(lines)
    while end > 0:
        head = "\n".join(lines[:end])
        error = _error(before + head)
        if error is None:
            return head
        # Whatever contains a faulty line in full has the same fault.
        found = error.lineno if isinstance(error, SyntaxError) else None
        end = min(end - 1, end - 1 if found is None else found - 1 - before.count("\n"))
    return ""


def compiles(source: str) -> bool:
    """Whether ``source`` is a whole program."""
    return _error(source) is None


def _error(source: str) -> Exception | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, "<answer>", "exec", dont_inherit=True)
    except _UNREADABLE as error:
        return error
    return None
