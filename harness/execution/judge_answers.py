"""MT-Bench answers of a run in the files FastChat's judge reads."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from harness.benchmarks import mt_bench
from harness.records.record import Record

FOLDER = "model_answer"


def write_judge_answers(directory: Path, records: Sequence[Record]) -> list[Path]:
    """Write ``<directory>/model_answer/<method>-T<temperature>-W<width>-r<repeat>.jsonl``, one file per
    answering configuration; returns the files. Prompts that are no FastChat questions (a user's own)
    and dialogues with a failed turn are left out."""
    dialogues: dict[str, dict[str, dict[int, str]]] = defaultdict(lambda: defaultdict(dict))
    for record in records:
        if record.benchmark == "mt_bench" and record.error is None and record.prompt_id.isdigit():
            model = f"{record.method}-T{record.temperature:g}-W{record.width}-r{record.repeat}"
            dialogues[model][record.prompt_id][record.turn] = record.text
    paths = []
    for model, answers in dialogues.items():
        complete = {
            prompt_id: [turns[turn] for turn in sorted(turns)]
            for prompt_id, turns in answers.items()
            if sorted(turns) == list(range(1, len(turns) + 1))
        }
        path = directory / FOLDER / f"{model}.jsonl"
        mt_bench.export_answers(path, model, complete, timestamp=time.time())
        paths.append(path)
    return paths
