"""Records survive what happens to files: torn lines, full disks, two processes, sharded ranks."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.records import journal as journal_module
from harness.records.files import read_baseline, read_records
from harness.records.journal import Journal, exclusive, write_whole
from harness.records.line import from_line, to_line
from harness.records.record import Record, StepArrays
from methods.core import Step
from methods.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]


def make(prompt_id: str = "p0", error: str | None = None, **changes: object) -> Record:
    record = Record(
        benchmark="gsm8k",
        prompt_id=prompt_id,
        turn=1,
        temperature=0.0,
        width=1,
        repeat=0,
        prompt_ids=[1, 2],
        output_ids=[] if error else [3, 4, 5],
        finish_reason=None if error else "length",
        prefill_s=0.5,
        decode_s=1.5,
        steps=StepArrays.of([Step(2, 1, 2, 8, 1.5, 2, (3, 0, 1))]),
        lossless="unchecked" if error else "exact",
        error=error,
    )
    return dataclasses.replace(record, **changes)


def test_stored_field_names_are_the_published_ones() -> None:
    data = json.loads(to_line(make()))
    published = [
        *("benchmark", "prompt_id", "turn", "temperature", "width", "repeat", "prompt_ids", "output_ids"),
        *("finish_reason", "prefill_s", "decode_s", "steps", "lossless", "error"),
    ]
    assert list(data)[: len(published)] == published
    columns = ["drafted", "accepted", "emitted", "target_layers", "draft_layers", "depth", "nodes"]
    assert list(data["steps"]) == columns
    assert data["steps"] == dict(zip(columns, [[2], [1], [2], [8], [1.5], [2], [4]], strict=True))


def test_line_round_trip() -> None:
    record = make(text="é\n", phases={"draft": 0.25}, score=1.0)
    line = to_line(record)
    assert line.count(b"\n") == 1
    assert from_line(line) == record


def test_steps_of_unequal_length_are_refused() -> None:
    with pytest.raises(UsageError, match="unequal length"):
        StepArrays(drafted=[1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("error"), "missing field error"),
        (lambda d: d.update(colour=1), "unknown field colour"),
        (lambda d: d.update(turn="1"), "field turn has the wrong type: str"),
        (lambda d: d.update(repeat=True), "field repeat has the wrong type: bool"),
        (lambda d: d.update(lossless="fine"), "lossless is 'fine'; allowed: exact"),
        (lambda d: d["steps"].pop("depth"), "steps must be an object of the arrays"),
        (lambda d: d["steps"].update(emitted=["a"]), "steps must be an object of the arrays of numbers"),
        (lambda d: d.update(text=5), "field text has the wrong type: int"),
        (lambda d: d.update(expected={}), "expected must be an object of accepted"),
        (lambda d: d.update(decode_s=float("nan")), "NaN is no number of JSON"),
        (lambda d: d.update(decode_s=-1.0), "prefill_s and decode_s are seconds >= 0"),
        (lambda d: d.update(output_ids=[1, None]), "field output_ids holds a value of the wrong type"),
        (lambda d: d.update(acceptance=["a"]), "field acceptance holds a value of the wrong type"),
        (lambda d: d.update(phases={"draft": "b"}), "field phases holds a value of the wrong type"),
        (lambda d: d.update(num_layers=10**400), "num_layers and stages are counts"),
        (lambda d: d.update(mode="guess"), "field mode is 'guess'; allowed: decode, replay"),
        (lambda d: d["steps"].update(emitted=[10**400]), "steps must be an object of the arrays of numbers"),
    ],
)
def test_malformed_record_is_named_by_file_and_line(tmp_path: Path, change, message: str) -> None:
    data = json.loads(to_line(make("p1")))
    change(data)
    (tmp_path / "records.jsonl").write_bytes(to_line(make("p0")) + json.dumps(data).encode() + b"\n")
    with pytest.raises(UsageError, match=rf"records\.jsonl:2: .*{message}"):
        read_records(tmp_path)


@pytest.mark.parametrize(
    "line", [b"garbage\n", b"garbage", b"[1]\n", b'{"benchmark": \n', b"\xff\n", b"[" * 99_999]
)
def test_line_that_is_no_record_is_refused(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "records.jsonl").write_bytes(to_line(make()) + line)
    with pytest.raises(UsageError, match=r"records\.jsonl:2: "):
        read_records(tmp_path)


def test_torn_last_line_is_left_out_wherever_it_was_cut(tmp_path: Path) -> None:
    whole, torn = to_line(make("p0")), to_line(make("p1"))
    path = tmp_path / "records.jsonl"
    for cut in {0, 1, len(torn) - 1, *range(0, len(torn), 13)}:
        path.write_bytes(whole + torn[:cut])
        assert [r.prompt_id for r in read_records(tmp_path)] == ["p0"]
        with Journal(path) as journal:
            assert path.read_bytes() == whole
            journal.append(make("p1"))
        assert path.read_bytes() == whole + torn


def test_zeros_after_a_power_cut_are_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(to_line(make("p0")) + b"\0" * 300)
    assert [r.prompt_id for r in read_records(tmp_path)] == ["p0"]
    with Journal(path) as journal:
        journal.append(make("p1"))
    assert [r.prompt_id for r in read_records(tmp_path)] == ["p0", "p1"]


def test_half_a_surrogate_pair_is_stored(tmp_path: Path) -> None:
    record = dataclasses.replace(make(), error="RuntimeError: \ud800")
    assert from_line(to_line(record)) == record
    write_whole(tmp_path / "table.md", "\ud800")
    assert (tmp_path / "table.md").read_text() == "\\ud800"


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "table.jsonl"
    write_whole(path, "old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("harness.records.journal.os.fsync", full)
    with pytest.raises(UsageError, match=r"cannot write .*table.jsonl: No space left"):
        write_whole(path, "new")
    assert path.read_text() == "old"


def test_key_is_written_once(tmp_path: Path) -> None:
    with Journal(tmp_path / "records.jsonl") as journal:
        journal.append(make())
        with pytest.raises(ValueError, match="already there"):
            journal.append(make())
    assert len(read_records(tmp_path)) == 1


def test_retried_prompt_supersedes_its_error_and_no_error_a_success(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    with Journal(path) as journal:
        journal.append(make(error="out of memory"))
        journal.append(make("p1"))
    with Journal(path) as journal:
        assert journal.get(make().key).error == "out of memory"
        journal.append(make(text="second try"), replace=True)
        journal.append(make("p1", error="too late"), replace=True)
        assert [(r.prompt_id, r.error) for r in journal.records()] == [("p0", None), ("p1", None)]
    assert [(r.prompt_id, r.error, r.text) for r in read_records(tmp_path)] == [
        ("p0", None, "second try"),
        ("p1", None, ""),
    ]


def test_files_of_sharded_ranks_are_merged(tmp_path: Path) -> None:
    for name, ids in {"records": ["p0"], "records-1": ["p1", "p2"], "records-0": ["p3"]}.items():
        (tmp_path / f"{name}.jsonl").write_bytes(b"".join(to_line(make(i)) for i in ids))
    (tmp_path / "baseline.jsonl").write_bytes(to_line(make("ar")))
    assert [r.prompt_id for r in read_records(tmp_path)] == ["p0", "p3", "p1", "p2"]
    assert [r.prompt_id for r in read_baseline(tmp_path)] == ["ar"]


def test_directory_without_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no records in .*: expected records\.jsonl"):
        read_records(tmp_path)
    assert read_baseline(tmp_path) == []


@pytest.mark.parametrize("taken", [0, 40])
def test_full_disk_stops_with_one_line_and_loses_nothing(tmp_path: Path, monkeypatch, taken: int) -> None:
    """The disk takes ``taken`` bytes of the second record and then no more."""
    path = tmp_path / "records.jsonl"
    real_write = os.write
    left = [taken]

    def full_write(descriptor: int, data: bytes) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        part, left[0] = data[: left[0]], 0
        return real_write(descriptor, part)

    with Journal(path) as journal:
        journal.append(make("p0"))
        with monkeypatch.context() as patch:
            patch.setattr(journal_module.os, "write", full_write)
            with pytest.raises(
                UsageError, match=r"No space left on device; its 1 records are kept"
            ) as caught:
                journal.append(make("p1"))
        assert "\n" not in str(caught.value)
        assert path.read_bytes() == to_line(make("p0"))
        journal.append(make("p1"))
    assert [r.prompt_id for r in read_records(tmp_path)] == ["p0", "p1"]


def test_full_disk_seen_only_by_fsync_leaves_no_half_promise(tmp_path: Path, monkeypatch) -> None:
    def full_sync(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with Journal(tmp_path / "records.jsonl") as journal:
        monkeypatch.setattr(journal_module.os, "fsync", full_sync)
        with pytest.raises(UsageError, match="No space left"):
            journal.append(make())
        assert journal.get(make().key) is None
    assert read_records(tmp_path) == []


def test_second_process_is_refused_and_told_who_holds_the_directory(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom harness.records.journal import exclusive\n"
        "from methods.errors import UsageError\n"
        "try:\n    with exclusive(Path(sys.argv[1])):\n        print('entered')\n"
        "except UsageError as error:\n    print(error)\n"
    )

    def other() -> str:
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    with exclusive(tmp_path):
        assert other() == f"results directory {tmp_path} is in use by process {os.getpid()}"
    assert other() == "entered"


@pytest.mark.parametrize("name", ["file/run", "file"])
def test_unwritable_directory_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is not writable"), exclusive(tmp_path / name):
        pass
