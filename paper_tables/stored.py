"""The committed form of a run's records: per prompt the totals the tables need, and nothing else.

One file per row, size, temperature and mode. Its first line says how it was made, the others are
the prompts, or, for a row that could not be run, there is only a ``reason``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.records.journal import write_whole
from harness.records.record import Mode, Record, StepArrays
from methods.errors import UsageError
from paper_tables.plan import Row

FORMAT = 1
FOLDER = "records"
"""Beside a preset's tables."""
COLUMNS = ("drafted", "accepted", "emitted", "target_layers", "draft_layers", "depth", "nodes", "steps")
_FIELDS = ("benchmark", "prompt_id", "turn", "repeat", "lossless", "error", "score", "decode_s", *COLUMNS)
_BASELINE = ("ar_decode_s", "ar_tokens")


@dataclass(frozen=True)
class Stored:
    """Records of one row at one temperature and of its AR arm, or why there are none."""

    header: Mapping[str, Any]
    records: list[Record]
    baseline: list[Record]

    @property
    def reason(self) -> str | None:
        return self.header.get("reason")


def file_of(
    folder: Path, row: Row, size: str, temperature: float, mode: Mode, profile: str | None = None
) -> Path:
    """``profile`` names the devices of records that are not of this machine."""
    kind = mode if profile is None else f"{mode}-{profile}"
    return folder / FOLDER / size / f"{row.slug}-T{temperature:g}-{kind}.jsonl"


def write(
    path: Path,
    header: Mapping[str, Any],
    records: Sequence[Record] = (),
    baseline: Iterable[Record] = (),
) -> None:
    """Store ``records``; ``header`` is kept as it is. Raises ``UsageError`` if the disk refuses."""
    reference = {_pair(record): record for record in baseline}
    first = records[0] if records else None
    about = {
        "format": FORMAT,
        **header,
        "method": first.method if first else header.get("method"),
        "width": first.width if first else None,
        "temperature": first.temperature if first else None,
        "num_layers": first.num_layers if first else None,
        "stages": max((record.stages for record in records), default=1),
        "mode": first.mode if first else None,
        "columns": [*_FIELDS, *(_BASELINE if reference else ())],
    }
    lines = [json.dumps(about, ensure_ascii=False)]
    lines += [
        json.dumps(_values(record, reference), ensure_ascii=False, allow_nan=False) for record in records
    ]
    write_whole(path, "\n".join(lines) + "\n")


def _pair(record: Record) -> tuple[str, str, int, int]:
    return (record.benchmark, record.prompt_id, record.turn, record.repeat)


def _values(record: Record, reference: Mapping[tuple[str, str, int, int], Record]) -> list[Any]:
    totals = {name: 0.0 if record.error is not None else record.total(name) for name in COLUMNS}
    totals["emitted"] = record.decoded  # an expectation of it is whole up to rounding
    values: list[Any] = [
        *_pair(record),
        record.lossless,
        record.error,
        record.score,
        None if record.decode_s is None else round(record.decode_s, 4),
        *(_short(total) for total in totals.values()),
    ]
    if reference:
        other = reference.get(_pair(record))
        if other is None or other.error is not None or other.decode_s is None:
            values += [None, None]
        else:
            values += [round(other.decode_s, 4), other.decoded]
    return values


def _short(value: float) -> int | float:
    return int(value) if value == int(value) else round(value, 4)


def read(path: Path) -> Stored:
    """The records of a file, each with its totals as ``expected``; ``UsageError`` if it is damaged."""
    try:
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        header = json.loads(lines[0])
        if header["format"] != FORMAT:
            raise UsageError(f"{path}: format {header['format']}, this version reads {FORMAT}")
        rows = [dict(zip(header["columns"], json.loads(line), strict=True)) for line in lines[1:]]
        records = [_record(header, row) for row in rows]
        pairs = zip(rows, records, strict=True)
        baseline = [_ar(row, record) for row, record in pairs if row.get("ar_decode_s") is not None]
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise UsageError(f"{path} is no record file of the tables: {error}") from error
    return Stored(header, records, baseline)


def _record(header: Mapping[str, Any], row: Mapping[str, Any]) -> Record:
    names = [name for name in COLUMNS if name != "steps"]
    return Record(
        benchmark=row["benchmark"],
        prompt_id=row["prompt_id"],
        turn=row["turn"],
        temperature=header["temperature"],
        width=header["width"],
        repeat=row["repeat"],
        prompt_ids=[],
        output_ids=[],
        finish_reason=None,
        prefill_s=None,
        decode_s=row["decode_s"],
        steps=StepArrays(**{name: [row[name]] for name in names}),
        lossless=row["lossless"],
        error=row["error"],
        method=header["method"],
        num_layers=header["num_layers"],
        stages=header["stages"],
        score=row["score"],
        scorer=header.get("scorers", {}).get(row["benchmark"]) or "",
        mode=header["mode"],
        expected={name: float(row[name]) for name in COLUMNS},
    )


def _ar(row: Mapping[str, Any], record: Record) -> Record:
    count = row["ar_tokens"]
    layers = float(count * record.num_layers)
    totals = {"drafted": 0, "accepted": 0, "depth": 0, "draft_layers": 0, "target_layers": layers}
    steps = {**totals, "emitted": count, "nodes": count}
    return Record(
        **{
            name: getattr(record, name)
            for name in ("benchmark", "prompt_id", "turn", "temperature", "repeat")
        },
        width=1,
        prompt_ids=[],
        output_ids=[],
        finish_reason=None,
        prefill_s=None,
        decode_s=row["ar_decode_s"],
        steps=StepArrays(**{name: [value] for name, value in steps.items()}),
        lossless="exact",
        error=None,
        num_layers=record.num_layers,
        expected={name: float(value) for name, value in (steps | {"steps": count}).items()},
    )
