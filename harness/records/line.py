"""The line of JSON that stores a record."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, get_args

from harness.records.record import STEP_COLUMNS, Lossless, Mode, Record, StepArrays
from methods.errors import UsageError

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
