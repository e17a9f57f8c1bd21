"""Accuracy of the answers of one benchmark, where it can be computed without a judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from harness.benchmarks.prompt import CodeProblem, Reference
from harness.benchmarks.scoring.scorers import SCORERS, Scorer
from methods.errors import UsageError


def scorer(benchmark: str, *, execute_code: bool = False) -> Scorer | None:
    """What ``score`` scores by; None where it gives no number."""
    return None if benchmark == "humaneval" and not execute_code else SCORERS.get(benchmark)


@dataclass(frozen=True, slots=True)
class Score:
    """``accuracy`` in [0, 1] over the answers that could be scored; ``correct`` has one entry per
    answer, None where there was no reference. ``details`` are the further numbers by name."""

    accuracy: float
    correct: tuple[bool | None, ...]
    details: Mapping[str, Any] = field(default_factory=dict)


def score(
    benchmark: str,
    answers: Sequence[str],
    references: Sequence[Reference],
    *,
    execute_code: bool = False,
) -> Score | None:
    """Score whole answers, one per reference.

    None where no number can be given: MT-Bench (it needs a judge), HumanEval without
    ``execute_code``, no answer with a reference.
    """
    if len(answers) != len(references):
        raise UsageError(f"{len(answers)} answers do not match {len(references)} references")
    wanted = {"gsm8k": str, "humaneval": CodeProblem}.get(benchmark)
    if wanted is None or scorer(benchmark, execute_code=execute_code) is None:
        return None
    usable = [index for index, reference in enumerate(references) if isinstance(reference, wanted)]
    if not usable:
        return None
    computed = _compute(benchmark, [answers[i] for i in usable], [references[i] for i in usable])
    correct: list[bool | None] = [None] * len(answers)
    for index, hit in zip(usable, computed.pop("correct"), strict=True):
        correct[index] = hit
    return Score(computed.pop("accuracy"), tuple(correct), computed)


def _compute(benchmark: str, answers: list[str], references: list[Any]) -> dict[str, Any]:
    # Imported here: the metrics pull in `evaluate`, which takes seconds to load.
    if benchmark == "gsm8k":
        from harness.benchmarks.scoring.gsm8k import GSM8KAccuracy

        return GSM8KAccuracy().compute(predictions=answers, references=references)
    from harness.benchmarks.scoring.humaneval import HumanEvalPassAt1

    problems = [asdict(problem) for problem in references]
    return HumanEvalPassAt1().compute(predictions=answers, references=problems, execute_code=True)
