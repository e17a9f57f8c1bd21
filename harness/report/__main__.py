"""``python -m harness.report RUN...``: write one HTML page about runs that opens without a network."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from harness.report.page import read_arms, render
from methods.errors import UsageError


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0; 2 after one line on stderr for input that cannot be used."""
    try:
        options = _parser().parse_args(argv)
        arms, manifests = read_arms(options.runs)
        page = render(arms, manifests, _tokenizer(manifests), options.texts)
        try:
            options.output.write_text(page, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write {options.output}: {error.strerror}") from error
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
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
    from methods.target.loading import load_tokenizer as load  # loads torch

    return load(name)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m harness.report", description="One self-contained HTML page about runs.")
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="run directory")
    parser.add_argument("--output", type=Path, default=Path("report.html"), help="default: %(default)s")
    parser.add_argument(
        "--texts", type=_count, default=12, metavar="K", help="answers shown token by token (%(default)s)"
    )
    return parser


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number >= 0, got {text}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
