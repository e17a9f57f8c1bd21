"""The targets and methods the checks run on, built once per session."""

from __future__ import annotations

import functools
from typing import Any

import torch
from conftest import tiny

from methods import registry
from methods.core import SamplingParams
from methods.drafters.vocabulary import DraftVocabulary
from methods.interface import DecodingMethod
from methods.models.partition import split_layers
from methods.models.target import Target
from methods.testing.scripted import Right, ScriptedDrafter, ScriptedPipeline, knows_output
from methods.testing.table_target import LawTable, TableTarget

GREEDY = SamplingParams()
VOCAB = 5
PIPELINES: dict[str, tuple[str, dict[str, Any]]] = {
    "spd": ("spd", {"draft_layers": 2}),
    "spd post-step": ("spd", {"draft_layers": 2, "schedule": "post-step"}),
    "ppsd": ("ppsd", {}),
}
"""Three things that are the same pipeline with another drafter: name and options by label."""
STAGES = (1, 2, 3, 4, 8)
UNEVEN = {2: "1;7", 3: "4;1;3", 4: "1;2;4;1"}


def in_turns(index: int) -> bool:
    """Three right drafts, two wrong ones: acceptances in a row, a rejection, one right after a fill."""
    return index % 5 not in (2, 3)


@functools.cache
def table_target(sharpness: float = 1.0, layers: int = 3, dtype: torch.dtype = torch.float32) -> TableTarget:
    return TableTarget(
        LawTable.random(VOCAB, period=3, seed=1, sharpness=sharpness), layers, logits_dtype=dtype
    )


@functools.cache
def autoregressive(target: Target) -> DecodingMethod:
    return registry.create("autoregressive", target)


def pipeline(target: Target, label: str, n: int, **options: Any) -> Any:
    """An untrained SPD or PPSD."""
    name, own = PIPELINES[label]
    return registry.create(name, target, {"n": n, "untrained": True, **own, **options})


def scripted(
    target: Target, n: int, right: Right, cap: int, series: bool = False, layers: int = 1, **options: Any
) -> ScriptedPipeline:
    """A pipeline whose drafter knows AR's output and is right as told."""
    ar, vocab = autoregressive(target), target.vocab_size

    def drafter(prompt: Any, sampling: SamplingParams) -> ScriptedDrafter:
        output = ar.decode(prompt, sampling, cap).tokens
        return ScriptedDrafter(
            knows_output(output, vocab, right), DraftVocabulary(vocab), series=series, layers=layers
        )

    stage_layers = options.pop("stage_layers", split_layers(target.num_layers, n))
    return ScriptedPipeline(target, stage_layers, drafter, options.pop("rule", "point-mass"), **options)


def family(name: str) -> Target:
    return tiny(name)
