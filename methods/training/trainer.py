"""The training loop's one step: a frozen pass, then every head's loss, backward and update."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from methods.drafters.vocabulary import DraftVocabulary
from methods.models.target import Target
from methods.training.batches import Batches, micro_batches
from methods.training.observation import Example, Observed, observe
from methods.training.optimizer import HeadOptimizer, OptimizerConfig
from methods.training.task import Acceptance, HeadTask, acceptance, head_loss

TARGET, DATA = "target", "data"
"""Names of the shared shares of time; the others are heads' labels."""


@dataclass(frozen=True, slots=True)
class TrainerConfig:
    """``tokens`` is the budget in supervised positions, over all ranks; ``micro_tokens`` bounds the
    tokens of a pass. ``compute``: dtype of the heads' passes, weights stay float32.

    ``workers`` threads share the heads and the next target pass, so that two passes are in memory at
    once: the same numbers sooner, since one thread each on small products wastes less of a processor
    than all its cores on every product.
    """

    tokens: int
    micro_tokens: int
    seed: int
    compute: torch.dtype = torch.float32
    workers: int = 1


@dataclass(slots=True)
class Progress:
    """Where a run is. Everything random follows from ``step`` and the seed.

    ``elapsed`` seconds of steps; ``seconds`` of work by share, which workers do side by side.
    """

    step: int = 0
    tokens: int = 0
    elapsed: float = 0.0
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
        self._pool = ThreadPoolExecutor(config.workers) if config.workers > 1 else None
        self._observed: dict[tuple[int, int], Observed] = {}

    @property
    def done(self) -> bool:
        return self.progress.tokens >= self.config.tokens

    def step(self) -> StepReport:
        """One optimiser step of every head."""
        start = perf_counter()
        number = self.progress.step
        parts = self._parts(number)
        sums = {task.label: [0.0, 0.0] for task in self.tasks}
        tokens = 0
        self._observe(number, 0)
        for index in range(len(parts)):
            seen = self._observed.pop((number, index))
            tokens += len(seen.supervised)
            following = (number, index + 1) if index + 1 < len(parts) else (number + 1, 0)
            place = (number, index)
            jobs = [partial(self._learn, task, seen, place, sums[task.label]) for task in self._by_length()]
            if self._pool is None:
                self._together(jobs)
                if following[0] == number:
                    self._observe(*following)
            else:
                self._together([partial(self._observe, *following), *jobs])
        report = self._update(sums, tokens)
        self.progress.step += 1
        self.progress.tokens += report.tokens
        self.progress.elapsed += perf_counter() - start
        return report

    def _parts(self, number: int) -> list[list[Example]]:
        with self._timed(DATA):
            return micro_batches(self.batches.step(number), self.config.micro_tokens)

    def _observe(self, number: int, index: int) -> None:
        """Have the target pass of micro-batch ``index`` of step ``number``, if it has one."""
        for part in self._parts(number)[index : index + 1]:
            if (number, index) not in self._observed:
                with self._timed(TARGET):
                    self._observed[number, index] = observe(self.target, part, self._taps, self.vocabulary)

    def _learn(self, task: HeadTask, seen: Observed, place: tuple[int, int], sums: list[float]) -> None:
        """Add the gradients of one micro-batch to those of ``task``, its loss and weight to ``sums``."""
        with self._timed(task.label), self._computing():
            loss = head_loss(task, seen, self._draws(*place))
            if loss.weight:
                (loss.loss * loss.weight).backward()
            sums[0] += float(loss.loss.detach()) * loss.weight
            sums[1] += loss.weight

    def _by_length(self) -> list[HeadTask]:
        """The tasks, the longest first: what is left to the end should be short."""
        return sorted(self.tasks, key=lambda task: -self.progress.seconds[task.label])

    def _together(self, jobs: Sequence[Callable[[], Any]]) -> None:
        """Run ``jobs``, which share nothing they write, on the workers; the first error is raised."""
        if self._pool is None:
            for job in jobs:
                job()
        else:
            for future in [self._pool.submit(job) for job in jobs]:
                future.result()

    def evaluate(self, examples: Sequence[Example]) -> dict[str, list[Acceptance]]:
        """Teacher-forced acceptance of every head's draft steps at full fill, by label."""
        totals: dict[str, list[Acceptance]] = {task.label: [] for task in self.tasks}

        def add(task: HeadTask, seen: Observed) -> None:
            with self._computing():
                found = acceptance(task, seen)
            old = totals[task.label] or [Acceptance()] * len(found)
            totals[task.label] = [a + b for a, b in zip(old, found, strict=True)]

        for part in micro_batches(examples, self.config.micro_tokens):
            seen = observe(self.target, part, self._taps, self.vocabulary)
            self._together([partial(add, task, seen) for task in self._by_length()])
        return totals

    def any_rank(self, flag: bool) -> bool:
        """Whether ``flag`` is set on any rank; all ranks must ask together."""
        return bool(_summed(torch.tensor(float(flag), device=self.target.device)) > 0)

    def state_dict(self) -> dict[str, Any]:
        """Everything a later process needs to go on as if nothing had happened."""
        heads = {
            task.label: {"module": task.module.state_dict(), "optimizer": optimizer.state_dict()}
            for task, optimizer in zip(self.tasks, self._optimizers, strict=True)
        }
        p = self.progress
        done = {"step": p.step, "tokens": p.tokens, "elapsed": p.elapsed, "seconds": dict(p.seconds)}
        return {"heads": heads, **done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for task, optimizer in zip(self.tasks, self._optimizers, strict=True):
            head = state["heads"][task.label]
            task.module.load_state_dict(head["module"])
            optimizer.load_state_dict(head["optimizer"])
        self.progress = Progress(state["step"], state["tokens"], state["elapsed"], dict(state["seconds"]))

    def _draws(self, step: int, part: int) -> torch.Generator:
        """The randomness of one micro-batch: heads of the same shape meet the same fill levels."""
        mixed = hash((self.config.seed, step, part, _rank()))  # of ints: the same in every process
        return torch.Generator().manual_seed(mixed & (2**63 - 1))

    def _update(self, sums: dict[str, list[float]], tokens: int) -> StepReport:
        flat = [tokens, *(value for pair in sums.values() for value in pair)]
        totals = _summed(torch.tensor(flat, dtype=torch.float64, device=self.target.device)).tolist()
        # The middle of the step: at its start the first rate would be 0, at its end the last.
        progress = (self.progress.tokens + totals[0] / 2) / self.config.tokens
        losses = dict.fromkeys(sums, 0.0)
        norms = dict.fromkeys(sums, 0.0)

        def update(i: int) -> None:
            task, optimizer = self.tasks[i], self._optimizers[i]
            total, weight = totals[1 + 2 * i], totals[2 + 2 * i]
            losses[task.label] = total / max(1.0, weight)
            with self._timed(task.label):
                for parameter in optimizer.parameters:
                    if parameter.grad is None:
                        parameter.grad = torch.zeros_like(parameter)
                    _summed(parameter.grad).div_(max(1.0, weight))
                norms[task.label] = optimizer.step(progress)

        # In the order of the tasks: ranks must meet in every sum, and their times differ.
        self._together([partial(update, i) for i in range(len(self.tasks))])
        return StepReport(int(totals[0]), losses, norms)

    def _computing(self) -> Any:
        # Workers would share the cache of cast weights, and clear it under each other's passes.
        low, alone = self.config.compute != torch.float32, self._pool is None
        kind = self.target.device.type
        return torch.autocast(kind, dtype=self.config.compute, enabled=low, cache_enabled=alone)

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
