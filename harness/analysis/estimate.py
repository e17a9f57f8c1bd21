"""A ratio over prompts with its bootstrap interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.records.record import Record

Floats = NDArray[np.float64]
Interval = tuple[float, float]

RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A ratio over ``prompts`` prompts.

    ``pooled`` is the ratio of totals, the headline. ``prompt_mean`` is the mean of the ratios of
    the single prompts, the convention of the paper. The intervals are 95 % percentile bootstrap
    intervals over prompts (all records of a prompt move together); None for a single prompt, which
    says nothing about the spread.
    """

    pooled: float
    prompt_mean: float
    prompts: int
    pooled_interval: Interval | None = None
    prompt_mean_interval: Interval | None = None

    def shown(self, digits: int = 2) -> str:
        """The headline with its interval, if it has one: "1.34 [1.09, 1.82]"."""
        value = f"{self.pooled:.{digits}f}"
        if self.pooled_interval is None:
            return value
        low, high = self.pooled_interval
        return f"{value} [{low:.{digits}f}, {high:.{digits}f}]"


def estimate(
    records: Sequence[Record],
    rows: Sequence[Sequence[float]],
    ratio: Callable[[Floats], Floats],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Estimate | None:
    """``ratio`` of the summed ``rows`` (one per record), with intervals; None where it is undefined.

    ``ratio`` maps sums [..., columns] to values [...], nan where a denominator is 0. Prompts are
    resampled with replacement, as counts [resamples, prompts] from a seeded generator.
    """
    if not rows:
        return None
    table = _per_prompt(records, rows)
    pooled = float(ratio(table.sum(axis=0)))
    own = ratio(table)
    defined = ~np.isnan(own)
    if np.isnan(pooled) or not defined.any():
        return None
    count = len(table)
    result = Estimate(pooled=pooled, prompt_mean=float(own[defined].mean()), prompts=count)
    if count < 2:
        return result
    draws = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=resamples)
    weights = draws.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = (weights @ np.where(defined, own, 0.0)) / (weights @ defined.astype(np.float64))
    return Estimate(
        pooled=result.pooled,
        prompt_mean=result.prompt_mean,
        prompts=count,
        pooled_interval=_percentiles(ratio(weights @ table)),
        prompt_mean_interval=_percentiles(means),
    )


def _per_prompt(records: Sequence[Record], rows: Sequence[Sequence[float]]) -> Floats:
    """Rows summed by prompt, [prompts, columns], prompts in order of first appearance."""
    index = {prompt: i for i, prompt in enumerate(dict.fromkeys(map(prompt_of, records)))}
    table = np.zeros((len(index), len(rows[0])))
    np.add.at(table, [index[prompt_of(record)] for record in records], np.asarray(rows, dtype=np.float64))
    return table


def _percentiles(values: Floats) -> Interval | None:
    """The interval of the resamples in which the ratio is defined."""
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(values, [tail, 100 - tail])
    return float(low), float(high)


def ratio_of_sums(sums: Floats) -> Floats:
    """c0 / c1 of summed columns; nan where undefined."""
    return divide(np.asarray(sums[..., 0]), sums[..., 1])


def ratio_of_ratios(sums: Floats) -> Floats:
    """(c0 / c1) / (c2 / c3) of summed columns c0 .. c3; nan where undefined."""
    return divide(np.asarray(sums[..., 0] * sums[..., 3]), sums[..., 1] * sums[..., 2])


def divide(numerator: Floats, denominator: Floats) -> Floats:
    """Nan where the denominator is 0."""
    return np.divide(numerator, denominator, out=np.full_like(numerator, np.nan), where=denominator > 0)


def prompt_of(record: Record) -> tuple[str, str]:
    """What identifies a prompt among all benchmarks."""
    return (record.benchmark, record.prompt_id)
