"""From runs to the page: sections of tables, charts and coloured answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from harness import metrics
from harness.manifest import check_same_time, read_manifest, time_of
from harness.metrics import Estimate
from harness.plan import AR
from harness.records import Record, read_baseline, read_records
from harness.report import charts, trace
from harness.report.charts import Series
from harness.summary import OVERALL, rows

TITLES = {OVERALL: "overall", "mt_bench": "MT-Bench", "gsm8k": "GSM8K", "humaneval": "HumanEval"}
FIGURES = {
    "S0": "S0",
    "S": "S",
    "wallclock_speedup": "wall-clock",
    "tok_per_s": "tok/s",
    "step_acceptance": "step acceptance",
    "accuracy": "accuracy",
}


@dataclass(frozen=True)
class Arm:
    """The records of one method at one width in one run; ``baseline`` are AR's beside it, if any."""

    name: str
    run: str
    mode: str
    records: list[Record]
    baseline: list[Record]

    def at(self, temperature: float) -> list[Record]:
        return [record for record in self.records if record.temperature == temperature]


def read_arms(directories: Sequence[Path]) -> tuple[list[Arm], list[dict[str, Any]]]:
    """The arms of all runs, AR's own once per run that has it, and the runs' manifests."""
    arms, manifests = [], []
    for directory in directories:
        manifest = read_manifest(directory)
        manifests.append(manifest | {"directory": directory.name})
        baseline = read_baseline(directory)
        mode = manifest["config"].get("mode", "decode")
        if baseline:
            arms.append(Arm(f"AR beside {_label(manifest, None)}", directory.name, mode, baseline, []))
        records = read_records(directory)
        widths = sorted({record.width for record in records})
        for width in widths:
            mine = [record for record in records if record.width == width]
            name = _label(manifest, width if len(widths) > 1 or width > 1 else None)
            arms.append(Arm(name, directory.name, mode, mine, baseline))
    check_same_time({manifest["directory"]: manifest["config"] for manifest in manifests})
    names = Counter(arm.name for arm in arms)
    return [
        arm
        if names[arm.name] == 1
        else Arm(f"{arm.name} ({arm.run[-8:]})", arm.run, arm.mode, arm.records, arm.baseline)
        for arm in arms
    ], manifests


def render(arms: Sequence[Arm], manifests: Sequence[dict[str, Any]], tokenizer: object, texts: int) -> str:
    """The whole page. ``texts`` answers are shown token by token; ``tokenizer`` None shows ids."""
    temperatures = sorted({record.temperature for arm in arms for record in arm.records})
    body = [_header(arms, manifests)]
    for temperature in temperatures:
        body.append(f"<h2>Figures at T = {temperature:g}</h2>")
        body.append(_figures(arms, temperature))
        body.append('<div class="charts">' + "".join(_charts(arms, temperature)) + "</div>")
        body.append(_categories(arms, temperature))
    body.append(_answers(arms, tokenizer, texts))
    styles = "\n".join(
        f".{letter}{i} {{ {what}: var(--c{i}); }}"
        for i in range(8)
        for letter, what in (("c", "fill"), ("s", "stroke"), ("b", "background"))
    )
    template = Template(resources.files("harness.report").joinpath("template.html").read_text("utf-8"))
    return template.substitute(title=escape(_title(manifests)), series_styles=styles, body="\n".join(body))


def _label(manifest: dict[str, Any], width: int | None) -> str:
    config = manifest["config"]
    options = next(iter(config["widths"].values()))["options"]
    shown = {"n": "n", "m": "m", "draft_layers": "Ls", "schedule": "schedule"}
    parts = [config["method"].replace(AR, "AR")]
    parts += [
        f"{text}={options[name]}"
        for name, text in shown.items()
        if options.get(name) is not None and options[name] != "pre-step"
    ]
    parts += [f"W={width}"] if width is not None else []
    parts += ["(untrained)"] if options.get("untrained") else []
    return " ".join(parts)


def _title(manifests: Sequence[dict[str, Any]]) -> str:
    targets = dict.fromkeys(_target(manifest) for manifest in manifests)
    return f"Speculative decoding on {', '.join(targets)}"


def _target(manifest: dict[str, Any]) -> str:
    target = manifest["config"]["target"]
    return str(target.get("target") or target.get("name"))


def _header(arms: Sequence[Arm], manifests: Sequence[dict[str, Any]]) -> str:
    lines = [f"<h1>{escape(_title(manifests))}</h1>"]
    for manifest in manifests:
        config, code = manifest["config"], manifest.get("code", {})
        machine = manifest.get("machine", {})
        about = [
            time_of(config),
            f"{config['dtype']}",
            f"at most {config['max_new_tokens']} tokens",
            f"turns: {config['turns']}",
            f"seed {config['seed']}",
            f"commit {str(code.get('commit'))[:12]}{' (with changes)' if code.get('dirty') else ''}",
            f"{machine.get('cpu')}, {machine.get('cores')} cores, {machine.get('torch_threads')} threads",
        ]
        lines.append(
            f'<p class="soft"><b>{escape(manifest["directory"])}</b>: {escape("; ".join(about))}</p>'
        )
    if any(arm.mode == "replay" for arm in arms):
        lines.append(
            '<p class="note">Replayed runs computed their traces along AR\'s stored outputs and have no '
            "times. At T &gt; 0 with drawn proposals their figures are expectations and the coloured text is "
            "one draw.</p>"
        )
    return "\n".join(lines)


def _figures(arms: Sequence[Arm], temperature: float) -> str:
    """One line per arm and benchmark, overall first; columns nobody has a figure for are left out."""
    table = [(arm, line) for arm in arms for line in _lines(arm, temperature)]
    shown = {
        name: title for name, title in FIGURES.items() if any(line[name] is not None for _, line in table)
    }
    body = []
    for arm, line in table:
        overall = line["benchmark"] == OVERALL
        status = "reference" if arm.records[0].method == AR else line["lossless"] or "-"
        bad = "bad" if status in ("mismatch", "unchecked") else ""
        cells = "".join(f"<td>{_number(line, name, status)}</td>" for name in shown)
        body.append(
            f'<tr class="{"overall" if overall else ""}"><td>{escape(arm.name) if overall else ""}</td>'
            f'<td class="text">{TITLES.get(line["benchmark"], escape(line["benchmark"]))}</td>'
            f'<td class="text {bad}">{escape(status)}</td>{cells}'
            f"<td>{line['prompts']}</td><td>{line['tokens']}</td><td>{line['failed'] or ''}</td></tr>"
        )
    head = "".join(f"<th>{title}</th>" for title in shown.values())
    return (
        '<div class="scroll"><table><tr><th>method</th><th class="text">benchmark</th>'
        f'<th class="text">lossless</th>{head}<th>prompts</th><th>tokens</th><th>failed</th></tr>'
        f"{''.join(body)}</table></div>"
    )


def _lines(arm: Arm, temperature: float) -> list[dict[str, Any]]:
    found = rows(arm.at(temperature), arm.baseline)
    return [line for line in found if line["benchmark"] == OVERALL] + [
        line for line in found if line["benchmark"] != OVERALL
    ]


def _number(line: dict[str, Any], name: str, status: str) -> str:
    value, interval = line[name], line[f"{name}_interval"]
    # No speedup without its losslessness status.
    if value is None or (status in ("-", "unchecked") and name in ("S0", "S", "wallclock_speedup")):
        return "-"
    digits = 1 if name == "tok_per_s" else 2
    spread = (
        "" if interval is None else f" <small>[{interval[0]:.{digits}f}, {interval[1]:.{digits}f}]</small>"
    )
    return f"{value:.{digits}f}{spread}"


def _charts(arms: Sequence[Arm], temperature: float) -> list[str]:
    held = [(arm, metrics.completed(arm.at(temperature))) for arm in arms]
    held = [(arm, records) for arm, records in held if records]
    drafting = [(arm, records) for arm, records in held if any(sum(r.steps.depth) for r in records)]
    return [
        _figure("Speedups", "S0, S and measured wall-clock; the dashed line is AR", _speedups(held)),
        _figure(
            "L_acc by prompt",
            "prompts per bin of 0.25",
            charts.histogram([_l_acc(arm, records) for arm, records in drafting], "L_acc", 0.25),
        ),
        _figure(
            "Acceptance by depth",
            "share accepted of the drafts examined as the d-th in a row since the last rejection or round",
            charts.lines(
                [_points(arm, trace.by_depth(records)[:24]) for arm, records in drafting], "depth", 1.0
            ),
        ),
        _figure(
            "Acceptance by position in the answer",
            "blocks of 16 tokens",
            charts.lines(
                [_points(arm, trace.by_position(records)) for arm, records in drafting], "position", 1.0
            ),
        ),
        _figure("Where the time goes", "milliseconds per decoded token, by phase", _phases(held)),
    ]


def _figure(title: str, about: str, chart: str) -> str:
    if not chart:
        return ""
    return f"<figure><figcaption>{title}<span>{about}</span></figcaption>{chart}</figure>"


def _speedups(held: Sequence[tuple[Arm, list[Record]]]) -> str:
    groups = []
    for title, figure in (
        ("S0", lambda arm, records: metrics.s0(records)),
        ("S", lambda arm, records: metrics.s(records)),
        ("wall-clock", lambda arm, records: metrics.wallclock_speedup(records, arm.baseline)),
    ):
        points = []
        for row, (arm, records) in enumerate(held):
            estimate = figure(arm, records)
            if estimate is not None:
                points.append((float(row), estimate.pooled, _with_interval(estimate)))
        if points:
            groups.append(Series(title, points))
    return charts.bars([arm.name for arm, _ in held], groups, mark=1.0)


def _with_interval(estimate: Estimate) -> str:
    if estimate.pooled_interval is None:
        return f"{estimate.pooled:.2f}"
    low, high = estimate.pooled_interval
    return f"{estimate.pooled:.2f} [{low:.2f}, {high:.2f}]"


def _l_acc(arm: Arm, records: Sequence[Record]) -> Series:
    bins: Counter[float] = Counter()
    for record in records:
        found = metrics.l_acc([record])
        if found is not None:
            bins[int(found.pooled / 0.25) * 0.25] += 1
    points = [
        (low, float(count), f"{count} prompts, L_acc {low:g} to {low + 0.25:g}")
        for low, count in sorted(bins.items())
    ]
    return Series(arm.name, points)


def _points(arm: Arm, found: Sequence[tuple[int, float, int]]) -> Series:
    return Series(arm.name, [(float(x), y, f"{y:.2f} of {count} at {x}") for x, y, count in found])


def _phases(held: Sequence[tuple[Arm, list[Record]]]) -> str:
    timed = [(arm, records) for arm, records in held if any(record.phases for record in records)]
    names = dict.fromkeys(name for _, records in timed for record in records for name in record.phases)
    parts = []
    for name in names:
        points = []
        for row, (_, records) in enumerate(timed):
            seconds = sum(record.phases.get(name, 0.0) for record in records)
            value = 1000 * seconds / max(1, metrics.tokens(records))
            points.append((float(row), value, f"{value:.1f} ms"))
        parts.append(Series(name, points))
    return charts.stacked([arm.name for arm, _ in timed], parts, "ms")


def _categories(arms: Sequence[Arm], temperature: float) -> str:
    """S and step acceptance by category, where a benchmark has more than one."""
    drafting = [arm for arm in arms if arm.records[0].method != AR]
    pairs = [
        (record.benchmark, record.category)
        for arm in drafting
        for record in arm.at(temperature)
        if record.category
    ]
    many = {name for name, count in Counter(name for name, _ in set(pairs)).items() if count > 1}
    groups = [pair for pair in dict.fromkeys(pairs) if pair[0] in many]
    if not groups:
        return ""
    head = "".join(f"<th>{escape(arm.name)}</th>" for arm in drafting)
    body = []
    for benchmark, category in groups:
        cells = ""
        for arm in drafting:
            mine = [r for r in arm.at(temperature) if (r.benchmark, r.category) == (benchmark, category)]
            s, acceptance = metrics.s(mine), metrics.step_acceptance(mine)
            second = f" <small>{acceptance.pooled:.2f}</small>" if acceptance else ""
            cells += f"<td>{f'{s.pooled:.2f}{second}' if s else '-'}</td>"
        body.append(f"<tr><td>{TITLES.get(benchmark, benchmark)}: {escape(str(category))}</td>{cells}</tr>")
    return (
        "<h3>By category: S, step acceptance beside it</h3>"
        f'<div class="scroll"><table><tr><th>category</th>{head}</tr>{"".join(body)}</table></div>'
    )


def _answers(arms: Sequence[Arm], tokenizer: object, texts: int) -> str:
    drafting = [arm for arm in arms if arm.records and arm.records[0].method != AR]
    shown: dict[tuple[str, str, int, float], list[tuple[Arm, Record]]] = {}
    for arm in drafting:
        for record in arm.records:
            if record.error is None and record.repeat == 0 and record.output_ids:
                key = (record.benchmark, record.prompt_id, record.turn, record.temperature)
                shown.setdefault(key, []).append((arm, record))
    if not shown:
        return ""
    parts = [
        "<h2>Who wrote what</h2>",
        '<p><span class="swatch draft">accepted draft</span>'
        '<span class="swatch correction">correction: a draft was rejected here</span>'
        '<span class="swatch plain">plain: the target, nothing rejected</span></p>',
    ]
    chosen = _spread(list(shown), texts)
    if len(chosen) < len(shown):
        parts.append(f'<p class="note">{len(chosen)} of {len(shown)} prompts; more with --texts.</p>')
    for number, key in enumerate(chosen):
        benchmark, prompt_id, turn, temperature = key
        name = f"{TITLES.get(benchmark, benchmark)} {prompt_id}, turn {turn}, T = {temperature:g}"
        inner = "".join(_answer(arm, record, tokenizer) for arm, record in shown[key])
        parts.append(
            f"<details{' open' if number == 0 else ''}><summary>{escape(name)}</summary>"
            f"<div>{inner}</div></details>"
        )
    return "\n".join(parts)


def _spread(keys: list[Any], count: int) -> list[Any]:
    """``count`` of ``keys`` evenly over their order, so that every benchmark is among them."""
    if len(keys) <= count:
        return keys
    return [keys[i * len(keys) // count] for i in range(count)]


def _answer(arm: Arm, record: Record, tokenizer: object) -> str:
    kinds = trace.origins(record)
    share = kinds.count("draft") / max(1, len(kinds) - 1)
    spans = []
    parts = zip(kinds, trace.pieces(tokenizer, record.output_ids), strict=True)
    for number, (kind, text) in enumerate(parts):
        spans.append(f'<span class="{kind}" title="token {number}: {kind}">{escape(text)}</span>')
    found = metrics.l_acc([record])
    about = f"{100 * share:.0f} % drafted" + (f", L_acc {found.pooled:.2f}" if found else "")
    heading = f'<h3>{escape(arm.name)} <span class="soft">{about}</span></h3>'
    return f'{heading}<div class="answer">{"".join(spans)}</div>'
