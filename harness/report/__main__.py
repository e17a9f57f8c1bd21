"""``python -m harness.report RUN...``: write one HTML page about runs that opens without a network."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.cli.entry import Parser, exit_code, natural, path
from harness.records.journal import write_whole
from harness.report.arms import read_arms
from harness.report.page import render
from methods.errors import UsageError


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0; 2 after one line on stderr for input that cannot be used."""
    return exit_code(lambda: execute(_parser().parse_args(argv)))


def execute(options: argparse.Namespace) -> int:
    """As ``main``, with exceptions passed through."""
    arms, manifests = read_arms(options.runs)
    write_whole(options.output, render(arms, manifests, _tokenizer(manifests), options.texts))
    print(options.output)
    return 0


def _tokenizer(manifests: Sequence[dict[str, Any]]) -> object:
    """The tokenizer of the runs' target; None, told on stderr, where it cannot be loaded: the page
    then shows token ids."""
    names = {manifest["config"]["target"].get("target") for manifest in manifests}
    if len(names) > 1:
        raise UsageError(
            f"a report is about one target, these runs have {', '.join(sorted(map(str, names)))}"
        )
    try:
        return load_tokenizer(str(names.pop()))
    except UsageError as error:
        print(f"answers are shown as token ids: {error}", file=sys.stderr)
        return None


def load_tokenizer(name: str) -> object:
    from methods.models.loading import load_tokenizer as load  # loads torch

    return load(name)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m harness.report", description="One self-contained HTML page about runs.")
    parser.add_argument("runs", metavar="RUN", nargs="+", type=path, help="run directory")
    parser.add_argument("--output", type=path, default=Path("report.html"), help="default: %(default)s")
    parser.add_argument(
        "--texts", type=natural, default=12, metavar="K", help="answers shown token by token (%(default)s)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
