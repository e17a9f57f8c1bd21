"""Tables as pure functions of summary lines."""

import dataclasses

import pytest

from paper_tables import published
from paper_tables import table as tables
from paper_tables.measured import Origin, from_summary, with_devices
from paper_tables.plan import SPECS, TABLE1, Row
from paper_tables.render import render

AR = Row.of("AR", "autoregressive")
EAGLE = Row.of("EAGLE-3 m=7", "eagle3", m=7)
SPD = Row.of("SPD n=8 Ls=3", "spd", n=8, draft_layers=3)


def line(benchmark="overall", temperature=0.0, width=1, s0=1.5, s=1.25, lossless="exact", **other):
    fields = {"prompts": 8, "tokens": 900, "S0": s0, "S": s, "lossless": lossless, "failed": 0}
    fields |= {"S0_interval": None, "S_interval": None, **other}
    return {"benchmark": benchmark, "temperature": temperature, "width": width, **fields}


def cell(table, label, column, benchmark="overall", temperature=0.0):
    heading = f"T = {temperature:g}, {tables.TITLES[benchmark]}"
    (section,) = [section for section in table.sections if section.heading == heading]
    return section.frame.set_index("method").loc[label, column]


def build(measured, rows=(AR, EAGLE, SPD), reasons=None, temperatures=(0.0, 1.0), number="1"):
    return tables.build(SPECS[number], rows, temperatures, measured, reasons or {}, target="tiny")


def test_value_and_interval_of_a_measured_cell():
    lines = [line(S0_interval=[1.4, 1.61], S_interval=[1.2, 1.3]), line("gsm8k", s0=2.0, s=1.75)]
    table = build(from_summary(SPD, lines))
    assert cell(table, SPD.label, "S0") == "1.50 [1.40, 1.61]"
    assert cell(table, SPD.label, "S") == "1.25 [1.20, 1.30]"
    assert cell(table, SPD.label, "lossless") == "exact"
    assert cell(table, SPD.label, "S", "gsm8k") == "1.75"


def test_published_figures_stand_in_their_own_columns():
    table = build([])
    assert cell(table, EAGLE.label, "Qwen3.5-4B S (published)") == "2.72"
    assert cell(table, EAGLE.label, "Qwen3.5-4B S0 (published)") == "3.32"
    assert cell(table, SPD.label, "Qwen3.5-9B S0 (published)", "humaneval", 1.0) == "4.32"
    assert cell(table, AR.label, "Qwen3.5-4B S (published)") == ""


def test_a_cell_without_record_shows_a_dash_and_the_reason_underneath():
    table = build(from_summary(AR, [line(s0=1.0, s=1.0)]), reasons={SPD: "SPD: no checkpoint for tiny"})
    assert cell(table, AR.label, "S0") == "1.00"
    marks = {label: cell(table, label, "S0") for label in (EAGLE.label, SPD.label)}
    assert all(mark.startswith("- (") for mark in marks.values())
    notes = dict(note.split(" ", 1) for note in table.notes if note.startswith("("))
    assert notes[marks[SPD.label].removeprefix("- ")] == "SPD: no checkpoint for tiny"
    assert notes[marks[EAGLE.label].removeprefix("- ")] == tables.NO_RECORD


@pytest.mark.parametrize("lossless", [None, "unchecked"])
def test_no_speedup_without_losslessness_status(lossless):
    table = build(from_summary(SPD, [line(lossless=lossless)]))
    assert cell(table, SPD.label, "S").startswith("- (")
    assert tables.UNCHECKED in "\n".join(table.notes)
    assert table.data.loc[table.data["method"] == "spd", "S"].isna().all()


@pytest.mark.parametrize("lossless", ["exact", "tie", "mismatch", "sampled"])
def test_status_is_shown_beside_the_speedup(lossless):
    table = build(from_summary(SPD, [line(lossless=lossless)]))
    assert cell(table, SPD.label, "lossless") == lossless
    assert cell(table, SPD.label, "S") == "1.25"


@pytest.mark.parametrize(
    ("lossless", "shown"), [("exact", "reference"), ("sampled", "reference"), (None, "-")]
)
def test_ar_is_the_reference_and_not_compared_with_itself(lossless, shown):
    table = build(from_summary(AR, [line(s0=1.0, s=1.0, lossless=lossless)]))
    assert cell(table, AR.label, "lossless") == shown


def test_records_without_decoded_tokens_show_why():
    table = build(from_summary(SPD, [line(s0=None, s=None)]))
    assert cell(table, SPD.label, "S0").startswith("- (") and tables.NO_TOKENS in "\n".join(table.notes)


def test_failed_prompts_are_told():
    table = build(from_summary(SPD, [line(failed=2), line("gsm8k", failed=2)]))
    assert [note for note in table.notes if "failed" in note] == ["SPD n=8 Ls=3, T = 0: 2 prompts failed."]


def test_other_widths_do_not_enter():
    assert from_summary(SPD, [line(width=4)]) == []


def test_number_of_prompts_is_told_per_temperature():
    lines = [line("gsm8k", prompts=8), line("gsm8k", temperature=1.0, prompts=1)]
    notes = build(from_summary(AR, lines)).notes
    assert "T = 0: 8 prompts per benchmark." in notes
    assert "T = 1: 1 prompt per benchmark." in notes


ORIGIN = Origin("tiny", "float32", "A Processor, 2 cores, torch 2.13.0", 64, 50, 1.0)


def test_notes_say_what_was_measured_on_what():
    lines = [line("gsm8k", prompts=8), line("gsm8k", temperature=1.0, prompts=2)]
    table = build(from_summary(AR, lines, origin=ORIGIN))
    wanted = [
        "T = 0: 8 prompts per benchmark, at most 64 new tokens each.",
        "T = 1, top-k 50, top-p 1: 2 prompts per benchmark, at most 64 new tokens each.",
        "measured: tiny in float32 on A Processor, 2 cores, torch 2.13.0.",
    ]
    assert table.notes[1:4] == wanted
    for format_name in ("markdown", "latex"):
        assert all(note in render(table, format_name) for note in wanted)
    (row,) = table.data.dropna(subset=["prompts"]).query("temperature == 1").to_dict("records")
    assert (row["dtype"], row["max_new_tokens"], row["machine"]) == ("float32", 64, ORIGIN.machine)


def test_rows_measured_elsewhere_are_named():
    other = dataclasses.replace(ORIGIN, dtype="bfloat16", max_new_tokens=512)
    cells = from_summary(AR, [line("gsm8k")], origin=ORIGIN) + from_summary(
        SPD, [line("gsm8k")], origin=other
    )
    notes = build(cells).notes
    assert "T = 0: 8 prompts per benchmark, at most 64 or 512 new tokens each." in notes
    assert f"measured (AR): tiny in float32 on {ORIGIN.machine}." in notes
    assert f"measured (SPD n=8 Ls=3): tiny in bfloat16 on {ORIGIN.machine}." in notes


def test_what_drafters_were_trained_on_is_told():
    used = dataclasses.replace(ORIGIN, training="1,000 supervised tokens of data abc")
    cells = from_summary(AR, [line("gsm8k")], origin=ORIGIN) + from_summary(SPD, [line("gsm8k")], origin=used)
    told = [note for note in build(cells).notes if note.startswith("drafters")]
    assert told == ["drafters trained on 1,000 supervised tokens of data abc: SPD n=8 Ls=3."]


def test_rows_of_the_paper():
    labels = [row.label for row in TABLE1]
    assert labels[0] == "AR" and labels[-1] == "n-gram" and len(labels) == len(set(labels)) == 14
    assert {row.options for row in TABLE1 if row.method == "eagle3"} == {(("m", m),) for m in (3, 7, 15)}
    assert {dict(row.options)["n"] for row in TABLE1 if row.method == "ppsd"} == {4, 8, 16}
    published = build([], rows=TABLE1).data.set_index("label")["Qwen3.5-9B S (published)"]
    assert published.drop(["AR", "SPD n=16 Ls=1", "n-gram"]).notna().all()


@pytest.mark.parametrize("format_name", ["markdown", "csv", "latex"])
def test_same_input_same_text(format_name):
    measured = from_summary(SPD, [line()])
    assert render(build(measured), format_name) == render(build(measured), format_name)


def test_wallclock_table_shows_times_and_the_published_speedup():
    measured = from_summary(
        SPD, [line(tok_per_s=20.5, wallclock_speedup=1.5, wallclock_speedup_interval=[1.4, 1.6])]
    )
    table = build(measured, number="2")
    assert cell(table, SPD.label, "tok/s") == "20.5"
    assert cell(table, SPD.label, "measured wall-clock, one process") == "1.50 [1.40, 1.60]"
    assert cell(table, SPD.label, "measured wall-clock, a process per stage") == "-"
    assert cell(table, SPD.label, "Qwen3.5-9B wall-clock (published)") == "2.67"
    assert "S0" not in table.sections[0].frame


def test_every_row_s_own_ar_stands_beside_its_tokens_per_second():
    """Two rows of one speedup, one of them on a machine five times slower: nothing in the table says 5."""

    def timed(row, speed):
        spread = [0.9 * speed, 1.1 * speed]
        figures = {"tok_per_s": speed, "tok_per_s_interval": spread, "wallclock_speedup": 1.0}
        return from_summary(row, [line(ar_tok_per_s=speed, ar_tok_per_s_interval=spread, **figures)])

    def states(*measured):
        table = build([cell for cells in measured for cell in cells], number="2")
        return table, [note for note in table.notes if "not in one state" in note]

    table, notes = states(timed(EAGLE, 12.9), timed(SPD, 2.6))
    assert list(table.sections[0].frame)[1:3] == ["tok/s", "AR's tok/s beside it"]
    assert cell(table, EAGLE.label, "AR's tok/s beside it") == "12.9 [11.6, 14.2]"
    assert cell(table, SPD.label, "AR's tok/s beside it") == "2.6 [2.3, 2.9]"
    (note,) = notes
    assert note.startswith("T = 0: AR ran at 2.6 to 12.9 tok/s beside the rows") and "do not compare" in note
    assert states(timed(EAGLE, 12.9), timed(SPD, 12.5))[1] == states(timed(SPD, 12.5))[1] == []


def test_kinds_of_wallclock_never_share_a_column():
    ranks = SPECS["2"].rows[-1]
    (measured,) = from_summary(SPD, [line(tok_per_s=20.5, wallclock_speedup=1.5)])
    for mode, speedup in (("emulate", 2.0), ("project", 2.5)):
        lines = [line(wallclock_speedup=speedup, wallclock_speedup_interval=[1.9, 2.6]), line("gsm8k")]
        measured = with_devices(measured, mode, lines)
    (staged,) = from_summary(ranks, [line(tok_per_s=30.0, wallclock_speedup=1.2)])
    table = build([measured, staged], rows=(AR, SPD, ranks), number="2")
    shown = {
        "measured wall-clock, one process": ("1.50", "-"),
        "measured wall-clock, a process per stage": ("-", "1.20"),
        "emulated wall-clock (qwen3.5-4b)": ("2.00 [1.90, 2.60]", "-"),
        "projected wall-clock (qwen3.5-4b)": ("2.50 [1.90, 2.60]", "-"),
    }
    for column, cells in shown.items():
        assert (cell(table, SPD.label, column), cell(table, ranks.label, column)) == cells
    notes = "\n".join(table.notes)
    assert "n = 8, Ls = 3: stage 4.20, draft 3.49" in notes and "AR 28.4 a token" in notes


def test_schedule_table_shows_the_published_ranges():
    rows = SPECS["3"].rows
    table = build([], rows=rows, number="3")
    column = f"{published.ALL_CELLS} S0 (published)"
    assert cell(table, "SPD n=16 Ls=2 post-step", column) == "3.66 to 4.78"
    assert cell(table, "SPD n=16 Ls=2 pre-step", column) == "2.63 to 4.04"
    assert cell(table, "SPD n=16 Ls=2 post-step", column, "gsm8k") == ""
    assert cell(table, "SPD n=8 Ls=3 post-step", "Qwen3.5-4B S (published)") == ""
    assert cell(table, "SPD n=8 Ls=3 pre-step", "Qwen3.5-4B S (published)") == "3.39"


def test_tree_table_shows_nodes_beside_s0():
    (row,) = [row for row in SPECS["5"].rows if dict(row.options) == {"n": 8, "draft_layers": 3, "width": 4}]
    lines = [line(width=4, nodes_per_stage=3.5, temperature=1.0)]
    table = build(from_summary(row, lines, width=4), rows=SPECS["5"].rows, number="5")
    assert list(table.sections[0].frame)[1:4] == ["S0", "nodes per stage", "S"]
    assert cell(table, row.label, "nodes per stage", temperature=1.0) == "3.50"
    # Appendix B of the paper: SPD, n = 8, Ls = 3, T = 1, W = 4, on the 4B.
    assert cell(table, row.label, "Qwen3.5-4B S (published)", temperature=1.0) == "3.84"
    assert cell(table, row.label, "Qwen3.5-4B S (published)", temperature=0.0) == ""


def test_grid_of_layers_and_stages():
    options = [dict(row.options) for row in SPECS["4"].rows]
    assert [(each["n"], each["draft_layers"]) for each in options] == [
        (n, layers) for n in (4, 8, 16) for layers in (1, 2, 3, 4)
    ]


@pytest.mark.parametrize("number", sorted(SPECS))
def test_every_table_renders_without_a_record(number):
    table = build([], rows=SPECS[number].rows, number=number)
    assert len({row.slug for row in SPECS[number].rows}) == len(SPECS[number].rows)
    for format_name in ("markdown", "csv", "latex"):
        assert tables.NO_RECORD in render(table, format_name)
