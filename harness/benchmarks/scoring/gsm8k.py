"""GSM8K accuracy: the final number of an answer, found by named filters, against the reference."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import datasets
import evaluate

from harness.benchmarks.scoring.scorers import SCORERS
from harness.benchmarks.scoring.stated_number import stated
from methods.errors import UsageError

HEADLINE = SCORERS["gsm8k"].name
"""The filter behind ``accuracy``. The prompt asks for no format, so few answers have ``####``, and the
last number of many is that of a remark; the two conventions stay for comparison with other harnesses."""

# A minus right after a letter, digit or bracket joins two things ("3-5"); it is no sign.
_SIGN = r"(?:(?<![\w)\].])-)?"
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<!\d)\.\d+"
_NUMBER = re.compile(rf"{_SIGN}\$?{_SIGN}(?:{_DIGITS})")
_STRICT = re.compile(rf"####\s*({_NUMBER.pattern})")


def strict(answer: str) -> str | None:
    """The number after the first ``####``: the format of the data set's own solutions."""
    found = _STRICT.search(_plain_minus(answer))
    return found.group(1) if found else None


def flexible(answer: str) -> str | None:
    """The last number anywhere in the answer."""
    found = _NUMBER.findall(_plain_minus(answer))
    return found[-1] if found else None


FILTERS: Mapping[str, Callable[[str], str | None]] = MappingProxyType(
    {"strict": strict, "flexible": flexible, "stated": stated}
)
"""``strict`` and ``flexible`` are the two conventions of lm-evaluation-harness; ``stated`` is ours."""


def normalise(number: str) -> Decimal | None:
    """The value of a number as written: commas, currency signs and a trailing dot do not count."""
    text = re.sub(r"[\s,$]", "", _plain_minus(number)).rstrip(".")
    return Decimal(text) if re.fullmatch(r"-?(\d+(\.\d+)?|\.\d+)", text) else None


def correct(answer: str, reference: str, filter_name: str = HEADLINE) -> bool:
    """Whether the number the filter finds has the value of ``reference``."""
    expected = normalise(reference)
    if expected is None:
        raise UsageError(f"GSM8K reference {reference!r} is not a number")
    found = FILTERS[filter_name](answer)
    return found is not None and normalise(found) == expected


class GSM8KAccuracy(evaluate.Metric):
    """Share of answers whose final number is the reference's, for every filter.

    ``compute(predictions=answers, references=final numbers as text)`` gives ``accuracy`` (the
    headline filter's), one ``accuracy_<filter>`` each, and ``correct``, one truth value per answer.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(keep_in_memory=True, **options)

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=self.__class__.__doc__,
            citation="Cobbe et al. 2021, arXiv:2110.14168",
            inputs_description="predictions: whole answers; references: final numbers as text",
            features=datasets.Features(
                {"predictions": datasets.Value("string"), "references": datasets.Value("string")}
            ),
        )

    def _compute(self, predictions: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
        if not predictions:
            raise UsageError("GSM8K accuracy needs at least one answer")
        hits = {
            name: [correct(a, r, name) for a, r in zip(predictions, references, strict=True)]
            for name in FILTERS
        }
        shares = {f"accuracy_{name}": sum(each) / len(each) for name, each in hits.items()}
        return {"accuracy": shares[f"accuracy_{HEADLINE}"], **shares, "correct": hits[HEADLINE]}


def _plain_minus(text: str) -> str:
    return text.replace("\u2212", "-")
