"""EAGLE-3 with a head fitted to a tiny target's own outputs, by a textbook training-time test."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from conftest import random_ids, tiny
from torch import Tensor
from torch.nn import functional as F

from methods import registry
from methods.core import SamplingParams
from methods.eagle3.head import Eagle3Head
from methods.eagle3.method import Eagle3
from methods.models.target import Target

CAP = 64
PROMPTS = [random_ids(1 + i % 9, seed=50 + i) for i in range(20)]
"""Lengths 1 to 9, one-token prompts among them."""
KNOWN = 6
"""Prompts whose AR output is computed."""
_STEPS = 2
_UPDATES = 40


@functools.cache
def outputs(family: str, layers: int = 4) -> list[list[int]]:
    """AR's greedy outputs of the first ``KNOWN`` prompts."""
    ar = registry.create("autoregressive", tiny(family, layers))
    return [ar.decode(prompt, SamplingParams(), CAP).tokens for prompt in PROMPTS[:KNOWN]]


@functools.cache
def fitted_weights(family: str, layers: int = 4) -> dict[str, Tensor]:
    target = tiny(family, layers)
    head = untrained(target).head
    length = CAP + 1
    pairs = zip(PROMPTS, outputs(family, layers), strict=False)
    texts = [(prompt + output)[:length] for prompt, output in pairs]
    fit(head, features(target, head.config.taps, texts), torch.tensor(texts))
    return head.state_dict()


def untrained(target: Target, **options: object) -> Eagle3:
    method = registry.create("eagle3", target, {"untrained": True, **options})
    assert isinstance(method, Eagle3)
    return method


def fitted(family: str, layers: int = 4, **options: object) -> Eagle3:
    """A method whose head is right more often than not on ``outputs``."""
    method = untrained(tiny(family, layers), **options)
    method.head.load_state_dict(fitted_weights(family, layers))
    return method


def features(target: Target, taps: Sequence[int], texts: Sequence[Sequence[int]]) -> Tensor:
    """Concatenated taps [texts, length, 3 * hidden] of texts of one length."""
    rows = []
    for text in texts:
        out = target.forward(text, target.new_state(), taps=taps)
        rows.append(torch.cat([out.taps[tap] for tap in taps], -1))
    return torch.cat(rows)


def fit(head: Eagle3Head, taps: Tensor, texts: Tensor) -> None:
    """Minimise the cross-entropy of the tokens that drafts of 1 .. ``_STEPS`` levels must name."""
    head.requires_grad_(True).train()
    optimiser = torch.optim.Adam(head.parameters(), lr=4e-3)
    for _ in range(_UPDATES):
        optimiser.zero_grad()
        for level, logits in enumerate(unrolled(head, taps, texts), start=1):
            named = texts[:, level + 1 : level + 1 + logits.shape[1]]
            F.cross_entropy(logits.flatten(0, 1), named.flatten()).backward(retain_graph=True)
        optimiser.step()
    head.requires_grad_(False).eval()


def unrolled(head: Eagle3Head, taps: Tensor, texts: Tensor) -> list[Tensor]:
    """Draft logits [texts, slots, vocab] of levels 1 .. ``_STEPS`` at every slot that has them all."""
    slots = texts.shape[1] - 1 - _STEPS
    causal, own = torch.ones(slots, slots, dtype=torch.bool).tril(), torch.eye(slots, dtype=torch.bool)
    feature, past, logits = head.fuse(taps[:, :slots]), None, []
    for k in range(_STEPS):
        mask = torch.cat((causal, *[own] * k), 1)
        positions = torch.arange(k, k + slots)
        feature, new = head.slots(feature, texts[:, k + 1 : k + 1 + slots], positions, mask, past)
        past = new if past is None else tuple(torch.cat(pair, 2) for pair in zip(past, new, strict=True))
        logits.append(head.logits(feature))
    return logits
