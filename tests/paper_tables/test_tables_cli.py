"""The table command: what it refuses, what it runs, where it writes, and that records are enough."""

import dataclasses
import json
import threading
from pathlib import Path

import pytest
from torch.distributed import HashStore

from harness.analysis.summary import rows as summary_rows
from harness.cli.arguments import parse
from harness.execution.runner import Outcome
from harness.execution.sharding import Shard
from harness.records import identity
from harness.records.record import Record, StepArrays
from methods import registry
from methods.errors import UsageError
from methods.source_code.code import Code
from paper_tables import __main__ as cli
from paper_tables import runs, stored
from paper_tables.plan import SIZES, SPECS, TABLE1, Row, Size
from paper_tables.runs import Sheet


@pytest.fixture(autouse=True)
def tiny_preset(monkeypatch):
    """Beside the presets that exist."""
    load = cli.load_preset
    monkeypatch.setattr(cli, "load_preset", lambda name: None if name == "tiny" else load(name))


@pytest.mark.parametrize("preset", ["nosuch", "../outside", ""])
@pytest.mark.parametrize("stored_only", [[], ["--stored-only"]])
def test_a_preset_that_does_not_exist_leaves_no_file(preset, stored_only, tmp_path, capsys):
    folder = tmp_path / "results"
    assert cli.main(["1", "--preset", preset, "--results", str(folder), *stored_only]) == 2
    assert f"error: unknown preset {preset!r}; known:" in capsys.readouterr().err
    assert cli.main(["1", "--method", "../../evil", "--results", str(folder), *stored_only]) == 2
    assert "error: unknown method '../../evil'; known:" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["7"], "unknown table '7'; known: 1, 2, 3, 4, 5"),
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


def record(prompt_id="0", accepted=(1, 0), **changes):
    """Two rounds of a chain of two drafts on 4 layers, with a draft layer each."""
    emitted = [kept + 1 for kept in accepted]
    steps = StepArrays([2, 2], list(accepted), emitted, [4.0, 4.0], [1.0, 1.0], [2, 2], [3, 3])
    fields = {
        "benchmark": "gsm8k",
        "prompt_id": prompt_id,
        "turn": 1,
        "temperature": 0.0,
        "width": 1,
        "repeat": 0,
        "prompt_ids": [1],
        "output_ids": [0] * (1 + sum(emitted)),
        "finish_reason": "length",
        "prefill_s": 0.1,
        "decode_s": 1.0,
        "steps": steps,
        "lossless": "exact",
        "error": None,
        "method": "ngram",
        "num_layers": 4,
    }
    return Record(**fields | changes)


RECORDS = [record("0"), record("1", (2, 1), decode_s=2.0), record("2", error="broken", steps=StepArrays())]
BASELINE = [
    dataclasses.replace(entry, method="autoregressive", decode_s=3.0)
    for entry in RECORDS
    if entry.error is None
]
NGRAM = Row.of("n-gram", "ngram")
HEADER = {
    "argv": ["--method", "ngram", "--max-new-tokens", "8"],
    "target": {"target": "tiny", "sha256": "f" * 64, "dtype": "float32"},
    "machine": {"cpu": "A Processor", "cores": 2, "gpus": ["A Card", "A Card"]},
    "torch": "2.13.0",
}


def test_stored_records_give_the_figures_of_full_ones(tmp_path):
    path = tmp_path / "a.jsonl"
    stored.write(path, {"label": "n-gram"}, RECORDS, BASELINE)
    found = stored.read(path)
    assert found.reason is None and found.header["label"] == "n-gram"
    full, kept = summary_rows(RECORDS, BASELINE), summary_rows(found.records, found.baseline)
    names = (
        "S0",
        "S",
        "tok_per_s",
        "ar_tok_per_s",
        "wallclock_speedup",
        "step_acceptance",
        "nodes_per_stage",
    )
    for theirs, ours in zip(full, kept, strict=True):
        for name in (*names, *(f"{name}_interval" for name in names), "tokens", "failed", "lossless"):
            assert ours[name] == pytest.approx(theirs[name]), name


def test_an_expectation_is_stored(tmp_path):
    expected = {name: 2.5 for name in stored.COLUMNS} | {"emitted": 2.9999999999}
    entry = record(expected=expected, decode_s=None, mode="replay", lossless="replayed")
    stored.write(tmp_path / "a.jsonl", {}, [entry])
    (kept,) = stored.read(tmp_path / "a.jsonl").records
    assert (kept.total("target_layers"), kept.decoded, kept.decode_s) == (2.5, 3, None)


def test_a_kill_while_storing_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl"
    stored.write(path, {"label": "old"}, RECORDS)

    def killed(descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr("harness.records.journal.os.fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        stored.write(path, {"label": "new"}, RECORDS[:1])
    assert stored.read(path).header["label"] == "old"


def test_line_separators_within_a_text_end_no_line(tmp_path):
    stored.write(tmp_path / "a.jsonl", {"reason": "a\u2028b\x85c"})
    assert stored.read(tmp_path / "a.jsonl").reason == "a\u2028b\x85c"


@pytest.mark.parametrize("text", ["", "{}", '{"format": 9}', '{"format": 1, "columns": ["a"]}\n[1, 2]', "x"])
def test_damaged_files_are_refused(tmp_path, text):
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(UsageError):
        stored.read(tmp_path / "a.jsonl")


@pytest.fixture
def sheet(tmp_path):
    size = Size(prompts={0.0: 2}, max_new_tokens=8)
    return Sheet(SPECS["1"], "quick", size, "tiny", tmp_path / "tiny", tmp_path / "runs")


@dataclasses.dataclass
class FakePlan:
    request: object
    directory: Path
    methods: dict
    replaces: str = "none"

    def sampling(self, temperature, seed):
        return None


class FakeMethod:
    def __init__(self, replayable):
        self.replayable = replayable

    def can_replay(self, sampling):
        return self.replayable


@pytest.fixture
def world(monkeypatch):
    """What would be run, in lists; ``spd`` is refused, ``eagle3`` cannot be replayed."""
    calls = {"replay": [], "decode": []}

    def make_plan(request, shard):
        if request.method == "spd":
            raise UsageError("no checkpoint\nfor tiny")
        name = f"{request.method}-{request.mode}"
        return FakePlan(request, Path("elsewhere") / name, {1: FakeMethod(request.method != "eagle3")})

    def replay_all(plans, argv):
        calls["replay"].append([plan.directory for plan in plans])
        return [Outcome(RECORDS[:2], []) for _ in plans]

    def run(plan, argv):
        calls["decode"].append(plan.directory)
        return Outcome(RECORDS[:2], BASELINE)

    monkeypatch.setattr(runs, "make_plan", make_plan)
    monkeypatch.setattr(runs.replay, "run", replay_all)
    monkeypatch.setattr(runs.runner, "run", run)
    monkeypatch.setattr(
        runs,
        "header",
        lambda sheet, row, temperature, plan: (
            HEADER
            | {
                "argv": sheet.arguments(row, temperature),
                "drafter": runs.drafter(sheet.preset, row),
            }
        ),
    )
    monkeypatch.setattr(runs, "drafter", lambda preset, row: None)
    return calls


AR, EAGLE, SPD = (Row.of(name, name) for name in ("autoregressive", "eagle3", "spd"))


def test_rows_are_replayed_together_others_decoded_and_refusals_kept(sheet, world):
    runs.fill(sheet, [AR, NGRAM, EAGLE, SPD])
    assert world["replay"] == [
        [sheet.runs / "autoregressive-replay", sheet.runs / "ngram-replay"],
    ]
    assert world["decode"] == [sheet.runs / "eagle3-decode"]
    cells, reasons = runs.measured(sheet, [AR, NGRAM, EAGLE, SPD])
    assert {cell.row for cell in cells} == {AR, NGRAM, EAGLE}
    assert reasons == {SPD: "spd: no checkpoint for tiny"}


def test_processes_of_a_launcher_do_the_same_and_the_first_keeps_it(sheet, world, monkeypatch):
    written = []
    store, write = HashStore(), stored.write

    def kept(path, *about):
        written.append((threading.current_thread().name, path.name))
        write(path, *about)

    monkeypatch.setattr(stored, "write", kept)

    def fill(rank):
        runs.fill(dataclasses.replace(sheet, shard=Shard(rank, 2, store)), [AR, NGRAM, SPD])

    threads = [threading.Thread(target=fill, args=(rank,), name=str(rank)) for rank in (1, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(world["replay"]) == 2 and world["replay"][0] == world["replay"][1]
    assert sorted({name for name, _ in written}) == ["0"] and len(written) == 3
    assert runs.measured(sheet, [SPD])[1] == {SPD: "spd: no checkpoint for tiny"}


def test_a_reason_speaks_of_the_row_that_is_asked_for(sheet, world):
    runs.fill(sheet, [SPD])
    same = dataclasses.replace(SPD, label="SPD of another table")
    assert runs.measured(sheet, [same])[1] == {same: "SPD of another table: no checkpoint for tiny"}


def test_what_is_stored_is_not_run_again_but_refusals_are_retried(sheet, world, monkeypatch):
    runs.fill(sheet, [NGRAM, SPD])
    runs.fill(sheet, [NGRAM, SPD])
    assert len(world["replay"]) == 1
    monkeypatch.setattr(
        runs, "make_plan", lambda request, shard: FakePlan(request, Path("x"), {1: FakeMethod(True)})
    )
    runs.fill(sheet, [NGRAM, SPD])
    assert len(world["replay"]) == 2
    assert runs.measured(sheet, [SPD])[1] == {}


def test_a_row_that_cannot_be_run_now_keeps_what_was_measured(sheet, world, monkeypatch, capsys):
    runs.fill(sheet, [NGRAM])
    before = runs.measured(sheet, [NGRAM])

    def refuse(request, shard):
        raise UsageError("no checkpoint for tiny")

    monkeypatch.setattr(runs, "make_plan", refuse)
    monkeypatch.setattr(runs, "drafter", lambda preset, row: None)
    runs.fill(dataclasses.replace(sheet, size=Size(prompts={0.0: 2}, max_new_tokens=16)), [NGRAM])
    assert runs.measured(sheet, [NGRAM]) == before
    assert "no checkpoint for tiny; its stored records are kept" in capsys.readouterr().err


def test_records_that_do_not_say_their_machine_are_refused(sheet, world):
    runs.fill(sheet, [NGRAM])
    path = stored.file_of(sheet.folder, NGRAM, sheet.size_name, 0.0, "replay")
    header, *lines = path.read_text().splitlines()
    kept = {name: value for name, value in json.loads(header).items() if name != "machine"}
    path.write_text("\n".join([json.dumps(kept), *lines]) + "\n")
    with pytest.raises(UsageError, match="do not say their machine"):
        runs.measured(sheet, [NGRAM])


def test_two_rows_that_are_one_run_are_run_once(sheet, world):
    same = Row.of("n-gram of five", "ngram", m=5)
    runs.fill(sheet, [NGRAM, same])
    assert world["replay"] == [[sheet.runs / "ngram-replay"]]
    cells, _ = runs.measured(sheet, [NGRAM, same])
    assert {cell.row for cell in cells} == {NGRAM, same}


def test_every_machine_and_foreign_prompts_are_named(sheet, world):
    runs.fill(sheet, [NGRAM])
    path = stored.file_of(sheet.folder, NGRAM, sheet.size_name, 0.0, "replay")
    header, *lines = path.read_text().splitlines()
    moved = {**json.loads(header), "machines": ["A, 2 cores, torch 2", "B, 4 cores, torch 2"]}
    path.write_text("\n".join([json.dumps(moved), *lines]) + "\n")
    origin = runs.measured(sheet, [NGRAM])[0][0].origin
    assert origin.machine == "A, 2 cores, torch 2 and B, 4 cores, torch 2"
    assert origin.subset == "GSM8K: 0 of 2 of them in the paper's subset"


def test_other_arguments_are_another_record(sheet, world):
    runs.fill(sheet, [NGRAM])
    longer = dataclasses.replace(sheet, size=Size(prompts={0.0: 2}, max_new_tokens=16))
    runs.fill(longer, [NGRAM])
    assert len(world["replay"]) == 2


def test_another_drafter_is_another_record(sheet, world, monkeypatch):
    runs.fill(sheet, [NGRAM])
    monkeypatch.setattr(runs, "drafter", lambda preset, row: {"checkpoint": "ngram", "sha256": "new"})
    runs.fill(sheet, [NGRAM])
    assert len(world["replay"]) == 2


def test_a_row_of_other_code_is_measured_again(sheet, world, monkeypatch, capsys):
    """An edited plugin's, and a built-in method's, by the hash that its records were stored with."""
    code = {"ngram": "a", "autoregressive": "r"}
    told = runs.header

    def codes(methods, mode):
        return {name: Code({name: code[name]}) for name in methods}

    monkeypatch.setattr(identity, "codes", codes)
    monkeypatch.setattr(
        runs,
        "header",
        lambda *about: {
            **told(*about),
            "mode": "replay",
            "method_code": {name: each.sha256 for name, each in codes(code, "replay").items()},
        },
    )
    runs.fill(sheet, [NGRAM])
    runs.fill(sheet, [NGRAM])
    assert len(world["replay"]) == 1 and "of other code" not in capsys.readouterr().err
    there = codes(["ngram"], "replay")["ngram"].sha256[:8]
    code["ngram"] = "b"
    here = codes(["ngram"], "replay")["ngram"].sha256[:8]
    runs.tell_other_code(sheet, [NGRAM])
    runs.fill(sheet, [NGRAM])
    said = f"its stored records are of other code: ngram is {there} there and {here} here"
    label = NGRAM.label
    err = capsys.readouterr().err
    assert err.startswith(f"T = 0: {label}: {said}\nT = 0: {label} is measured again: {said}\n")
    assert len(world["replay"]) == 2
    code["autoregressive"] = "s"
    runs.fill(sheet, [NGRAM])
    assert len(world["replay"]) == 3


def test_records_that_do_not_say_their_code(sheet, world, monkeypatch, capsys):
    """Those of earlier versions are kept for built-in methods, and said to be; not a plugin's."""
    runs.fill(sheet, [NGRAM])
    runs.fill(sheet, [NGRAM])
    assert len(world["replay"]) == 1 and "are kept" in capsys.readouterr().err
    monkeypatch.setattr(registry, "is_builtin", lambda name: False)
    runs.fill(sheet, [NGRAM])
    assert len(world["replay"]) == 2 and "is measured again" in capsys.readouterr().err


def test_times_are_never_replayed(sheet, world):
    runs.fill(sheet, [NGRAM])
    clock = dataclasses.replace(sheet, spec=SPECS["2"])
    assert runs.measured(clock, [NGRAM]) == ([], {})
    runs.fill(clock, [NGRAM])
    assert world["decode"] == [sheet.runs / "ngram-decode"]
    (cell, _) = runs.measured(clock, [NGRAM])[0]
    assert cell.figures["wallclock_speedup"].value == pytest.approx(6 / 3)


def test_ar_refusing_stops_the_table(sheet, world, monkeypatch):
    def refuse(request, shard):
        raise UsageError("unknown preset 'tiny'")

    monkeypatch.setattr(runs, "make_plan", refuse)
    with pytest.raises(UsageError, match="unknown preset"):
        runs.fill(sheet, [AR])


def test_arguments_of_one_row(sheet):
    row = Row.of("SPD", "spd", n=8, draft_layers=3, untrained=True, other="a;b")
    argv = sheet.arguments(row, 0.0)
    request = parse(argv)
    assert request.options == {"n": "8", "draft_layers": "3", "untrained": "true", "other": "a;b"}
    assert (request.prompts, request.temperatures, request.max_new_tokens) == (2, (0.0,), 8)
    assert request.benchmarks == ("mt_bench", "gsm8k", "humaneval")


def test_the_harness_accepts_the_arguments_of_every_row(sheet):
    for spec in SPECS.values():
        for row in spec.rows:
            request = parse(sheet.arguments(row, 0.0))
            options = {name: str(value) for name, value in row.options if name != "width"}
            assert request.options == options
            assert request.widths == ((4,) if "width" in dict(row.options) else ())
            assert row.method in registry.names()


@pytest.mark.parametrize("format_name", ["markdown", "csv", "latex"])
def test_table_is_printed_and_written(format_name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(runs, "fill", lambda *_: None)
    path = stored.file_of(tmp_path / "tiny", TABLE1[-1], "quick", 0.0, "replay")
    stored.write(path, HEADER, RECORDS)
    argv = ["1", "--preset", "tiny", "--format", format_name, "--results", str(tmp_path)]
    assert cli.main(argv) == 0
    (written,) = (entry for entry in (tmp_path / "tiny").iterdir() if entry.is_file())
    assert written.stem == "table1"
    printed = capsys.readouterr().out
    assert written.read_text(encoding="utf-8") == printed and "n-gram" in printed
    assert "2 x A Card, A Processor, 2 cores, torch 2.13.0" in printed
    if format_name != "csv":
        assert (
            "T = 0: 2 prompts per benchmark (GSM8K: 0 of 2 of them in the paper's subset), at most 8"
            in printed
        )
        assert "measured: tiny in float32 on 2 x A Card" in printed


def test_all_tables_from_stored_records_alone(tmp_path, monkeypatch, capsys):
    def fail(*_):
        raise AssertionError("nothing may run")

    monkeypatch.setattr(runs, "make_plan", fail)
    argv = ["all", "--preset", "tiny", "--size", "paper", "--stored-only", "--results", str(tmp_path)]
    assert cli.main(argv) == 2, "a folder without records is a slip of the hand"
    assert "nothing is stored in" in capsys.readouterr().err and not list(tmp_path.iterdir())
    (tmp_path / "tiny" / "records").mkdir(parents=True)
    assert cli.main(argv) == 0
    names = {"records", *(f"table{number}-paper.md" for number in SPECS)}
    assert {entry.name for entry in (tmp_path / "tiny").iterdir()} == names


def test_random_drafters_are_marked_and_kept_apart(tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(runs, "fill", lambda sheet, rows: asked.extend(rows))
    assert cli.main(["1", "--preset", "tiny", "--untrained", "--results", str(tmp_path)]) == 0
    assert (tmp_path / "tiny" / "untrained" / "table1.md").exists()
    assert "SPD n=8 Ls=3 (untrained)" in capsys.readouterr().out
    drafters = [row for row in asked if row.method in ("spd", "ppsd", "eagle3")]
    assert drafters and all(("untrained", True) in row.options for row in drafters)


def test_a_method_can_be_added_to_every_table(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(runs, "fill", lambda *_: None)
    monkeypatch.setitem(registry._methods, "mine", registry.get("ngram"))
    for number in SPECS:
        assert cli.main([number, "--preset", "tiny", "--method", "mine", "--results", str(tmp_path)]) == 0
        assert "| mine " in capsys.readouterr().out


def test_unwritable_results_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(runs, "fill", lambda *_: None)
    (tmp_path / "tiny").write_text("a file where the directory should be")
    assert cli.main(["1", "--preset", "tiny", "--results", str(tmp_path)]) == 2
    assert "cannot write" in capsys.readouterr().err


ROOT = Path(__file__).resolve().parents[2]
COMMITTED = sorted((ROOT / "results").glob("*/table[1-5]*.md"))


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_committed_tables_follow_from_committed_records(path, tmp_path):
    """C29."""
    number, _, size = path.stem.removeprefix("table").partition("-")
    argv = [number, "--preset", path.parent.name, "--size", size or "quick", "--stored-only"]
    options = cli._parser().parse_args([*argv, "--results", str(tmp_path)])
    (tmp_path / path.parent.name).mkdir(parents=True)
    (tmp_path / path.parent.name / "records").symlink_to(path.parent / "records")
    assert cli.build(number, options) == path.read_text(encoding="utf-8")


def test_committed_results_stay_small():
    files = [path for path in (ROOT / "results").glob("*/records/**/*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 2_000_000
    for path in files:
        json.loads(path.read_text(encoding="utf-8").splitlines()[0])


def test_sizes():
    assert SPECS["2"].sizes["paper"] is SIZES["paper"] and SPECS["2"].sizes["quick"].folder == "quick-timed"
    assert SIZES["paper"].max_new_tokens == 512 and set(SIZES["paper"].prompts.values()) == {80}
    assert SIZES["quick"].max_new_tokens == 128 and SIZES["quick"].prompts[1.0] == 8
