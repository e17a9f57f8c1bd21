"""One decoded prompt as a typed record."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from methods.core import Step
from methods.errors import UsageError

Lossless = Literal["exact", "tie", "mismatch", "sampled", "replayed", "unchecked"]
"""Is the output the target's own? ``exact``: the ids of AR; ``tie``: differs from AR only where the
target's own arithmetic leaves it open; ``mismatch``: differs otherwise; ``sampled``: temperature > 0,
where the claim is about a law and not about ids; ``replayed``: nothing was decoded, the trace was
computed along AR's output; ``unchecked``: nothing to compare with."""

Mode = Literal["decode", "replay", "emulate", "project"]
"""``decode``: the method ran and was timed; ``replay``: see ``harness.execution.replay``, no times;
``emulate`` and ``project``: the trace of a recorded run on devices of a profile, see
``harness.devices.device_runs``."""

Key = tuple[str, str, int, float, int, int]
"""(benchmark, prompt_id, turn, temperature, width, repeat): what makes a record unique in its file."""

Unit = tuple[str, str, int, float, int]
"""(benchmark, prompt_id, turn, temperature, repeat): what records of several arms, AR's among them, share."""

RECORDS, BASELINE = "records", "baseline"
"""Stems of the two file sets of a run: the method's own records and those of its AR arm."""


@dataclass(frozen=True, slots=True)
class StepArrays:
    """A trace as columns, one entry per ``Step``; see ``methods.interface.Step`` for their meaning.

    ``nodes`` is the sum over the stages, whose number is the record's ``stages``.
    """

    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    emitted: list[int] = field(default_factory=list)
    target_layers: list[float] = field(default_factory=list)
    draft_layers: list[float] = field(default_factory=list)
    depth: list[int] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        lengths = {name: len(getattr(self, name)) for name in STEP_COLUMNS}
        if len(set(lengths.values())) > 1:
            raise UsageError(f"steps: arrays of unequal length {lengths}")

    def __len__(self) -> int:
        return len(self.emitted)

    @classmethod
    def of(cls, steps: Sequence[Step]) -> StepArrays:
        columns = {name: [getattr(step, name) for step in steps] for name in STEP_COLUMNS if name != "nodes"}
        return cls(**columns, nodes=[sum(step.nodes) for step in steps])


STEP_COLUMNS = tuple(column.name for column in dataclasses.fields(StepArrays))


@dataclass(frozen=True, slots=True)
class Record:
    """What one arm made of one prompt turn.

    ``turn`` counts from 1. ``output_ids`` starts with the token of the prefill, so
    ``sum(steps.emitted) == len(output_ids) - 1``. A prompt that failed has ``error`` set, no
    output and no ``finish_reason``. ``phases`` are seconds summed over the steps, by name;
    ``num_layers`` are the target's decoder layers, the L of every speedup formula; ``stages`` is
    the number of pipeline stages, 1 without a pipeline. ``scorer`` is what a ``score`` was given by
    ("stated v2"), empty in records from before it was stored. ``doubt`` is the token that a tie or a
    mismatch was decided by: its output ``position``, its ``gap`` to the target's first choice there and
    the gap ``allowed``, both in logits.

    In ``mode`` "replay" the seconds are None, in "emulate" and "project" those of other devices. A
    replay of drawn proposals has the ``expected`` totals of the step columns, which every figure
    uses, and ``acceptance`` by position; its ``steps`` are then one draw.
    """

    benchmark: str
    prompt_id: str
    turn: int
    temperature: float
    width: int
    repeat: int
    prompt_ids: list[int]
    output_ids: list[int]
    finish_reason: str | None
    prefill_s: float | None
    decode_s: float | None
    steps: StepArrays
    lossless: Lossless
    error: str | None
    method: str = ""
    category: str | None = None
    seed: int = 0
    turn_policy: str = "first"
    template_hash: str = ""
    thinking: bool = False
    num_layers: int = 0
    stages: int = 1
    text: str = ""
    score: float | None = None
    scorer: str = ""
    phases: Mapping[str, float] = field(default_factory=dict)
    mode: Mode = "decode"
    expected: Mapping[str, float] | None = None
    acceptance: list[float | None] | None = None
    doubt: Mapping[str, float] | None = None

    def total(self, column: str) -> float:
        """Sum of a column of the trace ("steps": their number), or its expectation."""
        if self.expected is not None:
            return self.expected[column]
        return float(len(self.steps) if column == "steps" else sum(getattr(self.steps, column)))

    @property
    def key(self) -> Key:
        return (self.benchmark, self.prompt_id, self.turn, self.temperature, self.width, self.repeat)

    @property
    def unit(self) -> Unit:
        return (self.benchmark, self.prompt_id, self.turn, self.temperature, self.repeat)

    @property
    def decoded(self) -> int:
        """N: tokens emitted after the token of the prefill."""
        return sum(self.steps.emitted)
