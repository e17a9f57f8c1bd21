"""Is a method's output the target's own? The tie rule for arithmetic that is not exact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

GapFn = Callable[[int, int], float]
"""(position, token) -> how far the target's logit of ``token`` lies below its largest logit at
output ``position``, after the prompt and AR's output before that position."""

PROBE_TOKENS = 32
"""Positions over which the block-versus-step difference is measured."""


def classify(
    ar_ids: Sequence[int], ids: Sequence[int], gap_fn: GapFn, block_step_difference: float
) -> Literal["exact", "tie", "mismatch"]:
    """Compare greedy outputs of AR and of a method.

    ``block_step_difference`` is the largest logit difference between evaluating positions in one
    block and one by one, on the same model, dtype and device. At the first differing token the
    method's token is a tie if the target's logit for it is within twice that difference of the
    largest one: either order may come out of the same target. A larger gap is a mismatch, and so
    is an output that ends earlier or later than AR's without differing.
    """
    if list(ar_ids) == list(ids):
        return "exact"
    position = first_difference(ar_ids, ids)
    if position is None:
        return "mismatch"
    return "tie" if gap_fn(position, ids[position]) <= 2 * block_step_difference else "mismatch"


def first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    """First position at which both have a token and not the same; None if one begins the other."""
    pairs = zip(left, right, strict=False)
    return next((position for position, (a, b) in enumerate(pairs) if a != b), None)


def logit_gap(hf: Any, prompt_ids: Sequence[int], ar_ids: Sequence[int]) -> GapFn:
    """The ``GapFn`` of a transformers causal LM for one prompt and AR's output."""
    import torch

    @torch.inference_mode()
    def gap(position: int, token: int) -> float:
        prefix = [*prompt_ids, *ar_ids[:position]]
        logits = hf(torch.tensor([prefix], device=hf.device)).logits[0, -1].float()
        return float(logits.max() - logits[token])

    return gap


def block_step_difference(hf: Any, ids: Sequence[int], steps: int = PROBE_TOKENS) -> float:
    """Largest logit difference between one forward of ``ids`` and a cached forward token by token,
    over the last ``steps`` positions. Its size is that of the model's rounding errors."""
    import torch

    steps = min(steps, len(ids) - 1)
    if steps < 1:
        return 0.0
    with torch.inference_mode():
        tokens = torch.tensor([list(ids)], device=hf.device)
        block = hf(tokens).logits[0, -steps:].float()
        cache = hf(tokens[:, :-steps], use_cache=True).cache
        largest = 0.0
        for index in range(steps):
            column = tokens.shape[1] - steps + index
            step = hf(tokens[:, column : column + 1], cache=cache, use_cache=True)
            largest = max(largest, float((step.logits[0, -1].float() - block[index]).abs().max()))
            cache = step.cache
    return largest


def measured_status(
    hf: Any, prompt_ids: Sequence[int], ar_ids: Sequence[int], ids: Sequence[int]
) -> Literal["exact", "tie", "mismatch"]:
    """``classify`` with both quantities measured on ``hf`` at the first differing token."""
    position = first_difference(ar_ids, ids)
    if position is None:
        return "exact" if len(ar_ids) == len(ids) else "mismatch"
    difference = block_step_difference(hf, [*prompt_ids, *ar_ids[:position]])
    return classify(ar_ids, ids, logit_gap(hf, prompt_ids, ar_ids), difference)
