"""The checks a decoding method must pass, by id: one table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from harness.checks import (
    clock_checks,
    drafter_checks,
    guard_checks,
    law_checks,
    long_checks,
    output_checks,
    record_checks,
    state_checks,
    witness_checks,
)
from harness.checks.outcome import Measured, NotApplicable, Outcome
from harness.checks.sizes import Sizes
from harness.checks.subject import Subject
from harness.checks.watch import watching
from harness.cli.time_limit import OutOfTime, limit
from methods import registry
from methods.errors import ENDS_A_RUN, UsageError, describe_failure

HARNESS = "harness"
"""The subject of checks that concern no method."""

HANGS = "took too long"

OfMethod = Callable[[Subject, Sizes], Measured]


@dataclass(frozen=True, slots=True)
class Check:
    """``of_method`` looks at one method, ``of_harness`` at runs and records; one of them is set.
    ``cost`` is what it takes of the time of all, roughly: in seconds of a pipeline at the quick size."""

    id: str
    title: str
    of_method: OfMethod | None = None
    of_harness: Callable[[], Measured] | None = None
    cost: int = 1


CHECKS = (
    Check("C1", "greedy identity with plain decoding", output_checks.identity, cost=6),
    Check("C2", "half precision: exact, tie or mismatch", output_checks.half_precision, cost=5),
    Check("C3", "state after every verification", state_checks.states, cost=5),
    Check("C4", "rollback grid, forced acceptances", state_checks.rollback_grid, cost=6),
    Check("C5", "oracle, anti-oracle, mixed drafter", state_checks.drafters),
    Check("C6", "trace identities", output_checks.traces, cost=2),
    Check("C7", "stop ids", output_checks.stops, cost=2),
    Check("C8", "caps", output_checks.caps, cost=2),
    Check("C9", "sampling law", law_checks.law, cost=12),
    Check("C10", "reported draft law", law_checks.reported, cost=5),
    Check("C11", "T -> 0, and T = 1 over seeds", law_checks.temperatures),
    Check("C12", "same seed, same ids", law_checks.seeds),
    Check("C13", "one warping, ties included", law_checks.warping),
    Check("C14", "a tree of width 1 is the chain", state_checks.tree_of_width_one, cost=2),
    Check("C15", "tree mask and positions", state_checks.trees, cost=2),
    Check("C16", "lockstep and distributed", state_checks.runtimes, cost=12),
    Check("C17", "drafter's cached pass", drafter_checks.passes),
    Check("C18", "training rows", drafter_checks.training_rows),
    Check("C19", "EAGLE-3 training-time test", drafter_checks.training_time_test),
    Check("C20", "draft vocabulary", drafter_checks.vocabulary),
    Check("C21", "strict checkpoints", drafter_checks.checkpoints),
    Check("C22", "prompt tokens", of_harness=record_checks.prompt_tokens),
    Check("C23", "clocks", clock_checks.drafter_wait),
    Check("C24", "aggregation", of_harness=record_checks.aggregation),
    Check("C25", "resume after a kill", of_harness=record_checks.resume, cost=6),
    Check("C26", "one configuration per directory", of_harness=record_checks.one_configuration, cost=3),
    Check("C27", "better drafters, wider drafts", state_checks.better_drafters),
    Check("C28", "replay equals decoding", output_checks.replay, cost=2),
    Check("C29", "tables from records", of_harness=record_checks.tables),
    Check("C30", "caps, stop ids and seeds late in an output", long_checks.ends, cost=4),
    Check("C31", "many prompts through one object", long_checks.many_prompts, cost=3),
    Check("C32", "target, tokenizer and configuration left as they are", guard_checks.unchanged),
    Check("C33", "seconds within the harness's own clock", witness_checks.clocks),
    Check("C34", "trace as the target counts it", witness_checks.counts),
    Check("C35", "methods that exit, end their process or hang", of_harness=guard_checks.endings),
)
IDS = tuple(check.id for check in CHECKS)


def chosen(ids: Iterable[str] | None) -> tuple[Check, ...]:
    """The checks with these ids in the order of the table, None for all; ``UsageError`` for others."""
    if ids is None:
        return CHECKS
    wanted = [text.strip().upper() for text in ids]
    unknown = [text for text in wanted if text not in IDS]
    if unknown or not wanted:
        raise UsageError(f"unknown check {', '.join(unknown) or '(none given)'}; allowed: {', '.join(IDS)}")
    return tuple(check for check in CHECKS if check.id in wanted)


def run_check(check: Check, subject: Subject | None, sizes: Sizes) -> Outcome:
    """Run one check; whatever a method raises is a fault of the method, and so is a changed target.

    ``subject`` None is the harness. Usage errors of options and interrupts pass through.
    """
    started = time.perf_counter()
    figure = bound = reason = ""
    label = _label(subject)
    try:
        with watching() as watch, limit(sizes.limit_s, f"{check.id} of {label}"):
            found = _measure(check, subject, sizes)
        figure, bound = found.figure, found.bound
        status, reason = ("passed", "") if found.fault is None else ("failed", found.fault)
    except NotApplicable as why:
        status, reason = "not applicable", str(why)
    except ENDS_A_RUN:
        raise
    except OutOfTime as error:
        status, reason = "failed", f"{HANGS}: {error}"
    except BaseException as error:
        module = registry.get(subject.method).__module__ if subject is not None else ""
        status, reason = "failed", describe_failure(error, module)
    if watch.fault is not None:
        status, reason = "failed", watch.fault
    seconds = time.perf_counter() - started
    return Outcome(check.id, check.title, label, status, figure, bound, reason, seconds)  # type: ignore[arg-type]


def _label(subject: Subject | None) -> str:
    return HARNESS if subject is None else subject.label


def _measure(check: Check, subject: Subject | None, sizes: Sizes) -> Measured:
    if subject is None:
        if check.of_harness is None:
            raise NotApplicable("concerns a method; name one")
        return check.of_harness()
    if check.of_method is None:
        raise NotApplicable("concerns runs and records, not a method")
    return check.of_method(subject, sizes)


Showing = Callable[[Check, Subject | None], AbstractContextManager[None]]
"""Entered while a check of a subject runs."""


def run_checks(
    plan: Sequence[tuple[Check, Subject | None]],
    sizes: Sizes,
    showing: Showing = lambda check, subject: nullcontext(),
) -> Iterator[Outcome]:
    """The outcomes of ``plan`` one by one. After a check that took too long those left of its subject are
    not run, and have failed: a method that hangs once hangs again."""
    hangs: dict[str, str] = {}
    for check, subject in plan:
        label = _label(subject)
        if label in hangs:
            reason = f"not run, since {hangs[label]} took too long"
            yield Outcome(check.id, check.title, label, "failed", "", "", reason, 0.0)
            continue
        with showing(check, subject):
            outcome = run_check(check, subject, sizes)
        if outcome.reason.startswith(HANGS):
            hangs[label] = check.id
        yield outcome


def planned(
    subjects: Iterable[Subject], checks: Iterable[Check] = CHECKS, harness: bool = False
) -> list[tuple[Check, Subject | None]]:
    """All ``checks`` on all ``subjects``, then with ``harness`` those that concern no method."""
    checks = tuple(checks)
    plan: list[tuple[Check, Subject | None]] = [
        (check, subject) for subject in subjects for check in checks if check.of_method or not harness
    ]
    return plan + [(check, None) for check in checks if harness and check.of_harness]
