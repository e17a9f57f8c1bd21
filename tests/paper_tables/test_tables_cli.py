"""The table command: what it refuses, what it runs, where it writes."""

import dataclasses
from pathlib import Path

import pytest

from harness.cli import parse
from harness.records import Record, StepArrays, to_line
from methods import registry
from methods.errors import UsageError
from paper_tables import __main__ as cli
from paper_tables import runs
from paper_tables.measured import from_summary
from paper_tables.plan import SIZES, TABLE1, Row, Size

LINES = [
    {"benchmark": name, "temperature": t, "width": 1, "prompts": 8, "tokens": 9, "S0": 1.0, "S": 1.0}
    | {"S0_interval": None, "S_interval": None, "lossless": "exact", "failed": 0}
    for name in ("mt_bench", "overall")
    for t in (0.0, 1.0)
]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["7"], "unknown table '7'; known: 1"),
        (["1", "--size", "huge"], "unknown size 'huge'; known: quick, paper"),
        ([], "the following arguments are required: N"),
        (["1", "--sise", "quick"], "unrecognized arguments: --sise quick"),
        (["1", "--format", "pdf"], "unknown format 'pdf'; known: markdown, csv, latex"),
    ],
)
def test_bad_input_is_one_line_and_code_2(argv, message, capsys):
    assert cli.main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"error: {message}\n"


@pytest.mark.parametrize("format_name", ["markdown", "csv", "latex"])
def test_table_is_printed_and_written(format_name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(runs, "fill", lambda *_: (from_summary(TABLE1[0], LINES), {}))
    argv = ["1", "--preset", "tiny", "--format", format_name, "--results", str(tmp_path)]
    assert cli.main(argv) == 0
    (written,) = (tmp_path / "tiny").iterdir()
    assert written.stem == "table1"
    assert written.read_text(encoding="utf-8") == capsys.readouterr().out


def test_unwritable_results_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(runs, "fill", lambda *_: ([], {}))
    (tmp_path / "tiny").write_text("a file where the directory should be")
    assert cli.main(["1", "--preset", "tiny", "--results", str(tmp_path)]) == 2
    assert "cannot write" in capsys.readouterr().err


AR, NGRAM, SPD = (Row.of(name, name) for name in ("autoregressive", "ngram", "spd"))


@pytest.fixture
def known(monkeypatch):
    monkeypatch.setattr(registry, "names", lambda: ["autoregressive", "ngram"])


def test_rows_that_cannot_run_say_why_and_the_others_run(known, monkeypatch):
    def run_row(row, *_):
        if row is NGRAM:
            raise UsageError("no window")
        return from_summary(row, LINES)

    monkeypatch.setattr(runs, "run_row", run_row)
    measured, reasons = runs.fill([AR, NGRAM, SPD], SIZES["quick"], "tiny", Path())
    assert {cell.row for cell in measured} == {AR}
    assert reasons == {NGRAM: "ngram: no window", SPD: "method 'spd' is not part of this version"}


def test_ar_refusing_stops_the_table(known, monkeypatch):
    def refuse(*_):
        raise UsageError("unknown preset 'tiny'")

    monkeypatch.setattr(runs, "run_row", refuse)
    with pytest.raises(UsageError, match="unknown preset"):
        runs.fill([AR], SIZES["quick"], "tiny", Path())


def test_arguments_of_one_row():
    row = Row.of("SPD", "spd", n=8, draft_layers=3)
    size = Size(prompts={0.0: 8, 1.0: 2}, max_new_tokens=128)
    argv = runs.arguments(row, size, 1.0, "tiny")
    pairs = list(zip(argv[::2], argv[1::2], strict=True))
    assert ("--prompts", "2") in pairs and ("--temperature", "1") in pairs
    assert ("--n", "8") in pairs and ("--draft-layers", "3") in pairs
    assert [value for name, value in pairs if name == "--benchmark"] == ["mt_bench", "gsm8k", "humaneval"]


def test_the_harness_accepts_the_arguments_of_every_row():
    for row in TABLE1:
        request = parse(runs.arguments(row, SIZES["quick"], 0.0, "tiny"))
        assert request.options == {name: str(value) for name, value in row.options}
        assert (request.method, request.prompts, request.temperatures) == (row.method, 4, (0.0,))


def test_runs_lie_under_the_results_directory(tmp_path, monkeypatch):
    @dataclasses.dataclass
    class Plan:
        request: object
        directory: Path

    started = []
    monkeypatch.setattr(runs, "make_plan", lambda request: Plan(request, Path("elsewhere/runs/tiny-ar-1a2b")))
    monkeypatch.setattr(runs.runner, "run", lambda plan, argv: started.append((plan, argv)))
    argv = runs.arguments(AR, SIZES["quick"], 0.0, "tiny")
    assert runs.run(argv, tmp_path) == tmp_path / "runs" / "tiny-ar-1a2b"
    ((plan, given),) = started
    assert plan.directory == tmp_path / "runs" / "tiny-ar-1a2b" and given == argv
    assert plan.request.method == "autoregressive"


def test_cells_come_from_the_records_of_a_run(tmp_path):
    """Two GSM8K prompts of a drafter on 4 layers: 3 and 5 tokens in 2 rounds of 4 + 1 layers each."""
    steps = [
        StepArrays([2, 2], [a, b], [a + 1, b + 1], [4.0, 4.0], [1.0, 1.0], [2, 2], [1, 1])
        for a, b in ((1, 0), (2, 1))
    ]
    records = [
        Record(
            "gsm8k",
            str(i),
            1,
            0.0,
            1,
            0,
            [1],
            [0] * (1 + sum(step.emitted)),
            "length",
            0.1,
            1.0,
            step,
            "exact",
            None,
            num_layers=4,
        )
        for i, step in enumerate(steps)
    ]
    (tmp_path / "records.jsonl").write_bytes(b"".join(map(to_line, records)))
    cells = {cell.benchmark: cell for cell in runs.read(NGRAM, tmp_path)}
    assert set(cells) == {"gsm8k", "overall"}
    assert cells["overall"].S0.value == pytest.approx(8 * 4 / 16)
    assert cells["overall"].S.value == pytest.approx(8 * 4 / 20)
    assert cells["overall"].S0.low <= 2.0 <= cells["overall"].S0.high
    assert (cells["gsm8k"].prompts, cells["gsm8k"].tokens, cells["gsm8k"].lossless) == (2, 8, "exact")


def test_sizes():
    assert SIZES["paper"].max_new_tokens == 512 and set(SIZES["paper"].prompts.values()) == {80}
    assert SIZES["quick"].max_new_tokens == 64 and SIZES["quick"].prompts[0.0] == 4
