"""The one place where the tables touch the harness: start the runs a table lacks, read what they recorded."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

from methods import registry
from methods.errors import UsageError
from paper_tables.measured import Measured, from_summary
from paper_tables.plan import AR, BENCHMARKS, Row, Size


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
    measured = []
    for temperature in size.temperatures:
        directory = run(arguments(row, size, temperature, preset, results))
        measured += read(row, directory)
    return measured


def arguments(row: Row, size: Size, temperature: float, preset: str, results: Path) -> list[str]:
    """The command line of ``python -m harness.run`` for one row at one temperature."""
    argv = ["--method", row.method, "--preset", preset, "--results", str(results / "runs")]
    argv += ["--prompts", str(size.prompts[temperature]), "--max-new-tokens", str(size.max_new_tokens)]
    argv += ["--temperature", f"{temperature:g}"]
    for name in BENCHMARKS:
        argv += ["--benchmark", name]
    for name, value in row.options:
        argv += [f"--{name.replace('_', '-')}", str(value)]
    return argv


def run(argv: list[str]) -> Path:
    """Run the harness in this process; returns the directory named in its last line of output.

    Its progress goes to stderr as always; its own table is not shown. Raises ``UsageError``.
    """
    from harness import run as harness_run

    output = io.StringIO()
    with redirect_stdout(output):
        harness_run.run(argv)
    return Path(json.loads(output.getvalue().splitlines()[-1])["run"])


def read(row: Row, directory: Path) -> list[Measured]:
    """The cells of ``row`` from the records of one finished run."""
    from harness.records import read_baseline, read_records
    from harness.summary import summarise

    return from_summary(row, summarise(read_records(directory), baseline=read_baseline(directory)))
