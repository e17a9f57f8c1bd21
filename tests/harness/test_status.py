"""What a record claims of its own output gives way to its ids."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import fake_world
import pytest

from harness.compare import Run
from harness.records.files import read_baseline, read_records
from harness.records.record import BASELINE, RECORDS, Record
from harness.records.status import restated
from harness.report.arms import read_arms
from harness.run import main

ARGUMENTS = ["--method", "fake-draft", "--benchmark", "gsm8k", "--prompts", "2", "--max-new-tokens", "16"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    fake_world.install(monkeypatch.setattr)
    assert main([*ARGUMENTS, "--results", str(tmp_path / "r")]) == 0
    return tmp_path / "r"


@pytest.fixture
def pair(folder: Path) -> tuple[Record, list[Record]]:
    return read_records(folder)[0], read_baseline(folder)


def edit(folder: Path, stem: str = RECORDS) -> None:
    """Another id in the middle of the first output."""
    path = folder / f"{stem}.jsonl"
    first, *others = path.read_text().splitlines(keepends=True)
    data = json.loads(first)
    data["output_ids"][7] += 1
    path.write_text("".join([json.dumps(data) + "\n", *others]))


@pytest.mark.parametrize("stem", [RECORDS, BASELINE])
def test_edited_ids_are_no_longer_exact(folder: Path, stem: str, capsys) -> None:
    edit(folder, stem)
    assert read_records(folder)[0].lossless == "exact"  # as the file has it
    assert [record.lossless for record in Run.read(folder).records] == ["mismatch", "exact"]
    assert [record.lossless for record in read_arms([folder])[0][0].records] == ["mismatch", "exact"]
    capsys.readouterr()
    assert main([*ARGUMENTS, "--results", str(folder)]) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["results"][-1]["lossless"] == "mismatch"


def status(record: Record, baseline: list[Record]) -> str:
    return restated([record], baseline)[0].lossless


def other(record: Record, position: int = 7) -> list[int]:
    return [token + (place == position) for place, token in enumerate(record.output_ids)]


def test_where_an_output_parts_is_said(pair) -> None:
    record, baseline = pair
    (found,) = restated([replace(record, output_ids=other(record))], baseline)
    assert (found.lossless, found.doubt) == ("mismatch", {"position": 7})


@pytest.mark.parametrize("claimed", ["mismatch", "tie", "sampled", "replayed", "unchecked", "exact"])
def test_equal_ids_are_exact(pair, claimed: str) -> None:
    record, baseline = pair
    assert status(replace(record, lossless=claimed), baseline) == "exact"


@pytest.mark.parametrize(
    ("doubt", "expected"),
    [
        ({"position": 7, "gap": 0.1, "allowed": 0.5}, "tie"),
        ({"position": 9, "gap": 0.1, "allowed": 0.5}, "tie"),
        ({"position": 6, "gap": 0.1, "allowed": 0.5}, "mismatch"),
        ({"position": 7, "gap": 0.6, "allowed": 0.5}, "mismatch"),
        ({}, "mismatch"),
        (None, "tie"),
    ],
)
def test_a_tie_stands_as_far_as_its_doubt_fits_the_ids(pair, doubt, expected: str) -> None:
    record, baseline = pair
    claimed = replace(record, lossless="tie", output_ids=other(record), doubt=doubt)
    assert status(claimed, baseline) == expected


def test_a_shorter_output_is_no_tie(pair) -> None:
    record, baseline = pair
    shorter = replace(record, lossless="tie", output_ids=record.output_ids[:-1])
    assert status(shorter, baseline) == "mismatch"


def test_other_ids_that_nobody_judged_stay_open(pair) -> None:
    record, baseline = pair
    assert status(replace(record, lossless="unchecked", output_ids=other(record)), baseline) == "unchecked"


def test_without_its_prompt_in_the_baseline_nothing_is_claimed(pair) -> None:
    record, baseline = pair
    assert status(record, baseline[1:]) == "unchecked"
    assert status(record, []) == "exact"  # nothing beside it: the claim of the file


def test_what_was_not_decoded_or_failed_keeps_its_status(pair) -> None:
    record, baseline = pair
    for changes in ({"mode": "emulate"}, {"mode": "replay", "lossless": "replayed"}, {"error": "E"}):
        kept = replace(record, **{"lossless": "tie", "output_ids": [], **changes})
        assert status(kept, baseline) == kept.lossless


def test_at_a_temperature_ids_prove_nothing(pair) -> None:
    record, baseline = pair
    warm = [replace(each, temperature=1.0) for each in (record, *baseline)]
    assert status(warm[0], warm[1:]) == "sampled"
