"""A run's directory: held, described by its manifest, with the record files of all processes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from harness import manifest
from harness.journal import Journal, exclusive
from harness.plan import Plan
from harness.records import Record, read_records, record_files


def enter(stack: ExitStack, plan: Plan, argv: Sequence[str]) -> None:
    """Hold the directory of ``plan`` until ``stack`` closes. The first process describes it for all.

    Raises ``UsageError`` if it is in use, cannot be written or belongs to another configuration.
    """
    shard = plan.shard
    with shard.first():
        stack.enter_context(exclusive(plan.directory, shard.own(".lock")))
        if shard.rank == 0:
            start = manifest.invocation(argv) | {"prompt_sources": plan.sources, "processes": shard.world}
            manifest.enter(plan.directory, plan.config, start)


def journal(stack: ExitStack, plan: Plan, stem: str) -> Journal:
    """This process's file of ``stem``, closed with ``stack``; it knows what the others held before."""
    path = plan.directory / f"{plan.shard.own(stem)}.jsonl"
    return stack.enter_context(Journal(path, record_files(plan.directory, stem)))


def collected(plan: Plan, own: Journal, stem: str) -> list[Record]:
    """On the first process, once the others are done, the records of all; elsewhere its own."""
    plan.shard.gather()
    if plan.shard.world == 1 or plan.shard.rank:
        return own.records()
    return read_records(plan.directory, stem)
