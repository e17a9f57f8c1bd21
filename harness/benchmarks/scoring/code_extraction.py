"""From a chat answer to the program whose function a HumanEval problem's tests call."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Sequence

from harness.benchmarks.prompt import CodeProblem
from harness.benchmarks.scoring.answer_text import final_part
from harness.benchmarks.scoring.code_names import binding, future_imports, used, without_words
from harness.benchmarks.scoring.fences import compiles, fenced_blocks, parse, valid_head

_CODE_START = re.compile(
    r"^(?:from\s+\S+\s+import\b|import\s|def\s|class\s|async\s+def\s|@|[A-Za-z_]\w*\s*=[^=])", re.MULTILINE
)
_STRETCHES_TRIED = 200
_INDENT = "    "


def program(problem: CodeProblem, answer: str) -> str:
    """``problem.prompt`` completed by ``answer``: by the definition in it, or by a body.

    The definition is the last block's that binds the function to more than a stub, a complete block's
    before one that is cut; what it uses of the other blocks (imports, helpers, constants) comes with
    it. Without any, the answer is the body of the prompt's function, with the indentation it
    needs. Code is looked for in fenced Python blocks, then in other fenced blocks, then between the
    prose. Trailing lines that are no Python (prose, a line cut at the token limit) are dropped.
    """
    text = final_part(answer.replace("\r\n", "\n"))
    fenced, rest = fenced_blocks(text)
    python = [block.code for block in fenced if block.python]
    other = [block.code for block in fenced if not block.python]
    for blocks in (python, other, _bare(rest)):
        if parts := _definition(problem.entry_point, blocks):
            return _joined(problem.prompt, parts)
    bodies = python or [rest]
    body, number = _body(problem, bodies, fenced=bool(python))
    others = [block for i, block in enumerate(bodies) if i != number]
    return _joined(problem.prompt + body, used(problem.prompt + body, others, {problem.entry_point}))


def _joined(head: str, parts: Sequence[str]) -> str:
    """``head`` and ``parts`` one below the other, with the future imports of all of them on top."""
    futures: dict[str, None] = {}
    bodies = []
    for part in parts:
        lines, body = future_imports(part)
        futures |= dict.fromkeys(lines)
        bodies.append(body)
    return "".join(f"{line}\n" for line in futures) + "\n\n".join([head, *bodies])


def _definition(name: str, codes: Sequence[str]) -> list[str]:
    """The block that defines ``name``, what it uses of the blocks before it, and of those behind it."""
    heads = [code if compiles(code) else valid_head(code) for code in codes]
    found = [(head == codes[i], i) for i, head in enumerate(heads) if binding(head, name)]
    if not found:
        return []
    _, number = max(found)
    main = heads[number]
    return [
        *used(main, heads[:number], {name}),
        main,
        *used(main, heads[number + 1 :], {name}, bound_too=True),
    ]


def _body(problem: CodeProblem, blocks: Sequence[str], *, fenced: bool) -> tuple[str, int]:
    """The block to be read as a body, and its place: the first that returns something, else the first."""
    bodies = [_as_body(problem, block, fenced=fenced) for block in blocks]
    number = next((i for i, body in enumerate(bodies) if _returns(problem, body)), 0)
    return bodies[number], number


def _returns(problem: CodeProblem, body: str) -> bool:
    """Whether the prompt's function with ``body`` returns or yields, functions inside it aside."""
    tree = parse(problem.prompt + body)
    pending: list[ast.AST] = [
        inner
        for node in getattr(tree, "body", [])
        if isinstance(node, ast.FunctionDef) and node.name == problem.entry_point
        for inner in node.body
    ]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            pending += ast.iter_child_nodes(node)
    return False


def _as_body(problem: CodeProblem, code: str, *, fenced: bool) -> str:
    """Of the ways to read ``code`` as a body, the one of which most lines are valid."""
    code = code.strip("\n")
    # Chat models write a body unindented, or lose the indentation of its first line only.
    readings = [code] if code[:1].isspace() else [_INDENT + code]
    if not fenced:
        readings = [_before_dedent(readings[0])]
    readings.append(textwrap.indent(textwrap.dedent(code), _INDENT))
    heads = [valid_head(reading, problem.prompt) for reading in readings]
    best = max(heads, key=lambda head: sum(1 for line in head.split("\n") if line.strip()))
    return best if best.strip() else code


def _before_dedent(code: str) -> str:
    """The lines up to the first that is not indented, where a body must have ended."""
    kept: list[str] = []
    for line in code.split("\n"):
        if line.strip() and not line[0].isspace():
            break
        kept.append(line)
    return "\n".join(kept)


def _bare(text: str) -> list[str]:
    """The stretches of ``text`` that are code, each from a line that looks like it as far as it is valid."""
    found: list[str] = []
    start = 0
    for _ in range(_STRETCHES_TRIED):
        match = _CODE_START.search(text, start)
        if match is None:
            break
        head = valid_head(text[match.start() :])
        if head.strip():
            found.append(without_words(head))
        start = match.start() + max(len(head), len(match[0]))
    return found
