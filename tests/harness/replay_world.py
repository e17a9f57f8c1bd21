"""The real methods on a real tiny target; prompts and presets of the fake world."""

from __future__ import annotations

import fake_world
import pytest
from conftest import tiny

from harness.execution import plan
from methods import registry
from methods.models.target import Target


def install(monkeypatch: pytest.MonkeyPatch) -> Target:
    real = {name: registry.get(name) for name in registry.names()}
    fake_world.install(monkeypatch.setattr)
    for name, method in real.items():
        monkeypatch.setitem(registry._methods, name, method)
    target = tiny("llama")
    # Where the property caches it, or it would outlive the test.
    monkeypatch.setitem(vars(target), "hashes", {"sha256": "a" * 64, "tokenizer_sha256": "b" * 64})
    monkeypatch.setattr(target, "tokenizer", fake_world.FakeTokenizer(), raising=False)
    monkeypatch.setattr(plan, "load_target", lambda name, dtype: target)
    monkeypatch.setattr(
        plan, "render", lambda *a, **k: [token % 64 for token in fake_world.render(*a, **k)][:20]
    )
    return target
