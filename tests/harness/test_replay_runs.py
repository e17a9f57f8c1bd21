"""``--mode replay`` on a tiny target: AR once, then every method's records without times."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from replay_world import install

from harness.analysis.summary import rows
from harness.cli.arguments import parse
from harness.execution import replay
from harness.execution.plan import make_plan
from harness.records.files import read_records
from harness.records.manifest import read_manifest
from harness.run import main
from methods import registry
from methods.decoding.batched import Generator

LINE = "--prompts 2 --max-new-tokens 12 --benchmark gsm8k --temperature 0 --temperature 1"


@pytest.fixture(autouse=True)
def world(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


def run(results: Path, line: str) -> int:
    return main([*LINE.split(), *line.split(), "--mode", "replay", "--results", str(results)])


def steps_of(records) -> dict:
    return {record.key: (record.output_ids, record.steps) for record in records}


@pytest.mark.parametrize(
    "method", ["ngram", "eagle3 --untrained --m 3", "spd --untrained --n 4", "ppsd --untrained --n 2"]
)
def test_replay_and_decode_give_the_same_records(tmp_path: Path, method: str) -> None:
    """Point-mass proposals, so at T = 1 too; apart from the times and what says how they came about."""
    rule = "" if method == "ngram" else " --proposal point-mass"
    assert run(tmp_path / "replay", f"--method {method}{rule}") == 0
    argv = f"{LINE} --method {method}{rule} --results {tmp_path / 'decode'}"
    assert main(argv.split()) == 0
    replayed, decoded = read_records(tmp_path / "replay"), read_records(tmp_path / "decode")
    assert steps_of(replayed) == steps_of(decoded) and len(replayed) == 4
    for record in replayed:
        assert (record.mode, record.lossless) == ("replay", "replayed")
        assert (record.prefill_s, record.decode_s, record.phases) == (None, None, {})
    figures = ("S0", "S", "L_acc", "step_acceptance", "tokens", "nodes_per_stage")
    lines = [rows(records) for records in (replayed, decoded)]
    for ours, theirs in zip(*lines, strict=True):
        assert {name: ours[name] for name in figures} == {name: theirs[name] for name in figures}
        assert ours["tok_per_s"] is None and ours["wallclock_speedup"] is None


def test_ar_is_decoded_once_and_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    answers = Generator.answers

    def counted(self, questions):
        asked.extend(questions)
        return answers(self, list(asked[-len(questions) :]))

    monkeypatch.setattr(Generator, "answers", counted)
    for number, method in enumerate(("ngram", "ngram --m 2", "spd --untrained --n 4", "autoregressive")):
        assert run(tmp_path / f"run{number}", f"--method {method}") == 0
    beside = [path for path in tmp_path.iterdir() if "autoregressive" in path.name]
    assert len(beside) == 1
    assert read_manifest(beside[0])["config"]["mode"] == "replay"
    # The run that is AR itself was given a directory of its own.
    assert len(asked) == 4 + 4
    assert steps_of(read_records(beside[0])) == steps_of(read_records(tmp_path / "run3"))


def test_many_methods_in_one_pass_equal_one_by_one(tmp_path: Path) -> None:
    methods = ["ngram", "spd --untrained --n 4", "eagle3 --untrained --m 2", "autoregressive"]
    plans = [
        make_plan(parse([*LINE.split(), "--mode", "replay", "--method", *method.split()]))
        for method in methods
    ]
    plans = [replay.replace(p, directory=tmp_path / "many" / p.directory.name) for p in plans]
    outcomes = replay.run(plans, ["many"])
    for number, (method, outcome) in enumerate(zip(methods, outcomes, strict=True)):
        assert run(tmp_path / f"run{number}", f"--method {method}") == 0
        assert steps_of(outcome.records) == steps_of(read_records(tmp_path / f"run{number}"))


def test_drawn_proposals_have_an_expectation(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert run(tmp_path / "r", "--method spd --untrained --n 4") == 0
    warm = [record for record in read_records(tmp_path / "r") if record.temperature == 1]
    for record in warm:
        assert record.expected is not None and record.acceptance is not None
        assert len(record.acceptance) == record.decoded
        assert record.total("target_layers") == record.expected["target_layers"]
    lines = json.loads(capsys.readouterr().out.splitlines()[-1])["results"]
    (line,) = [x for x in lines if x["temperature"] == 1 and x["benchmark"] == "overall"]
    total = sum(record.expected["target_layers"] for record in warm)
    assert line["S0"] == pytest.approx(sum(record.decoded for record in warm) * 8 / total)


def test_a_second_start_does_nothing(tmp_path: Path) -> None:
    assert run(tmp_path / "r", "--method ngram") == 0
    before = (tmp_path / "r" / "records.jsonl").read_bytes()
    assert run(tmp_path / "r", "--method ngram") == 0
    assert (tmp_path / "r" / "records.jsonl").read_bytes() == before


def test_a_lost_record_is_replayed_again(tmp_path: Path) -> None:
    assert run(tmp_path / "r", "--method ngram") == 0
    path = tmp_path / "r" / "records.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:20])
    assert run(tmp_path / "r", "--method ngram") == 0
    assert sorted(path.read_bytes().splitlines(keepends=True)) == sorted(lines)


def test_a_method_that_breaks_leaves_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self, known):
        raise RuntimeError("no such luck")

    monkeypatch.setattr(registry.get("ngram"), "replay", fail)
    assert run(tmp_path / "r", "--method ngram") == 1
    assert {record.error for record in read_records(tmp_path / "r")} == {"RuntimeError: no such luck"}


def test_what_cannot_be_replayed_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert run(tmp_path / "r", "--method spd --untrained --n 4 --width 4") == 2
    assert "cannot be replayed; use --mode decode" in capsys.readouterr().err
    assert run(tmp_path / "r", "--method fake-draft") == 2


def test_dialogues_continue_with_ar_answers(tmp_path: Path) -> None:
    assert run(tmp_path / "r", "--method ngram --turns all") == 0
    records = read_records(tmp_path / "r")
    assert sorted({record.turn for record in records}) == [1, 2] and len(records) == 8
    assert all(record.error is None for record in records)
