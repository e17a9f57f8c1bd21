"""What needs torch and transformers, imported when first asked for: a wrong command line answers at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.benchmarks import Prompt, PromptSet
    from harness.benchmarks.chat import Message
    from harness.config.presets import Preset
    from methods.models.seal import Seal


@lru_cache(maxsize=1)
def load_target(name: str, dtype: str) -> Any:
    """Loaded once for all the runs of a process: methods only read a target."""
    from methods.models import load_target as load

    return load(name, dtype=dtype)


def seal_of(target: Any) -> Seal:
    from methods.models.seal import Seal

    return Seal(target)


def load_preset(name: str) -> Preset:
    from harness.config.presets import load_preset as load

    return load(name)


def load_prompts(name: str, data_dir: Path | None, count: int | None) -> PromptSet:
    from harness.benchmarks import get
    from harness.benchmarks import load_prompts as load

    return load(get(name), data_dir=data_dir, limit=count)


def benchmark_version(name: str) -> int:
    from harness.benchmarks import get

    return get(name).version


def render(tokenizer: Any, messages: Sequence[Message], template: str | None, thinking: bool) -> list[int]:
    from harness.benchmarks.chat import render as to_ids

    return to_ids(tokenizer, messages, template, thinking=thinking)


def describe_chat(tokenizer: Any, template: str | None, thinking: bool) -> dict[str, Any]:
    from harness.benchmarks.chat import describe

    return dataclasses.asdict(describe(tokenizer, template, thinking=thinking))


def scorer(benchmark: str, execute_code: bool) -> str:
    from harness.benchmarks.scoring import scorer as of

    found = of(benchmark, execute_code=execute_code)
    return "" if found is None else str(found)


def score(prompt: Prompt, text: str, execute_code: bool) -> float | None:
    from harness.benchmarks.scoring import score as score_answers

    result = score_answers(prompt.benchmark, [text], [prompt.reference], execute_code=execute_code)
    return None if result is None else result.accuracy
