"""A benchmark's questions as token ids, for measurements and checks that need no run."""

from __future__ import annotations

from pathlib import Path

from harness.benchmarks import get, load_prompts
from harness.benchmarks.chat import render
from harness.config.presets import Preset
from methods.errors import UsageError
from methods.models.target import Target

BENCHMARK = "mt_bench"


def first_turns(
    target: Target, preset: Preset, limit: int = 1, data_dir: Path | None = None
) -> list[list[int]]:
    """The first ``limit`` MT-Bench questions as a run of ``preset`` would put them."""
    rows = load_prompts(get(BENCHMARK), data_dir=data_dir, limit=limit).prompts
    if not rows:
        raise UsageError(f"benchmark {BENCHMARK} has no prompts")
    return [
        render(
            target.tokenizer,
            [{"role": "user", "content": row.turns[0]}],
            preset.chat_template,
            thinking=preset.thinking,
        )
        for row in rows
    ]
