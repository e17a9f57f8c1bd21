"""From a benchmark and a source choice to the prompts of a run."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from harness.benchmarks.benchmark import Benchmark
from harness.benchmarks.hub import HubUnavailable, fetch_rows
from harness.benchmarks.prompt import Prompt, PromptSet, PromptSource
from harness.benchmarks.rows import Rows, read_directory
from methods.errors import UsageError

SourceChoice = Literal["auto", "dir", "hub", "wheel"]


def load_prompts(
    benchmark: Benchmark,
    *,
    source: SourceChoice = "auto",
    data_dir: Path | None = None,
    limit: int | None = None,
) -> PromptSet:
    """The first ``limit`` prompts (all if None) of ``benchmark``.

    ``auto`` reads the user's directory if one is named, else the hub, else the pinned wheels. A
    directory is used as it stands; of the other sources the paper's subset in the paper's order,
    or, where the source lacks one of its items, everything in the source's order.

    Raises ``UsageError`` for an unusable source, a malformed row, a repeated id, ``limit`` < 1.
    """
    _check_choice(source, data_dir)
    if limit is not None and limit < 1:
        raise UsageError(f"the number of prompts must be >= 1, got {limit}")
    rows, prompts = _read(benchmark, source, data_dir)
    _check_ids(rows, prompts)
    subset: Literal["paper", "source order"] = "source order"
    if rows.kind != "dir":
        chosen = _paper_subset(benchmark, prompts)
        if chosen is not None:
            prompts, subset = chosen, "paper"
    origin = PromptSource(rows.kind, rows.location, rows.sha256, rows.revision, subset, len(prompts))
    return PromptSet(benchmark.name, tuple(prompts[:limit]), origin)


def _check_choice(source: str, data_dir: Path | None) -> None:
    if source not in get_args(SourceChoice):
        raise UsageError(f"unknown prompt source {source!r}; known: {', '.join(get_args(SourceChoice))}")
    if source == "dir" and data_dir is None:
        raise UsageError("prompt source 'dir' needs a data directory")
    if source in ("hub", "wheel") and data_dir is not None:
        raise UsageError(f"a data directory goes with prompt source 'auto' or 'dir', not {source!r}")


def _read(benchmark: Benchmark, source: SourceChoice, data_dir: Path | None) -> tuple[Rows, list[Prompt]]:
    if data_dir is not None:
        rows = read_directory(data_dir, benchmark.name)
        return rows, [benchmark.dir_prompt(row) for row in rows]
    if source != "wheel":
        try:
            rows = fetch_rows(benchmark.hub)
            return rows, list(benchmark.hub_prompts(rows))
        except HubUnavailable as error:
            if source == "hub":
                raise UsageError(f"no prompts for {benchmark.name} from the hub: {error}") from error
            _notice(str(error))
    rows = benchmark.wheel_rows()
    return rows, list(benchmark.wheel_prompts(rows))


@cache
def _notice(reason: str) -> None:
    """One line per reason and process."""
    print(f"prompts come from pinned wheels, not from the hub ({reason})", file=sys.stderr, flush=True)


def _check_ids(rows: Rows, prompts: Sequence[Prompt]) -> None:
    repeated = [key for key, count in Counter(p.prompt_id for p in prompts).items() if count > 1]
    if repeated:
        raise UsageError(f"{rows.location}: prompt id {repeated[0]!r} stands on more than one line")


def _paper_subset(benchmark: Benchmark, prompts: list[Prompt]) -> list[Prompt] | None:
    """The paper's prompts in its order, or None if one is missing."""
    ids = benchmark.paper_ids()
    if not ids:
        return prompts
    known = {prompt.prompt_id: prompt for prompt in prompts}
    return [known[key] for key in ids] if all(key in known for key in ids) else None
