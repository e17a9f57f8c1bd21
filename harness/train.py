"""``python -m harness.train``: train drafters for a target; ``generate`` makes the data from it,
``publish`` writes a trained head in its final form.

Under torchrun every process takes its share of each step. Exit codes: 0 done; 2 the input cannot be
used; 130 interrupted (the same command continues).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from harness.cli.entry import exit_code
from harness.config.presets import load_preset
from harness.config.recipes import Recipe, load_recipe
from harness.records.journal import exclusive
from harness.records.manifest import enter, invocation
from harness.training.cli import TargetChoice, TrainRequest, parse
from harness.training.corpus import load_corpus
from harness.training.exclusion import ExclusionList
from harness.training.generate import GenerateRequest, generate
from harness.training.heads import build_task
from harness.training.publish import PublishRequest, publish
from harness.training.session import TrainingSession, configuration
from methods.drafters import checkpoint
from methods.drafters.source import resolve
from methods.drafters.vocabulary import DraftVocabulary
from methods.environment import environment_number, environment_rank, under_launcher
from methods.errors import UsageError
from methods.models.loading import DTYPES, load_target
from methods.models.target import Target
from methods.training.batches import Batches
from methods.training.trainer import Trainer, TrainerConfig
from methods.training.vocabulary import count_tokens, covered, most_frequent


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)  # end as on Ctrl-C
    try:
        return exit_code(lambda: execute(arguments), "interrupted; the same command continues")
    finally:
        signal.signal(signal.SIGTERM, previous)


def execute(arguments: Sequence[str]) -> int:
    """As ``main``, with exceptions passed through."""
    choice, request = parse(arguments)
    if isinstance(request, GenerateRequest):
        target, thinking = _load(choice, choice.dtype)
        request = dataclasses.replace(request, thinking=thinking)
        print(json.dumps({"answers": str(request.out), "tokens": generate(target, request, arguments)}))
    elif isinstance(request, PublishRequest):
        target, _ = _load(choice, None)
        print(json.dumps({"published": str(request.out), **publish(request, target)}))
    else:
        recipe = _recipe(request)
        with _ranks():
            target, thinking = _load(choice, recipe.compute)
            summary = train(target, request, recipe, arguments, thinking)
        print(json.dumps(summary), flush=True)
    return 0


def train(
    target: Target, request: TrainRequest, recipe: Recipe, argv: Sequence[str], thinking: bool = False
) -> dict[str, Any]:
    """Train and save the heads of ``request``; returns the summary."""
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    corpus = load_corpus(
        target,
        request.data,
        exclusion=ExclusionList.of_benchmarks(),
        max_length=recipe.max_length,
        held_out=recipe.held_out,
        limit=request.limit,
        thinking=thinking,
    )
    counts = count_tokens(corpus.train, target.vocab_size)
    if request.vocabulary is None:
        vocabulary = most_frequent(counts, recipe.vocabulary, target.stop_ids)
    else:
        vocabulary = _vocabulary_of(request.vocabulary, target)
    tasks = [build_task(spec, target, vocabulary, recipe.max_length, request.seed) for spec in request.heads]
    trainer = Trainer(
        target,
        vocabulary,
        tasks,
        [recipe.optimizer_for(task.method) for task in tasks],
        Batches(corpus.train, recipe.sequences, request.seed, rank, ranks),
        TrainerConfig(
            recipe.tokens or corpus.about["supervised_tokens"],
            recipe.micro_tokens,
            request.seed,
            DTYPES[recipe.compute],
            _workers(target, len(tasks)),
        ),
    )
    about = {
        "recipe": dataclasses.asdict(recipe),
        "seed": request.seed,
        "token_budget": trainer.config.tokens,
        "draft_vocabulary": {
            "size": vocabulary.size, "share_of_assistant_tokens": covered(counts, vocabulary),
        },
        "device": str(target.device),
        "processes": ranks,
    }  # fmt: skip
    session = TrainingSession(trainer, corpus, request.out, about, recipe.eval_every, rank)
    config = configuration(trainer, request.heads, corpus, recipe)
    with _entered(request.out, config, argv, rank), _threads(trainer.config.workers):
        return session.run()


@contextlib.contextmanager
def _entered(out: Path, config: dict[str, Any], argv: Sequence[str], rank: int) -> Iterator[None]:
    """The run's directory, which rank 0 holds; where it cannot, no rank goes on."""
    if rank:
        if not _from_first(False):
            raise UsageError(f"process {rank} cannot go on: process 0 failed, and says why")
        yield
        return
    entered = False
    try:
        with exclusive(out):
            enter(out, config, invocation(argv))
            entered = _from_first(True)
            yield
    finally:
        if not entered:
            _from_first(False)


def _from_first(value: bool) -> bool:
    """Rank 0's ``value``, on every rank."""
    told = [value]
    if dist.is_initialized():
        dist.broadcast_object_list(told, src=0)
    return told[0]


@contextlib.contextmanager
def _threads(workers: int) -> Iterator[None]:
    """Torch's own threads, divided among ``workers``."""
    cores = torch.get_num_threads()
    torch.set_num_threads(max(1, cores // workers))
    try:
        yield
    finally:
        torch.set_num_threads(cores)


def _vocabulary_of(source: str, target: Target) -> DraftVocabulary:
    """The draft vocabulary of the drafter at ``source``, made for this target."""
    directory = resolve(source)
    config, _, _ = checkpoint.read(directory, checkpoint.method_of(directory))
    checkpoint.check_target(config, target.shape, source)
    return DraftVocabulary(config.vocab, config.draft_ids)


def _workers(target: Target, heads: int) -> int:
    """Threads for heads and target pass. Ranks must meet in the same order in every sum, and a GPU is
    one queue: 1."""
    alone = target.device.type == "cpu" and not dist.is_initialized()
    return min(torch.get_num_threads(), heads + 1) if alone else 1


def _recipe(request: TrainRequest) -> Recipe:
    recipe = load_recipe(request.recipe)
    changes: dict[str, Any] = {}
    if request.tokens is not None:
        changes["tokens"] = request.tokens
    if request.compute is not None:
        changes["compute"] = request.compute
    if request.freeze_head:
        frozen = {k: dataclasses.replace(v, head_lr=0.0) for k, v in recipe.overrides.items()}
        changes |= {"optimizer": dataclasses.replace(recipe.optimizer, head_lr=0.0), "overrides": frozen}
    return dataclasses.replace(recipe, **changes)


def _load(choice: TargetChoice, dtype: str | None) -> tuple[Target, bool]:
    """The target, and whether its chat template is asked to think."""
    if choice.target is not None:
        return load_target(choice.target, dtype=dtype or "float32", device=_device()), False
    preset = load_preset(choice.preset)
    return load_target(preset.target, dtype=dtype or preset.dtype, device=_device()), preset.thinking


def _device() -> str:
    shared = dist.is_initialized() and torch.cuda.is_available()
    return f"cuda:{torch.cuda.current_device()}" if shared else "auto"


@contextlib.contextmanager
def _ranks() -> Iterator[None]:
    """The process group of a torchrun start; nothing otherwise."""
    if environment_number("WORLD_SIZE") in (None, 1):
        yield
        return
    if not under_launcher():
        raise UsageError(
            "WORLD_SIZE is set without RANK, MASTER_ADDR and MASTER_PORT: start with torchrun, or unset it"
        )
    if torch.cuda.is_available():
        torch.cuda.set_device(environment_rank()[1] % torch.cuda.device_count())
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
