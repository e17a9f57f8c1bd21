"""The exact law of what sampling code returns: every way its random choices can fall, weighed.

Only the random numbers are replaced; the code that uses them runs as it is. A sample shows a wrong
law only beyond its own noise, an enumeration shows any.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from methods.decoding.sampling import Draws
from methods.decoding.verification import DraftLaw
from methods.testing.progress import tick

_IMPOSSIBLE = 1e-7
"""Laws are float32: what is less likely than their rounding is not followed."""

MOST_PATHS = 50_000

SEEDS = range(8)


class EnumerationError(RuntimeError):
    """Enumeration cannot tell the law of this code: too many ways to fall, or other random numbers."""


@dataclass(frozen=True, slots=True)
class Enumerated:
    """``law`` of the results that were followed, ``paths`` ways of the choices to fall that led there.
    ``followed`` is their probability: what it lacks of 1 nobody has looked at."""

    law: dict[Any, float]
    paths: int

    @property
    def followed(self) -> float:
        return sum(self.law.values())

    def excess(self, expected: Mapping[Any, float]) -> float:
        """What ``law`` has in excess of ``expected``: their total variation if everything was followed,
        else a lower bound that is short of it by at most what was not."""
        return sum(max(0.0, found - expected.get(key, 0.0)) for key, found in self.law.items())


def check_randomness(run: Callable[[int], Hashable]) -> None:
    """Raise ``EnumerationError`` if ``run(seed)`` draws anything outside ``Draws``: with all of its
    choices fixed, the result must not depend on the seed."""
    if len({_run_with(_Chance({}), partial(run, seed)) for seed in SEEDS}) > 1:
        raise EnumerationError("random numbers are drawn outside methods.decoding.sampling.Draws")


def exact_law(run: Callable[[], Hashable]) -> dict[Any, float]:
    """Probability of every result of ``run()``, whose randomness is all from ``Draws``: see
    ``enumerate_law``. Raises ``EnumerationError`` for too many choices."""
    found = enumerate_law(run, MOST_PATHS)
    if found.paths > MOST_PATHS:
        raise EnumerationError(f"more than {MOST_PATHS} ways for the choices to fall")
    return found.law


def enumerate_law(run: Callable[[], Hashable], most_paths: int, every_draft: bool = False) -> Enumerated:
    """The law of ``run()``, ways with the likeliest beginnings first, ``most_paths`` of them at most (one
    more is counted where there are more).

    The result must not depend on anything but ``Draws`` that changes between calls. A draft token
    whose law (``DraftLaw.probs``) no acceptance test has read is not told yet, as far as the output
    goes: such a draw falls one way only, until it is read. Without that the ways of a pipeline's
    drafts, most of which are flushed unread, multiply. ``every_draft`` follows them all the same;
    so it is where what is decided turns out to depend on a draft that was not read.

    Raises ``RuntimeError`` where one decode call uses the target's draw of one position for two
    decisions.
    """
    law: defaultdict[Any, float] = defaultdict(float)
    number = itertools.count()
    waiting: list[tuple[float, int, dict[int, int]]] = [(-1.0, next(number), {})]
    paths = 0
    while waiting:
        paths += 1
        if paths > most_paths:
            break
        given = heapq.heappop(waiting)[2]
        chance = _Chance(given, every_draft)
        result = _run_with(chance, run)
        if not chance.as_given:
            return enumerate_law(run, most_paths, every_draft=True)
        law[result] += chance.probability
        for likely, other in chance.alternatives():
            heapq.heappush(waiting, (-likely, next(number), other))
        tick(sum(law.values()))
    return Enumerated(dict(law), paths)


def _run_with(chance: _Chance, run: Callable[[], Hashable]) -> Hashable:
    with ExitStack() as stack:
        for name, replaced in (
            ("draft", lambda draws: _Uniform(chance)),
            ("acceptance", lambda draws: _Uniform(chance)),
            ("target", lambda draws, index: _Uniform(chance, owner=(draws, index))),
        ):
            stack.enter_context(patch.object(Draws, name, replaced))
        if not chance.every_draft:
            stack.enter_context(_unread_drafts(chance))
        return run()


@contextmanager
def _unread_drafts(chance: _Chance) -> Iterator[None]:
    """Draws of ``DraftLaw.of`` are told to ``chance`` when the law is read, not when they are made."""
    slot, draw = DraftLaw.__dict__["probs"], DraftLaw.__dict__["of"].__func__
    unread: dict[int, tuple[DraftLaw, list[int]]] = {}

    class Probs:
        def __get__(self, law: DraftLaw, owner: type) -> Tensor:
            for step in unread.pop(id(law), (law, []))[1]:
                chance.tell(step)
            return slot.__get__(law, owner)

        def __set__(self, law: DraftLaw, probs: Tensor) -> None:
            slot.__set__(law, probs)

    def of(cls: type[DraftLaw], *args: Any) -> DraftLaw:
        with chance.untold() as steps:
            law = draw(cls, *args)
        unread[id(law)] = law, steps  # kept, or its id could be another's
        return law

    with patch.object(DraftLaw, "probs", Probs()), patch.object(DraftLaw, "of", classmethod(of)):
        yield


def distance(law: Mapping[Any, float], expected: Mapping[Any, float]) -> float:
    """Total variation between two laws over the same kind of results."""
    return sum(abs(law.get(key, 0.0) - expected.get(key, 0.0)) for key in {*law, *expected}) / 2


class _Chance:
    """One way for all choices to fall: those ``given`` by their number, the others the first possible way.

    ``told`` are the choices that have been told so far, in the order in which they were.
    """

    def __init__(self, given: Mapping[int, int], every_draft: bool = False) -> None:
        self._given = given
        self.every_draft = every_draft
        self.told: list[int] = []
        self._path: list[int] = []
        self._weights: list[list[float]] = []
        self._untold: list[int] | None = None
        self._decided: dict[tuple[int, int], Draws] = {}

    def choose(self, weights: list[float]) -> int:
        total = sum(weights)
        weights = [weight / total if weight > _IMPOSSIBLE * total else 0.0 for weight in weights]
        step = len(self._weights)
        self._weights.append(weights)
        possible = [i for i, weight in enumerate(weights) if weight]
        if self._untold is not None:
            self._untold.append(step)
            self._path.append(self._given.get(step, possible[step % len(possible)]))
        else:
            self._path.append(self._given.get(step, possible[0]))
            self.tell(step)
        return self._path[step]

    @contextmanager
    def untold(self) -> Iterator[list[int]]:
        """The choices made within are not told yet; their numbers."""
        steps: list[int] = []
        self._untold = steps
        try:
            yield steps
        finally:
            self._untold = None

    def tell(self, step: int) -> None:
        self.told.append(step)

    def decide(self, draws: Draws, index: int) -> None:
        if (id(draws), index) in self._decided:
            raise RuntimeError(f"the target's draw {index} decides twice")
        self._decided[id(draws), index] = draws  # kept, or its id could be another's

    @property
    def as_given(self) -> bool:
        """Whether the choices that were given were told first, as when they were found."""
        return set(self.told[: len(self._given)]) == self._given.keys()

    def alternatives(self) -> Iterator[tuple[float, dict[int, int]]]:
        """What else could have been told at each place behind the given ones, with its probability."""
        for place in range(len(self._given), len(self.told)):
            before, step = self.told[:place], self.told[place]
            likely = self._product(before)
            fixed = {earlier: self._path[earlier] for earlier in before}
            for other, weight in enumerate(self._weights[step]):
                if weight and other != self._path[step]:
                    yield likely * weight, {**fixed, step: other}

    @property
    def probability(self) -> float:
        return self._product(self.told)

    def _product(self, steps: Sequence[int]) -> float:
        product = 1.0
        for step in steps:
            product *= self._weights[step][self._path[step]]
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
