"""``python -m paper_tables N``: run what Table N still lacks, print it and keep it under results/."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.cli.arguments import DEFAULT_PRESET
from harness.cli.entry import Parser, exit_code, path
from harness.cli.guard import guarded
from harness.config.presets import load_preset
from harness.execution.sharding import ALONE, Shard, join
from harness.records.journal import write_whole
from methods import registry
from methods.errors import UsageError
from paper_tables import devices, plan, runs, stored, table
from paper_tables.added import with_added
from paper_tables.render import SUFFIXES, check_format, render
from paper_tables.runs import Sheet

ALL = "all"
LOCAL = Path("results/local")
"""What is measured here; git leaves it alone, unlike the tables in ``results/<preset>``."""
DEFAULT_SIZE = "quick"


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0; 2 after one line on stderr for input that cannot be used; 130 interrupted."""
    return exit_code(lambda: execute(_parser().parse_args(argv)), "interrupted; the same command continues")


def execute(options: argparse.Namespace) -> int:
    """As ``main``, with exceptions passed through."""
    for module in options.plugin or ():
        registry.load_plugin(module)
    numbers = list(plan.SPECS) if options.number == ALL else [options.number]
    shard = join()
    for number in numbers:
        text = build(number, options, shard)
        if text is not None:
            print(text, end="\n" if number != numbers[-1] else "")
    return 0


def build(number: str, options: argparse.Namespace, shard: Shard = ALONE) -> str | None:
    """The rendered table, also written to ``<results>/<preset>/table<N>[-<size>].<md|csv|tex>``; None
    in all processes of a launcher but the first.

    Raises ``UsageError`` before anything runs if table, size, format, preset or a method do not exist.
    """
    load_preset(options.preset)
    spec = plan.spec(number)
    size = plan.size(options.size, spec)
    format_name = check_format(options.format)
    rows = with_added(spec, options.method or (), options.untrained, check=not options.stored_only)
    sheet = Sheet(
        spec=spec,
        size_name=size.folder or options.size,
        size=size,
        preset=options.preset,
        folder=folder(options),
        runs=options.results / "runs",
        plugins=tuple(options.plugin or ()),
        shard=shard,
    )
    if options.stored_only and not (sheet.folder / stored.FOLDER).is_dir():
        raise UsageError(
            f"nothing is stored in {sheet.folder}: it has no folder {stored.FOLDER}; the committed records "
            "lie in the repository's results, which --results DIR names"
        )
    if options.stored_only:
        runs.tell_other_code(sheet, rows)
    else:
        runs.fill(sheet, rows)
        devices.fill(sheet, rows)
    if shard.rank:
        return None
    cells, reasons = runs.measured(sheet, rows)
    text = render(
        table.build(spec, rows, size.temperatures, cells, reasons, target=options.preset), format_name
    )
    path = file_of(options, number, SUFFIXES[format_name])
    write_whole(path, text)
    print(f"written to {path}", file=sys.stderr)
    return text


def folder(options: argparse.Namespace) -> Path:
    """Where records and tables are kept: random drafters never lie beside trained ones."""
    place = options.results / options.preset
    return place / "untrained" if options.untrained else place


def file_of(options: argparse.Namespace, number: str, suffix: str) -> Path:
    size = "" if options.size == DEFAULT_SIZE else f"-{options.size}"
    return folder(options) / f"table{number}{size}{suffix}"


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m paper_tables", description="Run what Table N still lacks and print it.")
    parser.add_argument("number", metavar="N", help=f"the table's number: {', '.join(plan.SPECS)}, or {ALL}")
    parser.add_argument("--preset", default=DEFAULT_PRESET, help="target preset (default: %(default)s)")
    parser.add_argument(
        "--size", default=DEFAULT_SIZE, help=f"{' or '.join(plan.SIZES)} (default: %(default)s)"
    )
    parser.add_argument("--format", default="markdown", help=f"{', '.join(SUFFIXES)} (default: %(default)s)")
    parser.add_argument(
        "--results", type=path, default=LOCAL, help="default: %(default)s; results: those that are committed"
    )
    parser.add_argument(
        "--method",
        metavar="NAME[:OPTION=VALUE,...]",
        action="append",
        help="add a row: a method, with options (checkpoint=PATH too) and label=TEXT if given; repeatable",
    )
    parser.add_argument("--plugin", metavar="MODULE", action="append", help="import a module with methods")
    parser.add_argument(
        "--untrained", action="store_true", help="random drafters, marked, in a folder of their own"
    )
    parser.add_argument("--stored-only", action="store_true", help="run nothing, render what is stored")
    return parser


if __name__ == "__main__":
    sys.exit(guarded(main, resumes=True))
