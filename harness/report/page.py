"""From runs to the page: sections of tables, charts and coloured answers."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib import resources
from string import Template
from typing import Any

from harness.comparable import machines, time_of, unlike_seconds
from harness.report.answers import answers
from harness.report.arms import Arm
from harness.report.panels import panels
from harness.report.tables import categories, figures
from harness.summary import TITLES


def render(arms: Sequence[Arm], manifests: Sequence[dict[str, Any]], tokenizer: object, texts: int) -> str:
    """The whole page. ``texts`` answers are shown token by token; ``tokenizer`` None shows ids."""
    temperatures = sorted({record.temperature for arm in arms for record in arm.records})
    body = [_header(arms, manifests)]
    for temperature in temperatures:
        body.append(f"<h2>Figures at T = {temperature:g}</h2>")
        body.append(figures(arms, temperature))
        body.append(panels(arms, temperature))
        body.append(categories(arms, temperature))
    body.append(answers(arms, tokenizer, texts))
    styles = "\n".join(
        f".{letter}{i} {{ {what}: var(--c{i}); }}"
        for i in range(8)
        for letter, what in (("c", "fill"), ("s", "stroke"), ("b", "background"))
    )
    template = Template(resources.files("harness.report").joinpath("template.html").read_text("utf-8"))
    return template.substitute(title=escape(_title(manifests)), series_styles=styles, body="\n".join(body))


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
        drawn = any(config["temperatures"])
        about = [
            time_of(config),
            f"{config['dtype']}",
            f"at most {config['max_new_tokens']} tokens",
            f"turns: {config['turns']}",
            f"prompts: {_prompts(config)}",
            f"chat template: {_template(config['template'])}",
            *_drafters(config),
            f"seed {config['seed']}",
            *([f"top-k {config['top_k']}, top-p {config['top_p']:g}"] if drawn else []),
            f"commit {str(code.get('commit'))[:12]}{' (with changes)' if code.get('dirty') else ''}",
            " and ".join(machines(manifest)),
        ]
        lines.append(
            f'<p class="soft"><b>{escape(manifest["directory"])}</b>: {escape("; ".join(about))}</p>'
        )
    why = unlike_seconds(manifests)
    if why is not None:
        lines.append(f'<p class="note">Seconds of these runs do not compare: {escape(why)}.</p>')
    if any(arm.mode == "replay" for arm in arms):
        lines.append(
            '<p class="note">Replayed runs computed their traces along AR\'s stored outputs and have no '
            "times. At T &gt; 0 with drawn proposals their figures are expectations and the coloured text is "
            "one draw.</p>"
        )
    return "\n".join(lines)


def _prompts(config: dict[str, Any]) -> str:
    """How many of which benchmark, from what kind of source."""
    sets = config["benchmarks"].items()
    return ", ".join(
        f"{found['prompts']} {TITLES.get(name, name)} ({found['source']})" for name, found in sets
    )


def _template(template: dict[str, Any]) -> str:
    name = template["name"] or "the tokenizer's own"
    return f"{name}, thinking" if template["thinking"] else name


def _drafters(config: dict[str, Any]) -> list[str]:
    """The checkpoint of a trained drafter with the start of its hash, or that it is a random one."""
    facts = next(iter(config["widths"].values()))["facts"]
    if facts.get("untrained"):
        return ["drafter: random"]
    if facts.get("checkpoint") is None:
        return []
    digest = str(facts.get("checkpoint_sha256", ""))[:12]
    return [f"drafter: {facts['checkpoint']} {digest}".rstrip()]
