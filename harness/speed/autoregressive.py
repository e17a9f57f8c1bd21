"""AR, the denominator of every speedup: against transformers' ``generate`` and the memory floor."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.speed.result import Ratio, Result, Settings
from harness.speed.targets import targets
from harness.speed.timing import Timed, interleaved, seconds
from methods import registry
from methods.core import SamplingParams
from methods.models import Target

AIMS = {"float32": (1.05, 0.85), "bfloat16": (1.25, 0.70)}
"""dtype -> AR's speed wished for, against ``generate`` and against the floor."""


def measure(settings: Settings) -> Iterator[Result]:
    """Seconds per decoded token of the three arms, for each dtype; the prefill is in none of them."""
    for dtype, target, prompt in targets(settings):
        arms = {
            "AR": ar_arm(target, prompt, settings.tokens),
            "generate": generate_arm(target, prompt, settings.tokens),
            "floor": floor_arm(target, settings.tokens),
        }
        over_generate, of_floor = AIMS[dtype]
        yield Result(
            subject="autoregressive",
            case=f"{settings.preset} {dtype}",
            unit="token",
            seconds=interleaved(arms, settings.repeats),
            ratios=(
                Ratio("AR speed / generate's", "generate", "AR", over_generate),
                Ratio("AR speed / the floor's", "floor", "AR", of_floor),
            ),
        )


def ar_arm(target: Target, prompt: list[int], tokens: int) -> Timed:
    method = registry.create("autoregressive", target)

    def run() -> float:
        result = method.decode(prompt, SamplingParams(), tokens, target.stop_ids)
        return result.decode_s / len(result.steps)

    return run


def generate_arm(target: Target, prompt: list[int], tokens: int) -> Timed:
    """transformers' loop with its default cache, on the same weights and in the same clock window."""
    from transformers import StoppingCriteriaList

    ids = torch.tensor([prompt], device=target.device)
    options: dict[str, Any] = {
        "attention_mask": torch.ones_like(ids),
        "do_sample": False,
        "max_new_tokens": tokens,
        "eos_token_id": list(target.stop_ids),
        "pad_token_id": 0,
    }

    def run() -> float:
        clock = _FirstToken()
        output = target.hf.generate(ids, stopping_criteria=StoppingCriteriaList([clock]), **options)
        return (perf_counter() - clock.at) / (output.shape[1] - len(prompt) - 1)

    return run


class _FirstToken:
    """A stopping criterion that stops nothing and notes when the first token was there."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        self.at = self.at or perf_counter()
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


def floor_arm(target: Target, tokens: int) -> Timed:
    """What no decoding of single tokens can beat on this machine: each weight matrix times one row."""
    matrices = weight_matrices(target)
    rows = [
        torch.ones(1, 1, matrix.shape[1], dtype=matrix.dtype, device=matrix.device) for matrix in matrices
    ]

    @torch.inference_mode()
    def token() -> None:
        for row, matrix in zip(rows, matrices, strict=True):
            F.linear(row, matrix)
        if target.device.type == "cuda":
            torch.cuda.synchronize(target.device)

    def run() -> float:
        return seconds(lambda: [token() for _ in range(tokens - 1)]) / (tokens - 1)

    return run


def weight_matrices(target: Target) -> list[Tensor]:
    """All matrices a token is multiplied with, fused where the layers fuse them, the head last."""
    found = [matrix for layer in target.layers for matrix in layer.matrices()]
    return [*found, target.head_weight]
