"""Modules that are edited between two imports, as between two processes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from methods import registry
from methods.source_code import code, sources


def forget() -> None:
    """What a process keeps of the sources that it runs."""
    kept = (sources.content, sources.tree, sources._find, sources._names, sources._installed, code._meaning)
    for function in kept:
        function.cache_clear()


class Edited:
    """Python files in ``folder``, which is on the path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known = set(sys.modules)
        self._methods = {name: registry.get(name) for name in registry.names()}

    def write(self, **files: str) -> None:
        """By path, 0 for /: ``pack0__init__="..."``. The next import is that of a new process."""
        for name, text in files.items():
            path = self.folder / f"{name.replace('0', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.clear()

    def clear(self) -> None:
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None) or ""
            if name not in self._known and file.startswith(str(self.folder)):
                del sys.modules[name]
        for name in registry._methods.keys() - self._methods.keys():
            del registry._methods[name]
        forget()
        importlib.invalidate_caches()


@contextmanager
def edited(folder: Path) -> Iterator[Edited]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "dont_write_bytecode", True)  # an edit within a second would go unseen
        patch.syspath_prepend(str(folder))
        files = Edited(folder)
        yield files
        files.clear()
