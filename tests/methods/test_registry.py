"""Methods from installed packages, broken ones among them."""

from __future__ import annotations

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
