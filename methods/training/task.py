"""What the trainer asks of a head: its rows, its logits, its checkpoint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from methods.models.target import Target
from methods.training.observation import Observed

_LOSS_ROWS = 1024
"""Rows per chunk of the loss; further chunks recompute their logits in the backward pass."""


class HeadTask(ABC):
    """A head in training. ``label`` names it in logs and directories, ``taps`` are the residual-stream
    indices it reads; ``decay`` weighs draft step k by decay ** k."""

    method: str
    decay: float = 1.0

    def __init__(self, label: str, module: nn.Module, taps: tuple[int, ...]) -> None:
        self.label = label
        self.module = module
        self.taps = taps

    @abstractmethod
    def outputs(self, seen: Observed, draws: torch.Generator | None) -> list[Tensor]:
        """Layer outputs of each draft step, differentiable, [supervised, hidden] each.

        Row i of step k drafts the token after supervised position i + k. ``draws`` decides what is
        random in training; None is the decode loop's steady state.
        """

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Draft logits [..., draft_vocab] of layer outputs [..., hidden]."""

    @abstractmethod
    def save(self, directory: Path, target: Target, training: Mapping[str, Any]) -> str:
        """Write the head's decoding checkpoint; returns the SHA-256 of its tensors."""


@dataclass(frozen=True, slots=True)
class HeadLoss:
    """``loss``: forward KL, mean over the mask, steps weighed and summed (up to the teacher's own
    entropy, which has no gradient). ``weight``: positions of the first step in the mask."""

    loss: Tensor
    weight: int


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Counts over supervised positions: how many there were, on how many the draft's argmax was the
    target's, the sum of sum(min(p, q)), and the sum of KL over the positions in the mask."""

    positions: int = 0
    agreed: int = 0
    overlap: float = 0.0
    kl: float = 0.0
    masked_in: int = 0

    def __add__(self, other: Acceptance) -> Acceptance:
        return Acceptance(
            self.positions + other.positions,
            self.agreed + other.agreed,
            self.overlap + other.overlap,
            self.kl + other.kl,
            self.masked_in + other.masked_in,
        )

    def rates(self) -> dict[str, float]:
        """``step_acceptance`` (greedy), ``overlap`` (acceptance at T = 1) and ``kl`` (nats)."""
        positions, masked_in = max(1, self.positions), max(1, self.masked_in)
        return {
            "step_acceptance": self.agreed / positions,
            "overlap": self.overlap / positions,
            "kl": self.kl / masked_in,
        }


def head_loss(task: HeadTask, seen: Observed, draws: torch.Generator | None) -> HeadLoss:
    """The distillation loss of one batch. A batch without a position in the mask has loss 0, weight 0."""
    teacher, total, weight = seen.teacher, torch.zeros((), device=seen.ids.device), 0
    for step, hidden in enumerate(task.outputs(seen, draws)):
        rows = max(0, len(hidden) - step)
        mask = (seen.follows(step) & teacher.valid[step:]).float()
        count = int(mask.sum())
        if step == 0:
            weight = count
        if count:
            summed = _distil(task, hidden[:rows], teacher.probs[step:], mask)
            total = total + task.decay**step * summed / count
    return HeadLoss(total, weight)


def _distil(task: HeadTask, hidden: Tensor, probs: Tensor, mask: Tensor) -> Tensor:
    """Sum over rows of mask * cross-entropy of the head's law against ``probs``."""

    def chunk(rows: Tensor, wanted: Tensor, weights: Tensor) -> Tensor:
        # A product summed, and not a matrix product, which autocast would run in bfloat16.
        return (F.cross_entropy(task.logits(rows).float(), wanted, reduction="none") * weights).sum()

    parts = list(zip(hidden.split(_LOSS_ROWS), probs.split(_LOSS_ROWS), mask.split(_LOSS_ROWS), strict=True))
    if len(parts) == 1:
        return chunk(*parts[0])
    return torch.stack([checkpoint(chunk, *part, use_reentrant=False) for part in parts]).sum()


@torch.no_grad()
def acceptance(task: HeadTask, seen: Observed, draws: torch.Generator | None = None) -> list[Acceptance]:
    """How often each draft step would have been accepted, teacher-forced."""
    found = []
    for step, hidden in enumerate(task.outputs(seen, draws)):
        follows = seen.follows(step).nonzero()[:, 0]
        total = Acceptance()
        for part in follows.split(_LOSS_ROWS):
            total += _compare(task.logits(hidden[part]).float(), seen, part + step)
        found.append(total)
    return found


def _compare(logits: Tensor, seen: Observed, cycles: Tensor) -> Acceptance:
    probs, best = seen.teacher.probs[cycles], seen.teacher.best[cycles]
    valid = best >= 0
    log_q = logits.log_softmax(-1)
    overlap = torch.minimum(log_q.exp(), probs * seen.teacher.mass[cycles, None]).sum()
    kl = (torch.special.xlogy(probs, probs) - probs * log_q).sum(-1)[valid].sum()
    return Acceptance(
        len(cycles), int((logits.argmax(-1) == best).sum()), float(overlap), float(kl), int(valid.sum())
    )
