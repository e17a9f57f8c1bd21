"""``python -m harness.project``: wall-clock of a pipeline on devices of a profile, projected and emulated.

Verdicts come from a recorded run (``--records``) or, as an assumption, from an acceptance rate.
Prints a table and one JSON line. Exit codes: 0 done; 1 a rank was lost; 2 the input cannot be used.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tabulate import tabulate

from harness.cli.entry import (
    Parser,
    add_json_flag,
    exit_code,
    milliseconds,
    path,
    positive,
    print_json,
    seed,
)
from harness.config.profiles import Profile, load_profile, profile_names
from harness.devices import projection_plot
from harness.devices.emulation import emulate
from harness.devices.projection import Devices, devices_of, project, recorded_verdicts
from harness.execution.timing import by_fill, chrome_trace
from harness.records.files import read_records
from harness.records.manifest import read_manifest, write_json
from methods.errors import UsageError
from methods.models.partition import check_stage_layers
from methods.pipeline.layout import Layout

_ASSUMED_VERDICTS = 4096
_HOPS = 16
"""Steps of the plotted curve."""
HEADERS = {
    "n": "n",
    "layout": "layout",
    "kind": "kind",
    "cycles": "cycles",
    "cycle_ms": "cycle ms",
    "ratio": "cycle / slowest device",
    "speedup": "speedup",
}


def parser() -> argparse.ArgumentParser:
    p = Parser(prog="python -m harness.project", description=__doc__.split("\n\n")[0])
    names = ", ".join(profile_names())
    p.add_argument("--profile", default="qwen3.5-4b", metavar="NAME", help=f"{names}, or a .toml file")
    n_help = "pipeline stages (default: the records', else 4 8)"
    p.add_argument("--n", type=positive, nargs="+", metavar="N", help=n_help)
    p.add_argument("--records", type=path, metavar="DIR", help="run whose verdicts are used")
    p.add_argument("--acceptance", type=float, metavar="A", help="assumed step acceptance, without records")
    p.add_argument(
        "--tokens", type=positive, default=512, metavar="N", help="tokens to decode after the first"
    )
    p.add_argument(
        "--layout", metavar="NAME", help="n+1, or n: drafter beside stage 1 (default: the records', else n+1)"
    )
    p.add_argument("--stage-layers", metavar="5;9;9;9", help="uneven stages, at the profile's time a layer")
    p.add_argument("--draft-ms", type=milliseconds, metavar="MS", help="instead of the profile's")
    p.add_argument("--verify-ms", type=milliseconds, metavar="MS", help="instead of the profile's")
    p.add_argument("--hop-ms", type=milliseconds, metavar="MS", help="instead of the profile's")
    p.add_argument("--emulate", action="store_true", help="run the real runtime with timed waits, too")
    p.add_argument("--timings", type=path, metavar="DIR", help="of emulated runs: breakdowns, Chrome traces")
    p.add_argument(
        "--plot", type=path, metavar="FILE", help="a picture: speedup by n, and by the time of a hop"
    )
    p.add_argument("--seed", type=seed, default=0, metavar="S", help="of verdicts drawn from --acceptance")
    add_json_flag(p)
    return p


def main(argv: Sequence[str] | None = None) -> int:
    return exit_code(lambda: execute(parser().parse_args(argv)))


def execute(args: argparse.Namespace) -> int:
    """Print the rows of all ``--n``."""
    if args.timings is not None and not args.emulate:
        raise UsageError("--timings is of emulated runs: give --emulate as well")
    if args.plot is not None:
        projection_plot.check(args.plot)
    profile = load_profile(args.profile)
    accepted = _verdicts(args)
    recorded = _recorded(args.records) if args.records is not None else _Recorded()
    args.layout = args.layout or recorded.layout
    args.n = args.n or recorded.stages
    rows: list[dict[str, Any]] = []
    curves: dict[int, list[tuple[float, float]]] = {}
    for n in dict.fromkeys(args.n):
        devices = _devices(profile, n, args, recorded)
        rows += _rows(args, profile, devices, n, accepted)
        curves[n] = _by_hop(profile, devices, accepted, args.tokens) if args.plot is not None else []
    if args.plot is not None:
        projection_plot.draw(args.plot, rows, curves)
    print(tabulate([[row[key] for key in HEADERS] for row in rows], list(HEADERS.values()), floatfmt=".3f"))
    verdicts = {"acceptance": sum(accepted) / len(accepted), "records": args.records and str(args.records)}
    about = {"target": profile.target, "tokens": args.tokens, **verdicts}
    print_json({**about, "rows": rows}, args.json)
    return 0


@dataclass(frozen=True)
class _Recorded:
    """What the recorded run says of its pipeline, and of its drafter: its layers if known, and whether
    it worked after stage 1 instead of beside the stages."""

    stages: tuple[int, ...] = (4, 8)
    layout: str = "n+1"
    draft_layers: int | None = None
    series: bool = False


def _recorded(directory: Path) -> _Recorded:
    config = read_manifest(directory)["config"]
    width = next(iter(config["widths"].values()))
    options, facts = width["options"], width["facts"]
    exits = config["method"] == "ppsd"  # by a head of one layer, after stage 1
    return _Recorded(
        (options["n"],),
        options.get("layout", "n+1"),
        1 if exits else facts.get("draft_layers"),
        exits or options.get("schedule") == "post-step",
    )


def _devices(profile: Profile, n: int, args: argparse.Namespace, recorded: _Recorded) -> Devices:
    """The profile's devices for ``n`` stages with what the command line changes."""
    times = profile.pipeline(n, recorded.draft_layers if args.draft_ms is None else None)
    shares = None
    if args.stage_layers is not None:
        try:
            given = [int(part) for part in args.stage_layers.split(";")]
        except ValueError as error:
            raise UsageError(
                f"--stage-layers expects numbers separated by ';', got {args.stage_layers!r}"
            ) from error
        if len(given) != n:
            raise UsageError(f"--stage-layers names {len(given)} stages, but n = {n}")
        layers = check_stage_layers(profile.num_layers, given)
        shares = [count * n / profile.num_layers for count in layers]
    own_drafter = Layout.named(args.layout, n).own_drafter
    found = devices_of(profile, times, shares, series=recorded.series, beside_first=not own_drafter)
    return replace(
        found,
        draft_s=_seconds(args.draft_ms, found.draft_s),
        verify_s=_seconds(args.verify_ms, found.verify_s),
        hop_s=_seconds(args.hop_ms, found.hop_s),
    )


def _by_hop(
    profile: Profile, devices: Devices, accepted: Sequence[bool], tokens: int
) -> list[tuple[float, float]]:
    """(milliseconds of a hop, projected speedup): from none to a hop as long as the slowest device."""
    points = []
    for step in range(_HOPS + 1):
        hop_s = devices.bottleneck_s * step / _HOPS
        projected = project(accepted, tokens, replace(devices, hop_s=hop_s))
        points.append((1e3 * hop_s, projected.speedup(profile.ar_s)))
    return points


def _rows(
    args: argparse.Namespace, profile: Profile, devices: Devices, n: int, accepted: Sequence[bool]
) -> list[dict[str, Any]]:
    if devices.bottleneck_s == 0:
        raise UsageError(f"profile {args.profile}: with n = {n} no device takes any time")
    projected = project(accepted, args.tokens, devices)
    common = {"n": n, "layout": args.layout, "cycles": projected.cycles}
    cycle_s = projected.seconds / projected.cycles
    rows = [
        common
        | {
            "kind": "projected",
            "cycle_ms": 1e3 * cycle_s,
            "ratio": cycle_s / devices.bottleneck_s,
            "speedup": projected.speedup(profile.ar_s),
        }
    ]
    if args.emulate:
        run = emulate(profile, devices, accepted, args.tokens, timings=args.timings is not None)
        steady = run.steady
        rows.append(
            common
            | {
                "kind": "emulated",
                "cycle_ms": 1e3 * run.result.decode_s / len(run.result.steps),
                "ratio": run.result.decode_s / len(run.result.steps) / devices.bottleneck_s,
                "speedup": run.speedup(profile.ar_s),
                "steady_median_ratio": steady and steady.median / devices.bottleneck_s,
                "steady_mean_ratio": steady and steady.mean / devices.bottleneck_s,
                "steady_cycles": steady.cycles if steady else 0,
                "cpu_ms_per_cycle": 1e3 * run.cpu_s,
            }
        )
        if args.timings is not None:
            _store(args.timings, n, args.layout, run)
    return rows


def _store(directory: Path, n: int, layout: str, run: Any) -> None:
    name = f"n{n}-{layout.replace('+', '_')}"
    fills = {fill: asdict(times) for fill, times in by_fill(run.result.steps).items()}
    write_json(directory / f"{name}-cycles.json", fills)
    trace = chrome_trace(Layout.named(layout, n), [report.spans for report in run.reports])
    write_json(directory / f"{name}-trace.json", trace)


def _verdicts(args: argparse.Namespace) -> list[bool]:
    if (args.records is None) == (args.acceptance is None):
        raise UsageError("give either --records DIR or --acceptance A")
    if args.records is not None:
        return recorded_verdicts(read_records(args.records))
    if not 0 <= args.acceptance <= 1:
        raise UsageError(f"--acceptance must be in [0, 1], got {args.acceptance:g}")
    chance = random.Random(args.seed)
    return [chance.random() < args.acceptance for _ in range(_ASSUMED_VERDICTS)]


def _seconds(milliseconds: float | None, default: float) -> float:
    return default if milliseconds is None else milliseconds / 1e3


if __name__ == "__main__":
    sys.exit(main())
