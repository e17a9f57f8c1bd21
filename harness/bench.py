"""``python -m harness.bench``: measure speed and print tables, and one JSON line with every repeat."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from statistics import median
from typing import Any

from tabulate import tabulate

from harness import speed
from harness.cli.entry import Parser, add_json_flag, exit_code, positive, print_json
from harness.cli.guard import guarded
from harness.speed import Result, Settings


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0; 1 if a method changed its target; 2 after one line for input that cannot be used; 130
    interrupted."""
    return exit_code(lambda: execute(_parser().parse_args(argv)))


def execute(options: argparse.Namespace) -> int:
    """Run the chosen measurements, one table after the other as they end."""
    settings = Settings(options.preset, tuple(options.dtype), options.tokens, options.repeats)
    measurements = [speed.get(subject) for subject in options.subject or speed.SUBJECTS]
    results = []
    for measure in measurements:
        for result in measure(settings):
            print(table(result), end="\n\n", flush=True)
            results.append(result.as_json())
    asked = {name: value for name, value in vars(options).items() if name != "json"}
    print_json({"machine": machine(), "settings": asked, "results": results}, options.json)
    return 0


def table(result: Result) -> str:
    """Milliseconds per unit by arm, then the ratios: medians with the range of the repeats."""
    arms = [[arm, *_spread([1e3 * s for s in times], 2), ""] for arm, times in result.seconds.items()]
    ratios = [[r.name, *_spread(result.values(r), 3), r.wished] for r in result.ratios]
    headers = [f"{result.subject}, {result.case}", f"ms per {result.unit}", "range", "aim"]
    return tabulate([*arms, *ratios], headers=headers, disable_numparse=True)


def _spread(values: Sequence[float], digits: int) -> tuple[str, str]:
    return f"{median(values):.{digits}f}", f"{min(values):.{digits}f} to {max(values):.{digits}f}"


def machine() -> dict[str, Any]:
    """What the figures belong to."""
    import torch

    from harness.records.provenance import cpu_cores, cpu_model, gpu_names, package_commit, package_versions

    return {
        "cpu": cpu_model(),
        "cores": cpu_cores(),
        "torch_threads": torch.get_num_threads(),
        "gpus": gpu_names(),
        "versions": package_versions(),
        "code": package_commit(),
    }


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m harness.bench", description="Measure speed, arms interleaved.")
    known, default = ", ".join(speed.SUBJECTS), Settings()
    parser.add_argument("subject", metavar="SUBJECT", nargs="*", help=f"{known} (default: all)")
    parser.add_argument("--preset", default=default.preset, help="target preset (default: %(default)s)")
    parser.add_argument(
        "--dtype", nargs="+", choices=default.dtypes, default=default.dtypes, help="default: both"
    )
    parser.add_argument(
        "--tokens", type=positive, default=default.tokens, help="a call (default: %(default)s)"
    )
    parser.add_argument("--repeats", type=positive, default=default.repeats, help="default: %(default)s")
    add_json_flag(parser)
    return parser


if __name__ == "__main__":
    sys.exit(guarded(main))
