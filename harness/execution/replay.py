"""Replay: traces computed along AR's outputs instead of decoded, many methods per target pass.

AR's outputs are decoded once, many prompts at a time, into a run directory of their own, and shared
by every method with the same target, prompts, temperatures and seed. Nothing here is timed: the
seconds of these records are None, and ``mode`` says why.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

from tqdm import tqdm

from harness.cli.time_limit import limit
from harness.execution import run_directory
from harness.execution.arm import Arm, Unit
from harness.execution.plan import AR, REPLAY_BATCH, Plan, reference_plan
from harness.execution.runner import Outcome, ended, in_order, units
from harness.execution.target_watch import TargetWatch
from harness.execution.witness import TraceError
from harness.records.manifest import fingerprint
from harness.records.record import RECORDS, Record, StepArrays
from methods.core import DecodeResult, Step
from methods.decoding.trace import layers_fault, trace_fault
from methods.errors import ENDS_A_RUN, UsageError, describe_failure


def run(plans: Sequence[Plan], argv: Sequence[str]) -> list[Outcome]:
    """Replay every plan, continuing what their directories hold; AR's outputs come first.

    The plans differ in nothing but the method. Raises ``UsageError`` before anything runs for a
    method that cannot be replayed, or plans that do not share AR's outputs; ``TargetChanged`` if a method
    changed the target.
    """
    for plan in plans:
        _check(plan)
    references = {fingerprint(reference_plan(plan).config): reference_plan(plan) for plan in plans}
    if len(references) != 1:
        raise UsageError("methods are replayed together only on the same target, prompts and seed")
    (reference,) = references.values()
    with ExitStack() as stack:
        (ar,) = _open(stack, reference, argv)
        own = [[ar] if plan.request.method == AR else _open(stack, plan, argv) for plan in plans]
        arms = [arm for each in own for arm in each if arm is not ar]
        named = [plan.request.method for plan in plans]
        busy = {id(ar.plan)} if any(_missing(ar, unit) for unit in units(ar.plan)) else set()
        with TargetWatch(reference.seal, named, [ar.journal]):
            outputs = _decode_missing(ar)
        busy |= {id(arm.plan) for arm in arms if any(_owes(arm, record) for record in outputs)}
        journals = list(dict.fromkeys(arm.journal for arm in arms))
        with TargetWatch(reference.seal, named, journals) as watch:
            _replay(ar, outputs, arms, watch)
        return [
            ended(plan, Outcome(_collected(plan, first), []), idle=id(first.plan) not in busy)
            for plan, (first, *_) in zip(plans, own, strict=True)
        ]


def _check(plan: Plan) -> None:
    for width, method in plan.methods.items():
        for temperature in plan.request.temperatures:
            if not method.can_replay(plan.sampling(temperature, 0)):
                raise UsageError(
                    f"method {method.name!r} at width {width} and temperature {temperature:g} "
                    "cannot be replayed; use --mode decode"
                )


def _open(stack: ExitStack, plan: Plan, argv: Sequence[str]) -> list[Arm]:
    """The arms of a plan, its directory held until ``stack`` closes."""
    run_directory.enter(stack, plan, argv)
    journal = run_directory.journal(stack, plan, RECORDS)
    return [Arm(plan, method, width, journal) for width, method in plan.methods.items()]


def _collected(plan: Plan, arm: Arm) -> list[Record]:
    return in_order(plan, run_directory.collected(plan, arm.journal, RECORDS))


def _decode_missing(ar: Arm) -> list[Record]:
    """AR's records of all units, those that are not stored yet decoded in batches, turn by turn."""
    everything = list(units(ar.plan))
    todo = [unit for unit in everything if _missing(ar, unit)]
    tokens, started = 0, time.perf_counter()
    done = len(everything) - len(todo)
    with tqdm(total=len(everything), initial=done, unit="prompt", file=sys.stderr) as bar:
        bar.set_description("AR outputs", refresh=False)
        for turn in sorted({unit.turn for unit in todo}):
            for record in _answers(ar, [unit for unit in todo if unit.turn == turn]):
                tokens += len(record.output_ids)
                bar.set_postfix_str(f"{tokens / (time.perf_counter() - started):.0f} tok/s", refresh=False)
                bar.update()
    stored = (ar.stored(unit) for unit in everything)
    return [record for record in stored if record is not None]


def _missing(arm: Arm, unit: Unit) -> bool:
    record = arm.stored(unit)
    return record is None or record.error is not None


def _answers(ar: Arm, todo: Sequence[Unit]) -> Iterator[Record]:
    """Decode one turn of many dialogues and store each answer as it ends."""
    from methods.decoding.batched import Generator, Question  # needs torch

    plan = ar.plan
    blanks: dict[object, tuple[Unit, Record]] = {}
    questions = []
    for unit in todo:
        answers = ar.answers(unit)
        record = ar.blank(unit)
        if answers is None:
            yield _store(ar, unit, replace(record, error="an earlier turn of this dialogue failed"))
            continue
        record = replace(record, prompt_ids=plan.prompt_ids(unit.prompt, answers))
        blanks[record.key] = (unit, record)
        sampling = plan.sampling(unit.temperature, record.seed)
        questions.append(Question(record.key, record.prompt_ids, sampling))
    # Prompts of like length share a batch, so that little of it is padding.
    questions.sort(key=lambda question: len(question.prompt_ids))
    generator = Generator(plan.target, REPLAY_BATCH, plan.request.max_new_tokens, plan.stop_ids)
    for answer in generator.answers(questions):
        unit, record = blanks[answer.question.key]
        yield _store(ar, unit, _answered(ar, unit, record, answer.ids, answer.finish_reason))


def _answered(ar: Arm, unit: Unit, record: Record, ids: list[int], finish_reason: str) -> Record:
    text = ar.plan.target.tokenizer.decode(ids, skip_special_tokens=True)
    steps = [Step(0, 0, 1, ar.plan.target.num_layers, 0)] * max(0, len(ids) - 1)
    record = replace(
        record,
        output_ids=ids,
        finish_reason=finish_reason,
        steps=StepArrays.of(steps),
        text=text,
        score=ar.plan.score(unit.prompt, text),
    )
    return ar.judged(record, record)


def _store(arm: Arm, unit: Unit, record: Record) -> Record:
    record = replace(record, mode="replay", prefill_s=None, decode_s=None)
    arm.journal.append(record, replace=arm.stored(unit) is not None)
    return record


def _replay(ar: Arm, outputs: Sequence[Record], arms: Sequence[Arm], watch: TargetWatch) -> None:
    """Every output through every arm that lacks it; an output's target pass is shared by the arms."""
    from methods.decoding.replay import KnownOutput  # needs torch

    owed = [(record, [arm for arm in arms if _owes(arm, record)]) for record in outputs]
    owed = [(record, todo) for record, todo in owed if todo]
    if not owed:
        return
    seconds: dict[str, float] = defaultdict(float)
    for record, todo in tqdm(owed, unit="prompt", desc="replay", file=sys.stderr):
        target = ar.plan.target
        known = KnownOutput(
            target,
            record.prompt_ids,
            record.output_ids,
            ar.plan.sampling(record.temperature, record.seed),
            target.room(record.prompt_ids, ar.plan.request.max_new_tokens),
        )
        replayed = []
        for arm in todo:
            started, shared = time.perf_counter(), known.pass_s
            replayed.append(_replayed(arm, record, known))
            seconds[_label(arm)] += time.perf_counter() - started - (known.pass_s - shared)
        watch.look()
        for arm, found in zip(todo, replayed, strict=True):
            arm.journal.append(found, replace=_stored(arm, record) is not None)
        seconds["target passes, shared by all"] += known.pass_s
    for name, spent in seconds.items():
        print(f"replay: {name}: {spent:.1f} s for {len(owed)} prompts", file=sys.stderr)


def _label(arm: Arm) -> str:
    given = [f"{name.replace('_', '-')}={value}" for name, value in sorted(arm.plan.request.options.items())]
    return " ".join([arm.method.name, *given])


def _stored(arm: Arm, output: Record) -> Record | None:
    return arm.journal.get(replace(output, width=arm.width).key)


def _owes(arm: Arm, output: Record) -> bool:
    record = _stored(arm, output)
    return record is None or record.error is not None


def _replayed(arm: Arm, output: Record, known: object) -> Record:
    """The method's record of AR's ``output``; an exception becomes its ``error``."""
    record = replace(output, width=arm.width, method=arm.method.name, lossless="unchecked")
    if output.error is not None:
        return replace(record, error=f"AR failed: {output.error}")
    try:
        with limit(arm.plan.request.timeout, f"replay of {arm.words(record.key)}"):
            found = arm.method.replay(known)  # type: ignore[arg-type]
        traced = DecodeResult(output.output_ids, found.steps, 0.0, 0.0, "length")
        if fault := trace_fault(traced) or layers_fault(found.steps, arm.plan.target.num_layers):
            raise TraceError(fault)
    except ENDS_A_RUN:
        raise
    except BaseException as error:
        blank = replace(record, output_ids=[], finish_reason=None, steps=StepArrays(), text="", score=None)
        return replace(blank, error=describe_failure(error, type(arm.method).__module__))
    return replace(
        record,
        lossless="replayed",
        steps=StepArrays.of(found.steps),
        stages=len(found.steps[0].nodes) if found.steps else 1,
        expected=found.expected,
        acceptance=[None if a is None else round(a, 4) for a in found.acceptance] or None,
    )
