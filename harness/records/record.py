"""One decoded prompt as a typed record, and the line of JSON that stores it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

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
    def decoded(self) -> int:
        """N: tokens emitted after the token of the prefill."""
        return sum(self.steps.emitted)


_EXPECTED = frozenset({*STEP_COLUMNS, "steps"})
_REQUIRED = tuple(
    item.name
    for item in dataclasses.fields(Record)
    if item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
)
_NAMES = frozenset(item.name for item in dataclasses.fields(Record))
_TYPES: dict[str, type | tuple[type, ...]] = {
    "benchmark": str,
    "prompt_id": str,
    "turn": int,
    "temperature": (int, float),
    "width": int,
    "repeat": int,
    "prompt_ids": list,
    "output_ids": list,
    "finish_reason": (str, type(None)),
    "prefill_s": (int, float, type(None)),
    "decode_s": (int, float, type(None)),
    "steps": dict,
    "error": (str, type(None)),
    "method": str,
    "category": (str, type(None)),
    "num_layers": int,
    "stages": int,
    "text": str,
    "score": (int, float, type(None)),
    "scorer": str,
    "phases": dict,
    "expected": (dict, type(None)),
    "acceptance": (list, type(None)),
    "doubt": (dict, type(None)),
}


_LARGEST = 1e100
"""Beyond it sums of squares leave floats: nothing that was counted or timed gets there."""


def _number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < _LARGEST


def _id(value: Any) -> bool:
    return type(value) is int


_ELEMENTS: Mapping[str, Callable[[Any], bool]] = {
    "prompt_ids": _id,
    "output_ids": _id,
    "phases": _number,
    "expected": _number,
    "doubt": _number,
    "acceptance": lambda value: value is None or _number(value),
}


def to_line(record: Record) -> bytes:
    """One line of JSON, newline included. Half a surrogate pair, which UTF-8 cannot hold, is escaped."""
    text = json.dumps(dataclasses.asdict(record), allow_nan=False, ensure_ascii=False)
    return text.encode(errors="backslashreplace") + b"\n"


def from_line(line: bytes | str) -> Record:
    """The record of one line; ``UsageError`` says what is wrong with it."""
    try:
        data = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"not a line of JSON: {error}") from error
    if not isinstance(data, dict):
        raise UsageError(f"a record is a JSON object, got {type(data).__name__}")
    _check_fields(data)
    if data.get("expected") is not None and not data["expected"].keys() >= _EXPECTED:
        raise UsageError(f"expected must be an object of {', '.join(sorted(_EXPECTED))}")
    return Record(
        **{**data, "temperature": float(data["temperature"]), "steps": _steps(data["steps"])},
    )


def _check_fields(data: Mapping[str, Any]) -> None:
    missing = [name for name in _REQUIRED if name not in data]
    if missing:
        raise UsageError(f"missing field {', '.join(missing)}")
    unknown = sorted(set(data) - _NAMES)
    if unknown:
        raise UsageError(f"unknown field {', '.join(unknown)}")
    for name, kind in _TYPES.items():
        if name in data and (not isinstance(data[name], kind) or isinstance(data[name], bool)):
            raise UsageError(f"field {name} has the wrong type: {type(data[name]).__name__}")
    for name, good in _ELEMENTS.items():
        if not all(map(good, _elements(data.get(name)))):
            raise UsageError(f"field {name} holds a value of the wrong type")
    if any(data[name] is not None and not 0 <= data[name] < _LARGEST for name in ("prefill_s", "decode_s")):
        raise UsageError("fields prefill_s and decode_s are seconds >= 0, or null")
    if not all(0 <= data.get(name, 0) < _LARGEST for name in ("num_layers", "stages")):
        raise UsageError("fields num_layers and stages are counts")
    if data.get("mode", "decode") not in get_args(Mode):
        raise UsageError(f"field mode is {data['mode']!r}; allowed: {', '.join(get_args(Mode))}")
    if data["lossless"] not in get_args(Lossless):
        raise UsageError(f"field lossless is {data['lossless']!r}; allowed: {', '.join(get_args(Lossless))}")


def _elements(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value or ()


def _steps(data: Mapping[str, Any]) -> StepArrays:
    if set(data) != set(STEP_COLUMNS) or not all(map(_numbers, data.values())):
        raise UsageError(f"steps must be an object of the arrays of numbers {', '.join(STEP_COLUMNS)}")
    return StepArrays(**data)


def _numbers(column: Any) -> bool:
    return isinstance(column, list) and all(map(_number, column))


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def read_records(directory: Path | str, stem: str = RECORDS) -> list[Record]:
    """All records of a run directory: ``<stem>.jsonl`` and the ``<stem>-*.jsonl`` of sharded ranks.

    Each key comes once; see ``latest``. A last line without its newline, left by a process killed
    in the middle of writing, is not a record. Raises ``UsageError`` with file and line number for a
    malformed line, and for a directory without any such file.
    """
    files = record_files(directory, stem)
    if not files:
        raise UsageError(f"no records in {directory}: expected {stem}.jsonl")
    return latest(record for file in files for record in read_file(file))


def read_baseline(directory: Path | str) -> list[Record]:
    """The records of the AR arm, empty if the run had none."""
    return read_records(directory, BASELINE) if record_files(directory, BASELINE) else []


def record_files(directory: Path | str, stem: str = RECORDS) -> list[Path]:
    directory = Path(directory)
    whole = directory / f"{stem}.jsonl"
    return [whole] * whole.exists() + sorted(directory.glob(f"{stem}-*.jsonl"))


def latest(records: Iterable[Record]) -> list[Record]:
    """Each key once, in order of first appearance: a later record replaces an earlier one, but an
    error never replaces a success."""
    by_key: dict[Key, Record] = {}
    for record in records:
        known = by_key.get(record.key)
        if known is None or record.error is None or known.error is not None:
            by_key[record.key] = record
    return list(by_key.values())


def torn(tail: bytes) -> bool:
    """Whether what follows the last newline is a record that never made it to the disk whole: its
    beginning, or the zeros that some file systems leave after a power cut."""
    return tail.startswith((b"{", b"\0"))


def read_file(path: Path) -> list[Record]:
    """The records of one file in the order written, superseded ones included."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    lines = content.split(b"\n")
    if torn(lines[-1]):
        lines[-1] = b""
    records = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            records.append(from_line(line))
        except UsageError as error:
            raise UsageError(f"{path}:{number}: {error}") from error
    return records
