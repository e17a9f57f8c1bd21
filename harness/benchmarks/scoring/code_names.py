"""Which names a piece of a program binds and reads, and which statements of others it needs."""

from __future__ import annotations

import ast
import symtable
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from harness.benchmarks.scoring.fences import compiles, parse

_FUTURE = "__future__"


def binding(code: str, name: str) -> bool:
    """Whether the module ``code`` itself binds ``name`` to something that can be called with a result: a
    function or class, a lambda, another name, an import from the standard library. Not to a stub."""
    if not compiles(code):
        return False
    table = symtable.symtable(code, "<answer>", "exec")
    if name not in table.get_identifiers():
        return False
    symbol = table.lookup(name)
    if not (symbol.is_imported() or symbol.is_assigned()):
        return False
    last = [node for node in _statements(code) if name in _bound(node)][-1:]
    # Other modules are those of a demonstration: "from solution import ...".
    return not any(_is_stub(node) or _modules(node) - sys.stdlib_module_names for node in last)


def used(code: str, blocks: Sequence[str], own: set[str], *, bound_too: bool = False) -> list[str]:
    """The statements of ``blocks`` that bind or change globals which ``code``, or one of them, reads.

    What binds a name of its ``own`` (``bound_too``: or one that ``code`` binds) stays out, and so do
    calls and demonstrations.
    """
    if bound_too:
        own = own.union(*map(_bound, _statements(code)))
    others = [_Statement.of(node) for block in blocks for node in _statements(block)]
    others = [statement for statement in others if not statement.writes & own]
    wanted = _globals_read(code)
    kept: set[int] = set()
    while True:
        more = {
            i for i, each in enumerate(others) if i not in kept and each.writes & (wanted | {_FUTURE, "*"})
        }
        if not more:
            return [others[i].text for i in sorted(kept)]
        kept |= more
        wanted = wanted.union(*(_globals_read(others[i].text) for i in more))


def future_imports(code: str) -> tuple[list[str], str]:
    """The future imports of ``code``, which must stand on top of a program, and ``code`` without them."""
    found = [node for node in _statements(code) if _is_future(node)]
    return [ast.unparse(node) for node in found], _without(code, _is_future)


def without_words(code: str) -> str:
    """``code`` without words of prose that happen to be Python: "Done", "Complexity: linear"."""
    return _without(code, _is_prose)


def _without(code: str, unwanted: Callable[[ast.stmt], bool]) -> str:
    nodes = _statements(code)
    kept = [node for node in nodes if not unwanted(node)]
    return code if len(kept) == len(nodes) else ast.unparse(ast.Module(kept, []))


def _is_prose(node: ast.stmt) -> bool:
    if isinstance(node, ast.AnnAssign):
        return node.value is None
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Name)


@dataclass(frozen=True, slots=True)
class _Statement:
    """``writes``: names it binds, or whose objects it changes."""

    text: str
    writes: set[str]

    @classmethod
    def of(cls, node: ast.stmt) -> _Statement:
        return cls(ast.unparse(node), _bound(node) | _changed(node))


def _statements(code: str) -> list[ast.stmt]:
    tree = parse(code)
    return [] if tree is None else tree.body


def _is_future(node: ast.stmt) -> bool:
    return _FUTURE in _modules(node)


def _modules(node: ast.stmt) -> set[str]:
    """First parts of the modules that ``node`` imports."""
    if isinstance(node, ast.Import):
        return {alias.name.split(".")[0] for alias in node.names}
    return {(node.module or "").split(".")[0]} if isinstance(node, ast.ImportFrom) else set()


def _is_stub(node: ast.stmt) -> bool:
    """A function that only has a docstring, ``pass``, ``...`` or ``raise NotImplementedError``."""
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and all(
        isinstance(inner, ast.Pass)
        or (isinstance(inner, ast.Expr) and isinstance(inner.value, ast.Constant))
        or (isinstance(inner, ast.Raise) and "NotImplemented" in ast.unparse(inner))
        for inner in node.body
    )


def _globals_read(code: str) -> set[str]:
    """Global names that ``code`` reads, in functions too; locals are no globals of the same name."""
    if not compiles(code):
        return set()
    top = symtable.symtable(code, "<answer>", "exec")
    return {
        symbol.get_name()
        for table in _tables(top)
        for symbol in table.get_symbols()
        if symbol.is_referenced() and (table is top or symbol.is_global())
    }


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def _bound(statement: ast.stmt) -> set[str]:
    """Names that a statement of a module binds there. A future import binds "__future__", an ``import *``
    from the standard library "*"."""
    names: set[str] = set()
    for node in _outside_functions(statement):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom) and node.module == _FUTURE:
            names.add(_FUTURE)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            given = {(alias.asname or alias.name).split(".")[0] for alias in node.names}
            names |= given if _modules(node) <= sys.stdlib_module_names else given - {"*"}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def _changed(statement: ast.stmt) -> set[str]:
    """Names whose objects a statement changes: ``table[0] = 1``, ``table.append(1)``."""
    found: set[str] = set()
    for node in _outside_functions(statement):
        target: ast.AST | None = None
        if isinstance(node, ast.Subscript | ast.Attribute) and not isinstance(node.ctx, ast.Load):
            target = node
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            target = node.value.func if isinstance(node.value.func, ast.Attribute) else None
        while isinstance(target, ast.Subscript | ast.Attribute):
            target = target.value
        if isinstance(target, ast.Name):
            found.add(target.id)
    return found


def _outside_functions(statement: ast.stmt) -> Iterable[ast.AST]:
    pending: list[ast.AST] = [statement]
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            pending += ast.iter_child_nodes(node)
