"""Which examples a step sees: a function of seed and step number, so a run can stop and go on anywhere."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from methods.errors import UsageError
from methods.training.observation import Example


class Batches:
    """Epochs of ``examples`` in seeded order, ``per_step`` of them (over all ranks) to an optimiser step."""

    def __init__(
        self, examples: Sequence[Example], per_step: int, seed: int, rank: int = 0, ranks: int = 1
    ) -> None:
        if per_step % ranks:
            raise UsageError(f"{per_step} sequences per step cannot be shared equally by {ranks} processes")
        if not any(len(example.supervised()) for example in examples):
            raise UsageError(
                f"none of the {len(examples)} training examples has two assistant tokens in a row: every "
                "position is masked and nothing would be learnt (check the roles and the chat template)"
            )
        self._examples = examples
        self._per_step = per_step
        self._seed = seed
        self._rank, self._ranks = rank, ranks
        self._order: tuple[int, list[int]] = (-1, [])

    def step(self, number: int) -> list[Example]:
        """This rank's examples of step ``number``."""
        start = number * self._per_step + self._rank
        return [self._at(place) for place in range(start, (number + 1) * self._per_step, self._ranks)]

    def epochs(self, steps: int) -> float:
        """How often the data has been seen after ``steps`` steps."""
        return steps * self._per_step / len(self._examples)

    def _at(self, place: int) -> Example:
        epoch, index = divmod(place, len(self._examples))
        if self._order[0] != epoch:
            draws = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
            self._order = epoch, torch.randperm(len(self._examples), generator=draws).tolist()
        return self._examples[self._order[1][index]]


def micro_batches(examples: Sequence[Example], tokens: int) -> list[list[Example]]:
    """``examples`` in order, cut so that no part has more than ``tokens`` tokens (single ones excepted)."""
    parts: list[list[Example]] = []
    room = 0
    for example in examples:
        if not len(example.supervised()):
            continue
        if not parts or len(example.ids) > room:
            parts.append([])
            room = tokens
        parts[-1].append(example)
        room -= len(example.ids)
    return parts
