"""The execution loop: every prompt through every arm, each result stored before the next begins."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING

from tqdm import tqdm

from harness.cli.time_limit import limit
from harness.execution import run_directory
from harness.execution.arm import Arm, Unit
from harness.execution.plan import AR, NO_WIDTH, Plan
from harness.execution.sharding import ALONE
from harness.execution.target_watch import TargetWatch
from harness.records.record import BASELINE, RECORDS, Record
from harness.records.status import restated
from methods.errors import ENDS_A_RUN, UsageError, describe_failure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.benchmarks import Prompt
    from harness.execution.cycle_log import CycleLog

WARMUP_TOKENS = 32


@dataclass(frozen=True)
class Outcome:
    """All records of a run, those of earlier starts included. Without a baseline arm of its own, AR
    is its own reference and every other method has none."""

    records: list[Record]
    baseline: list[Record]

    @property
    def clean(self) -> bool:
        """Nothing failed and nothing differed from AR."""
        everything = [*self.records, *self.baseline]
        return all(record.error is None and record.lossless != "mismatch" for record in everything)


def run(plan: Plan, argv: Sequence[str]) -> Outcome:
    """Execute ``plan`` in its directory, continuing what is there.

    Raises ``UsageError`` if the directory cannot be used or written, ``TargetChanged`` if a method
    changed the target. An interrupt passes through; the same command then continues.
    """
    with ExitStack() as stack:
        stack.enter_context(_as_many_threads_as_a_rank(plan))
        run_directory.enter(stack, plan, argv)
        journal = run_directory.journal(stack, plan, RECORDS)
        log = _cycle_log(stack, plan)
        arms = [Arm(plan, method, width, journal, log) for width, method in plan.methods.items()]
        reference, journals = None, [journal]
        if plan.baseline is not None:
            other = run_directory.journal(stack, plan, BASELINE)
            reference = Arm(plan, plan.baseline, NO_WIDTH, other)
            journals.append(other)
        with TargetWatch(plan.seal, [plan.request.method], journals) as watch:
            idle = not _Loop(plan, arms, reference, watch).run()
        records = in_order(plan, run_directory.collected(plan, journal, RECORDS))
        baseline = records if _is_reference(arms[0]) else []
        if reference is not None:
            baseline = in_order(plan, run_directory.collected(plan, reference.journal, BASELINE))
        return ended(plan, Outcome(restated(records, baseline), baseline), idle)


def _cycle_log(stack: ExitStack, plan: Plan) -> CycleLog | None:
    if not plan.request.timings:
        return None
    from harness.execution.cycle_log import CycleLog  # needs torch

    for method in plan.methods.values():
        method.distributed.timings = True  # type: ignore[attr-defined]
    return stack.enter_context(CycleLog(plan.directory))


@contextmanager
def _as_many_threads_as_a_rank(plan: Plan) -> Iterator[None]:
    """A device of a distributed pipeline on CPUs is one core, so AR beside it gets one, too."""
    facts = [width["facts"] for width in plan.config["widths"].values()]
    threads = [about["threads"] for about in facts if "ranks" in about]
    if not threads:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(min(threads))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def units(plan: Plan) -> Iterator[Unit]:
    """All prompt turns of this process in the order they are run; an answer precedes the turn that
    quotes it."""
    prompts = [prompt for place, prompt in enumerate(plan.prompts) if plan.shard.holds(place)]
    for repeat in range(plan.request.repeats):
        index = count()
        for temperature in plan.request.temperatures:
            for prompt in prompts:
                for turn in range(1, plan.turns(prompt) + 1):
                    yield Unit(prompt, turn, temperature, repeat, next(index))


def in_order(plan: Plan, records: Sequence[Record]) -> list[Record]:
    """Records in the order of the run's prompts, whatever process wrote them and when."""
    every = units(replace(plan, shard=ALONE))
    place = {
        (unit.prompt.benchmark, str(unit.prompt.prompt_id), unit.turn, unit.temperature, unit.repeat): i
        for i, unit in enumerate(every)
    }
    for record in records:
        if (*record.key[:4], record.repeat) not in place:
            raise UsageError(
                f"{plan.directory} holds a record that is not of this run: {record.benchmark} "
                f"{record.prompt_id}, turn {record.turn}, T = {record.temperature:g}"
            )
    return sorted(records, key=lambda record: (place[(*record.key[:4], record.repeat)], record.width))


def ended(plan: Plan, outcome: Outcome, idle: bool) -> Outcome:
    """``outcome``, after keeping when the run was finished if it is: all records there and none failed.
    ``idle``: this start had nothing to do."""
    count = sum(1 for _ in units(replace(plan, shard=ALONE))) * len(plan.methods)
    failed = any(record.error is not None for record in [*outcome.records, *outcome.baseline])
    if len(outcome.records) == count and not failed and not plan.shard.rank:
        run_directory.finish(plan, idle)
    return outcome


def _is_reference(arm: Arm) -> bool:
    return arm.method.name == AR


class _Loop:
    def __init__(self, plan: Plan, arms: list[Arm], reference: Arm | None, watch: TargetWatch) -> None:
        self.plan = plan
        self.watch = watch
        self.arms = arms
        self.reference = reference
        self.everyone = [reference, *arms] if reference is not None else arms

    def run(self) -> int:
        """Decode what is owed; returns how many units that were."""
        everything = list(units(self.plan))
        todo = [unit for unit in everything if self._open(unit)]
        if not todo:
            return 0
        self._warm_up()
        tokens, seconds = 0, 0.0
        done = len(everything) - len(todo)
        with tqdm(total=len(everything), initial=done, unit="prompt", file=sys.stderr) as bar:
            for unit in todo:
                bar.set_description(f"{unit.prompt.benchmark} T={unit.temperature:g}", refresh=False)
                for record in self._do(unit):
                    tokens, seconds = tokens + record.decoded, seconds + (record.decode_s or 0.0)
                if seconds:
                    bar.set_postfix_str(f"{tokens / seconds:.1f} tok/s", refresh=False)
                bar.update()
        return len(todo)

    def _open(self, unit: Unit) -> bool:
        """Whether an arm still owes a record, or a comparison that can be made by now."""
        return not all(self._settled(arm, arm.stored(unit)) for arm in self.everyone)

    def _settled(self, arm: Arm, record: Record | None) -> bool:
        if arm is self.reference or self.reference is None:
            return _succeeded(record)
        return record is not None and _succeeded(record) and record.lossless != "unchecked"

    def _do(self, unit: Unit) -> list[Record]:
        """Decode ``unit`` with all arms and store the results; returns the method's own.

        All, because seconds are compared with seconds of the same start only, also where one arm alone
        owes a record. AR is stored first, so a method's record on the disk has its reference there too.
        All arms continue AR's dialogue if there is one: the prompts stay the same and the times
        comparable.
        """
        decoded: dict[int, Record] = {}
        for arm in reversed(self.everyone) if unit.reversed else self.everyone:
            decoded[id(arm)] = arm.decode(unit, (self.reference or arm).answers(unit))
        self.watch.look()
        results = []
        for arm in self.everyone:
            record = decoded[id(arm)]
            record = arm.judged(record, self._compare_with(arm, unit, record))
            if record.error is not None:
                tqdm.write(
                    f"{record.method}, {record.benchmark} {record.prompt_id}: {record.error}", sys.stderr
                )
            arm.journal.append(record, replace=arm.stored(unit) is not None)
            if arm is not self.reference:
                results.append(record)
        return results

    def _compare_with(self, arm: Arm, unit: Unit, record: Record) -> Record | None:
        """AR's record to compare with; its own for AR itself, the reference by definition."""
        if arm is self.reference or _is_reference(arm):
            return record
        return self.reference.stored(unit) if self.reference is not None else None

    def _warm_up(self) -> None:
        """Decode a few prompts and forget them, so that no clock sees first-time work."""
        cap = min(self.plan.request.max_new_tokens, WARMUP_TOKENS)
        for prompt in self.plan.prompts[: self.plan.request.warmup]:
            for temperature in self.plan.request.temperatures:
                for arm in self.everyone:
                    self._warm_up_with(arm, prompt, temperature, cap)

    def _warm_up_with(self, arm: Arm, prompt: Prompt, temperature: float, cap: int) -> None:
        ids, sampling = self.plan.prompt_ids(prompt, []), self.plan.sampling(temperature, 0)
        place = f"{prompt.benchmark} {prompt.prompt_id}, T = {temperature:g}, width {arm.width}"
        what = f"warm-up of {arm.method.name}, {place} of {self.plan.directory}"
        try:
            with limit(self.plan.request.timeout, what):
                arm.witness.decode(ids, sampling, cap, self.plan.stop_ids)
        except ENDS_A_RUN:
            raise
        except BaseException as error:  # the run itself will record it
            print(
                f"warm-up of {arm.method.name}: {describe_failure(error, type(arm.method).__module__)}",
                file=sys.stderr,
            )


def _succeeded(record: Record | None) -> bool:
    return record is not None and record.error is None
