"""What a page shows of a trace: who produced each token, and where drafts are accepted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

from harness.records.record import Record

Origin = Literal["draft", "correction", "plain"]
"""``draft``: an accepted draft; ``correction``: the target's own token where a draft was rejected;
``plain``: the target's own token where nothing was (prefill, AR, behind a draft accepted whole)."""


def origins(record: Record) -> list[Origin]:
    """Who produced each of ``record.output_ids``."""
    steps = record.steps
    found: list[Origin] = ["plain"] if record.output_ids else []
    for accepted, examined, emitted in zip(steps.accepted, steps.depth, steps.emitted, strict=True):
        own: Origin = "correction" if examined > accepted else "plain"
        drafts: list[Origin] = ["draft"] * min(accepted, emitted)
        found += [*drafts, *[own] * (emitted - len(drafts))]
    return found


def by_depth(records: Sequence[Record]) -> list[tuple[int, float, int]]:
    """(depth, acceptance there, decisions): the share of accepted drafts among those examined as the
    depth-th in a row. A round starts at 1; a pipeline goes on until it is flushed."""
    examined: dict[int, int] = defaultdict(int)
    accepted: dict[int, int] = defaultdict(int)
    for record in records:
        run = 0
        for kept, depth in zip(record.steps.accepted, record.steps.depth, strict=True):
            start = run if record.stages > 1 else 0
            for position in range(1, depth + 1):
                examined[start + position] += 1
                accepted[start + position] += position <= kept
            run = start + kept if kept == depth else 0
    return [(depth, accepted[depth] / count, count) for depth, count in sorted(examined.items())]


def by_position(records: Sequence[Record], width: int = 16) -> list[tuple[int, float, int]]:
    """(first position, acceptance, decisions) over ``width`` positions of the answer each; positions
    count from 1 after the prefill token. Exact probabilities where a record has them."""
    total: dict[int, float] = defaultdict(float)
    count: dict[int, int] = defaultdict(int)
    for record in records:
        for position, chance in _decisions(record):
            total[position // width] += chance
            count[position // width] += 1
    return [(block * width + 1, total[block] / count[block], count[block]) for block in sorted(count)]


def _decisions(record: Record) -> list[tuple[int, float]]:
    if record.acceptance is not None:
        return [(i, chance) for i, chance in enumerate(record.acceptance) if chance is not None]
    found, done = [], 0
    steps = record.steps
    for kept, depth, emitted in zip(steps.accepted, steps.depth, steps.emitted, strict=True):
        found += [(done + i, float(i < kept)) for i in range(depth)]
        done += emitted
    return found


def pieces(tokenizer: object, ids: Sequence[int]) -> list[str]:
    """The text each token adds. Bytes of a character that is not complete yet belong to the token
    that completes it."""
    decode = getattr(tokenizer, "decode", None)
    if decode is None:
        return [f"{token} " for token in ids]
    parts, shown, window = [], "", 0
    for end in range(1, len(ids) + 1):
        text = decode(list(ids[window:end]), skip_special_tokens=False)
        if text.endswith("\ufffd") and end < len(ids):
            parts.append("")
            continue
        parts.append(text[len(shown) :])
        # A short window keeps long answers linear; its first token gives the next its context.
        window = end - 1
        shown = decode(list(ids[window:end]), skip_special_tokens=False)
    return parts
