"""The targets and prompts of the checks, built once per process."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from methods import registry
from methods.interface import DecodingMethod
from methods.models.target import PREFILL_CHUNK, Target
from methods.testing.table_target import LawTable, TableTarget
from methods.testing.tiny import tiny_target

LAYERS = 8
SMALL = 4
FEW = 8
"""A vocabulary so small that a random drafter is sometimes right, several times in a row."""
VOCABULARIES = (64, FEW)

SHORT_PROMPTS = (1, 14, 52, 310, 6, 130)
"""In tokens: within and past a sliding window."""
LONG_PROMPTS = (600, 548, PREFILL_CHUNK + 1, 577)
LONG_OUTPUT = 144

CLOSE = 1e-5
"""Largest difference of float32 results that have to be equal."""
HYBRID_CLOSE = 5e-5
"""The same for Qwen3.5: one prefill runs the delta rule in chunks, which differs from its stepwise form
by that much before any rollback."""


@functools.cache
def table(
    vocab: int = 5,
    sharpness: float = 1.5,
    layers: int = LAYERS,
    dtype: torch.dtype = torch.float32,
    period: int = 3,
) -> TableTarget:
    law = LawTable.random(vocab, period, seed=1, sharpness=sharpness)
    return TableTarget(law, layers, logits_dtype=dtype)


def small_table(n: int | None = None, sharpness: float = 1.5, vocab: int = 5, period: int = 3) -> TableTarget:
    """A table of few layers, or as many as ``n`` stages need: for checks that decode much."""
    return table(vocab, sharpness, layers=max(SMALL, n or 0), period=period)


@functools.cache
def family(name: str, vocab: int = 64, dtype: torch.dtype = torch.float32) -> Target:
    return tiny_target(name, LAYERS, vocab, dtype=dtype, sharpness=1.0 if vocab > FEW else 2.0)


@functools.cache
def reference(target: Target) -> DecodingMethod:
    """Plain decoding of ``target``."""
    return registry.create("autoregressive", target)


def forget() -> None:
    """Build anew what was built: somebody has changed it."""
    for built in (table, family, reference):
        built.cache_clear()


def prompt(count: int, vocab: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab, (count,), generator=generator).tolist()


@dataclass(frozen=True, slots=True)
class Cell:
    """One decode call of a check that makes several: ``prompt`` and how many ``tokens`` to decode."""

    prompt: list[int]
    tokens: int


def cell(number: int, vocab: int, tokens: int) -> Cell:
    """Every second prompt is longer than a prefill's chunk, the others have 1 to 310 tokens, one-token
    prompts first; of sixteen cells two have outputs of ``LONG_OUTPUT``, the others of ``tokens``."""
    lengths = LONG_PROMPTS if number % 2 else SHORT_PROMPTS
    length = lengths[number // 2 % len(lengths)]
    return Cell(
        prompt(length, vocab, seed=50 + number), max(LONG_OUTPUT, tokens) if number % 16 in (0, 2) else tokens
    )


def targets(families: tuple[str, ...], dtype: torch.dtype = torch.float32) -> Iterator[Target]:
    """Every family with a usual vocabulary and with few tokens."""
    for name in families:
        for vocab in VOCABULARIES:
            yield family(name, vocab, dtype)


def close(target: Target) -> float:
    return HYBRID_CLOSE if target.name == "tiny-hybrid" else CLOSE
