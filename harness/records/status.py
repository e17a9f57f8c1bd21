"""The losslessness status of stored records, from their ids: a status in a file is no more than a claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harness.records.files import read_baseline, read_records
from harness.records.record import Lossless, Record


def read_run(directory: Path, *, is_ar: bool) -> tuple[list[Record], list[Record]]:
    """The records of a run directory and AR's beside them, ``restated``. A run of AR is its own baseline."""
    records = read_records(directory)
    baseline = records if is_ar else read_baseline(directory)
    return restated(records, baseline), baseline


def restated(records: Sequence[Record], baseline: Sequence[Record]) -> list[Record]:
    """``records`` with the status that their ids and AR's in ``baseline`` allow.

    The ids decide what is exact. A tie was decided by the target, which is not asked again: it stands as
    far as its ``doubt`` fits the ids. Without any baseline, and for traces that were not decoded, statuses
    stay as they are.
    """
    reference = {ar.unit: ar for ar in baseline if ar.error is None}
    if not reference:
        return list(records)
    return [_restated(record, reference.get(record.unit)) for record in records]


def _restated(record: Record, ar: Record | None) -> Record:
    if record.error is not None or record.mode != "decode":
        return record
    status = _status(record, ar)
    if status == record.lossless:
        return record
    parting = None if ar is None else first_difference(ar.output_ids, record.output_ids)
    doubt = {"position": parting} if status == "mismatch" and parting is not None else None
    return replace(record, lossless=status, doubt=doubt)


def by_ids(record: Record, ar: Record | None) -> Lossless | None:
    """The status that ids and temperature alone decide; None where the target has to be asked."""
    if record.error is not None or ar is None or ar.error is not None:
        return "unchecked"
    if record.temperature > 0:
        return "sampled"
    return "exact" if record.output_ids == ar.output_ids else None


def _status(record: Record, ar: Record | None) -> Lossless:
    status = by_ids(record, ar)
    if status is not None or ar is None:
        return status or "unchecked"
    parting = first_difference(ar.output_ids, record.output_ids)
    if record.lossless == "unchecked" or (record.lossless == "tie" and _fits(record.doubt, parting)):
        return record.lossless
    return "mismatch"


def _fits(doubt: Mapping[str, float] | None, parting: int | None) -> bool:
    """Whether a tie may be one: AR's ids differ, and a token from there on was forgiven. Records from
    before ties had a ``doubt`` are believed the latter."""
    if parting is None or doubt is None:
        return parting is not None
    gap, allowed = doubt.get("gap", float("inf")), doubt.get("allowed", 0.0)
    return doubt.get("position", -1) >= parting and gap <= allowed


def mismatches(records: Sequence[Record], baseline: Sequence[Record], most: int = 10) -> list[str]:
    """Where outputs part from AR's without being ties, a line for each of the first ``most``."""
    reference = {ar.unit: ar for ar in baseline if ar.error is None}
    found = [r for r in records if r.lossless == "mismatch" and r.error is None and r.unit in reference]
    lines = [_parting(record, reference[record.unit]) for record in found[:most]]
    return lines + ([f"and {len(found) - most} more outputs with a mismatch"] if len(found) > most else [])


def _parting(record: Record, ar: Record) -> str:
    """In words; positions count from 0 at the first output token."""
    position = first_difference(ar.output_ids, record.output_ids)
    if position is None:
        position = min(len(ar.output_ids), len(record.output_ids))
    expected, got = (
        f"token {ids[position]}" if position < len(ids) else "the end"
        for ids in (ar.output_ids, record.output_ids)
    )
    decided = (record.doubt or {}).get("position", position)
    tie = "" if decided == position else f" (a tie there; the first token no tie explains is at {decided:g})"
    return (
        f"mismatch: {record.benchmark} {record.prompt_id}, turn {record.turn}, T = {record.temperature:g}, "
        f"width {record.width}: at output position {position} expected {expected}, got {got}{tie}"
    )


def first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    """First position at which both have a token and not the same; None if one begins the other."""
    pairs = zip(left, right, strict=False)
    return next((position for position, (a, b) in enumerate(pairs) if a != b), None)
