"""One table in, text out: markdown, CSV or LaTeX."""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd

from methods.errors import UsageError

SUFFIXES = {"markdown": ".md", "csv": ".csv", "latex": ".tex"}
"""The known formats and the file name's ending for each."""


@dataclass(frozen=True)
class Section:
    """A part of a printed table: strings only, as they appear."""

    heading: str
    frame: pd.DataFrame


@dataclass(frozen=True)
class Table:
    """``data`` is tidy and numeric (one row per cell of the table); ``sections`` are what is printed."""

    title: str
    data: pd.DataFrame
    sections: list[Section]
    notes: list[str] = field(default_factory=list)


def check_format(name: str) -> str:
    """``name`` if it is a known format; ``UsageError`` lists what exists."""
    if name not in SUFFIXES:
        raise UsageError(f"unknown format {name!r}; known: {', '.join(SUFFIXES)}")
    return name


def render(table: Table, format_name: str) -> str:
    """The whole table as text that ends with a newline. CSV holds ``data`` only, without the notes."""
    check_format(format_name)
    if format_name == "csv":
        return table.data.to_csv(index=False, lineterminator="\n")
    return _latex(table) if format_name == "latex" else _markdown(table)


def _markdown(table: Table) -> str:
    blocks = [f"# {table.title}"]
    for section in table.sections:
        blocks += [f"## {section.heading}", section.frame.to_markdown(index=False, disable_numparse=True)]
    blocks.append("\n".join(f"- {note}" for note in table.notes))
    return "\n\n".join(blocks).rstrip() + "\n"


def _latex(table: Table) -> str:
    blocks = [f"% {table.title}"]
    for section in table.sections:
        body = section.frame.to_markdown(index=False, disable_numparse=True, tablefmt="latex_booktabs")
        blocks += [f"% {section.heading}", body]
    blocks.append("\n".join(f"% {note}" for note in table.notes))
    return "\n\n".join(blocks).rstrip() + "\n"
