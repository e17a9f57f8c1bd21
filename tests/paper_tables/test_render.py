"""Markdown, CSV and LaTeX of one small table."""

import io

import pandas as pd
import pytest

from methods.errors import UsageError
from paper_tables.render import SUFFIXES, Section, Table, render

TABLE = Table(
    title="A table",
    data=pd.DataFrame({"method": ["AR", "SPD"], "S": [1.0, None]}),
    sections=[Section("T = 0", pd.DataFrame({"method": ["AR", "SPD_x"], "S": ["1.00", "- (1)"]}))],
    notes=["(1) no record"],
)


def test_markdown_has_heading_table_and_notes():
    lines = render(TABLE, "markdown").splitlines()
    assert lines[0] == "# A table"
    assert "## T = 0" in lines
    assert [part.strip() for part in lines[-3].split("|")][1:3] == ["SPD_x", "- (1)"]
    assert lines[-1] == "- (1) no record"


def test_numbers_stay_as_formatted():
    assert "| 1.00 " in render(TABLE, "markdown")


def test_csv_is_the_tidy_data():
    pd.testing.assert_frame_equal(pd.read_csv(io.StringIO(render(TABLE, "csv"))), TABLE.data)


def test_latex_escapes_and_comments():
    text = render(TABLE, "latex")
    assert r"SPD\_x" in text and r"\toprule" in text
    assert text.startswith("% A table") and text.endswith("% (1) no record\n")


@pytest.mark.parametrize("format_name", SUFFIXES)
def test_text_ends_with_one_newline(format_name):
    assert render(TABLE, format_name).endswith("\n") and not render(TABLE, format_name).endswith("\n\n")


def test_unknown_format_names_the_known_ones():
    with pytest.raises(UsageError, match="unknown format 'html'; known: markdown, csv, latex"):
        render(TABLE, "html")
