"""``python -m harness.soak``: random prompts with random options, every method against plain decoding.

Prints what failed as one command each that repeats it, the totals, and one JSON object last. Exit codes:
0 nothing differed; 1 something did; 2 the input cannot be used; 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from harness.cli.entry import Parser, add_json_flag, exit_code, print_json, seed
from harness.cli.guard import guarded
from methods.errors import UsageError


def parser() -> argparse.ArgumentParser:
    description = "Decode random cases with every method and compare with plain decoding."
    p = Parser(prog="python -m harness.soak", description=description)
    p.add_argument("--minutes", metavar="M", type=float, default=10.0, help="how long; 10")
    p.add_argument("--seed", metavar="S", type=seed, default=0, help="of the cases; 0")
    p.add_argument("--case", metavar="SEED:INDEX", help="run one case again and show it")
    add_json_flag(p)
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    return exit_code(lambda: execute(parser().parse_args(argv)))


def execute(args: argparse.Namespace) -> int:
    """As ``main``, with exceptions passed through."""
    import torch

    from harness.checks.random_cases import Totals, draw, run_case

    torch.set_num_threads(1)  # tiny matrices, and results must not depend on the machine's number
    if args.case is not None:
        case = draw(*_named(args.case))
        print(case)
        fault = run_case(case, Totals())
        print(fault or "no difference")
        return int(fault is not None)
    if not 0 < args.minutes < float("inf"):
        raise UsageError(f"--minutes must be a number > 0, got {args.minutes:g}")
    started, index, totals = time.monotonic(), 0, Totals()
    failures: list[str] = []
    while not index or time.monotonic() - started < 60 * args.minutes:
        case = draw(args.seed, index)
        fault = run_case(case, totals)
        if fault is not None:
            command = f"python -m harness.soak --case {args.seed}:{index}"
            failures.append(command)
            print(f"failed: {command}\n  {case}\n  {fault}", flush=True)
        index += 1
    seconds = time.monotonic() - started
    print(f"seed {args.seed}, {seconds / 60:.1f} min: {totals}, {len(failures)} failed")
    result = {"seed": args.seed, "seconds": round(seconds, 1), **totals.as_json(), "failed": failures}
    print_json(result, args.json)
    return int(bool(failures))


def _named(text: str) -> tuple[int, int]:
    seed, colon, index = text.partition(":")
    try:
        numbers = int(seed), int(index)
    except ValueError:
        numbers = (0, -1)
    if not colon or numbers[1] < 0:
        raise UsageError(f"--case expects SEED:INDEX, two whole numbers, got {text!r}")
    return numbers


if __name__ == "__main__":
    sys.exit(guarded(main))
