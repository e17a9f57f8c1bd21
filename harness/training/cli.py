"""The command line of training, as frozen requests."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.cli.arguments import DEFAULT_PRESET
from harness.cli.entry import HelpFormatter, Parser, path, positive, seed, temperature
from harness.config.recipes import recipe_names
from harness.execution.plan import RUNS
from harness.training.conversations import OFFLINE
from harness.training.generate import GenerateRequest
from harness.training.heads import HeadSpec, parse_head
from harness.training.publish import PublishRequest
from methods.errors import UsageError
from methods.models.loading import DTYPES

GENERATE, PUBLISH = "generate", "publish"


@dataclass(frozen=True, slots=True)
class TargetChoice:
    """``target`` and ``dtype`` None: the preset's."""

    preset: str
    target: str | None
    dtype: str | None = None


@dataclass(frozen=True, slots=True)
class TrainRequest:
    """``tokens`` and ``compute`` None: the recipe's; ``limit`` conversations of each source at most;
    ``vocabulary`` None: the data's most frequent tokens, else that of the drafter it names."""

    recipe: str
    heads: tuple[HeadSpec, ...]
    data: tuple[str, ...]
    tokens: int | None
    compute: str | None
    limit: int | None
    out: Path
    seed: int
    freeze_head: bool
    vocabulary: str | None


def train_parser() -> argparse.ArgumentParser:
    """Flags of ``python -m harness.train``."""
    p = _parser(
        "python -m harness.train",
        "Train drafters; 'generate' or 'publish' before the flags: see their --help.",
    )
    p.add_argument("--recipe", choices=recipe_names(), default="small", help="optimiser, lengths, budget")
    p.add_argument("--head", metavar="SPEC", action="append", required=True, help="repeatable; " + _SPECS)
    p.add_argument("--data", metavar="NAME", action="append", help=f"repeatable; {OFFLINE} without a hub")
    p.add_argument("--tokens", metavar="N", type=positive, help="budget in supervised tokens")
    p.add_argument("--compute", choices=("float32", "bfloat16"), help="the recipe's by default")
    p.add_argument("--limit", metavar="K", type=positive, help="conversations read of each source")
    p.add_argument(
        "--vocabulary",
        metavar="SOURCE",
        help="a drafter whose draft vocabulary to use (default: by count)",
    )
    p.add_argument("--freeze-head", action="store_true", help="keep the target's head rows untrained")
    p.add_argument(
        "--out", metavar="DIR", type=path, required=True, help="the same directory continues a run"
    )
    return p


def generate_parser() -> argparse.ArgumentParser:
    """Flags of ``python -m harness.train generate``."""
    p = _parser("python -m harness.train generate", "Let the target answer the prompts of chat data.")
    p.add_argument("--data", metavar="NAME", default=OFFLINE, help="where the prompts come from")
    p.add_argument(
        "--out", metavar="DIR", type=path, required=True, help="the same directory continues a run"
    )
    p.add_argument("--prompts", metavar="K", type=positive, help="at most so many prompts")
    p.add_argument("--tokens", metavar="N", type=positive, help="stop after so many answer tokens")
    p.add_argument("--batch", metavar="B", type=positive, default=96, help="sequences decoded at once")
    p.add_argument("--max-prompt", metavar="N", type=positive, default=192, help="longest prompt in tokens")
    p.add_argument("--max-new-tokens", metavar="N", type=positive, default=320, help="longest answer")
    p.add_argument(
        "--temperature", metavar="T", action="append", type=temperature, help="repeatable; 0, 0.7, 1"
    )
    p.add_argument("--dtype", choices=tuple(DTYPES), help="the preset's by default")
    return p


def publish_parser() -> argparse.ArgumentParser:
    """Flags of ``python -m harness.train publish``."""
    p = _parser("python -m harness.train publish", "Write a trained head to hand on, and what it measures.")
    p.add_argument("head", metavar="CHECKPOINT", type=path, help="a directory RUN/heads/LABEL")
    p.add_argument("--out", metavar="DIR", type=path, required=True, help="where the published head goes")
    p.add_argument("--int8", action="store_true", help="matrices in half the bytes, a scale for each row")
    return p


def parse(argv: Sequence[str]) -> tuple[TargetChoice, TrainRequest | GenerateRequest | PublishRequest]:
    """The request of a command line. Raises ``UsageError`` with one line."""
    if argv[:1] == [GENERATE]:
        return _generate(generate_parser().parse_args(argv[1:]))
    if argv[:1] == [PUBLISH]:
        return _publish(publish_parser().parse_args(argv[1:]))
    args = train_parser().parse_args(argv)
    heads = tuple(parse_head(text) for text in args.head)
    labels = [head.label for head in heads]
    for label in labels:
        if labels.count(label) > 1:
            raise UsageError(f"head {label} is given twice")
    request = TrainRequest(
        recipe=args.recipe,
        heads=heads,
        data=tuple(args.data or (OFFLINE,)),
        tokens=args.tokens,
        compute=args.compute,
        limit=args.limit,
        out=args.out,
        seed=args.seed,
        freeze_head=args.freeze_head,
        vocabulary=args.vocabulary,
    )
    return TargetChoice(args.preset, args.target), request


def _generate(args: argparse.Namespace) -> tuple[TargetChoice, GenerateRequest]:
    heats = tuple(args.temperature or (0.0, 0.7, 1.0))
    request = GenerateRequest(
        data=args.data,
        out=args.out,
        batch=args.batch,
        prompts=args.prompts,
        tokens=args.tokens,
        max_prompt=args.max_prompt,
        max_new_tokens=args.max_new_tokens,
        temperatures=heats,
        seed=args.seed,
    )
    return TargetChoice(args.preset, args.target, args.dtype), request


def _publish(args: argparse.Namespace) -> tuple[TargetChoice, PublishRequest]:
    if args.target is not None:
        raise UsageError("publish measures on a preset's prompts and target: give --preset, not --target")
    request = PublishRequest(head=args.head, out=args.out, preset=args.preset, runs=RUNS, int8=args.int8)
    return TargetChoice(args.preset, None), request


_SPECS = "spd[:n=8,layers=3,schedule=pre-step], eagle3[:steps=7], ppsd[:n=8,head=layer]"


def _parser(prog: str, description: str) -> argparse.ArgumentParser:
    p = Parser(
        prog=prog,
        description=description,
        formatter_class=HelpFormatter,
    )
    p.add_argument("--preset", metavar="NAME", default=DEFAULT_PRESET, help="target preset")
    p.add_argument("--target", metavar="ID|PATH", help="another target by hub id or path")
    p.add_argument("--seed", metavar="S", type=seed, default=0, help="initial weights, order, draws")
    return p
