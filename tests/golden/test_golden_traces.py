"""Tokens and traces of every method by seed: rearranged code must take the same steps.

The targets are random and tiny, their vocabulary small: ids and counts do not hang on the last bit.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from conftest import random_ids, tiny
from golden import HERE, check_json

from methods import registry
from methods.core import DecodeResult, SamplingParams
from methods.drafters.vocabulary import DraftVocabulary
from methods.pipeline.lockstep import Lockstep
from methods.testing.scripted import ScriptedDrafter

CAP = 24
RANDOM: dict[str, Any] = {"untrained": True}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "autoregressive": ("autoregressive", {}),
    "ngram": ("ngram", {}),
    "eagle3 chain": ("eagle3", {"m": 3, **RANDOM}),
    "eagle3 beam": ("eagle3", {"m": 3, "width": 4, **RANDOM}),
    "eagle3 dynamic": ("eagle3", {"m": 3, "width": 4, "tree": "dynamic", **RANDOM}),
    "spd chain": ("spd", {"n": 4, **RANDOM}),
    "spd sampled": ("spd", {"n": 4, "proposal": "sampled", **RANDOM}),
    "spd post-step": ("spd", {"n": 4, "schedule": "post-step", **RANDOM}),
    "spd tree": ("spd", {"n": 4, "width": 4, **RANDOM}),
    "ppsd chain": ("ppsd", {"n": 4, **RANDOM}),
    "ppsd tree": ("ppsd", {"n": 2, "width": 4, **RANDOM}),
}
COLUMNS = ("drafted", "accepted", "emitted", "depth", "target_layers", "draft_layers", "nodes")


def columns(result: DecodeResult) -> dict[str, Any]:
    steps = {name: [getattr(step, name) for step in result.steps] for name in COLUMNS}
    return {"tokens": result.tokens, "ends": result.finish_reason, **json.loads(json.dumps(steps))}


@pytest.mark.parametrize("family", ["llama", "hybrid"])
def test_traces(family: str, request: pytest.FixtureRequest) -> None:
    target = tiny(family)
    found = {}
    for name, (method, options) in CASES.items():
        decoder = registry.create(method, target, options)
        for temperature in (0.0, 1.0):
            sampling = SamplingParams(temperature, top_k=8 if temperature else 0, seed=3)
            result = decoder.decode(random_ids(7, seed=1), sampling, CAP)
            found[f"{name}, T = {temperature:g}"] = columns(result)
    check_json(request, f"traces/{family}.json", found)
    assert (HERE / f"traces/{family}.json").stat().st_size < 60_000


@pytest.mark.parametrize("width", [1, 4])
def test_trace_of_a_drafter_that_is_often_right(width: int, request: pytest.FixtureRequest) -> None:
    """Random drafts are hardly ever accepted; here runs of acceptances, flushes and live branches occur."""
    target = tiny("llama")
    prompt = random_ids(7, seed=1)
    output = registry.create("autoregressive", target).decode(prompt, SamplingParams(), 48).tokens

    def law_of(prefix: list[int]) -> torch.Tensor:
        logits = torch.zeros(target.vocab_size)
        position = len(prefix)
        right = output[min(position, len(output) - 1)]
        logits[right] = 2.0 if position % 4 else 0.5
        logits[(right + 1) % target.vocab_size] = 1.0
        return logits

    drafter = ScriptedDrafter(law_of, DraftVocabulary(target.vocab_size))
    lockstep = Lockstep(target, [2, 2, 2, 2], drafter, SamplingParams(), "point-mass", width, False)
    result = lockstep.decode(prompt, 48, ())
    assert result.tokens == output and sum(step.accepted for step in result.steps) > 20
    check_json(request, f"traces/scripted-w{width}.json", columns(result))
