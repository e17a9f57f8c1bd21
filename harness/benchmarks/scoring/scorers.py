"""What scores the answers of a benchmark, and in which version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Scorer:
    """How answers of a benchmark are scored: ``str`` of it stands beside every accuracy. ``version``
    rises with every change that can alter a score, ``meaning`` is for readers."""

    name: str
    version: int
    meaning: str

    def __str__(self) -> str:
        return f"{self.name} v{self.version}"


SCORERS: Mapping[str, Scorer] = MappingProxyType(
    {
        "gsm8k": Scorer(
            "stated", 2, 'the number in \\boxed, after "answer is" or after ####, else the last one'
        ),
        "humaneval": Scorer("pass@1", 2, "one program per answer, the problem's own tests"),
    }
)
"""By benchmark; MT-Bench needs a judge. Version 1 of GSM8K was the last number, called "flexible" now."""
