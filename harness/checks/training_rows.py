"""Whether the trainer computes at a position what the decode loop computes there."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from methods.eagle3.session import Eagle3Session
from methods.eagle3.training import Eagle3Task
from methods.ppsd.training import PpsdTask
from methods.spd.training import SpdTask
from methods.training.observation import Example, Observed
from methods.training.task import HeadTask


def example(ids: Sequence[int], answers: Sequence[tuple[int, int]]) -> Example:
    """A training text with the spans of its answers."""
    mask = torch.zeros(len(ids), dtype=torch.bool)
    for start, end in answers:
        mask[start:end] = True
    return Example(torch.tensor(ids), mask)


def shaken(task: HeadTask) -> None:
    """Move all weights: a start copied from the target has zeros and identities that would hide a
    wrong tap."""
    generator = torch.Generator().manual_seed(7)
    for parameter in task.module.parameters():
        parameter.data.add_(0.05 * torch.randn(parameter.shape, generator=generator))


def places(seen: Observed) -> list[tuple[int, int, int, int]]:
    """(cycle, first row of its example, position in it, tokens generated) of every supervised position."""
    found = []
    for start, _, first, last in seen.spans:
        for cycle in range(first, last):
            found.append((cycle, start, int(seen.supervised[cycle]) - start, int(seen.generated[cycle])))
    return found


def spd_difference(task: SpdTask, seen: Observed, n: int, post_step: bool) -> tuple[float, int]:
    """C18: largest difference of a training row from the stateless pass over rows at their depths, for
    every fill, and the number of rows compared."""
    taps = torch.stack([seen.taps[anchor] for anchor in task.taps], 1)
    first = int(post_step)
    worst, compared = 0.0, 0
    for fill in range(1, n + 1):
        logits = task.logits(task.rows(seen, fill))
        for cycle, start, position, generated in places(seen):
            flying = min(fill, generated)
            depths = [first + position - p if position - p < flying else n for p in range(position + 1)]
            want = task.module.stateless(taps[start : start + position + 1], depths)[0]
            worst = max(worst, _largest(logits[cycle] - want))
            compared += 1
    return worst, compared


def ppsd_difference(task: PpsdTask, seen: Observed) -> tuple[float, int]:
    """C18 for an exit head: as ``spd_difference``."""
    logits = task.logits(task.outputs(seen, None)[0])
    (tap,) = task.taps
    worst, compared = 0.0, 0
    for cycle, start, position, _ in places(seen):
        want = task.module.stateless(seen.taps[tap][start : start + position + 1], last=1)[0]
        worst, compared = max(worst, _largest(logits[cycle] - want)), compared + 1
    return worst, compared


def eagle3_difference(task: Eagle3Task, seen: Observed, steps: int) -> tuple[float, int]:
    """C19: largest difference of training-time-test step k at slot t from the inference roll-out with
    the same tokens, and the number of (t, k) compared."""
    logits = [task.logits(out) for out in task.outputs(seen, None)]
    features = torch.cat([seen.taps[tap] for tap in task.module.config.taps], -1)
    worst, compared = 0.0, 0
    for cycle, start, position, _ in places(seen):
        end = start + position
        session = Eagle3Session(task.module)
        out, want = session.extend(features[start:end], seen.ids[start + 1 : end + 1])
        worst, compared = max(worst, _largest(logits[0][cycle] - want[0])), compared + 1
        for step in range(1, steps):
            if cycle + step >= len(seen.supervised) or not seen.follows(step)[cycle]:
                break
            out, want = session.grow([step - 2], out, seen.ids[end + step][None])
            worst, compared = max(worst, _largest(logits[step][cycle] - want[0])), compared + 1
    return worst, compared


def _largest(difference: Tensor) -> float:
    return float(difference.detach().abs().max())
