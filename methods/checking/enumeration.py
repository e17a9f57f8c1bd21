"""The exact law of what sampling code returns: every way its random choices can fall, weighed.

Only the random numbers are replaced; the code that uses them runs as it is. A sample shows a wrong
law only beyond its own noise, an enumeration shows any.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from methods.sampling import Draws

_IMPOSSIBLE = 1e-7
"""Laws are float32: what is less likely than their rounding is not followed."""


_MOST_PATHS = 50_000

SEEDS = range(8)


class EnumerationError(RuntimeError):
    """Enumeration cannot tell the law of this code: too many ways to fall, or other random numbers."""


def check_randomness(run: Callable[[int], Hashable]) -> None:
    """Raise ``EnumerationError`` if ``run(seed)`` draws anything outside ``Draws``: with all of its
    choices fixed, the result must not depend on the seed."""
    if len({_run_with(_Chance([]), partial(run, seed)) for seed in SEEDS}) > 1:
        raise EnumerationError("random numbers are drawn outside methods.sampling.Draws")


def exact_law(run: Callable[[], Hashable]) -> dict[Any, float]:
    """Probability of every result of ``run()``, whose randomness is all from ``Draws``.

    The result must not depend on anything else that changes between calls. Their number is the
    product of the choices, so keep vocabularies and drafts small. Raises ``RuntimeError`` where one
    decode call uses the target's draw of one position for two decisions, ``EnumerationError`` for too
    many choices.
    """
    law: defaultdict[Any, float] = defaultdict(float)
    waiting: list[list[int]] = [[]]
    paths = 0
    while waiting:
        paths += 1
        if paths > _MOST_PATHS:
            raise EnumerationError(f"more than {_MOST_PATHS} ways for the choices to fall")
        given = waiting.pop()
        chance = _Chance(given)
        law[_run_with(chance, run)] += chance.probability
        for step in range(len(given), len(chance.path)):
            waiting += [[*chance.path[:step], other] for other in chance.others(step)]
    return dict(law)


def _run_with(chance: _Chance, run: Callable[[], Hashable]) -> Hashable:
    with (
        patch.object(Draws, "draft", lambda draws: _Uniform(chance)),
        patch.object(Draws, "acceptance", lambda draws: _Uniform(chance)),
        patch.object(Draws, "target", lambda draws, index: _Uniform(chance, owner=(draws, index))),
    ):
        return run()


def distance(law: Mapping[Any, float], expected: Mapping[Any, float]) -> float:
    """Total variation between two laws over the same kind of results."""
    return sum(abs(law.get(key, 0.0) - expected.get(key, 0.0)) for key in {*law, *expected}) / 2


class _Chance:
    """One way for all choices to fall: as given, then the first possible one each time."""

    def __init__(self, given: Sequence[int]) -> None:
        self.path = list(given)
        self._weights: list[list[float]] = []
        self._decided: dict[tuple[int, int], Draws] = {}

    def choose(self, weights: list[float]) -> int:
        total = sum(weights)
        weights = [weight / total if weight > _IMPOSSIBLE * total else 0.0 for weight in weights]
        step = len(self._weights)
        self._weights.append(weights)
        if step == len(self.path):
            self.path.append(next(i for i, weight in enumerate(weights) if weight))
        return self.path[step]

    def decide(self, draws: Draws, index: int) -> None:
        if (id(draws), index) in self._decided:
            raise RuntimeError(f"the target's draw {index} decides twice")
        self._decided[id(draws), index] = draws  # kept, or its id could be another's

    def others(self, step: int) -> list[int]:
        weights = self._weights[step]
        return [i for i in range(self.path[step] + 1, len(weights)) if weights[i]]

    @property
    def probability(self) -> float:
        product = 1.0
        for taken, weights in zip(self.path, self._weights, strict=True):
            product *= weights[taken]
        return product


class _Uniform:
    """A uniform number in [0, 1) that is never drawn: what asks about it is told every answer in turn.

    It understands the two questions of the sampling code: ``u * q < p``, and where ``total * u``
    falls in a cumulative sum (``torch.searchsorted``).
    """

    def __init__(self, chance: _Chance, scale: Any = 1.0, owner: tuple[Draws, int] | None = None) -> None:
        self._chance, self._scale, self._owner = chance, scale, owner

    def __mul__(self, scale: Any) -> _Uniform:
        return _Uniform(self._chance, self._scale * scale, self._owner)

    __rmul__ = __mul__

    def __lt__(self, bound: float) -> bool:
        yes = min(1.0, bound / self._scale)
        return self._choose([yes, 1.0 - yes]) == 0

    def _choose(self, weights: list[float]) -> int:
        if self._owner is not None:
            self._chance.decide(*self._owner)
        return self._chance.choose(weights)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if function in (Tensor.mul, Tensor.__mul__, torch.mul):
            return args[1] * args[0]
        if function is torch.searchsorted:
            cumulative, uniform = args[0], args[1]
            steps = torch.cat((cumulative[:1], cumulative.diff()))
            return torch.tensor(uniform._choose(steps.tolist()))
        return NotImplemented
