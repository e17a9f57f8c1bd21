"""A run's directory: held, described by its manifest, with the record files of all processes."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from harness.execution.judge_answers import FOLDER
from harness.execution.plan import Plan
from harness.records import manifest
from harness.records.files import read_records, record_files
from harness.records.journal import Journal, exclusive
from harness.records.manifest import MANIFEST
from harness.records.record import RECORDS, Record
from methods.errors import UsageError

EARLIER = "earlier"
"""In a run's directory, the records that newer ones took the place of."""


def enter(stack: ExitStack, plan: Plan, argv: Sequence[str]) -> None:
    """Hold the directory of ``plan`` until ``stack`` closes. The first process describes it for all.

    Raises ``UsageError`` if it is in use, cannot be written, belongs to another configuration or holds
    records of other code that are not to be set aside.
    """
    shard = plan.shard
    with shard.first():
        stack.enter_context(exclusive(plan.directory, shard.own(".lock")))
        if shard.rank == 0:
            if plan.replaces == "all" or (plan.replaces == "other code" and _is_of_other_code(plan)):
                set_aside(plan.directory)
            start = manifest.invocation(argv) | {"prompt_sources": plan.sources, "processes": shard.world}
            manifest.enter(plan.directory, plan.config, start, plan.code)
        else:  # this process has imported the method by itself
            manifest.check_code(plan.directory, manifest.read_manifest(plan.directory), plan.code)


def _is_of_other_code(plan: Plan) -> bool:
    if not (plan.directory / MANIFEST).exists():
        return False
    fault = manifest.other_code(manifest.read_manifest(plan.directory), plan.code)
    if fault is not None:
        print(f"{plan.directory} holds {fault}", file=sys.stderr)
    return fault is not None


def set_aside(directory: Path) -> None:
    """Move what a run left in ``directory`` to a folder of its own in it, named after its start.

    The manifest goes last: a move that was cut off is completed by the next one. Raises ``UsageError``
    if the system refuses.
    """
    if not (directory / MANIFEST).exists():
        return
    place = _place(directory)
    files = [file for file in directory.iterdir() if file.is_file() and not file.name.startswith(".")]
    files += [directory / FOLDER] * (directory / FOLDER).exists()
    try:
        place.mkdir(parents=True, exist_ok=True)
        for file in sorted(files, key=lambda file: file.name == MANIFEST):
            file.replace(place / file.name)
    except OSError as error:
        raise UsageError(f"cannot move the records in {directory} to {place}: {error.strerror}") from error
    print(f"{directory}: the earlier records are in {place}", file=sys.stderr)


def _place(directory: Path) -> Path:
    try:
        started = str(manifest.read_manifest(directory).get("started_at"))
    except UsageError:
        started = "damaged"
    name, number = re.sub(r"[^0-9A-Za-z]+", "-", started.removesuffix("+00:00")), 1
    place = directory / EARLIER / name
    while (place / MANIFEST).exists():
        number += 1
        place = directory / EARLIER / f"{name}-{number}"
    return place


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


def finish(plan: Plan, idle: bool) -> None:
    """Keep when the run, which is complete, was so first; if this start was ``idle``, say when."""
    last = max(file.stat().st_mtime for file in record_files(plan.directory, RECORDS))
    date, known = manifest.finished(plan.directory, datetime.fromtimestamp(last, UTC))
    if idle and (known or plan.shard.world == 1):
        when = f"{datetime.fromisoformat(date):%Y-%m-%d %H:%M} UTC"
        print(f"{plan.directory}: finished on {when} with this code: nothing decoded", file=sys.stderr)
