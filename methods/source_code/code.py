"""Which code a method is: a hash of what the sources say that can change what it does."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from methods.source_code.sources import content, locate, sources, tree

DIGITS = 8
"""How much of a hash people are shown."""


@dataclass(frozen=True)
class Code:
    """``files``: modules by name, or other files, each with a sha256 of what it says."""

    files: Mapping[str, str]

    @property
    def sha256(self) -> str:
        return _sha256("".join(f"{digest} {name}\n" for name, digest in sorted(self.files.items())).encode())

    def differing(self, files: Mapping[str, str]) -> list[str]:
        """The names that are another file in ``files``, or are in one of the two only; sorted."""
        names = self.files.keys() | files.keys()
        return sorted(name for name in names if self.files.get(name) != files.get(name))


def code_of(modules: Iterable[str]) -> Code:
    """The code of ``modules`` with all that they import (see ``sources``), without comments,
    docstrings and layout.

    A file is read once per process: asked right after the import, this is the code that runs.
    """
    return Code({name: _meaning(file) for name, file in sources(modules).items()})


def file_hashes(modules: Iterable[str]) -> dict[str, str]:
    """The same modules, each with a sha256 of its file's bytes: quick to compare in another process."""
    found = sources(modules)
    found.pop("__main__", None)  # another process has another
    return {name: _sha256(content(file)) for name, file in found.items()}


def other_files(hashes: Mapping[str, str]) -> list[str]:
    """Those modules of another process's ``file_hashes`` that are another file in this one; sorted."""
    return sorted(name for name, digest in hashes.items() if _own_hash(name) != digest)


def _own_hash(module: str) -> str | None:
    file = locate(module)
    return None if file is None else _sha256(content(file))


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@cache
def _meaning(file: Path) -> str:
    """sha256 of a source's syntax tree, of any other file's bytes."""
    root, data = tree(file), content(file)
    try:
        text = None if root is None else repr(_plain(root, documented=b"__doc__" in data))
    except RecursionError:  # an expression of a thousand terms
        text = None
    return _sha256(data if text is None else text.encode(errors="backslashreplace"))


def _plain(value: Any, documented: bool) -> Any:
    """A syntax tree as nested tuples without places and comments, and without the statements that are mere
    text (docstrings) unless the source is ``documented``, that is, reads them. What is empty is left out,
    because versions of Python differ in it."""
    if isinstance(value, list):
        return tuple(_plain(item, documented) for item in value if documented or not _is_text(item))
    if not isinstance(value, ast.AST):
        return value
    if isinstance(value, ast.Constant):
        return ("Constant", repr(value.value))
    fields = [(name, _plain(item, documented)) for name, item in ast.iter_fields(value)]
    return (type(value).__name__, *((name, item) for name, item in fields if item not in (None, ())))


def _is_text(item: Any) -> bool:
    match item:
        case ast.Expr(value=ast.Constant(value=str())):
            return True
    return False
