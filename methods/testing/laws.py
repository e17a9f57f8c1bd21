"""Exact laws of decoded tokens, and whether a sample follows them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from methods.core import SamplingParams
from methods.decoding.sampling import probabilities
from methods.testing.table_target import LawTable

SIGMAS = 3.0
SMALLEST_P = 1e-4
_POOLED_BELOW = 5.0
"""Cells with fewer expected draws are tested together: chi-square needs counts."""
_NEARLY_SURE = 3.09
"""Standard deviations of 99.9 %."""


def joint_law(table: LawTable, sampling: SamplingParams, dtype: torch.dtype = torch.float32) -> Tensor:
    """The law of one block of ``table.period`` tokens, float64 [vocab ** period], first token slowest.

    ``dtype`` is that of the logits as the method sees them.
    """
    laws = probabilities(table.logits.to(dtype), sampling).double()
    joint, contexts = torch.ones(1, dtype=torch.float64), [0]
    for position in range(table.period):
        joint = (joint[:, None] * laws[contexts]).flatten()
        contexts = [table.after(c, position, token) for c in contexts for token in range(table.vocab)]
    return joint


def block_counts(outputs: Iterable[Sequence[int]], table: LawTable) -> Tensor:
    """How often each block occurs in ``outputs``, int64 [vocab ** period].

    Every output begins at a multiple of ``period``; an unfinished last block is left out.
    """
    place = [table.vocab ** (table.period - 1 - i) for i in range(table.period)]
    counts = torch.zeros(table.vocab**table.period, dtype=torch.long)
    for output in outputs:
        blocks = torch.tensor(output)[: len(output) - len(output) % table.period].view(-1, table.period)
        counts += torch.bincount((blocks * torch.tensor(place)).sum(-1), minlength=len(counts))
    return counts


@dataclass(frozen=True, slots=True)
class Fit:
    """How a sample of ``draws`` compares with a law: its total variation distance from it and the
    distance that ``SIGMAS`` standard deviations allow, and the p value of chi-square."""

    draws: int
    total_variation: float
    bound: float
    p_value: float

    @property
    def passed(self) -> bool:
        return self.total_variation <= self.bound and self.p_value > SMALLEST_P


def fit(counts: Tensor, law: Tensor) -> Fit:
    """Compare ``counts`` [cells] with ``law`` [cells], which sums to 1."""
    draws = int(counts.sum())
    counts, law = counts.double(), law.double()
    distance = float((counts / draws - law).abs().sum()) / 2
    return Fit(draws, distance, _distance_bound(law, draws), chi_square(counts, law))


def chi_square(counts: Tensor, law: Tensor) -> float:
    """p value of Pearson's test; 0 if something impossible was drawn."""
    if counts[law == 0].any():
        return 0.0
    observed, expected = _cells(counts, law * counts.sum())
    statistic = ((observed - expected) ** 2 / expected).sum()
    freedom = len(expected) - 1
    return _p_value(freedom, float(statistic)) if freedom else 1.0


def _cells(counts: Tensor, expected: Tensor) -> tuple[Tensor, Tensor]:
    """Both without the impossible cells, and those too rare for the test in one."""
    rare = expected < _POOLED_BELOW
    cells = torch.stack((counts[~rare], expected[~rare]))
    if rare.any():
        cells = torch.cat((cells, torch.stack((counts[rare].sum(), expected[rare].sum()))[:, None]), 1)
    observed, expected = cells[:, cells[1] > 0]
    return observed, expected


def _p_value(freedom: int, statistic: float) -> float:
    half = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(*half))


def visible(law: Tensor, draws: int) -> float:
    """The total variation from ``law`` [cells] at which chi-square on ``draws`` draws fails any other law
    with a probability of 99.9 %; what differs among the rare cells only is not counted. At most 1.

    A law that far off shifts the statistic by at least 4 * draws * distance ** 2 (Cauchy-Schwarz); how
    it scatters around its new mean is taken as normal.
    """
    freedom = len(_cells(law, law.double() * draws)[1]) - 1
    if freedom < 1:
        return 1.0
    critical = _smallest(lambda statistic: SMALLEST_P - _p_value(freedom, statistic))
    shift = _smallest(
        lambda shift: freedom + shift - _NEARLY_SURE * math.sqrt(2 * (freedom + 2 * shift)) - critical
    )
    return min(1.0, math.sqrt(shift / draws) / 2)


def _smallest(rising: Callable[[float], float]) -> float:
    """The smallest number from 0 to 2^20 at which ``rising`` is not negative."""
    low, high = 0.0, float(1 << 20)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return high


def _distance_bound(law: Tensor, draws: int) -> float:
    """Mean of the distance of a sample from its own law plus ``SIGMAS`` standard deviations.

    A cell's count is binomial; its mean absolute deviation is De Moivre's. The small negative
    correlation between cells is neglected, which makes the bound wider.
    """
    p = law[(law > 0) & (law < 1)]
    mode = torch.floor(draws * p) + 1
    log_choose = math.lgamma(draws + 1) - torch.lgamma(mode + 1) - torch.lgamma(draws - mode + 1)
    log_mass = log_choose + mode * p.log() + (draws - mode + 1) * torch.log1p(-p)
    deviation = 2 * mode * log_mass.exp() / draws
    variance = (p * (1 - p) / draws - deviation**2).clamp(min=0)
    return float(deviation.sum()) / 2 + SIGMAS * math.sqrt(float(variance.sum())) / 2
