"""The command line of ``harness.check``."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import platform
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import get_args

import torch

from harness.checks import output, real_checks, sizes, worlds
from harness.checks.catalogue import IDS, chosen, planned, run_checks
from harness.checks.outcome import Outcome
from harness.checks.subject import Subject
from harness.checks.watch import watching
from harness.cli.arguments import DEFAULT_PRESET, Dtype
from harness.cli.entry import Parser, add_json_flag, path, positive, print_json, seconds
from harness.cli.options import parse_pairs, typed
from methods import registry
from methods.errors import UsageError

REAL_PROMPTS = 4


def parser() -> argparse.ArgumentParser:
    p = Parser(
        prog="python -m harness.check",
        description="Check that a decoding method's output is the target's own: on table targets and tiny "
        "models of every family, and with --real on a real target.",
    )
    p.add_argument("--method", metavar="NAME", help="default: the built-in methods, and this package's runs")
    p.add_argument("--plugin", metavar="MODULE", action="append", help="import a module with methods")
    p.add_argument("--option", metavar="KEY=VALUE", action="append", help="an option of the method")
    p.add_argument("--n", metavar="N", nargs="+", type=positive, help="pipeline stages, one or more")
    p.add_argument("--width", metavar="W", nargs="+", type=positive, help="draft widths, one or more")
    p.add_argument("--only", metavar="C1,C4", help=f"these checks; {IDS[0]} to {IDS[-1]}")
    p.add_argument("--size", metavar="NAME", default="quick", help=f"{', '.join(sizes.SIZES)}; quick")
    p.add_argument("--prompts", metavar="K", type=positive, help="prompts per target; set by --size")
    p.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=seconds,
        help="a check that takes longer has failed; set by --size",
    )
    p.add_argument("--real", action="store_true", help="also decode benchmark prompts on a preset's target")
    p.add_argument("--preset", metavar="NAME", help=f"target of --real; {DEFAULT_PRESET}")
    p.add_argument("--dtype", choices=get_args(Dtype), help="of --real; the preset's")
    p.add_argument("--checkpoint", metavar="PATH", help="trained drafter, for --real; else a random one")
    p.add_argument("--data-dir", metavar="DIR", type=path, help="directory with the benchmarks' files")
    add_json_flag(p)
    return p


def execute(argv: Sequence[str]) -> int:
    """Run the checks of a command line and print them; returns 0 or 1. Raises ``UsageError``."""
    args = parser().parse_args(argv)
    for module in args.plugin or ():
        registry.load_plugin(module)
    size = sizes.named(args.size).but(args.prompts, args.timeout)
    checks = chosen(None if args.only is None else args.only.split(","))
    subjects = subjects_of(args)
    for subject in subjects:
        with watching():  # a target changed by this is built anew for the checks
            subject.build(worlds.family("llama"), 1)  # refuses options that cannot be used
    real = _real(args, subjects)
    started = time.perf_counter()
    outcomes: list[Outcome] = []
    plan = planned(subjects, checks, harness=args.method is None)
    with output.Bar(plan) as bar:
        tiny = one_thread(run_checks(plan, size, bar.showing))
        for outcome in itertools.chain(tiny, real):
            if not outcomes or outcomes[-1].subject != outcome.subject:
                bar.print(output.heading(outcome))
            bar.print(output.line(outcome))
            outcomes.append(outcome)
    ran = {"size": args.size, **dataclasses.asdict(size), "python": platform.python_version()}
    text, content = output.report(checks, outcomes, ran, time.perf_counter() - started)
    print(text, flush=True)
    print_json(content, args.json)
    statuses = {outcome.status for outcome in outcomes}
    return int("failed" in statuses or "passed" not in statuses)


def one_thread(outcomes: Iterator[Outcome]) -> Iterator[Outcome]:
    """Tiny matrices are faster on one thread, and results must not depend on the machine's number."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield from outcomes
    finally:
        torch.set_num_threads(threads)


def subjects_of(args: argparse.Namespace) -> list[Subject]:
    """What a command line asks to check; ``UsageError`` for what does not fit together."""
    if not args.real:
        for name in ("checkpoint", "preset", "dtype", "data_dir"):
            if getattr(args, name):
                flag = name.replace("_", "-")
                raise UsageError(f"--{flag} belongs to a real target: give --real as well")
    if args.method is None:
        given = [f"--{name}" for name in ("option", "n", "width", "checkpoint") if getattr(args, name)]
        if given:
            raise UsageError(f"{given[0]} needs --method NAME; known: {', '.join(registry.names())}")
        return builtin()
    options = typed(args.method, parse_pairs(args.option or ()))
    axes = []
    for name in ("n", "width"):
        values = getattr(args, name)
        if values is not None:
            if name in options:
                raise UsageError(f"option {name} is given both as a flag and by --option")
            typed(args.method, {name: str(values[0])})  # refuses a method without it
        axes.append([{name: value} for value in dict.fromkeys(values)] if values else [{}])
    return [Subject.of(args.method, {**options, **n, **width}) for n, width in itertools.product(*axes)]


def builtin() -> list[Subject]:
    """The methods of this package, as chains and as trees. C16 runs the pipelines' other runtime."""
    return [
        Subject.of("autoregressive"),
        Subject.of("ngram"),
        Subject.of("eagle3", {"m": 5}, "eagle3 chain"),
        Subject.of("eagle3", {"m": 3, "width": 4}, "eagle3 tree W=4"),
        *(
            Subject.of(name, {**options, "width": width}, f"{label} W={width}")
            for label, name, options in (
                ("ppsd", "ppsd", {}),
                ("spd pre-step", "spd", {"draft_layers": 2}),
                ("spd post-step", "spd", {"draft_layers": 2, "schedule": "post-step"}),
            )
            for width in (1, 4)
        ),
    ]


def _real(args: argparse.Namespace, subjects: Iterable[Subject]) -> Iterator[Outcome]:
    if not args.real:
        return iter(())
    preset, prompts = args.preset or DEFAULT_PRESET, args.prompts or REAL_PROMPTS
    world = real_checks.load(preset, args.dtype, prompts, args.data_dir)
    return (real_checks.identity(subject, world, args.checkpoint) for subject in subjects)
