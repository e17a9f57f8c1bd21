"""The table command: what it refuses, what it runs, where it writes."""

from pathlib import Path

import pytest

from methods import registry
from methods.errors import UsageError
from paper_tables import __main__ as cli
from paper_tables import runs
from paper_tables.measured import from_summary
from paper_tables.plan import SIZES, TABLE1, Row, Size

LINES = [
    {"benchmark": name, "temperature": t, "width": 1, "prompts": 8, "tokens": 9, "S0": 1.0, "S": 1.0}
    for name in ("mt_bench", "overall")
    for t in (0.0, 1.0)
]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["7"], "unknown table '7'; known: 1"),
        (["1", "--size", "huge"], "unknown size 'huge'; known: quick, paper"),
        (["1", "--format", "pdf"], "unknown format 'pdf'; known: markdown, csv, latex"),
    ],
)
def test_bad_input_is_one_line_and_code_2(argv, message, capsys):
    assert cli.main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"paper_tables: {message}\n"


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
    argv = runs.arguments(row, size, 1.0, "tiny", Path("out"))
    pairs = list(zip(argv[::2], argv[1::2], strict=True))
    assert ("--prompts", "2") in pairs and ("--temperature", "1") in pairs
    assert ("--n", "8") in pairs and ("--draft-layers", "3") in pairs
    assert [value for name, value in pairs if name == "--benchmark"] == ["mt_bench", "gsm8k", "humaneval"]
    assert ("--results", str(Path("out/runs"))) in pairs


def test_sizes():
    assert SIZES["paper"].max_new_tokens == 512 and set(SIZES["paper"].prompts.values()) == {80}
    assert SIZES["quick"].max_new_tokens == 128 and SIZES["quick"].prompts[0.0] == 8
