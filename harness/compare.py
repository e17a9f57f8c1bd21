"""``python -m harness.compare RUN RUN ...``: runs side by side on the prompts they share.

The first run is what the others are compared with. Differences are paired: every resample draws
the same prompts for both runs, so a hard prompt that slows both is no difference. Seconds of two runs
are never divided, since the machine may have been busier during one of them: what is compared is how
much faster each was than AR of the same run, and only where AR ran alike in both.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

from harness.analysis import metrics
from harness.analysis.comparable import check, check_prompts, unlike_baselines, unlike_seconds
from harness.analysis.estimate import Estimate, estimate, ratio_of_ratios
from harness.analysis.summary import worst
from harness.cli.entry import Parser, add_json_flag, exit_code, path, print_json
from harness.execution.plan import AR
from harness.records.manifest import read_manifest
from harness.records.record import Record, Unit
from harness.records.status import read_run
from methods.errors import UsageError


@dataclass(frozen=True)
class Run:
    """A run directory as read; ``baseline`` are AR's records, its own if AR is the method."""

    name: str
    manifest: dict[str, Any]
    records: list[Record]
    baseline: list[Record]

    @classmethod
    def read(cls, directory: Path) -> Run:
        manifest = read_manifest(directory)
        records, baseline = read_run(directory, is_ar=manifest["config"]["method"] == AR)
        return cls(directory.name, manifest, records, baseline)

    @property
    def config(self) -> dict[str, Any]:
        return self.manifest["config"]

    @property
    def mode(self) -> str:
        return self.config.get("mode", "decode")


def compare(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One line per run, width and temperature: its figures on the common prompts and, after the
    first run, how S and the wall-clock speedup relate to the first's with 95 % intervals.

    ``seconds_not_compared`` says why speedups are not related, if they are not. Outputs at T > 0 of
    different seeds are not compared. Raises ``UsageError`` for runs that may not stand side by side
    (``comparable``), for one with several widths (name one run per width) and for runs without a common
    prompt.
    """
    if len(runs) < 2:
        raise UsageError(f"at least two runs are needed to compare, got {len(runs)}")
    check((run.name, run.config) for run in runs)
    for run in runs:
        widths = sorted({record.width for record in run.records})
        if len(widths) > 1:
            raise UsageError(f"run {run.name} holds widths {widths}; compare runs of one width each")
    common = set.intersection(*({r.unit for r in metrics.completed(run.records)} for run in runs))
    if not common:
        raise UsageError("the runs have no completed prompt in common")
    check_prompts((run.name, run.records) for run in runs)
    lines = []
    for temperature in sorted({unit[3] for unit in common}):
        units = {unit for unit in common if unit[3] == temperature}
        first = _kept(runs[0], units)
        for run in runs:
            mine = _kept(run, units)
            line = _figures(run, mine)
            if run is not runs[0]:
                line["S_ratio"] = _shown(s_ratio(first, mine))
                line |= _wallclock_ratio(runs[0], first, run, mine)
                if temperature == 0 or run.config["seed"] == runs[0].config["seed"]:
                    line["same_output"] = _same(first, mine)
            lines.append({"run": run.name, "mode": run.mode, "temperature": temperature, **line})
    return lines


def s_ratio(first: Sequence[Record], second: Sequence[Record]) -> Estimate | None:
    """S of ``second`` / that of ``first``, both on the same units. The pairs are resampled, not the
    records."""
    other = {record.unit: record for record in first}
    rows = [
        [float(b.decoded), _layers(b), float(a.decoded), _layers(a)] for b in second for a in [other[b.unit]]
    ]
    return estimate(second, rows, ratio_of_ratios)


def _layers(record: Record) -> float:
    return (record.total("target_layers") + record.total("draft_layers")) / record.num_layers


def _wallclock_ratio(base: Run, first: Sequence[Record], run: Run, mine: Sequence[Record]) -> dict[str, Any]:
    """The ratio of the two runs' speedups, or why there is none; neither for runs without times."""
    if "replay" in (base.mode, run.mode):
        return {}
    why = _not_alike(base, first, run, mine)
    if why is not None:
        return {"seconds_not_compared": why}
    pairs = [metrics.timed_pairs(*each) for each in ((first, base.baseline), (mine, run.baseline))]
    return {"wallclock_ratio": _shown(metrics.speedup_ratio(*pairs))}


def _not_alike(base: Run, first: Sequence[Record], run: Run, mine: Sequence[Record]) -> str | None:
    beside = [(each.name, metrics.beside(kept, each.baseline)) for each, kept in ((base, first), (run, mine))]
    lacking = [name for name, records in beside if metrics.tok_per_s(records) is None]
    if lacking:
        return f"no times of AR beside {' and '.join(lacking)}"
    return unlike_seconds([base.manifest, run.manifest]) or unlike_baselines(beside)


def _kept(run: Run, units: set[Unit]) -> list[Record]:
    """The run's records of ``units``, in one order for all runs."""
    return sorted((r for r in run.records if r.unit in units and r.error is None), key=lambda r: r.unit)


def _figures(run: Run, records: Sequence[Record]) -> dict[str, Any]:
    figures = {"L_acc": metrics.l_acc, "S": metrics.s, "step_acceptance": metrics.step_acceptance}
    line: dict[str, Any] = {
        "method": records[0].method,
        "prompts": metrics.prompts(records),
        "tokens": metrics.tokens(records),
        **{name: _shown(figure(records)) for name, figure in figures.items()},
        "tok_per_s": _shown(metrics.tok_per_s(records)),
        "ar_tok_per_s": _shown(metrics.tok_per_s(metrics.beside(records, run.baseline))),
        "wallclock_speedup": _shown(metrics.wallclock_speedup(records, run.baseline)),
        "lossless": worst(records),
    }
    return line


def _same(first: Sequence[Record], second: Sequence[Record]) -> str:
    pairs = zip(first, second, strict=True)
    equal = sum(a.output_ids == b.output_ids for a, b in pairs)
    return f"{equal}/{len(first)}"


def _shown(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    return {"value": estimate.pooled, "interval": estimate.pooled_interval}


def table(lines: Sequence[dict[str, Any]]) -> str:
    """The comparison for people; the last columns are relative to the first run."""
    figures = {
        "L_acc": "L_acc",
        "S": "S",
        "step_acceptance": "step acc.",
        "tok_per_s": "tok/s",
        "ar_tok_per_s": "AR's tok/s",
        "wallclock_speedup": "wall-clock",
        "S_ratio": "S / first",
        "wallclock_ratio": "wall-clock / first",
    }
    plain = {"run": "run", "mode": "mode", "temperature": "T", "prompts": "prompts", "tokens": "tokens"}
    body = [
        [f"{line[name]:g}" if name == "temperature" else line[name] for name in plain]
        + [_cell(line.get(name)) for name in figures]
        + [line["lossless"] or "-", line.get("same_output", "-")]
        for line in lines
    ]
    headers = [*plain.values(), *figures.values(), "lossless", "same output"]
    return tabulate(body, headers=headers, disable_numparse=True)


def _cell(figure: dict[str, Any] | None) -> str:
    if figure is None:
        return "-"
    if figure["interval"] is None:
        return f"{figure['value']:.2f}"
    low, high = figure["interval"]
    return f"{figure['value']:.2f} [{low:.2f}, {high:.2f}]"


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0; 2 after one line on stderr for runs that cannot be compared."""
    parser = Parser(prog="python -m harness.compare", description="Runs side by side, prompt by prompt.")
    parser.add_argument(
        "directories", metavar="RUN", nargs="+", type=path, help="run directory; the first is the base"
    )
    add_json_flag(parser)
    return exit_code(lambda: execute(**vars(parser.parse_args(argv))))


def execute(directories: Sequence[Path], json: bool = False) -> int:
    """As ``main``, with exceptions passed through."""
    runs = [Run.read(path) for path in directories]
    lines = compare(runs)
    print(table(lines))
    for line in lines:
        if "seconds_not_compared" in line:
            print(
                f"wall-clock / first: none for {line['run']} at T = {line['temperature']:g}: "
                f"{line['seconds_not_compared']}"
            )
    print_json({"comparison": lines}, json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
