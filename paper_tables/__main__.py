"""``python -m paper_tables N``: run what Table N still lacks, print it and keep it under results/."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from harness.cli import DEFAULT_PRESET
from methods.errors import UsageError
from paper_tables import plan, runs, table1
from paper_tables.render import SUFFIXES, Table, check_format, render


def _table1(size: plan.Size, preset: str, results: Path) -> Table:
    measured, reasons = runs.fill(plan.TABLE1, size, preset, results)
    return table1.build(plan.TABLE1, size.temperatures, measured, reasons, preset, size.max_new_tokens)


TABLES = {"1": _table1}


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0; 2 after one line on stderr for input that cannot be used; 130 interrupted."""
    try:
        print(build(_parser().parse_args(argv)), end="")
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command continues", file=sys.stderr)
        return 130
    return 0


def build(options: argparse.Namespace) -> str:
    """The rendered table, also written to ``<results>/<preset>/table<N>.<md|csv|tex>``.

    Raises ``UsageError`` before anything runs if table, size, format or preset do not exist.
    """
    if options.number not in TABLES:
        raise UsageError(f"unknown table {options.number!r}; known: {', '.join(TABLES)}")
    size, format_name = plan.size(options.size), check_format(options.format)
    text = render(TABLES[options.number](size, options.preset, options.results), format_name)
    path = options.results / options.preset / f"table{options.number}{SUFFIXES[format_name]}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    print(f"written to {path}", file=sys.stderr)
    return text


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m paper_tables", description="Run what Table N still lacks and print it.")
    parser.add_argument("number", metavar="N", help=f"the table's number: {', '.join(TABLES)}")
    parser.add_argument("--preset", default=DEFAULT_PRESET, help="target preset (default: %(default)s)")
    parser.add_argument("--size", default="quick", help=f"{' or '.join(plan.SIZES)} (default: %(default)s)")
    parser.add_argument("--format", default="markdown", help=f"{', '.join(SUFFIXES)} (default: %(default)s)")
    parser.add_argument("--results", type=Path, default=Path("results"), help="default: %(default)s")
    return parser


if __name__ == "__main__":
    sys.exit(main())
