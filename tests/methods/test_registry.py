"""Methods from installed packages, broken ones among them."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from methods import registry
from methods.errors import UsageError


def test_a_broken_package_takes_no_other_method_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sound_method.py").write_text(
        "from methods.decoding.autoregressive import Autoregressive\n"
        "from methods.registry import register\n\n\n"
        "@register('sound')\nclass Sound(Autoregressive):\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    points = [
        EntryPoint(name, name, registry.ENTRY_POINT_GROUP) for name in ("no_such_module", "sound_method")
    ]
    monkeypatch.setattr(registry, "_methods", {name: registry.get(name) for name in registry.names()})
    monkeypatch.setattr(registry, "_discovered", False)
    monkeypatch.setattr(registry, "_broken", [])
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    assert {"autoregressive", "spd", "sound"} <= set(registry.names())
    assert "warning: plugin module 'no_such_module' cannot be imported" in capsys.readouterr().err
    with pytest.raises(UsageError, match=r"unknown method 'theirs'; known: .*sound.*no_such_module"):
        registry.get("theirs")
    sys.modules.pop("sound_method")


def test_a_name_that_nothing_has_is_refused_without_torch() -> None:
    program = (
        "import sys\nfrom harness.run import main\n"
        "assert main(sys.argv[1:]) == 2\n"
        "assert not {'torch', 'transformers'} & sys.modules.keys(), 'imported'"
    )
    for argv in (["--method", "theirs"], ["--preset", "theirs"], ["--benchmark", "theirs"]):
        command = [sys.executable, "-c", program, *argv]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0 and "unknown" in done.stderr, done.stderr


def test_every_built_in_module_registers_its_name() -> None:
    for name, module in registry.BUILTIN_MODULES.items():
        assert registry.get(name).__module__ == module and registry.is_builtin(name)


def test_a_built_in_name_is_taken_before_its_module_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = type("Mine", (registry.get("ngram"),), {})
    monkeypatch.setattr(registry, "_methods", {})
    with pytest.raises(UsageError, match=r"'spd' is already taken by methods\.spd\.method"):
        registry.register("spd")(mine)
