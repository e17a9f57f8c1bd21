"""From records to result rows: one per benchmark, temperature and width, then all benchmarks together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tabulate import SEPARATING_LINE, tabulate

from harness.analysis import metrics
from harness.analysis.estimate import Estimate
from harness.benchmarks.scoring.scorers import SCORERS
from harness.records.record import Lossless, Record

OVERALL = "overall"
TITLES = {OVERALL: "overall", "mt_bench": "MT-Bench", "gsm8k": "GSM8K", "humaneval": "HumanEval"}
WORST_FIRST: tuple[Lossless, ...] = ("mismatch", "unchecked", "tie", "sampled", "replayed", "exact")
WIDTH = 110
"""Columns of a terminal that the table fits."""
RATIOS = ("tok_per_s", "L_acc", "S0", "S", "wallclock_speedup", "step_acceptance", "accuracy")
SPEEDUPS = ("S0", "S", "wallclock_speedup")


def summary(
    method: str,
    preset: str | None,
    run: str,
    time: str,
    records: Sequence[Record],
    baseline: Sequence[Record] = (),
) -> dict[str, Any]:
    """A run's figures: ``method, preset, run``, whose ``time`` its seconds are, and ``results``; see
    ``rows``. Its ``brief`` form is the last line of a run's output."""
    return {"method": method, "preset": preset, "run": run, "time": time, "results": rows(records, baseline)}


def rows(records: Sequence[Record], baseline: Sequence[Record] = ()) -> list[dict[str, Any]]:
    """Result rows in the order of the records, "overall" last for each temperature and width.

    The figures are pooled ratios, null where they do not apply; each has its 95 % interval
    ``<name>_interval``, its per-prompt mean ``<name>_prompt_mean`` and that mean's interval
    ``<name>_prompt_mean_interval`` beside it. ``failed`` counts records without an output;
    ``ar_tok_per_s`` is AR's speed on the same prompts of the same run, the state the machine was in;
    ``accuracy_by`` names the scorer of each benchmark in ``accuracy``, with its version; ``cut`` counts the
    scored answers that end at the cap on new tokens. A row with a mismatch has no speedup.
    """
    groups = dict.fromkeys((record.temperature, record.width) for record in records)
    result = []
    for temperature, width in groups:
        group = [r for r in records if (r.temperature, r.width) == (temperature, width)]
        for benchmark in dict.fromkeys(record.benchmark for record in group):
            result.append(row(benchmark, [r for r in group if r.benchmark == benchmark], baseline))
        result.append(row(OVERALL, group, baseline))
    return result


def brief(result: dict[str, Any]) -> dict[str, Any]:
    """A summary without its per-prompt means, short enough for a line of output."""
    short = [{key: line[key] for key in line if "_prompt_mean" not in key} for line in result["results"]]
    return result | {"results": short}


def row(name: str, group: Sequence[Record], baseline: Sequence[Record]) -> dict[str, Any]:
    """The row of records that share a temperature and a width."""
    estimates: dict[str, Estimate | None] = {
        "tok_per_s": metrics.tok_per_s(group),
        "L_acc": metrics.l_acc(group),
        "S0": metrics.s0(group),
        "S": metrics.s(group),
        "wallclock_speedup": metrics.wallclock_speedup(group, baseline),
        "step_acceptance": metrics.step_acceptance(group),
        "accuracy": metrics.accuracy(group),
        "nodes_per_stage": metrics.nodes_per_stage(group),
        "ar_tok_per_s": metrics.tok_per_s(metrics.beside(group, baseline)),
    }
    lossless = worst(group)
    if lossless == "mismatch":
        estimates |= dict.fromkeys(SPEEDUPS)
    pooled = {key: None if value is None else value.pooled for key, value in estimates.items()}
    behind = {name: pooled.pop(name) for name in ("accuracy", "nodes_per_stage", "ar_tok_per_s")}
    line: dict[str, Any] = {
        "benchmark": name,
        "temperature": group[0].temperature,
        "width": group[0].width,
        "prompts": metrics.prompts(group),
        "tokens": metrics.tokens(group),
        **pooled,
        "lossless": lossless,
        "accuracy": behind.pop("accuracy"),
        "accuracy_by": scored_by(group) if estimates["accuracy"] is not None else None,
        "failed": metrics.failed(group),
        **behind,
        "cut": sum(r.score is not None and r.finish_reason == "length" for r in metrics.completed(group)),
    }
    for key, value in estimates.items():
        line[f"{key}_interval"] = None if value is None else value.pooled_interval
        line[f"{key}_prompt_mean"] = None if value is None else value.prompt_mean
        line[f"{key}_prompt_mean_interval"] = None if value is None else value.prompt_mean_interval
    return line


def scored_by(group: Sequence[Record]) -> dict[str, str]:
    """The scorer of each benchmark in ``group``; scores from before scorers had a version say so."""
    return {
        name: " and ".join(sorted(scorer or "an earlier scorer" for scorer in found))
        for name, found in metrics.scorers(group).items()
    }


def worst(group: Sequence[Record]) -> Lossless | None:
    """The worst losslessness status of the completed records, None without any."""
    present = {record.lossless for record in metrics.completed(group)}
    return next((status for status in WORST_FIRST if status in present), None)


def checked(status: str | None, name: str) -> bool:
    """Whether tables may show figure ``name``: no speedup without its losslessness status, and none of
    another output than the target's."""
    return status not in (None, "unchecked", "mismatch") or name not in SPEEDUPS


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Result rows for people, at most ``WIDTH`` wide: what a row is of above its temperature and width, the
    prompts above the tokens, each figure above its interval."""
    titles = ["benchmark", "prompts\ntokens", "tok/s", "L_acc", "S0", "S", "wall-\nclock", "step acc."]
    titles += ["accuracy", "lossless"]
    body = [
        [
            f"{line['benchmark']}\nT={line['temperature']:g} W={line['width']}",
            f"{line['prompts']}\n{line['tokens']}",
            *(_cell(line, name) for name in RATIOS),
            line["lossless"] or "-",
        ]
        for line in lines
    ]
    # As a row: tabulate pads what it takes for headers.
    text = tabulate([titles, SEPARATING_LINE, *body], disable_numparse=True)
    notes = [note for line in lines if line["benchmark"] != OVERALL for note in _warnings(line)]
    return "\n".join([text, *notes, *accuracy_notes(line["accuracy_by"] for line in lines)])


def _warnings(line: Mapping[str, Any]) -> list[str]:
    """What the figures of a row do not show."""
    title = TITLES.get(line["benchmark"], line["benchmark"])
    place = f"{title}, T = {line['temperature']:g}, W = {line['width']}"
    notes = []
    if line["failed"]:
        notes.append(f"{place}: {line['failed']} failed, and no figure counts them")
    if line["accuracy"] is not None and line["cut"]:
        notes.append(
            f"{place}: {line['cut']} scored answers were cut at --max-new-tokens, which lowers the accuracy"
        )
    if line["lossless"] == "mismatch":
        notes.append(f"{place}: an output is not the target's own (mismatch), so no speedup is shown")
    return notes


def accuracy_notes(found: Iterable[Mapping[str, str] | None]) -> list[str]:
    """What the accuracies of rows with these ``accuracy_by`` mean, a sentence for each scorer."""
    pairs = dict.fromkeys(pair for scored in found for pair in (scored or {}).items())
    notes = []
    for benchmark, scorer in pairs:
        known = SCORERS.get(benchmark)
        meaning = f" ({known.meaning})" if known is not None and str(known) == scorer else ""
        notes.append(f"accuracy of {TITLES.get(benchmark, benchmark)}: {scorer}{meaning}")
    return notes


def _cell(line: dict[str, Any], name: str) -> str:
    value, interval = line[name], line[f"{name}_interval"]
    if value is None:
        return "-"
    return (
        _short(value) if interval is None else f"{_short(value)}\n{_short(interval[0])}-{_short(interval[1])}"
    )


def _short(value: float) -> str:
    """Three significant digits or more in at most four characters, from 0 to 9999."""
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"
