"""Targets, methods and prompts of the checks of draft-then-verify methods."""

from __future__ import annotations

import functools
from typing import Any

from conftest import tiny

from methods import registry
from methods.interface import DecodingMethod
from methods.models.target import Target
from methods.testing.table_target import LawTable, TableTarget

LAYERS = 4

EAGLE3 = {
    "chain": {"m": 7},
    "short chain": {"m": 3},
    "long chain": {"m": 15},
    "tree": {"m": 7, "width": 4},
    "short tree": {"m": 3, "width": 4},
    "dynamic tree": {"m": 7, "width": 4, "tree": "dynamic"},
    "branches": {"m": 3, "width": 4, "proposal": "sampled"},
}


def family(name: str) -> Target:
    return tiny(name, LAYERS)


@functools.cache
def autoregressive(target: Target) -> DecodingMethod:
    return registry.create("autoregressive", target)


@functools.cache
def table_target(vocab: int = 6, sharpness: float = 1.5) -> TableTarget:
    return TableTarget(LawTable.random(vocab, period=3, seed=1, sharpness=sharpness), layers=3)


def rounds(target: Target, label: str, **options: Any) -> Any:
    """ "ngram", or an untrained EAGLE-3 of the shape ``label``."""
    if label == "ngram":
        return registry.create("ngram", target, {"m": 5, **options})
    return registry.create("eagle3", target, {"untrained": True, **EAGLE3[label], **options})
