"""The source files that a module stands on: its own, and those of everything it imports."""

from __future__ import annotations

import ast
import gc
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.machinery import all_suffixes
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

_APART = frozenset({"methods.source_code.code", "methods.registry", "methods.source_code.sources"})
"""They know methods by their names and files, and run none of them."""
_INSTALLED = ("site-packages", "dist-packages")
_PYTHONS = Path(ast.__file__).resolve().parent
_SUFFIXES = tuple(all_suffixes())
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""The fields of a syntax tree that hold statements; none else holds an import."""
_LOADERS = frozenset(
    {"__import__", "exec", "import_module", "run_module", "run_path", "spec_from_file_location"}
)
"""A plugin that calls one of these may run any source beside it."""


@contextmanager
def _without_collection() -> Iterator[None]:
    """Syntax trees are many objects and no garbage; to look for some among all of torch's takes 0.2 s."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@_without_collection()
def sources(modules: Iterable[str]) -> dict[str, Path]:
    """By name, the files of ``modules`` and of every module they import, directly or not, be it
    later, within a function.

    Followed are imports from this package, from where the importing module lies itself, and from any
    place where nothing is installed. Of installed packages only what came together with the module is.
    """
    found: dict[str, Path] = {}
    todo = [start for start in map(_start, modules) if start is not None]
    while todo:
        name, folder = todo.pop()
        file = folder.find(name)
        if file is None or name in found or name in _APART:
            continue
        found[name] = file
        todo += [(parent, folder) for parent in _parents(name)]
        for other in _imports(name, file):
            if (place := _place(other, folder)) is not None:
                todo.append((other, place))
        if folder != _OURS and _loads_files(file):
            todo += [(other, folder) for other in folder.beside(name)]
    return found


def locate(module: str) -> Path | None:
    """The file of a module, which need not be imported, nor is it here."""
    if (file := _file_of(module)) is not None:
        return file
    try:
        spec = find_spec(_first(module))
    except ValueError:  # a module that was made by hand
        return None
    places = [] if spec is None else spec.submodule_search_locations or [spec.origin or ""]
    found = (_find(Path(place).resolve().parent, module) for place in places)
    return next((file for file in found if file is not None), None)


@cache
def content(file: Path) -> bytes:
    """What a file held when this process first asked."""
    return file.read_bytes()


@cache
def tree(file: Path) -> ast.Module | None:
    """The syntax tree of a source; None for other files."""
    try:
        return ast.parse(content(file)) if file.suffix == ".py" else None
    except (SyntaxError, ValueError):
        return None


@dataclass(frozen=True)
class _Folder:
    """A folder that modules are imported from, and the top-level ``names`` in it that belong together;
    None for all of them. ``script`` is a file that goes by another name than its own."""

    path: Path
    names: frozenset[str] | None = None
    script: tuple[str, Path] | None = None

    def find(self, module: str) -> Path | None:
        """The file of ``module``, None if it is none of this folder's."""
        if self.script is not None and module == self.script[0]:
            return self.script[1]
        return _find(self.path, module) if self.names is None or _first(module) in self.names else None

    def beside(self, module: str) -> Iterator[str]:
        """All modules of the package of ``module``; for a single file those of its folder."""
        package = self.path / _first(module)
        for file in package.rglob("*.py") if package.is_dir() else self.path.glob("*.py"):
            yield ".".join(file.relative_to(self.path).with_suffix("").parts).removesuffix(".__init__")


_OURS = _Folder(Path(__file__).resolve().parents[2], frozenset({"methods"}))


@cache
def _find(path: Path, module: str) -> Path | None:
    *parents, last = module.split(".")
    folder = os.path.join(path, *parents)
    for place, stem in ((os.path.join(folder, last), "__init__"), (folder, last)):
        names = _names(place)
        for suffix in _SUFFIXES:
            if stem + suffix in names:
                return Path(place, stem + suffix)
    return None


@cache
def _names(folder: str) -> frozenset[str]:
    """The files in a folder, which need not exist; it is asked for many more modules than it holds."""
    try:
        return frozenset(entry.name for entry in os.scandir(folder) if entry.is_file())
    except (OSError, ValueError):
        return frozenset()


def _start(module: str) -> tuple[str, _Folder] | None:
    """A module and its folder; None if it has no file."""
    file = locate(module)
    if file is None:
        return None
    if not file.is_file():  # in an archive, which then is the source
        archive = next((parent for parent in file.parents if parent.is_file()), None)
        return None if archive is None else (module, _Folder(archive.parent, script=(module, archive)))
    path = _home(module, file)
    if _find(path, module) != file:
        return module, _Folder(file.parent, script=(module, file))
    if path == _OURS.path and _first(module) == "methods":
        return module, _OURS
    return module, _Folder(path, _together(_first(module)) if _installed(path) else None)


def _place(module: str, importer: _Folder) -> _Folder | None:
    """The folder from which a module in ``importer`` imports ``module``; None for what is not followed."""
    if importer == _OURS or _OURS.find(module) is not None:
        return _OURS
    if importer.find(module) is not None:
        return importer
    file = _file_of(module)
    path = None if file is None else _home(module, file)
    if path is None or path == _OURS.path or path.is_relative_to(_PYTHONS) or _installed(path):
        return None
    return _Folder(path)


def _file_of(module: str) -> Path | None:
    file = getattr(sys.modules.get(module), "__file__", None)
    return None if file is None else Path(file).resolve()


def _home(module: str, file: Path) -> Path:
    """The folder on the path in which ``module`` was found as ``file``."""
    return file.parents[module.count(".") + (_first(file.name) == "__init__")]


@cache
def _installed(path: Path) -> bool:
    return path.name in _INSTALLED or any(path.glob("*.dist-info"))


def _together(name: str) -> frozenset[str]:
    """The top-level names that were installed with ``name``."""
    providers = packages_distributions()
    own = set(providers.get(name, ()))
    return frozenset({name, *(top for top, sources in providers.items() if own & set(sources))})


def _first(name: str) -> str:
    return name.partition(".")[0]


def _parents(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def _imports(module: str, file: Path) -> list[str]:
    """Absolute names of what a source may import; what is imported for type checkers alone is left out."""
    package = module if _first(file.name) == "__init__" else module.rpartition(".")[0]
    found: list[str] = []
    for node in _nodes(tree(file), statements=True):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            origin = _absolute(node, package)
            found += [origin, *(f"{origin}.{alias.name}" for alias in node.names)]
    return [name for name in found if all(part.isidentifier() for part in name.split("."))]


def _absolute(node: ast.ImportFrom, package: str) -> str:
    """The full name of the module that ``node`` imports from."""
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    return ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])


def _loads_files(file: Path) -> bool:
    called = (node.func for node in _nodes(tree(file)) if isinstance(node, ast.Call))
    return any(getattr(func, "id", getattr(func, "attr", "")) in _LOADERS for func in called)


def _nodes(root: ast.Module | None, statements: bool = False) -> Iterator[ast.AST]:
    """All nodes, or what is no expression, but those under ``if TYPE_CHECKING``."""
    todo: list[ast.AST] = [] if root is None else [root]
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, ast.If) and _is_for_type_checkers(node.test):
            todo += node.orelse
        elif statements:
            for name in _BLOCKS:
                todo += getattr(node, name, ())
        else:
            todo += ast.iter_child_nodes(node)


def _is_for_type_checkers(test: ast.expr) -> bool:
    return getattr(test, "id", getattr(test, "attr", "")) == "TYPE_CHECKING"
