"""Answers token by token, coloured by who produced each."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from harness.analysis import metrics
from harness.analysis.summary import TITLES
from harness.records.record import Record
from harness.report import trace
from harness.report.arms import Arm


def answers(arms: Sequence[Arm], tokenizer: object, texts: int) -> str:
    drafting = [arm for arm in arms if not arm.is_ar]
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
        '<p><span class="origin draft">accepted draft</span>'
        '<span class="origin correction">correction: a draft was rejected here</span>'
        '<span class="origin plain">plain: the target, nothing rejected</span></p>',
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
