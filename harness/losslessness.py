"""Is a method's output the target's own? The tie rule for arithmetic that is not exact."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

GapFn = Callable[[int, int], float]
"""(position, token) -> how far the target's logit of ``token`` lies below its largest logit at
output ``position``, after the prompt and AR's output before that position."""

PROBE_POSITIONS = 16
"""Positions over which the block-versus-step difference is measured: the size of a long draft."""
TEXT_POSITIONS = 64
"""The same at the end of a whole output."""


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


@dataclass(frozen=True)
class Probe:
    """The target one position after some ids, as AR sees it: ``logits`` [vocab] float32, and the
    largest difference that evaluating the last positions in one block makes."""

    logits: Tensor
    block_step_difference: float

    def gap(self, token: int) -> float:
        """How far the logit of ``token`` lies below the largest."""
        return float(self.logits.max() - self.logits[token])


@torch.inference_mode()
def probe(hf: Any, ids: Sequence[int], positions: int = PROBE_POSITIONS) -> Probe:
    """Evaluate the last ``positions`` of ``ids`` on a transformers causal LM both ways, from one
    prefill of what precedes them: as one block, as a verification does, and token by token."""
    tokens = torch.tensor([list(ids)], device=hf.device)
    count = min(positions, len(ids) - 1)
    if count < 1:
        return Probe(hf(tokens, use_cache=False).logits[0, -1].float(), 0.0)
    head, tail = tokens[:, :-count], tokens[:, -count:]
    cache = hf(head, use_cache=True, logits_to_keep=1).cache
    block = hf(tail, cache=copy.deepcopy(cache), use_cache=True).logits[0].float()
    rows = []
    for column in range(count):
        step = hf(tail[:, column : column + 1], cache=cache, use_cache=True)
        cache = step.cache
        rows.append(step.logits[0, -1].float())
    return Probe(rows[-1], float((torch.stack(rows) - block).abs().max()))


def probe_at(hf: Any, prompt_ids: Sequence[int], ar_ids: Sequence[int], position: int) -> Probe:
    """``probe`` at output ``position``. The difference is the larger of that of the positions before it
    and that of the end of AR's whole text: rounding is the model's, and a few positions underrate it."""
    there = probe(hf, [*prompt_ids, *ar_ids[:position]])
    whole = probe(hf, [*prompt_ids, *ar_ids], TEXT_POSITIONS).block_step_difference
    return Probe(there.logits, max(there.block_step_difference, whole))


def measured_status(
    hf: Any, prompt_ids: Sequence[int], ar_ids: Sequence[int], ids: Sequence[int]
) -> Literal["exact", "tie", "mismatch"]:
    """``classify`` with both quantities measured on ``hf`` at the first differing token."""
    position = first_difference(ar_ids, ids)
    if position is None:
        return "exact" if len(ar_ids) == len(ids) else "mismatch"
    there = probe_at(hf, prompt_ids, ar_ids, position)
    return classify(ar_ids, ids, lambda _, token: there.gap(token), there.block_step_difference)
