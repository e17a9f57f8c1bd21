"""Shared by all tests: one thread (results must not depend on the machine) and the tiny targets."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator

import pytest
import torch

from methods.models.shape import TargetShape
from methods.models.target import Target
from methods.testing.tiny import FAMILIES, tiny_target

torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start


@functools.cache
def tiny(family: str, layers: int = 8) -> Target:
    """Built once per session: methods only read a target."""
    return tiny_target(family, layers)


@pytest.fixture(scope="module", autouse=True)
def own_targets() -> Iterator[None]:
    """What the tests of a file did to a target is not there for those of the next one."""
    yield
    tiny.cache_clear()


@pytest.fixture(params=FAMILIES)
def target(request: pytest.FixtureRequest) -> Target:
    return tiny(request.param)


@pytest.fixture
def hybrid() -> Target:
    return tiny("hybrid")


@pytest.fixture
def llama() -> Target:
    return tiny("llama")


@pytest.fixture(scope="session")
def smollm2() -> Target:
    """The real default target, in float32; tests that ask for it are marked slow."""
    from methods.errors import UsageError
    from methods.models import load_target

    try:
        return load_target("smollm2-135m", device="cpu")
    except UsageError as error:
        pytest.skip(f"the default target cannot be had here: {error}")


@pytest.fixture
def grid_is_full(request: pytest.FixtureRequest) -> bool:
    """Whether ``--grid full`` asks for the whole grid instead of what fits into every run."""
    return request.config.getoption("--grid") == "full"


def tiny_shape(**sizes: int | str) -> TargetShape:
    """The sizes of a target that need not exist."""
    usual = {
        "name": "tiny",
        "sha256": "aaaa",
        "tokenizer_sha256": "bbbb",
        "num_layers": 8,
        "hidden": 16,
        "intermediate": 24,
        "heads": 2,
        "kv_heads": 1,
        "head_dim": 8,
        "vocab": 20,
        "eps": 1e-6,
        "rotary_dim": 8,
        "model_type": "llama",
    }
    return TargetShape(**usual | sizes)


def random_ids(count: int, vocab: int = 64, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab, (count,), generator=generator).tolist()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--grid",
        choices=("short", "full"),
        default="short",
        help="full: every cell of the identity checks with 20 prompts of 64 tokens, without a time limit",
    )
    parser.addoption(
        "--golden-update", action="store_true", help="write the golden files of tests/golden anew"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--grid") == "full":
        for item in items:
            item.add_marker(pytest.mark.timeout(0))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
