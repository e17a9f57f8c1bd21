"""Is a method's output the target's own? The tie rule for arithmetic that is not exact.

One rule for every dtype. An output that is not AR's is a *tie* if each of its tokens has, in AR's own
passes over that output, a logit within the *allowance* of the largest; else it is a *mismatch*. The
allowance at a position is ``FACTOR`` times the root mean square of what one pass over the whole text
changes in the distances between the target's first choices, at that position and next to it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from harness.records.status import first_difference
from methods.models.target import PREFILL_CHUNK, Target

FACTOR = 5.0
"""About the quantile 0.9999 of the changes, in units of their root mean square, on the default target in
bfloat16 and in float32: of 100,000 ties that chains and trees of its size make, some three lie beyond."""

TOP = 8
"""First choices whose distances are measured: between them a choice is close. The tail of a vocabulary
moves more, and a shift that all logits share decides nothing."""

NEAR = 16
"""Positions that a root mean square is taken over, the last of them the position itself."""

HEAD_ROWS = 64
"""Positions whose logits are in memory at once."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """A ``token`` at an output ``position`` where the target's first choice is ``best``: its ``logit``
    lies ``gap`` below, and a gap of ``allowed`` is forgiven."""

    position: int
    token: int
    best: int
    logit: float
    gap: float
    allowed: float

    @property
    def forgiven(self) -> bool:
        return self.gap <= self.allowed  # not so for a NaN

    @property
    def share(self) -> float:
        """The gap in units of what is allowed."""
        return self.gap / self.allowed if self.allowed else float(self.gap > 0)

    def as_record(self) -> dict[str, float]:
        """What a record states of it; JSON has no infinity, which a target gives to tokens it bars."""
        numbers = {"position": self.position, "gap": self.gap, "allowed": self.allowed}
        return {name: number for name, number in numbers.items() if math.isfinite(number)}


@dataclass(frozen=True, slots=True)
class Verdict:
    """``doubt`` is the first token that is not forgiven, or of a tie the token nearest to it; None for an
    exact output, and where one output only ends before the other."""

    status: Literal["exact", "tie", "mismatch"]
    doubt: Doubt | None = None


def judge(target: Target, prompt_ids: Sequence[int], ar_ids: Sequence[int], ids: Sequence[int]) -> Verdict:
    """Compare a method's greedy output with AR's; where they differ, ``target`` decides.

    Every token of the output is looked at, those after a tie, too, and AR's own where the two part. An
    output that ends earlier or later than AR's without differing is a mismatch.
    """
    parting = first_difference(ar_ids, ids)
    if parting is None:
        return Verdict("exact" if len(ar_ids) == len(ids) else "mismatch")
    rivals = [*ids[:parting], ar_ids[parting], *ids[parting + 1 :]]
    found = doubts(target, prompt_ids, ids, rivals)
    unforgiven = [doubt for doubt in found if not doubt.forgiven]
    if unforgiven:
        return Verdict("mismatch", unforgiven[0])
    return Verdict("tie", max(found, key=lambda doubt: doubt.share))


@torch.inference_mode()
def doubts(
    target: Target, prompt_ids: Sequence[int], ids: Sequence[int], rivals: Sequence[int]
) -> list[Doubt]:
    """The tokens of ``ids``, and of ``rivals`` after the same text, that are not the first choice.

    The other pass is transformers' own, on the same weights: rounded otherwise, as a method's passes are,
    while a fault of this project's chains, trees and states is not in it and cannot pass for rounding.
    """
    shown = min(NEAR, len(prompt_ids))  # rows of the prompt, the last of them the first output's
    values, best, asked = _plain(target, prompt_ids, ids, rivals, shown)
    moved = _whole(target, [*prompt_ids, *ids[:-1]], best) - values
    squares = (moved[:, 1:] - moved[:, :1]).double().pow(2).mean(1)
    found = []
    for position, tokens in enumerate(zip(ids, rivals, strict=True)):
        row = position + shown - 1
        first, logit = int(best[row, 0]), float(values[row, 0])
        end = max(row + 1, min(NEAR, len(squares)))
        allowed = FACTOR * float(squares[max(0, row + 1 - NEAR) : end].mean().sqrt())
        for token, own in zip(tokens, asked[position].tolist(), strict=True):
            if token != first:
                found.append(Doubt(position, token, first, logit, logit - own, allowed))
    return found


def _plain(
    target: Target, prompt_ids: Sequence[int], ids: Sequence[int], rivals: Sequence[int], shown: int
) -> tuple[Tensor, Tensor, Tensor]:
    """AR's passes over the text: its first choices' logits and ids [rows, TOP], from the last ``shown``
    positions of the prompt on, and the logits of ``ids`` and ``rivals`` [len(ids), 2]."""
    state = target.new_state()
    chunks = range(0, len(prompt_ids), PREFILL_CHUNK)
    parts = [target.forward(prompt_ids[start : start + PREFILL_CHUNK], state).hidden for start in chunks]
    hidden = torch.cat(parts, 1)[:, -shown:]
    tops, asked = [target.logits(hidden[0, :-1]).float().topk(_top(target))], []
    for position, pair in enumerate(zip(ids, rivals, strict=True)):
        if position:
            hidden = target.forward(ids[position - 1 : position], state).hidden
        rows = target.logits(hidden[:, -1:])[0].float()
        tops.append(rows.topk(_top(target)))
        asked.append(rows[0, list(pair)])
    return (
        torch.cat([top.values for top in tops]),
        torch.cat([top.indices for top in tops]),
        torch.stack(asked),
    )


def _whole(target: Target, text: Sequence[int], best: Tensor) -> Tensor:
    """The logits of the tokens ``best`` [rows, TOP] at the last positions of one pass over ``text``."""
    hidden = target.hf.model(torch.tensor([text], device=target.device), use_cache=False).last_hidden_state
    rows = zip(hidden[0, -len(best) :].split(HEAD_ROWS), best.split(HEAD_ROWS), strict=True)
    return torch.cat([target.hf.lm_head(part).float().gather(1, tokens) for part, tokens in rows])


def _top(target: Target) -> int:
    return min(TOP, target.vocab_size)
