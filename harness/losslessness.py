"""Is a method's output the target's own? The tie rule for arithmetic that is not exact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from methods.target.state import State
from methods.target.target import Target

GapFn = Callable[[int, int], float]
"""(position, token) -> how far the target's logit of ``token`` lies below its largest logit at
output ``position``, after the prompt and AR's output before that position."""

POSITIONS = 64
"""The fewest positions over which the block-versus-step difference is measured, where there are so
many: a few positions underrate it."""

BLOCKS = ((8, False), (8, True), (1, True))
"""What methods pass through the target at once, as (levels, whether every level is a fork): a draft
chain, a draft tree, and the level of a tree that is in one pipeline stage."""


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
    """The target at one output position, as AR sees it: ``logits`` [vocab] float32, and the largest
    difference that evaluating positions in blocks makes along AR's text."""

    logits: Tensor
    block_step_difference: float

    def gap(self, token: int) -> float:
        """How far the logit of ``token`` lies below the largest."""
        return float(self.logits.max() - self.logits[token])


@torch.inference_mode()
def probe(target: Target, prompt_ids: Sequence[int], ar_ids: Sequence[int], position: int) -> Probe:
    """Run AR's text through ``target`` token by token, as AR does, and again in every kind of
    ``BLOCKS``, each keeping in its caches what it computed itself, as a method's target does.

    The engine is the one that methods run on: a fault of its own would be measured as rounding, so
    it takes float32, where nothing is forgiven, to tell the two apart.
    """
    text = [*prompt_ids, *ar_ids[:-1]]
    start = max(1, min(len(prompt_ids), len(text) - POSITIONS))
    steps = _logits(target, text, start, 1, forked=False)
    blocks = (_logits(target, text, start, levels, forked) for levels, forked in BLOCKS)
    difference = max(float((block - steps).abs().max()) for block in blocks)
    return Probe(steps[len(prompt_ids) - start + position], difference)


def measured_status(
    target: Target, prompt_ids: Sequence[int], ar_ids: Sequence[int], ids: Sequence[int]
) -> Literal["exact", "tie", "mismatch"]:
    """``classify`` with both quantities measured on ``target``, at the first differing token."""
    position = first_difference(ar_ids, ids)
    if position is None:
        return "exact" if len(ar_ids) == len(ids) else "mismatch"
    there = probe(target, prompt_ids, ar_ids, position)
    return classify(ar_ids, ids, lambda _, token: there.gap(token), there.block_step_difference)


def _logits(target: Target, text: Sequence[int], start: int, levels: int, forked: bool) -> Tensor:
    """Float32 logits [1 + len(text) - start, vocab] that follow a prefill of ``start`` tokens and then
    each token of ``text``, ``levels`` of them in a pass."""
    state = target.new_state()
    rows = [target.logits(target.prefill(text[:start], state).hidden[0]).float()]
    for first in range(start, len(text), levels):
        rows.append(_block(target, text[first : first + levels], state, forked))
    return torch.cat(rows)


def _block(target: Target, ids: Sequence[int], state: State, forked: bool) -> Tensor:
    """One pass; ``forked``, every token has a sibling before it that is not on the path."""
    base, path = state.length, range(len(ids))
    parents = None
    if forked:
        path = range(1, 2 * len(ids), 2)
        ids = [token for real in ids for token in ((real + 1) % target.vocab_size, real)]
        parents = [base + 2 * (node // 2) - 1 for node in range(len(ids))]
    hidden = target.forward(ids, state, parents, record=True).hidden[0, list(path)]
    state.keep([base + node for node in path])
    state.commit()
    return target.logits(hidden).float()
