"""SPD and PPSD on the real default target and real prompts: AR's ids, and cycles that add up (C1, C6).

One prompt per benchmark and 24 tokens; three and 64 with ``pytest --grid full``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.records.files import read_baseline, read_records
from harness.records.record import Record
from harness.run import main
from methods.core import DecodeResult, Step
from methods.decoding.trace import chain_fault

N = 8

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("smollm2")]


def chain(record: Record) -> DecodeResult:
    """The decode call a record tells of, as far as C6 looks at it."""
    arrays = record.steps
    columns = zip(
        arrays.drafted,
        arrays.accepted,
        arrays.emitted,
        arrays.target_layers,
        arrays.draft_layers,
        arrays.depth,
        strict=True,
    )
    return DecodeResult(record.output_ids, [Step(*column) for column in columns], 0.0, 0.0, "length")


@pytest.mark.parametrize("method", ["spd", "ppsd"])
def test_an_untrained_pipeline_gives_the_ids_of_plain_decoding(
    tmp_path: Path, grid_is_full: bool, method: str
) -> None:
    prompts, tokens = (3, 64) if grid_is_full else (1, 24)
    flags = f"--method {method} --n {N} --untrained --dtype float32 --warmup 0"
    sizes = ["--prompts", str(prompts), "--max-new-tokens", str(tokens)]
    assert main([*flags.split(), *sizes, "--results", str(tmp_path / "run")]) == 0
    records, baseline = read_records(tmp_path / "run"), read_baseline(tmp_path / "run")
    assert len(records) == len(baseline) == 3 * prompts
    for record, reference in zip(records, baseline, strict=True):
        assert (record.benchmark, record.prompt_id) == (reference.benchmark, reference.prompt_id)
        assert record.output_ids == reference.output_ids
        assert record.lossless == "exact"
        assert chain_fault(chain(record), N) is None
    assert max(len(record.output_ids) for record in records) == tokens
