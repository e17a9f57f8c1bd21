"""The README's example of a method outside the package: installed with pip, found, and decoding."""

import importlib
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from methods import registry
from methods.core import SamplingParams
from methods.errors import UsageError

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "plain_method"
VOCAB = 7


class CountingTarget:
    """A fake target whose next token is the last one plus the number of tokens seen, modulo ``VOCAB``."""

    num_layers = 3

    def new_state(self):
        return []

    def forward(self, ids, state, taps=(), record=False):
        rows = []
        for token in ids.tolist():
            state.append(token)
            rows.append((token + len(state)) % VOCAB)
        hidden = torch.nn.functional.one_hot(torch.tensor(rows), VOCAB).float()
        return SimpleNamespace(hidden=hidden[None], taps={})

    def logits(self, hidden):
        return hidden * 5


def expected(prompt, count):
    ids = list(prompt)
    while len(ids) < len(prompt) + count:
        ids.append((ids[-1] + len(ids)) % VOCAB)
    return ids[len(prompt) :]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder outside the tree into which pip installed the example."""
    root = tmp_path_factory.mktemp("outside")
    source = shutil.copytree(EXAMPLE, root / "source")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    command += ["--no-build-isolation", "--target", str(root / "site"), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 0, done.stderr
    return root / "site"


@pytest.fixture
def outside(site, monkeypatch):
    """An empty registry with only ``site`` to discover methods from."""
    monkeypatch.setattr(registry, "_methods", {})
    monkeypatch.setattr(registry, "_discovered", False)
    monkeypatch.setattr(registry, "BUILTIN_MODULES", {})
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, "plain_method", raising=False)
    importlib.invalidate_caches()


def test_found_by_its_entry_point(outside):
    assert registry.names() == ["plain"]


def test_found_as_a_plugin_module(outside, monkeypatch):
    monkeypatch.setattr(registry, "_discovered", True)
    assert registry.names() == []
    registry.load_plugin("plain_method")
    assert registry.names() == ["plain"]


@pytest.fixture
def plain(outside):
    return registry.create("plain", CountingTarget())


@pytest.mark.parametrize("cap", [0, 1, 2, 9])
def test_decodes_to_the_cap(plain, cap):
    result = plain.decode([3, 1], SamplingParams(), cap)
    assert result.tokens == expected([3, 1], cap)
    assert len(result.steps) == max(cap - 1, 0)
    assert all(step.emitted == 1 and step.target_layers == 3 for step in result.steps)
    assert result.finish_reason == "length"
    assert (result.decode_s > 0) and (result.prefill_s > 0 or cap == 0)


@pytest.mark.parametrize("position", range(5))
def test_ends_at_the_first_stop_id(plain, position):
    stop = expected([3, 1], 9)[position]
    result = plain.decode([3, 1], SamplingParams(), 9, stop_ids=[stop])
    assert result.tokens == expected([3, 1], expected([3, 1], 9).index(stop) + 1)
    assert result.finish_reason == "stop"


def test_samples_from_the_seed(plain):
    def draw(seed):
        return plain.decode([3, 1], SamplingParams(temperature=4.0, seed=seed), 20).tokens

    assert draw(1) == draw(1)
    assert len({tuple(draw(seed)) for seed in range(5)}) > 1


def test_empty_prompt_is_refused(plain):
    with pytest.raises(UsageError, match="the prompt is empty"):
        plain.decode([], SamplingParams(), 4)
