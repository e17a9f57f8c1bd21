"""A method's code: what changes it, what does not, and which files belong to it."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from edited_code import edited, forget

from methods import registry
from methods.source_code import code, sources
from methods.source_code.code import Code, code_of, file_hashes, other_files

ROOT = Path(__file__).resolve().parents[2]
Load = Callable[..., Code]


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    """Write files, import a module of theirs as a new process would, and give its code."""
    with edited(tmp_path) as files:

        def load(module: str, **texts: str) -> Code:
            files.write(**texts)
            importlib.import_module(module)
            return code_of([module])

        yield load


def test_what_a_source_says_counts_and_not_how(load: Load) -> None:
    first = load("plain", plain='"""Text."""\nX = [1, 2]\n\n\ndef f(a):\n    """More."""\n    return a\n')
    same = load("plain", plain="# note\nX = [\n    1,\n    2,\n]\n\ndef f(a): return (a)  # that\n")
    assert first == same and list(first.files) == ["plain"]
    for other in ("X = [1, 3]\ndef f(a): return a\n", "X = [1, 2]\ndef f(a, b=None): return a\n", ""):
        assert load("plain", plain=other).sha256 != first.sha256
    assert load("plain", plain="X = 1").files != load("plain", plain="X = True").files
    assert load("plain", plain="X = 1").files != load("plain", plain="X = 1.0").files


def test_a_docstring_that_is_read_counts(load: Load) -> None:
    text = '"""{}"""\nPROMPT = __doc__\n'
    assert load("said", said=text.format("a")) != load("said", said=text.format("b"))


IMPORTS = {
    "import": "import helper",
    "from": "from helper import value",
    "later": "def decode():\n    from helper import value",
    "guarded": "try:\n    import helper\nexcept ImportError:\n    pass",
    "over another": "import between",
    "by name": "import importlib\nimportlib.import_module('helper')",
    "by a computed name": "import importlib\nfor end in ('er',):\n    importlib.import_module('help' + end)",
    "run as text": "import pathlib\nexec(pathlib.Path(__file__).with_name('helper.py').read_text())",
    "by its file": "from importlib.util import spec_from_file_location as load\n"
    "import importlib.util\nimportlib.util.spec_from_file_location('h', __file__.replace('mine', 'helper'))",
}


@pytest.mark.parametrize("how", IMPORTS)
def test_a_helper_beside_a_single_file(load: Load, how: str) -> None:
    files = {"mine": IMPORTS[how], "between": "from helper import value as v", "unused": "x = 1"}
    first = load("mine", helper="value = 1", **files)
    after = load("mine", helper="value = 2", **files)
    assert after.differing(first.files) == ["helper"]
    if how in ("import", "from", "later", "guarded", "over another"):
        assert load("mine", helper="value = 2", **files | {"unused": "x = 2"}) == after


PACKAGE_IMPORTS = {
    "relative": "from .parts.helper import value",
    "relative module": "from .parts import helper",
    "from above": "from . import parts",
    "absolute": "import pack.parts.helper",
    "star": "from pack.parts import *",
}


@pytest.mark.parametrize("how", PACKAGE_IMPORTS)
def test_helpers_in_a_package(load: Load, how: str) -> None:
    files = {
        "pack0__init__": "from pack.method import *",
        "pack0parts0__init__": "from pack.parts import helper",
        "pack0method": PACKAGE_IMPORTS[how],
        "pack0other": "y = 1",
    }
    first = load("pack.method", pack0parts0helper="value = 1", **files)
    assert {"pack", "pack.method", "pack.parts", "pack.parts.helper"} <= set(first.files)
    after = load("pack.method", pack0parts0helper="value = 2", **files)
    assert after.differing(first.files) == ["pack.parts.helper"]
    assert load("pack.method", **files | {"pack0other": "y = 2"}) == after
    init = files | {"pack0__init__": "from pack.method import *\nZ = 1"}
    assert load("pack.method", **init).differing(after.files) == ["pack"]


def test_a_helper_elsewhere_on_the_path(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    files = {"mine": "import far", "elsewhere0far": "value = 1"}
    first = load("mine", **files)
    after = load("mine", **files | {"elsewhere0far": "value = 2"})
    assert after.differing(first.files) == ["far"]


def test_libraries_do_not_count_and_methods_do(load: Load) -> None:
    text = "import json\nimport torch\nimport harness.run\nfrom methods.decoding.verification import Draft\n"
    found = set(load("mine", mine=text).files)
    assert "methods.decoding.verification" in found and "mine" in found
    assert all(name == "mine" or name.partition(".")[0] == "methods" for name in found)


def test_of_what_is_installed_only_what_came_along_counts(load: Load, tmp_path: Path) -> None:
    about = tmp_path / "theirs-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (about / "top_level.txt").write_text("theirs\ntheir_helper\n")
    (about / "RECORD").write_text("theirs.py,,\ntheir_helper.py,,\n")
    files = {"theirs": "import their_helper\nimport library", "library": "x = 1"}
    assert set(load("theirs", their_helper="y = 1", **files).files) == {"theirs", "their_helper"}


def test_imports_for_type_checkers_do_not_count(load: Load) -> None:
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import kinds\n"
    assert set(load("mine", mine=text, kinds="K = int").files) == {"mine"}


def test_built_in_methods_stand_on_what_they_use() -> None:
    found = {name: set(registry.code(name).files) for name in ("autoregressive", "ngram", "eagle3", "spd")}
    assert (
        "methods.decoding.verification" in found["ngram"]
        and "methods.models.state" in found["autoregressive"]
    )
    assert "methods.spd.drafter" in found["spd"] and "methods.spd.drafter" not in found["eagle3"]
    assert not any("methods.registry" in files or "methods.training" in files for files in found.values())


def test_an_uncommitted_edit_of_a_built_in_method_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {name: registry.code(name) for name in ("ngram", "eagle3", "spd")}
    file = ROOT / "methods" / "decoding" / "prompt_lookup.py"
    forget()
    read = sources.content
    changed = file.read_bytes().replace(b"return Draft.chain(tokens)", b"return Draft.chain(tokens[:1])")
    assert changed != file.read_bytes()
    with monkeypatch.context() as patch:
        for module in (sources, code):
            patch.setattr(module, "content", lambda each: changed if each == file else read(each))
        after = {name: registry.code(name) for name in before}
    forget()
    assert after["ngram"].differing(before["ngram"].files) == ["methods.decoding.prompt_lookup"]
    assert (after["eagle3"], after["spd"]) == (before["eagle3"], before["spd"])


def test_a_class_that_another_module_registers(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who registers a class may change it."""
    monkeypatch.setattr(registry, "_methods", {})
    monkeypatch.setattr(registry, "_registered_in", {})
    files = {"kept": "import methods.decoding.autoregressive as m\nclass Mine(m.Autoregressive):\n    pass\n"}
    text = "import kept\nfrom methods.registry import register\nregister('mine')(kept.Mine).gap = {}\n"
    load("names", names=text.format(1), **files)
    first = registry.code("mine")
    assert {"names", "kept", "methods.decoding.autoregressive"} <= set(first.files)
    load("names", names=text.format(2), **files)
    assert registry.code("mine").differing(first.files) == ["names"]


def test_another_process_with_other_files(load: Load, tmp_path: Path) -> None:
    load("mine", mine="import helper", helper="value = 1")
    hashes = file_hashes(["mine"])
    assert set(hashes) == {"mine", "helper"} and other_files(hashes) == []
    load("mine", helper="value = 2  # a comment, too")
    assert other_files(hashes) == ["helper"]
    assert other_files({"nowhere.at_all": "0"}) == ["nowhere.at_all"]


def test_a_script_is_known_by_its_file(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from methods.source_code.code import code_of, file_hashes\nimport beside\n"
        "print(sorted(code_of(['__main__']).files), sorted(file_hashes(['__main__'])))\n"
    )
    (tmp_path / "beside.py").write_text("x = 1\n")
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT)},
        check=True,
    )
    assert done.stdout == "['__main__', 'beside'] ['beside']\n"
