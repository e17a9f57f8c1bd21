"""Rows that ``--method NAME:option=VALUE,...`` adds to a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.cli.options import parse_pairs, typed
from methods import registry
from methods.drafters.source import HUB, resolve
from methods.errors import UsageError
from paper_tables.plan import Option, Row, Spec

TRAINED = ("eagle3", "ppsd", "spd")
"""Built-in methods whose drafter is trained."""
_LABEL = "label"


def with_added(spec: Spec, texts: Sequence[str], untrained: bool, check: bool) -> list[Row]:
    """The rows of ``spec`` and those of ``texts``; random drafters, marked, where ``untrained``.

    Raises ``UsageError`` for what names no method or no option of it, for two rows with one label, and if
    ``check`` for a local checkpoint that is not there.
    """
    rows = list(spec.rows)
    for text in dict.fromkeys(texts):
        row, named = _row(text, spec.width, check)
        if untrained and "checkpoint" in dict(row.options):
            raise UsageError(f"--method {text!r} names a checkpoint, and --untrained is for random drafters")
        if not named and any(row.slug == other.slug for other in rows):
            continue
        if any(row.label == other.label for other in rows):
            raise UsageError(
                f"two rows are called {row.label!r}; tell them apart: --method {text},label=TEXT"
            )
        rows.append(row)
    return [_untrained(row) for row in rows] if untrained else rows


def _row(text: str, width: int, check: bool) -> tuple[Row, bool]:
    """The row of ``text`` at draft width ``width`` if its method knows widths, and whether it was given
    its label."""
    name, colon, rest = text.partition(":")
    registry.get(name)
    given = parse_pairs(_pairs(text, rest)) if colon else {}
    label = given.pop(_LABEL, None)
    if label is not None and (not label.strip() or not label.isprintable() or "|" in label):
        raise UsageError(f"a row's label is printable text without '|', got {label!r}")
    values = typed(name, given)
    registry.get(name).Options(**values)  # refuses what it can
    if check and name in TRAINED and "checkpoint" in given and not given["checkpoint"].startswith(HUB):
        resolve(given["checkpoint"])
    options: dict[str, Option] = {
        key: value if isinstance(value := values[key], bool | int) else told for key, told in given.items()
    }
    row = Row.of(label or " ".join([name, *map(_told, options.items())]), name, **options)
    if width == 1 or "width" in options:
        return row, label is not None
    knows_widths = "width" in registry.option_names(name)
    if label is None:
        row = replace(row, label=f"{row.label} W={width if knows_widths else 1}")
    return (row.with_options("", width=width) if knows_widths else row), label is not None


def _pairs(text: str, rest: str) -> list[str]:
    """The parts of ``option=VALUE,...``; one without "=" belongs to the value before it, a list."""
    pairs: list[str] = []
    for part in rest.split(","):
        if "=" in part:
            pairs.append(part)
        elif pairs:
            pairs[-1] += f",{part}"
        else:
            raise UsageError(f"--method {text!r}: expected NAME or NAME:option=VALUE,option=VALUE,...")
    return pairs


def _told(option: tuple[str, Option]) -> str:
    name, value = option
    if value is True:
        return name
    return f"{name}={Path(value).name if name == 'checkpoint' and isinstance(value, str) else value}"


def _untrained(row: Row) -> Row:
    return row.with_options(" (untrained)", untrained=True) if row.method in TRAINED else row
