"""The targets and prompts of the checks, built once per process."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch

from methods import registry
from methods.checking.table_target import LawTable, TableTarget
from methods.interface import DecodingMethod
from methods.target.target import Target
from methods.target.tiny import tiny_target

LAYERS = 8
FEW = 8
"""A vocabulary so small that a random drafter is sometimes right, several times in a row."""
VOCABULARIES = (64, FEW)

CLOSE = 1e-5
"""Largest difference of float32 results that have to be equal."""
HYBRID_CLOSE = 5e-5
"""The same for Qwen3.5: one prefill runs the delta rule in chunks, which differs from its stepwise form
by that much before any rollback."""


@functools.cache
def table(
    vocab: int = 5, sharpness: float = 1.5, layers: int = LAYERS, dtype: torch.dtype = torch.float32
) -> TableTarget:
    law = LawTable.random(vocab, period=3, seed=1, sharpness=sharpness)
    return TableTarget(law, layers, logits_dtype=dtype)


def small_table(n: int | None = None, sharpness: float = 1.5) -> TableTarget:
    """A table of three layers, or as many as ``n`` stages need: for checks that decode much."""
    return table(sharpness=sharpness, layers=max(3, n or 0))


@functools.cache
def family(name: str, vocab: int = 64, dtype: torch.dtype = torch.float32) -> Target:
    return tiny_target(name, LAYERS, vocab, dtype=dtype, sharpness=1.0 if vocab > FEW else 2.0)


@functools.cache
def reference(target: Target) -> DecodingMethod:
    """Plain decoding of ``target``."""
    return registry.create("autoregressive", target)


def prompt(count: int, vocab: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab, (count,), generator=generator).tolist()


def prompts(count: int, vocab: int) -> list[list[int]]:
    """Lengths 1 to 13, a one-token prompt first."""
    return [prompt(1 + 5 * i % 13, vocab, seed=50 + i) for i in range(count)]


def targets(families: tuple[str, ...], dtype: torch.dtype = torch.float32) -> Iterator[Target]:
    """Every family with a usual vocabulary and with few tokens."""
    for name in families:
        for vocab in VOCABULARIES:
            yield family(name, vocab, dtype)


def close(target: Target) -> float:
    return HYBRID_CLOSE if target.name == "tiny-hybrid" else CLOSE
