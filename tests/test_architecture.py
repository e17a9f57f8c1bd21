"""``docs/architecture.md`` is true: its rooms exist, imports run one way, and none run in a circle."""

from __future__ import annotations

import ast
import graphlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PACKAGES = ("methods", "harness", "paper_tables")
UPWARD = {("harness.checks.record_checks", "harness.run")}
"""It checks the command, so it calls the command."""
MOST_LOOSE = {"methods": 8, "harness": 10, "paper_tables": 12}
MOST_LINES = 300

Graph = Mapping[str, set[str]]


def sources() -> dict[str, Path]:
    """Every module of the three packages by name."""
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


def imported(tree: ast.AST, known: Mapping[str, Path]) -> Iterator[str]:
    """All imports: those within functions and those for types, too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield from (each for each in (name if name in known else node.module,) if each in known)


@pytest.fixture(scope="module")
def graph() -> Graph:
    known = sources()
    return {
        name: set(imported(ast.parse(path.read_text(encoding="utf-8")), known)) - {name}
        for name, path in known.items()
    }


def rooms(package: str) -> list[str]:
    """As the page lists them."""
    return re.findall(rf"^\| `{package}/(\w+)` \|", PAGE, re.MULTILINE)


def room(module: str) -> tuple[str, str]:
    """The package and the room of a module; "" for a loose one."""
    package, _, rest = module.partition(".")
    name = rest.partition(".")[0]
    return package, name if (ROOT / package / name).is_dir() else ""


def climbs(importer: str, module: str) -> bool:
    """Whether an import goes where the page lets none go."""
    (above, mine), (below, other) = room(importer), room(module)
    if above != below:
        return PACKAGES.index(below) > PACKAGES.index(above)
    order = rooms(above)
    if not mine or mine == other or not order:
        return False  # loose modules of methods are below all rooms, those of harness above
    if not other:
        return above == "harness" and module != "harness"
    return order.index(other) > order.index(mine)


def test_the_page_lists_every_room():
    for package in ("methods", "harness"):
        folders = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
        assert set(rooms(package)) == folders


def test_files_that_the_page_names_exist():
    for name in re.findall(r"`((?:methods|harness|paper_tables|tests|examples|docs)/[\w./]+)`", PAGE):
        assert (ROOT / name).exists(), name


def test_imports_run_one_way(graph):
    up = {(name, other) for name, others in graph.items() for other in others if climbs(name, other)}
    assert up == UPWARD


def test_no_imports_run_in_a_circle(graph):
    graphlib.TopologicalSorter(graph).prepare()


@pytest.mark.parametrize(
    ("importer", "module"),
    [("methods.core", "harness.run"), ("harness.records.record", "harness.execution.plan")],
)
def test_an_import_that_climbs_is_noticed(importer, module):
    assert climbs(importer, module)


def test_a_circle_is_noticed(graph):
    circle = {**graph, "methods.core": graph["methods.core"] | {"methods.interface"}}
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter(circle).prepare()


def test_few_files_are_loose_and_none_is_long():
    for package, most in MOST_LOOSE.items():
        assert len(list((ROOT / package).glob("*.py"))) <= most, package
    assert len(list((ROOT / "methods/pipeline/distributed").glob("*.py"))) <= 12
    long = {str(path): count for path in sources().values() if (count := lines(path)) > MOST_LINES}
    assert not long


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_the_core_needs_no_torch(graph):
    seen, todo = set(), ["methods.core"]
    while todo:
        name = todo.pop()
        seen.add(name)
        todo += graph[name] - seen
    assert not any(
        re.search(r"^\s*(import|from) torch", sources()[n].read_text(), re.MULTILINE) for n in seen
    )
