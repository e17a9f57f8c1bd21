"""One method's side of a run: it turns a prompt into a record, whatever happens."""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from harness.cli.time_limit import limit
from harness.execution.plan import Plan
from harness.execution.witness import TraceError, Witness
from harness.records.journal import Journal
from harness.records.line import to_line
from harness.records.record import Key, Record, StepArrays
from harness.records.status import by_ids
from methods.core import DecodeResult
from methods.errors import ENDS_A_RUN, describe, describe_failure
from methods.interface import DecodingMethod

if TYPE_CHECKING:
    from harness.benchmarks import Prompt
    from harness.execution.cycle_log import CycleLog


@dataclass(frozen=True)
class Unit:
    """One prompt turn of a run at one temperature; ``turn`` counts from 1, ``index`` within a repeat."""

    prompt: Prompt
    turn: int
    temperature: float
    repeat: int
    index: int

    @property
    def reversed(self) -> bool:
        """Whether the arms change places: on every other prompt, and the other way round on the next
        repeat, so that no arm always runs second on a warm machine."""
        return (self.index + self.repeat) % 2 == 1


@dataclass(frozen=True)
class Arm:
    """A method, the width it is recorded under and the journal it writes to; the ``log`` of a method
    with a process per stage, if its cycles are to be kept."""

    plan: Plan
    method: DecodingMethod
    width: int
    journal: Journal
    log: CycleLog | None = None

    @cached_property
    def witness(self) -> Witness:
        return Witness(self.method, self.plan.target)

    def key(self, unit: Unit, turn: int | None = None) -> Key:
        prompt = unit.prompt
        return (
            prompt.benchmark,
            str(prompt.prompt_id),
            unit.turn if turn is None else turn,
            unit.temperature,
            self.width,
            unit.repeat,
        )

    def words(self, key: Key) -> str:
        """A prompt turn of this arm in words that no other of the command has."""
        benchmark, prompt_id, turn, temperature, width, repeat = key
        return (
            f"{self.method.name}, {benchmark} {prompt_id}, turn {turn}, T = {temperature:g}, width {width}, "
            f"repeat {repeat} of {self.plan.directory}"
        )

    def stored(self, unit: Unit) -> Record | None:
        return self.journal.get(self.key(unit))

    def answers(self, unit: Unit) -> list[str] | None:
        """This arm's answers to the earlier turns, None if one of them failed."""
        records = [self.journal.get(self.key(unit, turn)) for turn in range(1, unit.turn)]
        texts = [record.text for record in records if record is not None and record.error is None]
        return texts if len(texts) == len(records) else None

    def decode(self, unit: Unit, answers: list[str] | None) -> Record:
        """The record of one prompt turn, not yet stored and not yet compared with AR.

        An exception of the method becomes the record's ``error``, one of ``sys.exit`` and of the time
        limit, too. Only what ends a run passes: interrupts, and a ``RunFailure``.
        """
        record = self.blank(unit)
        try:
            if answers is None:
                raise RuntimeError("an earlier turn of this dialogue failed")
            record = replace(record, prompt_ids=self.plan.prompt_ids(unit.prompt, answers))
            request = self.plan.request
            with limit(request.timeout, self.words(record.key)):
                seen = self.witness.decode(
                    record.prompt_ids,
                    self.plan.sampling(unit.temperature, record.seed),
                    request.max_new_tokens,
                    self.plan.stop_ids,
                )
            if fault := seen.fault(request.max_new_tokens, self.plan.stop_ids):
                raise TraceError(fault)
            result = seen.result
            self._log(unit, result)
            text = self.plan.target.tokenizer.decode(result.tokens, skip_special_tokens=True)
            score = self.plan.score(unit.prompt, text)
            decoded = replace(
                record,
                output_ids=[int(token) for token in result.tokens],
                finish_reason=result.finish_reason,
                prefill_s=result.prefill_s,
                decode_s=result.decode_s,
                steps=StepArrays.of(result.steps),
                stages=len(result.steps[0].nodes) if result.steps else 1,
                text=text,
                score=score,
                phases=phase_totals(result),
            )
            to_line(decoded)  # what cannot be stored (a NaN, a tensor) is this method's failure, too
        except ENDS_A_RUN:
            raise
        except BaseException as error:
            return replace(record, error=describe_failure(error, type(self.method).__module__))
        return decoded

    def _log(self, unit: Unit, result: DecodeResult) -> None:
        if self.log is not None:
            ranks = self.method.distributed  # type: ignore[attr-defined]
            self.log.append(self.key(unit), ranks.job.layout, result.steps, ranks.reports)

    def blank(self, unit: Unit) -> Record:
        benchmark, prompt_id, turn, temperature, width, repeat = self.key(unit)
        return Record(
            benchmark=benchmark,
            prompt_id=prompt_id,
            turn=turn,
            temperature=temperature,
            width=width,
            repeat=repeat,
            prompt_ids=[],
            output_ids=[],
            finish_reason=None,
            prefill_s=0.0,
            decode_s=0.0,
            steps=StepArrays(),
            lossless="unchecked",
            error=None,
            method=self.method.name,
            category=unit.prompt.category,
            seed=prompt_seed(self.plan.request.seed, benchmark, prompt_id, turn, repeat),
            turn_policy=self.plan.request.turns,
            template_hash=self.plan.chat_format["template_sha256"],
            thinking=self.plan.thinking,
            num_layers=self.plan.target.num_layers,
            scorer=self.plan.scorer(benchmark),
        )

    def judged(self, record: Record, reference: Record | None) -> Record:
        """``record`` compared with AR's of the same prompt; see ``harness.execution.losslessness``."""
        status = by_ids(record, reference)
        if status is not None or reference is None:
            return replace(record, lossless=status or "unchecked")
        return self._asked(record, reference)

    def _asked(self, record: Record, reference: Record) -> Record:
        """The target decides. If it cannot be asked, the question stays open."""
        from harness.execution.losslessness import judge  # needs torch

        try:
            verdict = judge(self.plan.target, record.prompt_ids, reference.output_ids, record.output_ids)
        except Exception as error:
            place = f"{record.benchmark} {record.prompt_id}"
            print(f"lossless check of {place}: {describe(error)}", file=sys.stderr)
            return replace(record, lossless="unchecked")
        return replace(
            record, lossless=verdict.status, doubt=verdict.doubt.as_record() if verdict.doubt else None
        )


def prompt_seed(seed: int, benchmark: str, prompt_id: str, turn: int, repeat: int) -> int:
    """A seed in [0, 2**32) that depends on nothing but what it is for: not on the order of prompts,
    the method or the platform."""
    name = "\n".join([str(seed), benchmark, prompt_id, str(turn), str(repeat)])
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")


def phase_totals(result: DecodeResult) -> dict[str, float]:
    """Seconds per phase, summed over the steps."""
    totals: Counter[str] = Counter()
    for step in result.steps:
        totals.update(step.phases)
    return {name: float(seconds) for name, seconds in totals.items()}
