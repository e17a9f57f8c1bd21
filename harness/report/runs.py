"""How the runs of a page were made: what all share, where they differ, and what follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from html import escape
from typing import Any

from harness.analysis import metrics
from harness.analysis.comparable import machines, time_of, unlike_baselines, unlike_seconds
from harness.analysis.summary import TITLES
from harness.records.record import Record
from harness.report.arms import Arm, label
from harness.report.html import Row, table, words

Manifests = Sequence[dict[str, Any]]


def lead(manifests: Manifests) -> str:
    """What the figures are of, in a line."""
    counts = sorted(
        {sum(found["prompts"] for found in each["config"]["benchmarks"].values()) for each in manifests}
    )
    prompts = f"{counts[0]} prompt{'' if counts == [1] else 's'}"
    if len(counts) > 1:
        prompts = f"{counts[0]} to {counts[-1]} prompts"
    runs = f"{len(manifests)} runs of {prompts} each" if len(manifests) > 1 else f"A run of {prompts}"
    where = "What the headings mean stands below the first table, how the runs were made at the end."
    return f'<p class="soft">{runs}. {where}</p>'


def notes(arms: Sequence[Arm], manifests: Manifests, temperatures: Sequence[float]) -> str:
    """What a reader must know before the figures."""
    why = unlike_seconds(manifests)
    states = [] if why else [(t, found) for t in temperatures if (found := _states(arms, t))]
    lines = [f"Seconds of these runs do not compare: {why}."] if why else []
    lines += [
        f"Seconds of these runs do not compare at T = {temperature:g}: {found}. Compare wall-clock speedups, "
        "each against AR of its own run."
        for temperature, found in states
    ]
    if any(arm.mode == "replay" for arm in arms):
        lines.append(
            "Replayed runs computed their traces along AR's stored outputs and have no times. At T > 0 with "
            "drawn proposals their figures are expectations and the coloured text is one draw."
        )
    return "\n".join(f'<p class="note">{escape(line)}</p>' for line in lines)


def _states(arms: Sequence[Arm], temperature: float) -> str | None:
    """``unlike_baselines`` on the prompts that AR decoded in all runs."""
    names: dict[str, list[str]] = {}
    beside: dict[str, list[Record]] = {}
    for arm in arms:
        own = [record for record in arm.baseline if record.temperature == temperature]
        if metrics.tok_per_s(own) is not None:
            names.setdefault(arm.run, []).append(arm.name)
            beside[arm.run] = own
    if not beside:
        return None
    shared = reduce(metrics.beside, beside.values())
    return unlike_baselines(
        (" and ".join(names[run]), metrics.beside(shared, records)) for run, records in beside.items()
    )


def runs(manifests: Manifests) -> str:
    """What all runs share, once, and a table of what they do not."""
    facts = [_facts(manifest) for manifest in manifests]
    shared = {name: text for name, text in facts[0].items() if all(each.get(name) == text for each in facts)}
    differing = [
        name for name in dict.fromkeys(name for each in facts for name in each) if name not in shared
    ]
    parts = ["<h2>How the runs were made</h2>"]
    if len(manifests) == 1:
        return "\n".join(
            [*parts, words({"run": manifests[0]["directory"], "method": label(manifests[0])} | shared)]
        )
    body = [
        Row(
            [
                escape(text)
                for text in (each["directory"], label(each), *(known.get(n, "-") for n in differing))
            ]
        )
        for each, known in zip(manifests, facts, strict=True)
    ]
    headings = ["run", "method", *differing]
    return "\n".join([*parts, words(shared), table(headings, body, words=len(headings))])


def _facts(manifest: dict[str, Any]) -> dict[str, str]:
    config, code = manifest["config"], manifest.get("code", {})
    facts = {
        "times": time_of(config),
        "prompts": _prompts(config),
        "turns": str(config["turns"]),
        "new tokens": f"at most {config['max_new_tokens']} an answer",
        "T": ", ".join(f"{temperature:g}" for temperature in config["temperatures"]),
        "sampling": f"top-k {config['top_k']}, top-p {config['top_p']:g}"
        if any(config["temperatures"])
        else "",
        "seed": str(config["seed"]),
        "dtype": str(config["dtype"]),
        "chat template": _template(config["template"]),
        "drafter": _drafter(config),
        "machine": " and ".join(machines(manifest)),
        "commit": f"{str(code.get('commit'))[:12]}{' (with changes)' if code.get('dirty') else ''}",
    }
    return {name: text for name, text in facts.items() if text}


def _prompts(config: dict[str, Any]) -> str:
    """How many of which benchmark, from what kind of source."""
    sets = config["benchmarks"].items()
    return ", ".join(
        f"{found['prompts']} {TITLES.get(name, name)} ({found['source']})" for name, found in sets
    )


def _template(template: dict[str, Any]) -> str:
    name = template["name"] or "the tokenizer's own"
    return f"{name}, thinking" if template["thinking"] else name


def _drafter(config: dict[str, Any]) -> str:
    """The checkpoint of a trained drafter with the start of its hash, or that it is a random one; empty
    without one."""
    facts = next(iter(config["widths"].values()))["facts"]
    if facts.get("untrained"):
        return "random"
    if facts.get("checkpoint") is None:
        return ""
    return f"{facts['checkpoint']} {str(facts.get('checkpoint_sha256', ''))[:12]}".rstrip()
