"""The one place where the tables touch the harness: run what a table lacks, read what was recorded."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from harness import runner
from harness.cli import BENCHMARKS, parse
from harness.plan import make_plan
from harness.records import read_baseline, read_records
from harness.summary import rows as summary_rows
from methods import registry
from methods.errors import UsageError
from paper_tables.measured import Measured, from_summary
from paper_tables.plan import AR, Row, Size


def fill(
    rows: Sequence[Row], size: Size, preset: str, results: Path
) -> tuple[list[Measured], dict[Row, str]]:
    """Run every row at every temperature, continuing what ``results`` already holds.

    Returns the measured cells, and for each row that cannot be run the reason. A row whose method
    refuses (no checkpoint for this target, more stages than layers) is such a row; AR refusing is
    an error of the whole table and raises ``UsageError``.
    """
    known = registry.names()
    reasons = {
        row: f"method {row.method!r} is not part of this version" for row in rows if row.method not in known
    }
    possible = [row for row in rows if row not in reasons]
    measured: list[Measured] = []
    for number, row in enumerate(possible, start=1):
        print(f"[{number}/{len(possible)}] {row.label}", file=sys.stderr, flush=True)
        try:
            measured += run_row(row, size, preset, results)
        except UsageError as error:
            if row.method == AR:
                raise
            reasons[row] = f"{row.label}: {error}"
    return measured, reasons


def run_row(row: Row, size: Size, preset: str, results: Path) -> list[Measured]:
    """All cells of one row: a run per temperature, since each may take its own number of prompts."""
    measured: list[Measured] = []
    for temperature in size.temperatures:
        measured += read(row, run(arguments(row, size, temperature, preset), results))
    return measured


def arguments(row: Row, size: Size, temperature: float, preset: str) -> list[str]:
    """The command line of ``python -m harness.run`` for one row at one temperature."""
    argv = ["--method", row.method, "--preset", preset, "--temperature", f"{temperature:g}"]
    argv += ["--prompts", str(size.prompts[temperature]), "--max-new-tokens", str(size.max_new_tokens)]
    for name in BENCHMARKS:
        argv += ["--benchmark", name]
    for name, value in row.options:
        argv += [f"--{name.replace('_', '-')}", str(value)]
    return argv


def run(argv: Sequence[str], results: Path) -> Path:
    """Do or continue the run of one command line under ``results/runs``; returns its directory.

    Progress goes to stderr. Raises ``UsageError``.
    """
    plan = make_plan(parse(argv))
    plan = dataclasses.replace(plan, directory=results / "runs" / plan.directory.name)
    runner.run(plan, argv)
    return plan.directory


def read(row: Row, directory: Path) -> list[Measured]:
    """The cells of ``row`` from the records of one run."""
    return from_summary(row, summary_rows(read_records(directory), read_baseline(directory)))
