"""The training loop's one step: a frozen pass, then every head's loss, backward and update."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from methods.drafting.vocabulary import DraftVocabulary
from methods.target.target import Target
from methods.training.batches import Batches, micro_batches
from methods.training.observation import Example, observe
from methods.training.optimizer import HeadOptimizer, OptimizerConfig
from methods.training.task import Acceptance, HeadTask, acceptance, head_loss

TARGET, DATA = "target", "data"
"""Names of the shared shares of time; the others are heads' labels."""


@dataclass(frozen=True, slots=True)
class TrainerConfig:
    """``tokens`` is the budget in supervised positions, over all ranks; ``micro_tokens`` bounds the
    tokens in memory at once. ``compute``: dtype of the heads' passes, weights stay float32."""

    tokens: int
    micro_tokens: int
    seed: int
    compute: torch.dtype = torch.float32


@dataclass(slots=True)
class Progress:
    """Where a run is. Everything random follows from ``step`` and the seed."""

    step: int = 0
    tokens: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepReport:
    """Of one step: supervised positions, and by head label the mean loss and the gradient norm."""

    tokens: int
    losses: dict[str, float]
    norms: dict[str, float]


class Trainer:
    """Trains ``tasks`` on the same batches, each with its own optimiser.

    With torch.distributed initialised, each rank takes its share of a step's examples and the
    gradients are summed over ranks.
    """

    def __init__(
        self,
        target: Target,
        vocabulary: DraftVocabulary,
        tasks: Sequence[HeadTask],
        optimizers: Sequence[OptimizerConfig],
        batches: Batches,
        config: TrainerConfig,
    ) -> None:
        self.target = target
        self.vocabulary = vocabulary
        self.tasks = list(tasks)
        self.batches = batches
        self.config = config
        self.progress = Progress(seconds=dict.fromkeys([TARGET, DATA, *(task.label for task in tasks)], 0.0))
        self._optimizers = [
            HeadOptimizer(task.module, chosen, config.compute)
            for task, chosen in zip(self.tasks, optimizers, strict=True)
        ]
        self._taps = sorted({tap for task in tasks for tap in task.taps})

    @property
    def done(self) -> bool:
        return self.progress.tokens >= self.config.tokens

    def step(self) -> StepReport:
        """One optimiser step of every head."""
        number = self.progress.step
        with self._timed(DATA):
            parts = micro_batches(self.batches.step(number), self.config.micro_tokens)
        sums = {task.label: [0.0, 0.0] for task in self.tasks}
        tokens = 0
        for index, part in enumerate(parts):
            with self._timed(TARGET):
                seen = observe(self.target, part, self._taps, self.vocabulary)
            tokens += len(seen.supervised)
            for task in self.tasks:
                with self._timed(task.label), self._computing():
                    loss = head_loss(task, seen, self._draws(number, index))
                    if loss.weight:
                        (loss.loss * loss.weight).backward()
                    sums[task.label][0] += float(loss.loss.detach()) * loss.weight
                    sums[task.label][1] += loss.weight
        report = self._update(sums, tokens)
        self.progress.step += 1
        self.progress.tokens += report.tokens
        return report

    def evaluate(self, examples: Sequence[Example]) -> dict[str, list[Acceptance]]:
        """Teacher-forced acceptance of every head's draft steps at full fill, by label."""
        totals: dict[str, list[Acceptance]] = {}
        for part in micro_batches(examples, self.config.micro_tokens):
            seen = observe(self.target, part, self._taps, self.vocabulary)
            for task in self.tasks:
                with self._computing():
                    found = acceptance(task, seen)
                old = totals.get(task.label, [Acceptance()] * len(found))
                totals[task.label] = [a + b for a, b in zip(old, found, strict=True)]
        return totals

    def state_dict(self) -> dict[str, Any]:
        """Everything a later process needs to go on as if nothing had happened."""
        heads = {
            task.label: {"module": task.module.state_dict(), "optimizer": optimizer.state_dict()}
            for task, optimizer in zip(self.tasks, self._optimizers, strict=True)
        }
        p = self.progress
        return {"heads": heads, "step": p.step, "tokens": p.tokens, "seconds": dict(p.seconds)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for task, optimizer in zip(self.tasks, self._optimizers, strict=True):
            head = state["heads"][task.label]
            task.module.load_state_dict(head["module"])
            optimizer.load_state_dict(head["optimizer"])
        self.progress = Progress(state["step"], state["tokens"], dict(state["seconds"]))

    def _draws(self, step: int, part: int) -> torch.Generator:
        """The randomness of one micro-batch: heads of the same shape meet the same fill levels."""
        mixed = hash((self.config.seed, step, part, _rank()))  # of ints: the same in every process
        return torch.Generator().manual_seed(mixed & (2**63 - 1))

    def _update(self, sums: dict[str, list[float]], tokens: int) -> StepReport:
        flat = [tokens, *(value for pair in sums.values() for value in pair)]
        totals = _summed(torch.tensor(flat, dtype=torch.float64, device=self.target.device)).tolist()
        # The middle of the step: at its start the first rate would be 0, at its end the last.
        progress = (self.progress.tokens + totals[0] / 2) / self.config.tokens
        losses, norms = {}, {}
        for i, (task, optimizer) in enumerate(zip(self.tasks, self._optimizers, strict=True)):
            total, weight = totals[1 + 2 * i], totals[2 + 2 * i]
            losses[task.label] = total / max(1.0, weight)
            with self._timed(task.label):
                for parameter in optimizer.parameters:
                    if parameter.grad is None:
                        parameter.grad = torch.zeros_like(parameter)
                    _summed(parameter.grad).div_(max(1.0, weight))
                norms[task.label] = optimizer.step(progress)
        return StepReport(int(totals[0]), losses, norms)

    def _computing(self) -> Any:
        low = self.config.compute != torch.float32
        return torch.autocast(self.target.device.type, dtype=self.config.compute, enabled=low)

    @contextmanager
    def _timed(self, share: str) -> Iterator[None]:
        start = perf_counter()
        yield
        if self.target.device.type == "cuda":
            torch.cuda.synchronize()
        self.progress.seconds[share] += perf_counter() - start


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _summed(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` summed over ranks, in place."""
    if dist.is_initialized():
        dist.all_reduce(tensor)
    return tensor
