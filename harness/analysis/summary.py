"""From records to result rows: one per benchmark, temperature and width, then all benchmarks together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tabulate import tabulate

from harness.analysis import metrics
from harness.analysis.estimate import Estimate
from harness.benchmarks.scoring.scorers import SCORERS
from harness.records.record import Lossless, Record

OVERALL = "overall"
TITLES = {OVERALL: "overall", "mt_bench": "MT-Bench", "gsm8k": "GSM8K", "humaneval": "HumanEval"}
WORST_FIRST: tuple[Lossless, ...] = ("mismatch", "unchecked", "tie", "sampled", "replayed", "exact")
RATIOS = ("tok_per_s", "L_acc", "S0", "S", "wallclock_speedup", "step_acceptance", "accuracy")


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
    ``accuracy_by`` names the scorer of each benchmark in ``accuracy``, with its version.
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
    pooled = {key: None if value is None else value.pooled for key, value in estimates.items()}
    behind = {name: pooled.pop(name) for name in ("accuracy", "nodes_per_stage", "ar_tok_per_s")}
    line: dict[str, Any] = {
        "benchmark": name,
        "temperature": group[0].temperature,
        "width": group[0].width,
        "prompts": metrics.prompts(group),
        "tokens": metrics.tokens(group),
        **pooled,
        "lossless": worst(group),
        "accuracy": behind.pop("accuracy"),
        "accuracy_by": scored_by(group) if estimates["accuracy"] is not None else None,
        "failed": metrics.failed(group),
        **behind,
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
    """Whether tables may show figure ``name``: no speedup without its losslessness status."""
    return status not in (None, "unchecked") or name not in ("S0", "S", "wallclock_speedup")


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Result rows for people; intervals in brackets."""
    headers = ["benchmark", "T", "W", "prompts", "failed", "tokens"]
    headers += ["tok/s", "L_acc", "S0", "S", "wall-clock", "step acc.", "accuracy", "lossless"]
    body = [
        [line["benchmark"], f"{line['temperature']:g}", line["width"], line["prompts"], line["failed"]]
        + [line["tokens"]]
        + [_cell(line, name) for name in RATIOS]
        + [line["lossless"] or "-"]
        for line in lines
    ]
    text = tabulate(body, headers=headers, disable_numparse=True)
    return "\n".join([text, *accuracy_notes(line["accuracy_by"] for line in lines)])


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
    digits = 1 if name == "tok_per_s" else 2
    spread = "" if interval is None else f" [{interval[0]:.{digits}f}, {interval[1]:.{digits}f}]"
    return f"{value:.{digits}f}{spread}"
