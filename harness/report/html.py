"""A table that is read on wide and on narrow screens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Row:
    """Cells as HTML, and the row's class."""

    cells: Sequence[str]
    css: str = ""


def table(headings: Sequence[str], rows: Iterable[Row], words: int = 1) -> str:
    """``headings`` are text; the first ``words`` columns are words, the others figures. On a narrow screen
    a row is a card, and every cell says its heading."""
    head = "".join(f"<th{_text(i < words)}>{escape(each)}</th>" for i, each in enumerate(headings))
    body = "".join(
        f'<tr class="{row.css}">'
        + "".join(
            f'<td{_text(i < words)} data-label="{escape(heading)}"><span>{cell}</span></td>'
            for i, (heading, cell) in enumerate(zip(headings, row.cells, strict=True))
        )
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll"><table class="cards"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def words(meanings: Mapping[str, str]) -> str:
    """Words, and what they mean: both text."""
    entries = "".join(f"<dt>{escape(word)}</dt><dd>{escape(is_)}</dd>" for word, is_ in meanings.items())
    return f'<dl class="words">{entries}</dl>'


def _text(is_text: bool) -> str:
    return ' class="text"' if is_text else ""
