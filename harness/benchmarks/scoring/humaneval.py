"""HumanEval pass@1: the share of answers whose program passes the problem's tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import datasets
import evaluate

from harness.benchmarks.prompt import CodeProblem
from harness.benchmarks.scoring import sandbox
from harness.benchmarks.scoring.code_extraction import program
from methods.errors import UsageError

_FIELDS = ("task_id", "prompt", "entry_point", "test")


class HumanEvalPassAt1(evaluate.Metric):
    """pass@1 with one program per answer, each run in ``harness.benchmarks.scoring.sandbox``.

    ``compute(predictions=answers, references=problems as dicts, execute_code=True)`` gives
    ``accuracy`` (pass@1), ``correct``, one truth value per answer, and ``results``, what became of
    each. Running model-written programs is off by default: without ``execute_code=True`` it raises
    ``UsageError``. What the sandbox does not protect against stands in its module's docstring.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(keep_in_memory=True, **options)

    def _info(self) -> evaluate.MetricInfo:
        problem = {field: datasets.Value("string") for field in _FIELDS}
        return evaluate.MetricInfo(
            description=self.__class__.__doc__,
            citation="Chen et al. 2021, arXiv:2107.03374",
            inputs_description="predictions: whole chat answers; references: HumanEval problems",
            features=datasets.Features({"predictions": datasets.Value("string"), "references": problem}),
        )

    def _compute(
        self,
        predictions: Sequence[str],
        references: Sequence[Mapping[str, str]],
        execute_code: bool = False,
        limits: sandbox.Limits | None = None,
    ) -> dict[str, Any]:
        if not execute_code:
            raise UsageError("HumanEval runs model-written programs: allow it with --execute-code")
        if not predictions:
            raise UsageError("HumanEval pass@1 needs at least one answer")
        verdicts = []
        for answer, reference in zip(predictions, references, strict=True):
            problem = CodeProblem(**reference)
            verdicts.append(sandbox.check(problem, program(problem, answer), limits))
        return {
            "accuracy": sum(verdict.passed for verdict in verdicts) / len(verdicts),
            "correct": [verdict.passed for verdict in verdicts],
            "results": [verdict.result for verdict in verdicts],
        }
