"""The command line of a run, as a frozen request."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from harness.cli.entry import (
    HelpFormatter,
    Parser,
    add_json_flag,
    natural,
    path,
    positive,
    seconds,
    seed,
    share,
    temperature,
)
from harness.cli.options import parse_pairs
from harness.records.record import Mode
from methods.errors import UsageError

MODES: tuple[Mode, ...] = ("decode", "replay")
BENCHMARKS = ("mt_bench", "gsm8k", "humaneval")
DEFAULT_PRESET = "smollm2-135m"
Turns = Literal["first", "all"]
Dtype = Literal["float32", "bfloat16"]

METHOD_FLAGS = (
    "n",
    "draft_layers",
    "m",
    "proposal",
    "schedule",
    "runtime",
    "layout",
    "checkpoint",
    "untrained",
)
"""Flags handed to the method as its options; ``--width`` is one too, but may take several values."""


@dataclass(frozen=True)
class RunRequest:
    """What to run, as asked for; None means "the preset's" or "all there are".

    ``options`` are the method options that were given, still as text; ``widths`` those of
    ``--width``, one set of records each. ``emulate`` names the profile of devices on which the run's
    traces are repeated. ``timeout`` is in seconds and per prompt. ``fresh``: records that are there are
    kept aside. ``json``: the summary is printed on a terminal, too.
    """

    method: str
    mode: Mode
    preset: str | None
    target: str | None
    options: dict[str, str]
    widths: tuple[int, ...]
    benchmarks: tuple[str, ...]
    prompts: int | None
    turns: Turns
    temperatures: tuple[float, ...]
    top_k: int
    top_p: float
    max_new_tokens: int
    seed: int
    dtype: Dtype | None
    repeats: int
    warmup: int
    data_dir: Path | None
    results: Path | None
    execute_code: bool
    baseline: bool
    template: str | None
    plugins: tuple[str, ...]
    emulate: str | None = None
    timings: bool = False
    timeout: float | None = None
    fresh: bool = False
    json: bool = False


def parser() -> argparse.ArgumentParser:
    """All flags of ``python -m harness.run``; a wrong command line raises ``UsageError``."""
    p = Parser(
        prog="python -m harness.run",
        description="Decode benchmark prompts with one method and with AR, and measure both.",
        formatter_class=HelpFormatter,
    )
    what = p.add_argument_group("what to run")
    what.add_argument("--method", metavar="NAME", default="autoregressive", help="decoding method")
    what.add_argument(
        "--mode",
        choices=MODES,
        default="decode",
        help="decode measures; replay computes the trace from AR's output, without times",
    )
    what.add_argument("--preset", metavar="NAME", help=f"target preset; {DEFAULT_PRESET} without --target")
    what.add_argument("--target", metavar="ID|PATH", help="target model by hub id or path")
    what.add_argument("--dtype", choices=get_args(Dtype), help="the preset's by default, else float32")
    what.add_argument("--plugin", metavar="MODULE", action="append", help="import a module with methods")
    _method_flags(p.add_argument_group("method options (each method has its own subset)"))
    _prompt_flags(p.add_argument_group("prompts"))
    _decoding_flags(p.add_argument_group("decoding"))
    _run_flags(p.add_argument_group("run"))
    return p


def _method_flags(group: Any) -> None:
    group.add_argument("--n", metavar="N", type=positive, help="pipeline stages")
    group.add_argument("--draft-layers", metavar="LS", type=positive, help="layers of the draft module")
    group.add_argument(
        "--m", metavar="M", type=positive, help="draft steps per round, or aggregation anchors"
    )
    group.add_argument("--width", metavar="W", nargs="+", type=positive, help="draft width, one or more")
    group.add_argument("--proposal", metavar="RULE", help="how a draft is proposed")
    group.add_argument("--schedule", metavar="NAME", help="when drafting runs")
    group.add_argument("--runtime", metavar="NAME", help="pipeline stages in lockstep or distributed")
    group.add_argument("--layout", metavar="NAME", help="ranks of a distributed pipeline: n+1 or n")
    group.add_argument("--checkpoint", metavar="PATH", help="weights of the drafter")
    group.add_argument("--untrained", action="store_const", const="true", help="allow a random drafter")
    group.add_argument(
        "--option", metavar="KEY=VALUE", action="append", help="any other option of the method"
    )


def _prompt_flags(group: Any) -> None:
    group.add_argument(
        "--benchmark", metavar="NAME", action="append", help=f"repeatable; {', '.join(BENCHMARKS)}"
    )
    group.add_argument("--prompts", metavar="K", type=positive, help="first K prompts of each benchmark")
    group.add_argument("--turns", choices=get_args(Turns), default="first", help="turns of a dialogue")
    group.add_argument("--template", metavar="NAME", help="chat template by name, for a target without one")
    group.add_argument("--data-dir", metavar="DIR", type=path, help="directory with the benchmarks' files")


def _decoding_flags(group: Any) -> None:
    group.add_argument("--temperature", metavar="T", action="append", type=temperature, help="repeatable; 0")
    group.add_argument("--top-k", metavar="K", type=natural, default=50, help="at temperature > 0; 0 is off")
    group.add_argument("--top-p", metavar="P", type=share, default=1.0, help="at temperature > 0; 1 is off")
    group.add_argument("--max-new-tokens", metavar="N", type=positive, default=512, help="cap per answer")
    group.add_argument(
        "--seed", metavar="S", type=seed, default=0, help="every prompt's seed derives from it"
    )


def _run_flags(group: Any) -> None:
    group.add_argument("--repeats", metavar="R", type=positive, default=1, help="decode everything R times")
    group.add_argument(
        "--warmup", metavar="K", type=natural, default=1, help="prompts decoded before the clock"
    )
    group.add_argument("--results", metavar="DIR", type=path, help="the run's directory; named by default")
    group.add_argument(
        "--fresh", action="store_true", help="keep the run's earlier records aside and begin anew"
    )
    group.add_argument("--execute-code", action="store_true", help="run generated programs to score them")
    group.add_argument(
        "--timeout", metavar="SECONDS", type=seconds, help="a prompt that takes a method longer has failed"
    )
    group.add_argument(
        "--emulate", metavar="PROFILE", help="repeat the traces with a process per device and timed waits"
    )
    group.add_argument(
        "--timings", action="store_true", help="of a process per stage: where every cycle's time went"
    )
    group.add_argument(
        "--no-baseline", action="store_true", help="leave AR out: no speedup, no lossless check"
    )
    add_json_flag(group)


def parse(argv: Sequence[str]) -> RunRequest:
    """The request of a command line. Raises ``UsageError`` with one line."""
    args = parser().parse_args(argv)
    given = {name: str(getattr(args, name)) for name in METHOD_FLAGS if getattr(args, name) is not None}
    pairs = parse_pairs(args.option or ())
    twice = sorted(given.keys() & pairs.keys())
    if twice:
        raise UsageError(f"option {twice[0]} is given both as a flag and by --option")
    if "width" in pairs:
        raise UsageError("the width is given by --width, not by --option")
    return RunRequest(
        method=args.method,
        mode=args.mode,
        preset=DEFAULT_PRESET if args.preset is None and args.target is None else args.preset,
        target=args.target,
        options={**given, **pairs},
        widths=_once("--width", args.width or ()),
        benchmarks=_once("--benchmark", args.benchmark or BENCHMARKS),
        prompts=args.prompts,
        turns=args.turns,
        temperatures=_once("--temperature", args.temperature or (0.0,)),
        top_k=args.top_k,
        top_p=args.top_p,
        max_new_tokens=args.max_new_tokens,
        seed=args.seed,
        dtype=args.dtype,
        repeats=args.repeats,
        warmup=args.warmup,
        data_dir=args.data_dir,
        results=args.results,
        execute_code=args.execute_code,
        baseline=not args.no_baseline,
        template=args.template,
        plugins=tuple(args.plugin or ()),
        emulate=args.emulate,
        timings=args.timings,
        timeout=args.timeout,
        fresh=args.fresh,
        json=args.json,
    )


def _once(flag: str, values: Sequence[Any]) -> tuple[Any, ...]:
    """Values without repetition: a second one would be a second record of the same key."""
    for value in values:
        if list(values).count(value) > 1:
            raise UsageError(f"argument {flag}: {value} is given twice")
    return tuple(values)
