"""Result rows and the table."""

from __future__ import annotations

import json

from test_metrics import record

from harness.analysis.summary import RATIOS, SPEEDUPS, WIDTH, checked, rows, summary, table, worst
from harness.benchmarks.scoring.scorers import SCORERS

ROW_KEYS = [
    *("benchmark", "temperature", "width", "prompts", "tokens", "tok_per_s", "L_acc", "S0", "S"),
    *("wallclock_speedup", "step_acceptance", "lossless", "accuracy", "accuracy_by"),
]


def sample() -> list:
    return [
        record("a", [2, 2], decode_s=2.0, score=1.0),
        record("b", [1], score=0.0),
        record("q", [3], benchmark="mt_bench"),
        record("a", [1], temperature=1.0, lossless="sampled"),
        record("b", [], temperature=1.0, error="boom", lossless="unchecked"),
    ]


def test_rows_come_per_benchmark_then_overall_per_temperature() -> None:
    lines = rows(sample())
    assert [(line["temperature"], line["benchmark"]) for line in lines] == [
        (0.0, "gsm8k"),
        (0.0, "mt_bench"),
        (0.0, "overall"),
        (1.0, "gsm8k"),
        (1.0, "overall"),
    ]


def test_row_holds_the_published_keys_and_figures() -> None:
    line = rows(sample(), [record("a", [1] * 4, decode_s=8.0)])[0]
    assert list(line)[: len(ROW_KEYS)] == ROW_KEYS
    expected = {"prompts": 2, "tokens": 5, "tok_per_s": 5 / 3, "L_acc": 5 / 3, "S0": 5 / 3, "S": 5 / 3}
    expected |= {"wallclock_speedup": 4.0, "step_acceptance": None, "lossless": "exact", "accuracy": 0.5}
    assert {key: line[key] for key in expected} == expected
    assert (line["failed"], line["nodes_per_stage"]) == (0, 1.0)
    behind = ["failed", "nodes_per_stage", "ar_tok_per_s", "cut"]
    assert list(line)[len(ROW_KEYS) : len(ROW_KEYS) + 4] == behind
    assert line["ar_tok_per_s"] == 4 / 8  # of the one prompt that AR decoded beside the method
    assert len(line["S_interval"]) == 2


def test_failures_are_counted_in_their_row() -> None:
    line = rows(sample())[3]
    assert (line["prompts"], line["failed"], line["lossless"]) == (1, 1, "sampled")


def test_group_of_failures_has_no_figures() -> None:
    (line, _) = rows([record("b", [], error="boom")])
    assert all(line[key] is None for key in ("tok_per_s", "S0", "lossless", "accuracy"))
    assert (line["prompts"], line["failed"]) == (0, 1)


def test_overall_has_no_accuracy_where_a_benchmark_has_none() -> None:
    assert rows(sample())[2]["accuracy"] is None


def test_an_accuracy_names_its_scorers() -> None:
    now, program = str(SCORERS["gsm8k"]), str(SCORERS["humaneval"])
    scored = [
        record("a", [1], score=1.0, scorer=now),
        record("b", [1], benchmark="humaneval", score=0.0, scorer=program),
    ]
    gsm8k, humaneval, overall = lines = rows(scored)
    assert (gsm8k["accuracy_by"], humaneval["accuracy_by"]) == ({"gsm8k": now}, {"humaneval": program})
    assert overall["accuracy_by"] == {"gsm8k": now, "humaneval": program}
    notes = table(lines).splitlines()[-2:]
    assert notes == [
        f"accuracy of GSM8K: {now} ({SCORERS['gsm8k'].meaning})",
        f"accuracy of HumanEval: {program} ({SCORERS['humaneval'].meaning})",
    ]


def test_scores_of_two_scorers_are_no_accuracy() -> None:
    """An earlier version's scores keep their name and are not averaged with the present one's."""
    old = record("a", [1], score=1.0)
    assert rows([old])[0]["accuracy_by"] == {"gsm8k": "an earlier scorer"}
    assert table(rows([old])).endswith("accuracy of GSM8K: an earlier scorer")
    mixed = rows([old, record("b", [1], score=0.0, scorer="stated v2")])[0]
    assert mixed["accuracy"] is mixed["accuracy_by"] is None


def test_widths_are_rows_of_their_own() -> None:
    lines = rows([record("a", [1]), record("a", [3], width=4)])
    assert [(line["width"], line["benchmark"], line["L_acc"]) for line in lines] == [
        (1, "gsm8k", 1.0),
        (1, "overall", 1.0),
        (4, "gsm8k", 3.0),
        (4, "overall", 3.0),
    ]


def test_worst_status_wins() -> None:
    order = ["exact", "sampled", "tie", "unchecked", "mismatch"]
    for index, status in enumerate(order):
        assert worst([record(s, [1], lossless=s) for s in order[: index + 1]]) == status
    assert worst([]) is None


def test_summary_is_json_and_the_table_shows_intervals_and_status() -> None:
    result = summary("ngram", None, "results/runs/x", "measured", sample())
    assert list(json.loads(json.dumps(result, allow_nan=False))) == [
        "method",
        "preset",
        "run",
        "time",
        "results",
    ]
    text = table(result["results"])
    assert "1.67" in text and "1.00-2.00" in text
    assert "sampled" in text and "overall" in text


def test_the_widest_table_fits_a_terminal() -> None:
    line = rows(sample())[0] | {"benchmark": "humaneval", "temperature": 0.75, "width": 256, "prompts": 1319}
    for name in RATIOS:
        line |= {name: 12.345, f"{name}_interval": [9.999, 1234.5]}
    line |= {"tok_per_s": 9876.5, "tok_per_s_interval": [9123.4, 9999.4], "tokens": 1319 * 512}
    widths = {len(text) for text in table([line | {"lossless": "unchecked"}]).splitlines()}
    assert max(widths) <= WIDTH
    cells = table([line]).split()
    assert "9123-9999" in cells and "10.0-1234" in cells and "12.3" in cells


def test_an_accuracy_of_cut_answers_says_so() -> None:
    whole = record("b", [1], score=1.0, finish_reason="stop")
    scored = [record("a", [1], score=0.0, finish_reason="length"), whole]
    (line, overall) = rows(scored)
    assert (line["cut"], overall["cut"]) == (1, 1)
    wanted = "GSM8K, T = 0, W = 1: 1 scored answers were cut at --max-new-tokens"
    assert [note.startswith(wanted) for note in table([line, overall]).splitlines()].count(True) == 1
    alone = rows([whole])
    assert alone[0]["cut"] == 0 and "cut" not in table(alone)
    assert rows([record("q", [1], benchmark="mt_bench", finish_reason="length")])[0]["cut"] == 0


def test_a_row_with_a_mismatch_has_no_speedup() -> None:
    baseline = [record(name, [1] * 4, decode_s=8.0) for name in "ab"]
    whole = rows([record("a", [2, 2], decode_s=2.0), record("b", [1], decode_s=2.0)], baseline)[0]
    wrong = [record("a", [2, 2], decode_s=2.0), record("b", [1], decode_s=2.0, lossless="mismatch")]
    line = rows(wrong, baseline)[0]
    for name in SPEEDUPS:
        assert whole[name] is not None
        assert line[name] is line[f"{name}_interval"] is line[f"{name}_prompt_mean"] is None
    assert "no speedup is shown" in table([line]) and not checked("mismatch", "S")
