"""From runs to the page: figures first, then charts and coloured answers, then how it was all made."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib import resources
from itertools import chain
from string import Template
from typing import Any

from harness.report.answers import answers
from harness.report.arms import Arm
from harness.report.panels import panels
from harness.report.runs import lead, notes, runs
from harness.report.tables import categories, figures, lines_of, meanings


def render(arms: Sequence[Arm], manifests: Sequence[dict[str, Any]], tokenizer: object, texts: int) -> str:
    """The whole page. ``texts`` answers are shown token by token; ``tokenizer`` None shows ids."""
    temperatures = sorted({record.temperature for arm in arms for record in arm.records})
    title = escape(_title(manifests))
    body = [f"<h1>{title}</h1>", lead(manifests), notes(arms, manifests, temperatures)]
    lines = [lines_of(arms, temperature) for temperature in temperatures]
    for number, temperature in enumerate(temperatures):
        body.append(f"<h2>Figures at T = {temperature:g}</h2>")
        body.append(figures(arms, lines[number]))
        if number == 0:
            body.append(meanings(arms, list(chain.from_iterable(lines))))
        body.append(panels(arms, temperature))
        body.append(categories(arms, temperature))
    body += [answers(arms, tokenizer, texts), runs(manifests)]
    styles = "\n".join(
        f".{letter}{i} {{ {what}: var(--c{i}); }}"
        for i in range(8)
        for letter, what in (("c", "fill"), ("s", "stroke"), ("b", "background"))
    )
    template = Template(resources.files("harness.report").joinpath("template.html").read_text("utf-8"))
    return template.substitute(title=title, series_styles=styles, body="\n".join(body))


def _title(manifests: Sequence[dict[str, Any]]) -> str:
    targets = dict.fromkeys(_target(manifest) for manifest in manifests)
    return f"Speculative decoding on {', '.join(targets)}"


def _target(manifest: dict[str, Any]) -> str:
    target = manifest["config"]["target"]
    return str(target.get("target") or target.get("name"))
