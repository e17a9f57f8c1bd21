"""The three benchmarks by name: MT-Bench, GSM8K, HumanEval."""

from __future__ import annotations

from harness.benchmarks.benchmark import Benchmark
from harness.benchmarks.gsm8k import GSM8K
from harness.benchmarks.humaneval import HumanEval
from harness.benchmarks.loading import SourceChoice, load_prompts
from harness.benchmarks.mt_bench import MTBench
from harness.benchmarks.prompt import CodeProblem, Prompt, PromptSet, PromptSource, TurnPolicy
from methods.errors import UsageError

__all__ = [
    "Benchmark",
    "CodeProblem",
    "Prompt",
    "PromptSet",
    "PromptSource",
    "SourceChoice",
    "TurnPolicy",
    "get",
    "load_prompts",
    "names",
]

_BENCHMARKS: dict[str, Benchmark] = {b.name: b for b in (MTBench(), GSM8K(), HumanEval())}


def names() -> list[str]:
    """All benchmark names, in the order of the paper's tables."""
    return list(_BENCHMARKS)


def get(name: str) -> Benchmark:
    """The benchmark called ``name``; ``UsageError`` lists what exists."""
    if name not in _BENCHMARKS:
        raise UsageError(f"unknown benchmark {name!r}; known: {', '.join(names())}")
    return _BENCHMARKS[name]
